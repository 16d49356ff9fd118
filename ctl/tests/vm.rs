//! The VM driver against real machines: every way a guest can fail to come up. Needs a kernel, but no agent: set
//! `BERTH_IMAGE_DIR` to a directory with `vmlinux`, or run `make image`; and /bin/busybox of the static kind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use berthctl::{
    cpio::Archive,
    vmm::{Accel, Ending, Error, Machine, Room, Vmm, qemu::Qemu, workdir::WorkDir},
};

fn kernel() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build/image");
    std::env::var_os("BERTH_IMAGE_DIR").map_or(built, PathBuf::from).join("vmlinux")
}

/// A guest whose whole life is `script`.
fn machine(dir: &WorkDir, script: &str) -> Machine {
    let root = dir.join("root");
    for name in ["bin", "proc", "dev"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).expect("busybox-static is installed");
    symlink("busybox", root.join("bin/sh")).unwrap();
    fs::write(root.join("init"), format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();

    let initrd = dir.join("initrd.cpio");
    let mut archive = Archive::after(fs::File::create(&initrd).unwrap(), 0).unwrap();
    for name in ["bin", "proc", "dev", "init"] {
        archive.tree(&root.join(name), Path::new(name)).unwrap();
    }
    archive.finish().unwrap();
    Machine {
        kernel: kernel(),
        initrd,
        memory: 256,
        cpus: 1,
        accel: Accel::Tcg,
        network: Vec::new(),
        append: Vec::new(),
        patience: Duration::from_secs(180),
        room: Room::default(),
        tether: Some(env!("CARGO_BIN_EXE_berthctl").into()),
    }
}

async fn boot(machine: &Machine) -> Error {
    Qemu.boot(machine, &|_| {}).await.expect_err("this guest has no agent")
}

#[tokio::test]
async fn a_panic_is_told_at_once_with_the_console() {
    let dir = WorkDir::new().unwrap();
    let started = Instant::now();
    let machine = machine(&dir, "echo last words; exit 3");
    let error = boot(&machine).await;
    assert!(matches!(error, Error::Ended { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("last words") && text.contains("Kernel panic"), "{text}");
    assert!(started.elapsed() < machine.patience, "an ending is not waited for");
}

#[tokio::test]
async fn a_guest_that_powers_off_is_not_waited_for() {
    let dir = WorkDir::new().unwrap();
    let error = boot(&machine(&dir, "/bin/busybox poweroff -f")).await;
    let Error::Ended { ending, .. } = &error else { panic!("{error}") };
    assert_eq!(*ending, Ending::Shutdown("guest-shutdown".to_owned()));
}

#[tokio::test]
async fn silence_has_an_end_and_leaves_nothing() {
    let dir = WorkDir::new().unwrap();
    let mut machine = machine(&dir, "echo here I am; exec /bin/busybox sleep 1000");
    let mut told = String::new();
    // How long a guest takes to its first word depends on what else the machine does.
    for seconds in [8, 32, 128] {
        machine.patience = Duration::from_secs(seconds);
        let error = boot(&machine).await;
        assert!(matches!(error, Error::Silent { .. }), "{error}");
        told = error.to_string();
        if told.contains("here I am") {
            return;
        }
    }
    panic!("{told}");
}

#[tokio::test]
async fn a_missing_kernel_says_how_to_build_one() {
    let dir = WorkDir::new().unwrap();
    let mut machine = machine(&dir, "");
    machine.kernel = dir.join("vmlinux");
    let text = boot(&machine).await.to_string();
    assert!(text.contains("make image"), "{text}");
}
