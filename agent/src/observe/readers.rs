//! Those who read the log at its port.
//!
//! ```text
//!   init ---\                          /--> reader 1
//!   worker --> pipe --> the last lines ---> reader 2, slower: loses the oldest lines, and is told how many
//!            (init's)   (RING bytes)   \--> reader 3, come late: begins with the oldest line that is left
//! ```
//!
//! Init holds the pipe, so what a worker had not yet read when it died is still there for the next. Whoever logs
//! never waits: a full pipe costs records, which are counted. A reader may send a line `level debug`, which changes
//! what is logged from then on; it is written down, so that the next worker keeps to it.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fs,
    future::poll_fn,
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    pin::pin,
    rc::Rc,
    task::Poll,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::socket::{Shutdown, shutdown},
    unistd,
};
use slog::{Level, Logger};
use tokio::{io::Interest, sync::Notify, task::yield_now, time::timeout};

use super::{log::Log, record::Record, sink::Sink};
use crate::{config::level, port::Socket, reactor::register, stdio::when_ready};

/// How much of the past a new reader gets, and how far a slow one may fall behind.
const RING: usize = 256 << 10;
/// What is taken from the pipe at once.
const CHUNK: usize = 64 << 10;
/// A reader that takes nothing for so long is gone.
const STALL: Duration = Duration::from_secs(60);
/// The longest line a reader may send.
const COMMAND: usize = 64;
/// How many readers there may be.
pub const READERS: usize = 16;

/// The last lines, and who waits for more.
#[derive(Debug)]
pub struct Readers {
    ring: RefCell<Ring>,
    grew: Notify,
    log: Log,
    /// The level that a reader has set.
    kept: PathBuf,
}

impl Readers {
    /// What `log` and others write into the pipe can be read here, once [`Readers::fill`] runs. `dir` is where the
    /// worker `generation` finds what an earlier one was told.
    pub fn new(log: Log, dir: &Path, generation: u32) -> Rc<Self> {
        let kept = dir.join("log-level");
        if generation == 0 {
            // Of an agent that was here before.
            let _none = fs::remove_file(&kept);
        } else if let Ok(text) = fs::read_to_string(&kept)
            && let Ok(level) = level(&text)
        {
            log.set_level(level);
        }
        Rc::new(Self { ring: RefCell::default(), grew: Notify::new(), log, kept })
    }

    fn set_level(&self, name: &str, level: Level, log: &Logger) {
        self.log.set_level(level);
        slog::info!(log, "a log reader has set the level"; "to" => level.as_str());
        if let Err(error) = fs::write(&self.kept, name) {
            slog::warn!(log, "the level will not outlive this worker";
                "path" => %self.kept.display(), "error" => %error);
        }
    }

    /// Moves lines from `pipe` to the readers for as long as it has a writer.
    pub async fn fill(self: Rc<Self>, pipe: OwnedFd) -> io::Error {
        let pipe = match register(pipe, Interest::READABLE) {
            Ok(pipe) => pipe,
            Err(error) => return error,
        };
        let (mut buffer, mut begun) = (vec![0; CHUNK], Vec::new());
        loop {
            match when_ready(&pipe, Interest::READABLE, |fd| Ok(unistd::read(fd, &mut buffer)?)).await {
                Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
                Ok(length) => {
                    begun.extend_from_slice(buffer.get(..length).unwrap_or_default());
                    let end = begun.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
                    let rest = begun.split_off(end);
                    self.ring.borrow_mut().push(std::mem::replace(&mut begun, rest));
                    self.grew.notify_waiters();
                    yield_now().await;
                }
                Err(error) => return error,
            }
        }
    }

    /// Serves one reader until it is gone.
    pub async fn serve(self: Rc<Self>, socket: Socket, log: Logger) {
        let commands = crate::task::spawn(Rc::clone(&self).obey(Rc::clone(&socket), log));
        let _gone = self.tell(&socket).await;
        // What it had sent before it left is still obeyed; then there is nothing more to read.
        let _gone = shutdown(socket.as_raw_fd(), Shutdown::Both);
        let _ended = commands.await;
    }

