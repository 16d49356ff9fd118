//! What a kernel leaves to process 1: the file systems everybody expects, a name, a loopback.
//!
//! Every step is tried and none is needed: a root file system may bring some of it along, and a guest that lacks a
//! part is more use than one that does not start. What fails is handed back to be told.

use std::{
    fs, io,
    os::fd::AsFd,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use nix::{
    mount::MsFlags,
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        statfs::{FsType, TMPFS_MAGIC, statfs},
    },
    unistd::{chroot, fchdir, sethostname, setsid},
};

use rustjail::sys::{mount as tree, net};

use super::{
    cgroups,
    mounts::{BootError, Result, directory, mount_once},
};

const QUIET: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// Type, place, flags and options, in the order of mounting.
const MOUNTS: [(&str, &str, MsFlags, &str); 6] = [
    ("proc", "/proc", QUIET, ""),
    ("sysfs", "/sys", QUIET, ""),
    ("devtmpfs", "/dev", MsFlags::MS_NOSUID, "mode=755"),
    // 5 is the group "tty" everywhere. Since 4.7 every mount of devpts is an instance of its own.
    ("devpts", "/dev/pts", MsFlags::MS_NOSUID.union(MsFlags::MS_NOEXEC), "gid=5,mode=620,ptmxmode=666"),
    ("tmpfs", "/dev/shm", QUIET, "mode=1777"),
    ("tmpfs", "/run", MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV), "mode=755"),
];

const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    ("pts/ptmx", "/dev/ptmx"),
];

/// RAMFS_MAGIC of `linux/magic.h`: an initramfs when no tmpfs is configured for it.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

/// Makes an initramfs a mount that pivot_root(2) can leave, as containers do. The kernel's own root mount has no
/// parent and is refused with EINVAL, so a copy of it is put on top and becomes our root.
fn root() -> Result<()> {
    let call = |source: io::Error| BootError::Call {
        action: "put the root file system on a mount of its own",
        source,
    };
    let kind = statfs("/").map_err(|errno| call(errno.into()))?.filesystem_type();
    if kind != TMPFS_MAGIC && kind != RAMFS_MAGIC {
        return Ok(());
    }
    let old = fs::File::open("/").map_err(call)?;
    let copy = tree::clone_tree(old.as_fd(), false).map_err(call)?;
    tree::attach(copy.as_fd(), old.as_fd()).map_err(call)?;
    fchdir(&copy).and_then(|()| chroot(".")).map_err(|errno| call(errno.into()))
}

/// Mounts what a Linux process may expect, control groups excepted. `fresh` is a kernel that has just started us.
pub fn file_systems(fresh: bool) -> Vec<BootError> {
    let root = if fresh { root() } else { Ok(()) };
    let mounts =
        MOUNTS.iter().map(|&(kind, target, flags, options)| mount_once(kind, target, flags, options));
    let mut results = vec![root];
    results.extend(mounts);
    results.extend(LINKS.iter().map(|(target, link)| link_once(target, link)));
    results.push(world_writable("/tmp"));
    results.into_iter().filter_map(Result::err).collect()
}

/// Control groups, a host name, the loopback, a session, and room for descriptors.
pub fn environment(cgroup_v1: bool) -> Vec<BootError> {
    let results = [cgroups::mount(cgroup_v1), hostname(), loopback(), session(), descriptors(1 << 20)];
    results.into_iter().filter_map(Result::err).collect()
}

/// Raises the soft limit of open files as far as the hard limit and `hard` permit.
pub fn descriptors(hard: u64) -> Result<()> {
    /// Enough for the store and as many connections; inherited by containers whose specification has no limit.
    const SOFT: u64 = 65_536;
    let call = |errno: nix::Error| BootError::Call { action: "raise RLIMIT_NOFILE", source: errno.into() };
    let (_, inherited) = getrlimit(Resource::RLIMIT_NOFILE).map_err(call)?;
    let hard = hard.max(inherited);
    setrlimit(Resource::RLIMIT_NOFILE, SOFT.min(hard), hard)
        .or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, SOFT.min(inherited), inherited))
        .map_err(call)
}

fn link_once(target: &str, link: &str) -> Result<()> {
    match symlink(target, link) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(BootError::Path { action: "create", path: link.to_owned(), source })
        }
        _ => Ok(()),
    }
}

fn world_writable(path: &str) -> Result<()> {
    if Path::new(path).exists() {
        return Ok(());
    }
    directory(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o1777)).map_err(|source| BootError::Path {
        action: "make world-writable",
        path: path.to_owned(),
        source,
    })
}

fn hostname() -> Result<()> {
    let file = fs::read_to_string("/etc/hostname").unwrap_or_default();
    let name = file.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    sethostname(name.unwrap_or("localhost"))
        .map_err(|errno| BootError::Call { action: "set the host name", source: errno.into() })
}

fn loopback() -> Result<()> {
    net::loopback_up().map_err(|source| BootError::Call { action: "bring up the loopback", source })
}

/// Init leads a session but takes no terminal: the console stays free for a debugging shell to control.
fn session() -> Result<()> {
    match setsid() {
        // It leads one already.
        Ok(_) | Err(nix::Error::EPERM) => Ok(()),
        Err(errno) => Err(BootError::Call { action: "start a session", source: errno.into() }),
    }
}
