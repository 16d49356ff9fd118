//! Lookups that do not leave a directory.
//!
//! openat2(2) gives a lookup up with EAGAIN that went through `..` while anything at all was renamed or mounted in
//! the system: it cannot tell any more that the way still led below where it began. Somebody else's rename is no
//! reason to refuse a container, so the lookup is begun anew; who renames without end makes it fail in the end.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
};

/// In a mount that nothing leads to, every one of them fails.
const TRIES: usize = 1000;

/// Opens `path` as `resolve` (RESOLVE_BENEATH or RESOLVE_IN_ROOT, and more) keeps it within `directory`. Close-on-exec.
pub fn open_within(
    directory: impl AsFd,
    path: &Path,
    flags: OFlag,
    resolve: ResolveFlag,
) -> nix::Result<OwnedFd> {
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
    let mut last = Errno::EAGAIN;
    for _ in 0..TRIES {
        match openat2(&directory, path, how) {
            Err(Errno::EAGAIN) => last = Errno::EAGAIN,
            result => return result,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        os::unix::fs::symlink,
        sync::atomic::{AtomicBool, AtomicUsize, Ordering},
        time::{Duration, Instant},
    };

    use super::*;

    /// The kernel's own answer is shown to be EAGAIN now and then, or this would prove nothing.
    #[test]
    fn a_rename_elsewhere_does_not_make_a_lookup_fail() {
        let base = std::env::temp_dir().join(format!("rustjail-lookup-{}", std::process::id()));
        fs::create_dir_all(base.join("root/var")).unwrap();
        fs::create_dir_all(base.join("root/run")).unwrap();
        fs::create_dir_all(base.join("elsewhere/a")).unwrap();
        symlink("../run", base.join("root/var/run")).unwrap();
        let root = File::open(base.join("root")).unwrap();
        let over = AtomicBool::new(false);
        let given_up = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (a, b) = (base.join("elsewhere/a"), base.join("elsewhere/b"));
                while !over.load(Ordering::Relaxed) {
                    fs::rename(&a, &b).and_then(|()| fs::rename(&b, &a)).unwrap();
                }
            });
            let began = Instant::now();
            let mut found = true;
            while found && given_up.load(Ordering::Relaxed) < 10 && began.elapsed() < Duration::from_secs(60)
            {
                let path = Path::new("/var/run");
                let how = OpenHow::new().flags(OFlag::O_PATH).resolve(ResolveFlag::RESOLVE_IN_ROOT);
                if openat2(&root, path, how).err() == Some(Errno::EAGAIN) {
                    given_up.fetch_add(1, Ordering::Relaxed);
                }
                found = open_within(&root, path, OFlag::O_PATH, ResolveFlag::RESOLVE_IN_ROOT).is_ok();
            }
            over.store(true, Ordering::Relaxed);
            assert!(found);
        });
        fs::remove_dir_all(base).unwrap();
        assert!(given_up.into_inner() > 0);
    }
}
