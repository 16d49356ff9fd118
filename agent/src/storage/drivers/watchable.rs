//! A directory or file of the host whose changes a container sees, though its file system tells the guest
//! nothing: a copy in memory, kept like the original.
//!
//! Where the source's file system has inotify the copy follows events. virtio-fs, 9p and NFS are changed from
//! the outside and say nothing, so there it is looked at every two seconds. Files are replaced by rename and links
//! after what they point to, so the `..data` switch of a Kubernetes volume stays one step.

use std::{
    ffi::CStr,
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat, readlinkat, renameat},
    libc,
    mount::MsFlags,
    sys::{
        inotify::{AddWatchFlags, InitFlags, Inotify},
        stat::{FileStat, Mode, fchmod, fstat, fstatat, futimens, mkdirat},
        statfs::{FUSE_SUPER_MAGIC, FsType, NFS_SUPER_MAGIC, fstatfs},
        time::TimeSpec,
    },
    unistd::{Gid, Uid, UnlinkatFlags, fchown, symlinkat, unlinkat},
};
use tokio::io::{Interest, unix::AsyncFd};

use super::{Result, Steps, Storage, options};
use crate::{
    reactor::register,
    storage::{error::failed_to, place},
};

/// V9FS_MAGIC of `linux/magic.h`.
const V9FS: FsType = FsType(0x0102_1997);
const PERIOD: Duration = Duration::from_secs(2);
/// No name a volume may have begins like this.
const FRESH: &CStr = c"..berth-fresh";

pub(super) fn place(storage: &Storage, steps: &mut Steps) -> Result<()> {
    let path = storage.source_path()?;
    let source = place::open(path).map_err(failed_to(|| format!("look up the source {}", path.display())))?;
    let target = &storage.mount_point;
    if is_directory(&source).map_err(failed_to(|| format!("look at {}", path.display())))? {
        let mut options = options(storage)?;
        options.flags.remove(MsFlags::MS_BIND | MsFlags::MS_REC | MsFlags::MS_RDONLY);
        steps.directory(target)?;
        steps.mount(Some(Path::new("berth-watchable")), target, "tmpfs", &options)?;
    } else {
        steps.file(target)?;
    }
    copy(path, target).map_err(failed_to(|| format!("copy {} to {}", path.display(), target.display())))
}

/// Keeps `target` like `source` until it is dropped. Failures are told and tried again with the next change.
pub(in crate::storage) async fn follow(source: PathBuf, target: PathBuf, log: slog::Logger) {
    let (from, to) = (Arc::<Path>::from(source), Arc::<Path>::from(target));
    let events = crate::task::blocking({
        let from = Arc::clone(&from);
        move || {
            tells(&from)
                .unwrap_or(false)
                .then(|| Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK))
        }
    });
    let events = events.await.ok().flatten().and_then(std::result::Result::ok).map(Arc::new);
    let ready = events.as_ref().and_then(|inotify| {
        let ready = inotify.as_fd().try_clone_to_owned().ok()?;
        register(ready, Interest::READABLE).ok()
    });
    loop {
        // First watched, then copied: a change in between is an event.
        let pass = crate::task::blocking({
            let (from, to, events) = (Arc::clone(&from), Arc::clone(&to), events.clone());
            move || {
                events.map_or(Ok(()), |inotify| watch(&inotify, &from))?;
                copy(&from, &to)
            }
        });
        if let Err(error) = pass.await.flatten() {
            slog::warn!(log, "a watched volume is not up to date"; "source" => %from.display(), "error" => %error);
        }
        match (&ready, &events) {
            (Some(ready), Some(inotify)) => changed(ready, inotify).await,
            _ => tokio::time::sleep(PERIOD).await,
        }
    }
}

/// Waits for events and takes them.
async fn changed(ready: &AsyncFd<OwnedFd>, inotify: &Inotify) {
    if let Ok(mut ready) = ready.readable().await {
        while inotify.read_events().is_ok() {}
        ready.clear_ready();
    }
}

fn tells(source: &Path) -> io::Result<bool> {
    let kind = fstatfs(place::open(source)?)?.filesystem_type();
    Ok(![FUSE_SUPER_MAGIC, NFS_SUPER_MAGIC, V9FS].contains(&kind))
}

