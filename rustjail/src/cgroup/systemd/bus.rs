//! A connection to systemd: directly, as root may, or by the system bus.
//!
//! ```text
//!   connect -> authenticate (EXTERNAL: the kernel tells who we are) -> [Hello, on a bus] -> calls and signals
//! ```
//! One call is out at a time. Signals that come meanwhile are kept until they are waited for.

use std::{
    collections::VecDeque,
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use super::{
    SystemdError,
    wire::{Call, FIXED, Kind, Message, Value},
};

/// systemd's own socket, which only root may use, and the bus, which asks nothing of anybody else for root.
const SOCKETS: [(&str, bool); 2] = [("/run/systemd/private", false), ("/run/dbus/system_bus_socket", true)];
const TRIED: &str = "/run/systemd/private and /run/dbus/system_bus_socket";

/// How long an answer may take; systemd gives up on a job after 90 s.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most signals kept; those of other people's units are among them.
const MAX_SIGNALS: usize = 1024;

/// An authenticated connection.
#[derive(Debug)]
pub(super) struct Bus {
    stream: UnixStream,
    /// Whether a bus is in between.
    routed: bool,
    serial: u32,
    signals: VecDeque<Message>,
}

impl Bus {
    pub(super) fn connect() -> Result<Self, SystemdError> {
        let mut failed = io::ErrorKind::NotFound.into();
        for (path, routed) in SOCKETS {
            match UnixStream::connect(path) {
                Ok(stream) => return Self::over(stream, routed),
                Err(error) => failed = error,
            }
        }
        Err(SystemdError::Connect { tried: TRIED, source: failed })
    }

    fn over(mut stream: UnixStream, routed: bool) -> Result<Self, SystemdError> {
        let failed = |source| SystemdError::Io { action: "authenticate with", source };
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        // The user id in decimal digits, each of which is sent as its character's code in hexadecimal. All in
        // one, answered in one: systemd 252 forgets a message that comes together with a BEGIN of its own. The
        // passing of descriptors is asked for only because its answer is the last.
        let uid = nix::unistd::geteuid().to_string();
        let uid: String = uid.bytes().map(|digit| format!("{digit:02x}")).collect();
        let request = format!("\0AUTH EXTERNAL {uid}\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n");
        stream.write_all(request.as_bytes()).map_err(failed)?;
        let answer = line(&mut stream).map_err(failed)?;
        if !answer.starts_with("OK ") {
            return Err(SystemdError::Rejected(answer));
        }
        line(&mut stream).map_err(failed)?;
        let mut bus = Self { stream, routed, serial: 0, signals: VecDeque::new() };
        if routed {
            bus.call_bus("Hello", &[])?;
        }
        Ok(bus)
    }

    /// Calls a method of systemd's manager about `unit`.
    pub(super) fn call(
        &mut self,
        member: &'static str,
        unit: &str,
        arguments: &[Value],
    ) -> Result<Message, SystemdError> {
        let call = Call {
            destination: self.routed.then_some("org.freedesktop.systemd1"),
            path: "/org/freedesktop/systemd1",
            interface: "org.freedesktop.systemd1.Manager",
            member,
            arguments,
        };
        self.exchange(&call, member, unit)
    }

    /// Has systemd tell of the jobs that end.
    pub(super) fn subscribe(&mut self) -> Result<(), SystemdError> {
        if self.routed {
            let rule = "type='signal',interface='org.freedesktop.systemd1.Manager',member='JobRemoved'";
            self.call_bus("AddMatch", &[Value::Text(rule.to_owned())])?;
        }
        match self.call("Subscribe", "", &[]) {
            // Nothing is wrong with having done so before.
            Err(SystemdError::Refused { name, .. }) if name.ends_with(".AlreadySubscribed") => Ok(()),
            done => done.map(drop),
        }
    }

    fn call_bus(&mut self, member: &'static str, arguments: &[Value]) -> Result<Message, SystemdError> {
        let name = "org.freedesktop.DBus";
        let call = Call {
            destination: Some(name),
            path: "/org/freedesktop/DBus",
            interface: name,
            member,
            arguments,
        };
        self.exchange(&call, member, name)
    }

    fn exchange(
        &mut self,
        call: &Call<'_>,
        method: &'static str,
        unit: &str,
    ) -> Result<Message, SystemdError> {
        self.serial = self.serial.wrapping_add(1).max(1);
        let bytes = call.to_bytes(self.serial);
        self.stream.write_all(&bytes).map_err(|source| SystemdError::Io { action: "write to", source })?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let message = self.receive(deadline)?;
            match &message.kind {
                Kind::Reply { to } if *to == self.serial => return Ok(message),
                Kind::Error { to, name } if *to == self.serial => {
                    let text = message.arguments().text().unwrap_or_default();
                    let (name, unit) = (name.clone(), unit.to_owned());
                    return Err(SystemdError::Refused { method, unit, name, message: text });
                }
                Kind::Signal { .. } => self.keep(message),
                // An answer to a call that was given up.
                Kind::Reply { .. } | Kind::Error { .. } | Kind::Other => {}
            }
        }
    }

    fn keep(&mut self, signal: Message) {
        if self.signals.len() == MAX_SIGNALS {
            self.signals.pop_front();
        }
        self.signals.push_back(signal);
    }

    /// The next signal called `member`.
    pub(super) fn signal(&mut self, member: &str, deadline: Instant) -> Result<Message, SystemdError> {
        loop {
            let message = match self.signals.pop_front() {
                Some(message) => message,
                None => self.receive(deadline)?,
            };
            if matches!(&message.kind, Kind::Signal { member: of } if of == member) {
                return Ok(message);
            }
        }
    }

    fn receive(&mut self, deadline: Instant) -> Result<Message, SystemdError> {
        let mut head = [0; FIXED];
        self.read(&mut head, deadline)?;
        let length = Message::length(&head).ok_or(SystemdError::Malformed)?;
        let mut bytes = vec![0; length];
        let (first, rest) = bytes.split_at_mut_checked(FIXED).ok_or(SystemdError::Malformed)?;
        first.copy_from_slice(&head);
        self.read(rest, deadline)?;
        Message::parse(&bytes).ok_or(SystemdError::Malformed)
    }

    fn read(&mut self, buffer: &mut [u8], deadline: Instant) -> Result<(), SystemdError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(SystemdError::Timeout(PATIENCE));
        }
        let read = self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read_exact(buffer));
        read.map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => SystemdError::Timeout(PATIENCE),
            _ => SystemdError::Io { action: "read from", source },
        })
    }

    /// When an answer to what is asked now is overdue.
    pub(super) fn deadline() -> Instant {
        Instant::now() + PATIENCE
    }
}

/// A line of the authentication, read byte by byte because messages follow it.
fn line(stream: &mut UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < 512 {
        stream.read_exact(&mut byte)?;
        match byte {
            [b'\n'] => return Ok(String::from_utf8_lossy(&line).trim_end().to_owned()),
            [byte] => line.push(byte),
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}
