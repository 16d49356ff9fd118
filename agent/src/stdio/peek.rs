//! Looking at what is in a pipe without taking it.
//!
//! `tee(2)` duplicates a pipe's buffers into one scratch pipe that all streams share, and the bytes are copied
//! out of that; nothing moves in the stream itself. Taking is `splice(2)` to /dev/null, which frees the buffers
//! without a copy. The scratch pipe is empty between calls: everything here is synchronous.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use nix::fcntl::OFlag;
use rustjail::sys::pipe::{set_size, splice, tee};

use super::MAX_READ;

/// The scratch pipe and the sink.
#[derive(Debug)]
pub struct Peeker {
    scratch_out: File,
    scratch_in: OwnedFd,
    null: File,
}

impl Peeker {
    /// One is enough for a whole agent.
    pub fn new() -> io::Result<Self> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // Without it (no CAP_SYS_RESOURCE) a look returns at most 64 KiB, which is correct too.
        let _refused = set_size(write.as_fd(), MAX_READ);
        let null = File::options().write(true).open("/dev/null")?;
        Ok(Self { scratch_out: File::from(read), scratch_in: write, null })
    }

    /// Copies up to `len` bytes from the front of `pipe`; empty at its end, `WouldBlock` while it is empty
    /// but has writers.
    pub fn look(&self, pipe: BorrowedFd<'_>, len: usize) -> io::Result<Vec<u8>> {
        let len = len.clamp(1, MAX_READ);
        let seen = tee(pipe, self.scratch_in.as_fd(), len)?;
        let mut data = vec![0; seen];
        // A workload may have put its end into packet mode (O_DIRECT): then one read is one packet.
        (&self.scratch_out).read_exact(&mut data).inspect_err(|_| self.drain())?;
        Ok(data)
    }

    /// Removes up to `len` bytes from the front of `pipe`. Fewer are there only if the workload itself opened
    /// the reading end and took some.
    pub fn take(&self, pipe: BorrowedFd<'_>, mut len: usize) -> io::Result<()> {
        while len > 0 {
            match splice(pipe, self.null.as_fd(), len) {
                Ok(0) => break,
                Ok(taken) => len = len.saturating_sub(taken),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What a failed look left behind must not show up in another stream.
    fn drain(&self) {
        let mut buffer = [0; 4096];
        while let Ok(1..) = (&self.scratch_out).read(&mut buffer) {}
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::fd::AsFd};

    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    use super::Peeker;
    use crate::stdio::Pipe;

    #[test]
    fn looking_takes_nothing_and_taking_takes_exactly() {
        let peeker = Peeker::new().unwrap();
        let pipe = Pipe::output(None).unwrap();
        let mut writer = std::fs::File::from(pipe.theirs);
        writer.write_all(b"hello, world").unwrap();
        for _ in 0..3 {
            assert_eq!(peeker.look(pipe.ours.as_fd(), 5).unwrap(), b"hello");
        }
        peeker.take(pipe.ours.as_fd(), 7).unwrap();
        assert_eq!(peeker.look(pipe.ours.as_fd(), 1 << 30).unwrap(), b"world");
        peeker.take(pipe.ours.as_fd(), 5).unwrap();
        let empty = peeker.look(pipe.ours.as_fd(), 5).unwrap_err();
        assert_eq!(empty.kind(), std::io::ErrorKind::WouldBlock);
        drop(writer);
        assert!(peeker.look(pipe.ours.as_fd(), 5).unwrap().is_empty());
    }

    #[test]
    fn packets_and_a_full_pipe_come_out_whole() {
        let peeker = Peeker::new().unwrap();
        let pipe = Pipe::output(Some(1 << 20)).unwrap();
        fcntl(&pipe.theirs, FcntlArg::F_SETFL(OFlag::O_DIRECT | OFlag::O_NONBLOCK)).unwrap();
        let mut writer = std::fs::File::from(pipe.theirs);
        let mut written = Vec::new();
        for n in 0..=u8::MAX {
            let packet = vec![n; 1 + usize::from(n) * 7 % 3000];
            match writer.write(&packet) {
                Ok(len) => written.extend_from_slice(&packet[..len]),
                Err(_) => break,
            }
        }
        let mut seen = Vec::new();
        while seen.len() < written.len() {
            let chunk = peeker.look(pipe.ours.as_fd(), 1000).unwrap();
            peeker.take(pipe.ours.as_fd(), chunk.len()).unwrap();
            seen.extend_from_slice(&chunk);
        }
        assert!(seen == written, "{} bytes written, {} seen", written.len(), seen.len());
    }
}
