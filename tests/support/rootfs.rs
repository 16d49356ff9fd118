//! Root file systems and paths.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

/// The agent under test: what `BERTH_AGENT` names, else the release build.
pub fn agent_binary() -> PathBuf {
    release("BERTH_AGENT", "berth-agent")
}

/// The built command `rustjail`.
pub fn rustjail_binary() -> PathBuf {
    release("BERTH_RUSTJAIL", "rustjail")
}

pub(crate) fn release(variable: &str, name: &str) -> PathBuf {
    let path = env::var_os(variable).map_or_else(
        || {
            let target = format!("target/{}-unknown-linux-gnu/release", env::consts::ARCH);
            Path::new(env!("CARGO_MANIFEST_DIR")).join(target).join(name)
        },
        PathBuf::from,
    );
    assert!(path.is_file(), "no {name} at {}: run `make build` first, or set {variable}", path.display());
    path
}

/// A new directory under the temporary one, unique to this process; the caller removes it.
pub fn scratch_dir(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let unique = format!("berth-{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = env::temp_dir().join(unique);
    fs::create_dir_all(&path).expect("create a scratch directory");
    path
}

/// A directory with busybox and its applets, removed on drop.
#[derive(Debug)]
pub struct Rootfs {
    path: PathBuf,
}

impl Rootfs {
    /// Builds one from the machine's static busybox.
    pub fn busybox() -> Self {
        let path = scratch_dir("rootfs");
        for dir in ["bin", "dev", "etc", "proc", "sys", "tmp", "root", "run"] {
            fs::create_dir(path.join(dir)).expect("create a rootfs directory");
        }
        fs::copy("/bin/busybox", path.join("bin/busybox"))
            .expect("copy /bin/busybox (package busybox-static)");
        let list = Command::new("/bin/busybox").arg("--list").output().expect("run busybox --list");
        for applet in String::from_utf8(list.stdout).expect("applet names").lines() {
            if applet != "busybox" {
                symlink("busybox", path.join("bin").join(applet)).expect("link an applet");
            }
        }
        fs::write(path.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").expect("write passwd");
        Self { path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Rootfs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