    async fn tell(&self, socket: &Socket) -> io::Result<()> {
        let mut next = 0;
        loop {
            // Made before the look, so that no line between look and wait is missed.
            let grew = self.grew.notified();
            let Some(chunk) = self.ring.borrow().from(next) else {
                if !until_grown_or_gone(socket, grew).await? {
                    return Ok(());
                }
                continue;
            };
            if next > 0 && chunk.first > next {
                let message = "log records were dropped: this reader did not read them in time";
                let mut record = Record::new(Level::Warning.as_short_str(), "agent", &message);
                record.field("subsystem", &"log");
                record.field("dropped", &(chunk.first - next));
                write_all(socket, &record.finish()).await?;
            }
            write_all(socket, &chunk.bytes).await?;
            next = chunk.first + chunk.lines;
            yield_now().await;
        }
    }

    async fn obey(self: Rc<Self>, socket: Socket, log: Logger) {
        let (mut line, mut bytes) = (Vec::new(), [0; COMMAND]);
        while let Ok(length @ 1..) =
            when_ready(&socket, Interest::READABLE, |fd| Ok(unistd::read(fd, &mut bytes)?)).await
        {
            for &byte in bytes.get(..length).unwrap_or_default() {
                if byte != b'\n' {
                    line.push(byte);
                    line.truncate(COMMAND);
                    continue;
                }
                match std::str::from_utf8(&line).ok().and_then(|line| line.trim().strip_prefix("level ")) {
                    Some(name) if let Ok(level) = level(name) => self.set_level(name, level, &log),
                    _ => {
                        slog::warn!(log, "a log reader sent what is no command"; "line" => %line.escape_ascii())
                    }
                }
                line.clear();
            }
        }
    }
}

/// A sink into the pipe whose reading end is `pipe`.
pub fn writer(pipe: &OwnedFd, source: &'static str) -> io::Result<Sink> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let end = std::fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    Ok(Sink::new(end.into(), source))
}

/// Lines that came together.
#[derive(Debug, Clone)]
struct Chunk {
    /// The number of the first; the first of all is 1.
    first: u64,
    lines: u64,
    bytes: Rc<[u8]>,
}

#[derive(Debug, Default)]
struct Ring {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    lines: u64,
}

impl Ring {
    fn push(&mut self, bytes: Vec<u8>) {
        let lines = bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
        if lines == 0 {
            return;
        }
        self.bytes += bytes.len();
        self.chunks.push_back(Chunk { first: self.lines + 1, lines, bytes: bytes.into() });
        self.lines += lines;
        while self.bytes > RING
            && let Some(oldest) = self.chunks.pop_front()
        {
            self.bytes -= oldest.bytes.len();
        }
    }

    /// The first chunk that does not begin before line `next`.
    fn from(&self, next: u64) -> Option<Chunk> {
        self.chunks.get(self.chunks.partition_point(|chunk| chunk.first < next)).cloned()
    }
}

/// True when there may be more to tell, false when nobody is there to be told.
async fn until_grown_or_gone(socket: &Socket, grew: impl Future<Output = ()>) -> io::Result<bool> {
    let mut grew = pin!(grew);
    poll_fn(|cx| {
        if grew.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(true));
        }
        // Writability is of no interest with nothing to write; that the peer is gone is.
        while let Poll::Ready(ready) = socket.poll_write_ready(cx) {
            let mut ready = ready?;
            if ready.ready().is_write_closed() {
                return Poll::Ready(Ok(false));
            }
            ready.clear_ready();
        }
        Poll::Pending
    })
    .await
}

async fn write_all(socket: &Socket, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // Tried before it is waited for: readiness that was cleared above comes again only after a full buffer.
        match unistd::write(socket.get_ref(), bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                let ready = timeout(STALL, socket.ready(Interest::WRITABLE)).await;
                ready.map_err(|_elapsed| io::ErrorKind::TimedOut)??.clear_ready();
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
