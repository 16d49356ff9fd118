//! What an image, or a neighbour that shares a volume, does while a container is made: places exchanged with
//! links back and forth as fast as the kernel does it. A container comes out right, or not at all, and nothing
//! outside of its tree is ever touched.
//!
//! These are whole containers. The same is tried far more often, by the same names, in `src/child/races`, where no
//! process is made for it. One race is about that process itself, and is here alone: `make races` tries it as often.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use caps::{CapSet, Capability};
use serde_json::json;
use support::{Bundle, process, race::Swapper};

/// A directory beside the root file system that nothing may come to be in, and its state.
fn outside(bundle: &Bundle) -> PathBuf {
    let outside = bundle.path.join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "outside\n").unwrap();
    outside
}

#[track_caller]
fn untouched(outside: &Path) {
    let names: Vec<_> = fs::read_dir(outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["file"]);
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "outside\n");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(outside.to_str().unwrap()));
}

/// Places in one container, each of which is a try.
const PLACES: u32 = 100;

/// Has `place` of the image be by turns what it is and a link to `target`.
fn swap_with_link(bundle: &Bundle, place: &str, target: &str) -> Swapper {
    let (place, link) = (bundle.rootfs().join(place), bundle.path.join("rootfs/link"));
    symlink(target, &link).unwrap();
    Swapper::new(place, link)
}

/// CVE-2021-30465, CVE-2024-45310, CVE-2019-18837
#[test]
fn a_mount_destination_swapped_for_a_link_stays_beneath_the_root() {
    let mut bundle = Bundle::new("[ \"$(cat /outside/file 2>/dev/null)\" = '' ]");
    let outside = outside(&bundle);
    fs::create_dir(bundle.path.join("source")).unwrap();
    fs::create_dir(bundle.rootfs().join("volume")).unwrap();
    bundle.without_costly_namespaces();
    for number in 0..PLACES {
        let (destination, kind) = match number % 4 {
            0 => (format!("/volume/made{number}/below"), "bind"),
            1 => (format!("/volume/tmpfs{number}"), "tmpfs"),
            2 => (format!("/volume/other{number}"), "bind"),
            _ => ("/volume".to_owned(), "bind"),
        };
        let options = if kind == "bind" { json!(["bind"]) } else { json!([]) };
        let mount = json!({"destination": destination, "type": kind, "source": "source", "options": options});
        bundle.set("/mounts/-", mount);
    }
    let swapper = swap_with_link(&bundle, "volume", "../../outside");
    bundle.run_often(PLACES);
    drop(swapper);
    untouched(&outside);
}

/// CVE-2026-41579, CVE-2026-47766, CVE-2026-88264
#[test]
fn devices_are_never_made_where_a_swapped_dev_leads() {
    let mut bundle = Bundle::new("true");
    let outside = outside(&bundle);
    bundle.without_costly_namespaces();
    fs::create_dir(bundle.rootfs().join("elsewhere")).unwrap();
    bundle.set("/mounts", json!([{"destination": "/proc", "type": "proc", "source": "proc"}]));
    bundle.set("/linux/maskedPaths", json!([])).set("/linux/readonlyPaths", json!([]));
    let swapper = swap_with_link(&bundle, "dev", "/elsewhere");
    bundle.run_often(1);
    drop(swapper);
    assert_eq!(fs::read_dir(bundle.rootfs().join("elsewhere")).unwrap().count(), 0);
    untouched(&outside);
}

/// CVE-2025-31133, CVE-2025-62161
#[test]
fn what_is_masked_is_masked_whatever_its_cover_was_swapped_for() {
    let mut bundle =
        Bundle::new("for f in /secret/a /secret/b; do [ \"$(stat -c %t:%T $f)\" = 1:3 ] || exit 7; done");
    let outside = outside(&bundle);
    let rootfs = bundle.rootfs();
    fs::create_dir(rootfs.join("secret")).unwrap();
    bundle.without_costly_namespaces();
    for name in ["secret/a", "secret/b", "dev/null.real", "bait"] {
        fs::write(rootfs.join(name), "secret").unwrap();
    }
    bundle.set("/mounts", json!([{"destination": "/proc", "type": "proc", "source": "proc"}]));
    bundle.set("/linux/maskedPaths", json!(["/secret/a", "/secret/b"]));
    // The first container makes the node that is then swapped.
    bundle.run().text();
    let swapper = swap_with_link(&bundle, "dev/null", "/bait");
    bundle.run_often(1);
    drop(swapper);
    untouched(&outside);
}

/// The masked path itself swapped: a cover lands beneath the root or nowhere.
#[test]
fn a_masked_path_swapped_for_a_link_covers_nothing_outside() {
    let mut bundle = Bundle::new("true");
    let outside = outside(&bundle);
    bundle.without_costly_namespaces();
    fs::create_dir(bundle.rootfs().join("secret")).unwrap();
    fs::write(bundle.rootfs().join("secret/file"), "").unwrap();
    let paths: Vec<_> = (0..PLACES).map(|number| ["/secret/file", "/secret"][number as usize % 2]).collect();
    bundle.set("/linux/maskedPaths", json!(paths));
    bundle.set("/linux/readonlyPaths", json!(["/secret"]));
    let swapper = swap_with_link(&bundle, "secret", "../../../../outside");
    bundle.run_often(PLACES);
    drop(swapper);
    untouched(&outside);
}

