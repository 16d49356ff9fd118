//! Looking at what is in a pipe without taking it.
//!
//! `tee(2)` duplicates a pipe's buffers into a scratch pipe, and the bytes are copied out of that; nothing moves
//! in the stream itself. Taking is `splice(2)` to /dev/null, which frees the buffers without a copy. A scratch
//! pipe is empty between calls and serves one call at a time; one is kept for the next, more are made while
//! several streams are looked at.
//!
//! That `tee` duplicated nothing is the end of the stream only if no writer is left: it says so too of a pipe
//! whose one buffer is empty. A failed write leaves such a buffer behind (Linux before 6.14), and so does, for
//! as long as it takes, a sendfile(2) that will find its file at an end (before 6.5).

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Mutex,
};

use nix::{fcntl::OFlag, poll::PollFlags};
use rustjail::sys::pipe::{set_size, splice, tee};

use super::{MAX_READ, state};

/// What looks are made with; all streams share it.
#[derive(Debug)]
pub struct Peekers(Mutex<Option<Peeker>>);

impl Peekers {
    /// One is enough for a whole agent.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Mutex::new(Some(Peeker::new()?))))
    }

    /// Copies up to `len` bytes from the front of `pipe`; empty at its end, `WouldBlock` while it is empty
    /// but has writers.
    pub fn look(&self, pipe: BorrowedFd<'_>, len: usize) -> io::Result<Vec<u8>> {
        self.with(|peeker| peeker.look(pipe, len))
    }

    /// Removes up to `len` bytes from the front of `pipe`. Fewer are there only if the workload itself opened
    /// the reading end and took some.
    pub fn take(&self, pipe: BorrowedFd<'_>, len: usize) -> io::Result<()> {
        self.with(|peeker| peeker.take(pipe, len))
    }

    fn with<T>(&self, work: impl FnOnce(&Peeker) -> io::Result<T>) -> io::Result<T> {
        let kept = self.0.lock().ok().and_then(|mut kept| kept.take());
        let peeker = kept.map_or_else(Peeker::new, Ok)?;
        let outcome = work(&peeker);
        if let Ok(mut kept) = self.0.lock() {
            *kept = Some(peeker);
        }
        outcome
    }
}

/// A scratch pipe and the sink.
#[derive(Debug)]
struct Peeker {
    scratch_out: File,
    scratch_in: OwnedFd,
    null: File,
}

impl Peeker {
    fn new() -> io::Result<Self> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // Without it (no CAP_SYS_RESOURCE) a look returns at most 64 KiB, which is correct too.
        let _refused = set_size(write.as_fd(), MAX_READ);
        let null = File::options().write(true).open("/dev/null")?;
        Ok(Self { scratch_out: File::from(read), scratch_in: write, null })
    }

    fn look(&self, pipe: BorrowedFd<'_>, len: usize) -> io::Result<Vec<u8>> {
        let len = len.clamp(1, MAX_READ);
        let seen = match tee(pipe, self.scratch_in.as_fd(), len)? {
            // Asked again, because its last writer may have written and gone in between.
            0 if state(pipe, PollFlags::POLLIN)?.contains(PollFlags::POLLHUP) => {
                tee(pipe, self.scratch_in.as_fd(), len)?
            }
            0 => return Err(io::ErrorKind::WouldBlock.into()),
            seen => seen,
        };
        let mut data = vec![0; seen];
        // A workload may have put its end into packet mode (O_DIRECT): then one read is one packet.
        (&self.scratch_out).read_exact(&mut data).inspect_err(|_| self.drain())?;
        Ok(data)
    }

    fn take(&self, pipe: BorrowedFd<'_>, mut len: usize) -> io::Result<()> {
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

    use super::Peekers;
    use crate::stdio::Pipe;

    #[test]
    fn looking_takes_nothing_and_taking_takes_exactly() {
        let peeker = Peekers::new().unwrap();
        let pipe = Pipe::output(64 << 10).unwrap();
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
        let peeker = Peekers::new().unwrap();
        let pipe = Pipe::output(1 << 20).unwrap();
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
