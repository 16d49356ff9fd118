//! Waiting for a socket that is not there yet, by inotify: on its directory, or as long as that is missing on the
//! nearest one above it.

use std::{io, os::fd::OwnedFd, path::Path, time::Duration};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::{io::Interest, time::timeout};

use crate::{reactor::register, stdio::when_ready};

/// Room for several events with names.
const EVENTS: usize = 4096;

/// Ends when there is something at `path`, or fails when there is not within `patience`.
pub(super) async fn wait(path: &Path, patience: Duration) -> io::Result<()> {
    timeout(patience, appears(path)).await?
}

async fn appears(path: &Path) -> io::Result<()> {
    loop {
        let nearest = path.ancestors().skip(1).find(|above| above.is_dir()).unwrap_or(Path::new("/"));
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        inotify.add_watch(nearest, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO)?;
        // Looked at once more: it may have come before the watch.
        let closer = path.ancestors().skip(1).find(|above| above.is_dir()) != Some(nearest);
        if path.exists() {
            return Ok(());
        }
        if closer {
            continue;
        }
        let inotify = register(OwnedFd::from(inotify), Interest::READABLE)?;
        let mut events = [0; EVENTS];
        when_ready(&inotify, Interest::READABLE, |fd| Ok(nix::unistd::read(fd, &mut events)?)).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn a_file_is_seen_to_come_in_a_directory_that_came_before_it() {
        let root = std::env::temp_dir().join(format!("berth-arrival-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let path = root.join("a/b/socket");
        let late = wait(&path, Duration::from_millis(1)).await;
        let comes = async {
            for dir in ["a", "a/b"] {
                tokio::task::yield_now().await;
                fs::create_dir(root.join(dir)).unwrap();
            }
            tokio::task::yield_now().await;
            fs::write(root.join("a/b/other"), "").unwrap();
            fs::write(&path, "").unwrap();
        };
        let (seen, ()) = tokio::join!(wait(&path, Duration::from_secs(60)), comes);
        let again = wait(&path, Duration::from_secs(60)).await;
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(seen.is_ok() && again.is_ok());
    }
}