/// CVE-2019-19921, CVE-2023-27561, CVE-2023-28642. Whoever can exchange `/proc` can do so after it was mounted as
/// well, so a container may find the other one there; but nothing is ever mounted on that.
#[test]
fn proc_is_mounted_on_a_directory_of_that_name_or_not_at_all() {
    let mut bundle = Bundle::new("[ ! -e /fake/1 ]");
    let outside = outside(&bundle);
    bundle.without_costly_namespaces();
    fs::create_dir(bundle.rootfs().join("fake")).unwrap();
    let swapper = swap_with_link(&bundle, "proc", "/fake");
    bundle.run_often(1);
    drop(swapper);
    assert_eq!(fs::read_dir(bundle.rootfs().join("fake")).unwrap().count(), 0);
    untouched(&outside);
}

/// Who exchanges the directory that procfs is on takes procfs with it. What has to be masked in it is masked in it
/// nevertheless, wherever it is found: `version` is a regular file until it is.
#[test]
fn procfs_is_masked_whatever_its_directory_is_called_by_then() {
    let mut bundle = Bundle::new(
        "i=0; while [ $i -lt 100 ]; do i=$((i+1)); \
         if [ -f /proc/version ] || [ -f /decoy/version ] || [ -d /sys/firmware/acpi ]; then exit 7; fi; done",
    );
    bundle.without_costly_namespaces().set("/linux/maskedPaths/-", json!("/proc/version"));
    fs::create_dir(bundle.rootfs().join("decoy")).unwrap();
    let swapper = Swapper::new(bundle.rootfs().join("proc"), bundle.rootfs().join("decoy"));
    let (_ran, refused) = bundle.run_often(1);
    drop(swapper);
    assert_eq!(refused, 0);
}

/// CVE-2025-54867: the root file system's own path swapped.
#[test]
fn a_root_swapped_for_a_link_is_the_one_or_the_other_as_a_whole() {
    let mut bundle = Bundle::new("true");
    bundle.without_costly_namespaces();
    let decoy = Bundle::new("true");
    let link = bundle.path.join("link");
    symlink(decoy.rootfs(), &link).unwrap();
    bundle.set("/hooks", json!({"createContainer": [{"path": "/bin/true"}]}));
    let swapper = Swapper::new(bundle.rootfs(), link.clone());
    bundle.run_often(1);
    drop(swapper);
    // The bundle's Drop looks for a directory there.
    if bundle.rootfs().is_symlink() {
        fs::remove_file(bundle.rootfs()).unwrap();
    }
}

/// CVE-2016-9962: who is root inside looks at every process that comes in, until it is a program of the container.
/// CAP_SYS_PTRACE over the machine's own user namespace is the right to do just that, so it is not among what root
/// has here; over the container's user namespace it is. The runtime has as little, so that nothing is in the way but
/// that its process is not dumpable.
#[test]
fn a_process_that_joins_is_never_open_to_the_container() {
    is_never_open(watched(false));
}

#[test]
fn a_process_that_joins_is_never_open_to_root_of_a_user_namespace() {
    is_never_open(watched(true));
}

fn is_never_open(mut bundle: Bundle) {
    let mut watcher = process("watcher /tmp > /dev/null 2>&1 & echo watching");
    watcher["capabilities"] = bundle.spec["process"]["capabilities"].clone();
    let mut joining = process("");
    joining["args"] = json!(["true"]);
    joining["capabilities"] = watcher["capabilities"].clone();
    bundle.exec_often(&watcher, &joining);
    let said = |file| fs::read_to_string(bundle.rootfs().join("tmp").join(file)).unwrap();
    assert_eq!(said("caught"), "");
    // It looked while there was something to be seen.
    let refused: u32 = said("refused").trim().parse().unwrap();
    eprintln!("{refused} looks at a process that was about to be the container's were refused");
    assert!(refused > 0);
}

/// What shows that the watcher sees what there is to be seen: nsenter does not hide what it makes.
#[test]
fn a_process_that_joins_carelessly_is_caught() {
    let mut bundle = watched(false);
    bundle.set("/process/args", json!(["watcher", "/tmp", "once"]));
    let mut launcher = bundle.spawn();
    let children = format!("/proc/{0}/task/{0}/children", launcher.id());
    let began = Instant::now();
    let code = loop {
        assert!(began.elapsed() < Duration::from_secs(60), "never caught");
        if let Some(status) = launcher.try_wait().unwrap() {
            break status.code();
        }
        if let Some(init) = fs::read_to_string(&children).unwrap_or_default().split_whitespace().next() {
            let mut nsenter = Command::new("setpriv");
            nsenter.args([
                "--bounding-set",
                "-sys_ptrace",
                "nsenter",
                "--mount",
                "--pid",
                "--target",
                init,
                "true",
            ]);
            // Fails until init has made its tree, and when it is gone.
            let _ = nsenter.output().unwrap();
        }
    };
    assert_eq!(code, Some(0));
    assert!(fs::read_to_string(bundle.rootfs().join("tmp/caught")).unwrap() != "");
}

/// A container with a watcher in it, and all privileges but one.
fn watched(user: bool) -> Bundle {
    let mut bundle = Bundle::new("");
    fs::copy(env!("CARGO_BIN_EXE_rustjail-test-watcher"), bundle.rootfs().join("bin/watcher")).unwrap();
    let own = caps::read(None, CapSet::Permitted).unwrap();
    let all: Vec<String> = own
        .iter()
        .filter(|name| user || **name != Capability::CAP_SYS_PTRACE)
        .map(ToString::to_string)
        .collect();
    for set in ["bounding", "effective", "permitted"] {
        bundle.set(&format!("/process/capabilities/{set}"), json!(all));
    }
    if user {
        bundle.in_user_namespace();
    }
    bundle
}
