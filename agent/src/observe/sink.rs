//! Where log lines go: a descriptor that is written without ever waiting for its reader.
//!
//! A console is also written no faster than [`CONSOLE_RATE`]: it is a serial port or a file on the host, and a
//! workload that makes the agent complain must not fill either.

use std::{
    fs::OpenOptions,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    time::Instant,
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::stat::{SFlag, fstat},
    unistd::write,
};

use super::record::Record;

/// Bytes a second to a console, in the long run.
const CONSOLE_RATE: f64 = 65_536.0;

/// Bytes a console may be sent at once.
const CONSOLE_BURST: f64 = 1_048_576.0;

/// An output for whole lines.
#[derive(Debug)]
pub struct Sink {
    out: OwnedFd,
    source: &'static str,
    /// What a terminal or socket did not take of the last line.
    rest: Vec<u8>,
    dropped: u64,
    allowance: Option<Allowance>,
}

impl Sink {
    /// Standard output, in the name of one role.
    pub fn stdout(source: &'static str) -> io::Result<Self> {
        let stdout = io::stdout();
        // O_NONBLOCK belongs to the open file, which other processes share: pipes and terminals are opened once
        // more for it. A regular file does not block, and a socket is only written when it has room.
        let kind = SFlag::from_bits_truncate(fstat(stdout.as_fd())?.st_mode) & SFlag::S_IFMT;
        let reopened = if kind == SFlag::S_IFIFO || kind == SFlag::S_IFCHR {
            let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
            OpenOptions::new().write(true).custom_flags(flags.bits()).open("/proc/self/fd/1").ok()
        } else {
            None
        };
        let out = match reopened {
            Some(file) => file.into(),
            None => stdout.as_fd().try_clone_to_owned()?,
        };
        let allowance = (kind == SFlag::S_IFCHR).then(Allowance::full);
        Ok(Self { allowance, ..Self::new(out, source) })
    }

    /// Any descriptor.
    pub fn new(out: OwnedFd, source: &'static str) -> Self {
        Self { out, source, rest: Vec::new(), dropped: 0, allowance: None }
    }

    /// Writes one line; false if it is lost, which is counted.
    pub fn write(&mut self, line: &[u8]) -> bool {
        self.write_at(Instant::now(), line)
    }

    fn write_at(&mut self, now: Instant, line: &[u8]) -> bool {
        let allowed = self.allowance.as_mut().is_none_or(|allowance| allowance.take(now, line.len()));
        let written = allowed && self.flush() && self.tell_dropped() && self.attempt(line);
        self.dropped += u64::from(!written);
        written
    }

    /// How many lines were lost and not yet told of.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn flush(&mut self) -> bool {
        let rest = std::mem::take(&mut self.rest);
        if rest.is_empty() || self.attempt(&rest) {
            return self.rest.is_empty();
        }
        self.rest = rest;
        false
    }

    fn tell_dropped(&mut self) -> bool {
        if self.dropped == 0 {
            return true;
        }
        let mut record =
            Record::new("WARN", self.source, &"log records were dropped: nobody read them in time");
        record.field("subsystem", &"log");
        record.field("dropped", &self.dropped);
        let told = self.attempt(&record.finish());
        if told {
            self.dropped = 0;
        }
        told && self.rest.is_empty()
    }

    /// False if not a byte was taken. What is left of a line begun is kept, so that lines stay whole.
    fn attempt(&mut self, line: &[u8]) -> bool {
        let mut ready = [PollFd::new(self.out.as_fd(), PollFlags::POLLOUT)];
        if !matches!(poll(&mut ready, PollTimeout::ZERO), Ok(1)) {
            return false;
        }
        loop {
            match write(&self.out, line) {
                Err(Errno::EINTR) => {}
                Err(_) => return false,
                Ok(written) => {
                    self.rest = line.get(written..).unwrap_or_default().to_vec();
                    return true;
                }
            }
        }
    }
}

/// What may still be written, refilled as time goes by.
#[derive(Debug)]
struct Allowance {
    bytes: f64,
    at: Instant,
}

impl Allowance {
    fn full() -> Self {
        Self { bytes: CONSOLE_BURST, at: Instant::now() }
    }

    fn take(&mut self, now: Instant, length: usize) -> bool {
        let refilled = self.bytes + now.duration_since(self.at).as_secs_f64() * CONSOLE_RATE;
        (self.bytes, self.at) = (refilled.min(CONSOLE_BURST), now);
        let enough = self.bytes >= length as f64;
        if enough {
            self.bytes -= length as f64;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::fd::OwnedFd, time::Duration};

    use super::*;

    fn lines(reader: &mut impl Read) -> Vec<serde_json::Value> {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn record(number: u32) -> Vec<u8> {
        Record::new("INFO", "test", &number).finish()
    }

    #[test]
    fn a_reader_who_does_not_read_costs_lines_and_is_told_how_many() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut sink = Sink::new(OwnedFd::from(writer), "test");
        for number in 0..10_000 {
            sink.write(&record(number));
        }
        let dropped = sink.dropped();
        assert!((5_000..10_000).contains(&dropped), "{dropped}");

        let mut drained = vec![0; 1 << 20];
        let taken = reader.read(&mut drained).unwrap();
        let before = drained[..taken].split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count();
        assert_eq!(before as u64, 10_000 - dropped);

        sink.write(&record(10_000));
        assert_eq!(sink.dropped(), 0);
        drop(sink);
        let after = lines(&mut reader);
        assert_eq!(after.len(), 2);
        assert_eq!(after[0]["dropped"], dropped.to_string());
        assert_eq!(after[1]["msg"], "10000");
    }

    #[test]
    fn a_line_cut_by_a_socket_is_finished_before_the_next() {
        let (mut reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut sink = Sink::new(OwnedFd::from(writer), "test");
        let collector = std::thread::spawn(move || lines(&mut reader));
        for number in 0..20_000 {
            sink.write(&record(number));
        }
        while sink.dropped() > 0 {
            sink.write(&record(0));
        }
        drop(sink);
        assert!(!collector.join().unwrap().is_empty());
    }

    #[test]
    fn a_console_is_not_flooded() {
        let nowhere = OpenOptions::new().write(true).open("/dev/null").unwrap();
        let mut sink = Sink::new(nowhere.into(), "test");
        let begin = Instant::now();
        sink.allowance = Some(Allowance { bytes: CONSOLE_BURST, at: begin });
        let line = record(1);
        let (burst, second) = (CONSOLE_BURST as usize / line.len(), CONSOLE_RATE as usize / line.len());

        assert!((0..burst).all(|_| sink.write_at(begin, &line)));
        assert!((0..burst).all(|_| !sink.write_at(begin, &line)));
        assert_eq!(sink.dropped(), burst as u64);
        let later = begin + Duration::from_secs(1);
        assert!((0..second).all(|_| sink.write_at(later, &line)));
        assert_eq!(sink.dropped(), 0);
        assert!((0..2).any(|_| !sink.write_at(later, &line)));
    }
}
