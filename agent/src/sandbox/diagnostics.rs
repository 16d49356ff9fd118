//! What a container left for whoever asks why it ended.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use nix::libc;
use serde::Deserialize;

use super::{Core, Result, blocking, bundle, error::failed_to};

/// Where Kubernetes has the container write it.
const ANNOTATION: &str = "io.kubernetes.container.terminationMessagePath";

/// What Kubernetes takes of it.
const MAX_MESSAGE: u64 = 4096;

/// Where a container's message is, of its configuration.
#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    annotations: HashMap<String, String>,
    #[serde(default)]
    mounts: Vec<MountPoint>,
}

#[derive(Deserialize)]
struct MountPoint {
    destination: PathBuf,
    source: Option<PathBuf>,
}

impl Core {
    /// The head of the termination message; empty where the container has no place for one, or wrote none.
    pub(super) async fn termination_log(&self, id: &str) -> Result<String> {
        let container = self.container(id)?;
        let bundle = self.journal.bundle(&container.id);
        blocking(move || {
            let Some(source) = message_file(&bundle)? else { return Ok(String::new()) };
            let head = head(&source).map_err(failed_to(|| format!("read {}", source.display())))?;
            Ok(String::from_utf8_lossy(&head).into_owned())
        })
        .await
    }
}

/// The guest's file that is mounted where the annotation says.
fn message_file(bundle: &Path) -> Result<Option<PathBuf>> {
    let configuration: Configuration = bundle::parse(bundle)
        .map_err(failed_to(|| format!("read the configuration in {}", bundle.display())))?;
    let Some(path) = configuration.annotations.get(ANNOTATION) else {
        return Ok(None);
    };
    let mut mounts = configuration.mounts.into_iter();
    Ok(mounts.find(|mount| mount.destination == Path::new(path)).and_then(|mount| mount.source))
}

/// Never waits: what a workload may have put there can be a FIFO, a device, or a symbolic link to one.
fn head(path: &Path) -> io::Result<Vec<u8>> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY;
    let file = match File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut head = Vec::with_capacity(MAX_MESSAGE as usize);
    file.take(MAX_MESSAGE).read_to_end(&mut head)?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::head;

    #[test]
    fn only_the_head_of_a_regular_file_is_read() {
        let dir = std::env::temp_dir().join(format!("berth-termination-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("long"), "x".repeat(100_000)).unwrap();
        symlink("/proc/kmsg", dir.join("link")).unwrap();
        mkfifo(&dir.join("fifo"), Mode::S_IRUSR).unwrap();
        let read = |name: &str| head(&dir.join(name));
        let (long, missing, link, fifo) = (read("long"), read("missing"), read("link"), read("fifo"));
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(long.unwrap().len(), 4096);
        assert!(missing.unwrap().is_empty());
        assert!(link.is_err() && fifo.is_err());
    }
}