/// Watches `source` and every directory in it, each once however often it is asked for; of a file, the directory it is in too, where it is replaced.
fn watch(inotify: &Inotify, source: &Path) -> io::Result<()> {
    let events = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVE
        | AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_DONT_FOLLOW;
    let root = place::open(source)?;
    if !is_directory(&root)? {
        inotify.add_watch(source.parent().unwrap_or(source), events)?;
        return Ok(());
    }
    let mut left = vec![root];
    while let Some(directory) = left.pop() {
        inotify.add_watch(&place::by_descriptor(&directory), events & !AddWatchFlags::IN_DONT_FOLLOW)?;
        for name in place::names(&directory)? {
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            match openat(&directory, name.as_c_str(), flags, Mode::empty()) {
                Ok(inner) => left.push(inner),
                Err(Errno::ENOTDIR | Errno::ENOENT | Errno::ELOOP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}

fn is_directory(fd: &OwnedFd) -> io::Result<bool> {
    Ok(fstat(fd)?.st_mode & libc::S_IFMT == libc::S_IFDIR)
}

/// Makes `target` like `source`.
fn copy(source: &Path, target: &Path) -> io::Result<()> {
    let (from, to) = (place::open(source)?, place::open(target)?);
    if is_directory(&from)? {
        return copy_directory(&from, &to);
    }
    // The container has this very file mounted, so it is rewritten, not replaced.
    let found = fstat(&from)?;
    let mut original = File::open(place::by_descriptor(&from))?;
    let mut copy = std::fs::OpenOptions::new().write(true).truncate(true).open(place::by_descriptor(&to))?;
    io::copy(&mut original, &mut copy)?;
    dress(&copy, &found)
}

fn copy_directory(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    let names = place::names(from)?;
    let (mut links, path) = (Vec::new(), OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC);
    for name in &names {
        let file = match openat(from, name.as_c_str(), path, Mode::empty()) {
            Err(Errno::ENOENT) => continue,
            file => file?,
        };
        let found = fstat(&file)?;
        match found.st_mode & libc::S_IFMT {
            libc::S_IFLNK => links.push((name, readlinkat(&file, c"")?)),
            libc::S_IFDIR => {
                match mkdirat(to, name.as_c_str(), Mode::from_bits_retain(found.st_mode & 0o7777)) {
                    Ok(()) | Err(Errno::EEXIST) => {}
                    Err(errno) => return Err(errno.into()),
                }
                let inner = openat(to, name.as_c_str(), path | OFlag::O_DIRECTORY, Mode::empty())?;
                copy_directory(&file, &inner)?;
                let readable = openat(&inner, c".", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
                dress(&readable, &found)?;
            }
            libc::S_IFREG => copy_file(&file, &found, to, name)?,
            // Sockets and devices of the host mean nothing here.
            _ => {}
        }
    }
    for (name, points_to) in links {
        if readlinkat(to, name.as_c_str()).is_ok_and(|present| present == points_to) {
            continue;
        }
        let _none = unlinkat(to, FRESH, UnlinkatFlags::NoRemoveDir);
        symlinkat(points_to.as_os_str(), to, FRESH)?;
        renameat(to, FRESH, to, name.as_c_str())?;
    }
    for name in place::names(to)?.iter().filter(|name| !names.contains(name)) {
        place::remove(to, name.as_c_str())?;
    }
    Ok(())
}

fn copy_file(file: &OwnedFd, found: &FileStat, to: &OwnedFd, name: &CStr) -> io::Result<()> {
    let present = fstatat(to, name, AtFlags::AT_SYMLINK_NOFOLLOW);
    let looks = |stat: &FileStat| {
        (stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_mode, stat.st_uid, stat.st_gid)
    };
    if present.is_ok_and(|present| looks(&present) == looks(found)) {
        return Ok(());
    }
    let _none = unlinkat(to, FRESH, UnlinkatFlags::NoRemoveDir);
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut fresh = File::from(openat(to, FRESH, flags, Mode::from_bits_retain(0o600))?);
    io::copy(&mut File::open(place::by_descriptor(file))?, &mut fresh)?;
    dress(&fresh, found)?;
    Ok(renameat(to, FRESH, to, name)?)
}

/// Owner, mode and time of the original.
fn dress(copy: &impl AsFd, original: &FileStat) -> io::Result<()> {
    fchown(copy, Some(Uid::from_raw(original.st_uid)), Some(Gid::from_raw(original.st_gid)))?;
    fchmod(copy, Mode::from_bits_retain(original.st_mode & 0o7777))?;
    let (read, written) = (
        TimeSpec::new(original.st_atime, original.st_atime_nsec),
        TimeSpec::new(original.st_mtime, original.st_mtime_nsec),
    );
    Ok(futimens(copy, &read, &written)?)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn a_copy_follows_its_original() {
        let dir = std::env::temp_dir().join(format!("berth-watchable-{}", std::process::id()));
        let (source, target) = (dir.join("source"), dir.join("target"));
        fs::create_dir_all(source.join("..v1/deep")).unwrap();
        fs::create_dir_all(&target).unwrap();
        for n in 0..40 {
            fs::write(source.join(format!("..v1/key{n}")), vec![b'x'; 64 << 10]).unwrap();
        }
        symlink("..v1", source.join("..data")).unwrap();
        symlink("..data/key0", source.join("key0")).unwrap();
        copy(&source, &target).unwrap();
        assert_eq!(fs::read(target.join("key0")).unwrap().len(), 64 << 10);
        assert_eq!(fs::read_dir(target.join("..v1")).unwrap().count(), 41, "more than 16 entries and 1 MiB");

        fs::create_dir(source.join("..v2")).unwrap();
        fs::write(source.join("..v2/key0"), "new").unwrap();
        fs::remove_file(source.join("..data")).unwrap();
        symlink("..v2", source.join("..data")).unwrap();
        fs::remove_dir_all(source.join("..v1")).unwrap();
        copy(&source, &target).unwrap();
        assert_eq!(fs::read(target.join("key0")).unwrap(), b"new");
        assert!(!target.join("..v1").exists() && !target.join("..berth-fresh").exists());

        let (file, inode) = (dir.join("file"), |path: &Path| {
            std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap())
        });
        fs::write(&file, "other").unwrap();
        let before = inode(&file);
        copy(&target.join("..v2/key0"), &file).unwrap();
        assert_eq!((fs::read(&file).unwrap(), inode(&file)), (b"new".to_vec(), before));
        fs::remove_dir_all(dir).unwrap();
    }
}
