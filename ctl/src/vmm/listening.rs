//! Whether a helper listens at its Unix socket. The socket's file is there from bind(2) on, and who connects before
//! listen(2) is refused, though a file's appearance is all that can be watched for.

use std::{fs, io, os::unix::ffi::OsStrExt, path::Path};

/// Set while a socket listens (`__SO_ACCEPTCON`, the fourth column of /proc/net/unix).
const LISTENING: u32 = 1 << 16;

/// Whether somebody in the caller's network namespace listens at `socket`, by the name it was bound by.
pub fn listens(socket: &Path) -> io::Result<bool> {
    let sockets = fs::read("/proc/thread-self/net/unix")?;
    Ok(sockets.split(|byte| *byte == b'\n').any(|line| is_listener(line, socket).unwrap_or(false)))
}

fn is_listener(line: &[u8], socket: &Path) -> Option<bool> {
    let before = line.strip_suffix(socket.as_os_str().as_bytes())?;
    let mut columns = str::from_utf8(before.strip_suffix(b" ")?).ok()?.split_ascii_whitespace();
    let flags = u32::from_str_radix(columns.nth(3)?, 16).ok()?;
    // Type, state and inode: what is before the name is not another part of it.
    Some(flags & LISTENING != 0 && columns.count() == 3)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
    use std::os::fd::AsRawFd;

    use super::{super::workdir::WorkDir, *};

    #[test]
    fn a_socket_is_there_before_it_listens() {
        let dir = WorkDir::new().unwrap();
        let path = dir.join("a socket");
        let bound = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(bound.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        assert!(path.exists() && !listens(&path).unwrap());
        listen(&bound, Backlog::new(1).unwrap()).unwrap();
        assert!(listens(&path).unwrap());
        assert!(!listens(Path::new("socket")).unwrap(), "another's name ends like this");
    }
}
