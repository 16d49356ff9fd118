//! A route netlink socket: one request at a time, or many changes in one datagram, answered before more is sent.
//!
//! Only the headers and the attributes that Berth uses are read, the rest is passed by as bytes: a newer kernel's
//! attribute cannot make a list fail, and what is to be restored later goes back to the kernel as it came. The
//! kernel answers within the call that asks, so a read waits for nothing; should it ever, [`PATIENCE`] ends it.
//! A list that changed while it was read (`NLM_F_DUMP_INTR`), or that did not fit the socket (ENOBUFS), is read again.

use std::{
    cell::{Cell, RefCell},
    io::{self, IoSlice},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

use netlink_packet_core::{
    Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP,
    NLMSG_OVERRUN,
};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, sendmsg,
        setsockopt, socket, sockopt,
    },
    sys::time::TimeVal,
};
use rustjail::sys::net;

pub(super) mod address;
pub(super) mod link;
mod message;
pub(super) mod neighbour;
pub(super) mod route;

pub(super) use message::Message;
use message::{Attributes, Frame, frames};

/// No answer of the kernel takes as long; a socket that waits for ever would hold every later change up.
const PATIENCE: Duration = Duration::from_secs(10);
/// The kernel fills datagrams of a list up to the reader's buffer, and never beyond 32 KiB; one link with hundreds
/// of virtual functions may be larger.
const BUFFER: usize = 256 << 10;
/// Changes are sent together up to this many bytes: a few hundred routes. The kernel takes a datagram of up to
/// `wmem_default`, 208 KiB.
const BATCH: usize = 32 << 10;
/// How often a list is read that changes under the reader. A table that changes faster than it can be read eight
/// times is reported rather than chased.
const READINGS: usize = 8;

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The kernel refused.
    #[error("{}{}", errno.desc(), explanation(reason))]
    Refused {
        /// Its error.
        errno: Errno,
        /// What it says about it, where it does.
        reason: String,
    },
    /// The socket failed.
    #[error("the netlink socket failed: {0}")]
    Socket(#[from] io::Error),
    /// The kernel's answer is none.
    #[error("the kernel's answer cannot be read: {0}")]
    Malformed(&'static str),
    /// The list never stayed the same long enough.
    #[error("the list changes faster than it can be read")]
    Unsteady,
}

fn explanation(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" ({reason})") }
}

impl NetlinkError {
    /// Whether the kernel refused with `errno`.
    pub(super) fn is(&self, wanted: Errno) -> bool {
        self.errno() == Some(wanted)
    }

    /// The kernel's error, if it refused.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            Self::Socket(_) | Self::Malformed(_) | Self::Unsteady => None,
        }
    }
}

type Result<T> = std::result::Result<T, NetlinkError>;

/// What one answer to a request brought.
enum Answer {
    /// It is complete.
    Done,
    /// It has to be asked for again.
    Again,
}

/// The socket, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    sequence: Cell<u32>,
    /// For one datagram; as large as this, it would else be mapped and given back for each.
    buffer: RefCell<Box<[u8]>>,
}

impl Socket {
    /// Connected to the kernel, so no other process of this network namespace can slip in an answer of its own.
    pub(super) fn open() -> Result<Self> {
        let fd =
            socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)
                .map_err(io::Error::from)?;
        connect(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).map_err(io::Error::from)?;
        net::explain_errors(fd.as_fd())?;
        Self::over(fd)
    }

    fn over(fd: OwnedFd) -> Result<Self> {
        let patience = TimeVal::new(PATIENCE.as_secs().cast_signed(), 0);
        setsockopt(&fd, sockopt::ReceiveTimeout, &patience).map_err(io::Error::from)?;
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Ok(Self { fd, sequence: Cell::new(0), buffer: RefCell::new(buffer) })
    }

    /// Has the kernel change something, and waits for its word that it has.
    pub(super) fn change(&self, message: &Message) -> Result<()> {
        let sequence = self.send(message, NLM_F_REQUEST | NLM_F_ACK)?;
        match self.receive(sequence, &mut |_, _| Ok(()))? {
            Answer::Done => Ok(()),
            Answer::Again => Err(NetlinkError::Unsteady),
        }
    }

    /// Has the kernel make as many of the changes, from the first on, as one datagram holds, in their order, and
    /// answers what became of each; one that is refused keeps it from none of the others. An error says that nothing
    /// is known of any of them. Each must be one that can be made twice; a deletion is then refused with ESRCH.
    pub(super) fn change_each(&self, messages: &[Message]) -> Result<Vec<Result<()>>> {
        let (datagram, count) = self.batch(messages);
        let sent = messages.get(..count).unwrap_or_default();
        let first = self.sequence.get().wrapping_sub(count as u32).wrapping_add(1);
        sendmsg::<()>(self.fd.as_raw_fd(), &[IoSlice::new(&datagram)], &[], MsgFlags::empty(), None)
            .map_err(io::Error::from)?;
        match self.outcomes(first, count) {
            // So many were refused that the answers did not fit the socket.
            Err(NetlinkError::Socket(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.drain();
                Ok(sent.iter().map(|message| self.change(message)).collect())
            }
            outcomes => outcomes,
        }
    }

    /// Has the kernel make all of the changes, in their order and on beyond those it refuses, and tells of each of
    /// these with its place. A socket that fails ends it, and is told of at the first of which nothing is known.
    pub(super) fn change_all(&self, messages: &[Message], mut refused: impl FnMut(usize, NetlinkError)) {
        let mut begun = 0;
        while let Some(rest @ [_, ..]) = messages.get(begun..) {
            let outcomes = match self.change_each(rest) {
                Ok(outcomes) => outcomes,
                Err(error) => return refused(begun, error),
            };
            for outcome in outcomes {
                if let Err(error) = outcome {
                    refused(begun, error);
                }
                begun += 1;
            }
        }
    }

    /// The kernel always answers what it refuses. Of the others only the last asks for its word: the kernel takes
    /// them in turn, so this one stands for all.
    fn batch(&self, messages: &[Message]) -> (Vec<u8>, usize) {
        let mut datagram = Vec::new();
        let mut fitting = messages.iter().peekable();
        let mut count = 0;
        while let Some(message) = fitting.next() {
            count += 1;
            let full = |next: &&Message| datagram.len() + message.length() + next.length() > BATCH;
            let last = fitting.peek().is_none_or(full);
            let flags = if last { NLM_F_REQUEST | NLM_F_ACK } else { NLM_F_REQUEST };
            datagram.extend(message.header(flags, self.next_sequence()));
            datagram.extend(message.body());
            datagram.resize(datagram.len().next_multiple_of(4), 0);
            if last {
                break;
            }
        }
        (datagram, count)
    }

    fn outcomes(&self, first: u32, count: usize) -> Result<Vec<Result<()>>> {
        let mut outcomes: Vec<Result<()>> = (0..count).map(|_| Ok(())).collect();
        let mut buffer = self.buffer.borrow_mut();
        loop {
            for frame in frames(self.datagram(&mut buffer)?) {
                let Frame { kind, sequence, payload, .. } = frame?;
                let place = sequence.wrapping_sub(first) as usize;
                if kind == NLMSG_ERROR
                    && let Some(outcome) = outcomes.get_mut(place)
                {
                    *outcome = verdict(payload);
                    if place + 1 == count {
                        return Ok(outcomes);
                    }
                }
            }
        }
    }

    /// Every object that `parse` makes of the answers to a request for a whole list; `None` passes one over.
    pub(super) fn list<T>(
        &self,
        request: &Message,
        kind: u16,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        for _ in 0..READINGS {
            let mut list = Vec::new();
            let mut collect = |got: u16, payload: &[u8]| {
                if got == kind {
                    list.extend(parse(payload));
                }
                Ok(())
            };
            let sequence = self.send(request, NLM_F_REQUEST | NLM_F_DUMP)?;
            match self.receive(sequence, &mut collect) {
                Ok(Answer::Done) => return Ok(list),
                Ok(Answer::Again) => {}
                Err(NetlinkError::Socket(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error),
            }
        }
        Err(NetlinkError::Unsteady)
    }

    fn send(&self, message: &Message, flags: u16) -> Result<u32> {
        let sequence = self.next_sequence();
        let header = message.header(flags, sequence);
        let parts = [IoSlice::new(&header), IoSlice::new(message.body())];
        sendmsg::<()>(self.fd.as_raw_fd(), &parts, &[], MsgFlags::empty(), None).map_err(io::Error::from)?;
        Ok(sequence)
    }

    fn next_sequence(&self) -> u32 {
        self.sequence.set(self.sequence.get().wrapping_add(1));
        self.sequence.get()
    }

    /// The next datagram.
    fn datagram<'b>(&self, buffer: &'b mut [u8]) -> Result<&'b [u8]> {
        loop {
            // With MSG_TRUNC the length is that of the datagram, even where it did not fit.
            return match recv(self.fd.as_raw_fd(), buffer, MsgFlags::MSG_TRUNC) {
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
                Err(errno) => Err(io::Error::from(errno).into()),
                Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(length) => buffer.get(..length).ok_or(NetlinkError::Malformed("it is too long")),
            };
        }
    }

    /// Takes off what is there. Until a socket that was too full is empty, the kernel gives it nothing, without a word.
    fn drain(&self) {
        let mut buffer = self.buffer.borrow_mut();
        let mut take = || recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT);
        while matches!(take(), Ok(1..) | Err(Errno::ENOBUFS | Errno::EINTR)) {}
    }

    /// Reads what answers request `sequence`, to its end. What is left of an earlier answer is passed over.
    fn receive(&self, sequence: u32, each: &mut dyn FnMut(u16, &[u8]) -> Result<()>) -> Result<Answer> {
        let mut buffer = self.buffer.borrow_mut();
        let mut interrupted = false;
        loop {
            for frame in frames(self.datagram(&mut buffer)?) {
                let Frame { kind, flags, sequence: of, payload } = frame?;
                if of != sequence {
                    continue;
                }
                interrupted |= flags & NLM_F_DUMP_INTR != 0;
                match kind {
                    NLMSG_NOOP => {}
                    NLMSG_OVERRUN => return Ok(Answer::Again),
                    NLMSG_ERROR | NLMSG_DONE => {
                        verdict(payload)?;
                        return Ok(if interrupted { Answer::Again } else { Answer::Done });
                    }
                    kind => each(kind, payload)?,
                }
            }
        }
    }
}

/// An error message's number and text: zero is the good news. The end of a list is of the same form.
fn verdict(payload: &[u8]) -> Result<()> {
    let (number, rest) =
        payload.split_first_chunk().ok_or(NetlinkError::Malformed("an error without number"))?;
    match i32::from_ne_bytes(*number) {
        0.. => Ok(()),
        number => {
            // The request's header comes between; its length says whether its body does too.
            let capped = rest.get(size_of::<libc::nlmsghdr>()..).unwrap_or_default();
            let text = Attributes::new(capped).get(NLMSGERR_ATTR_MSG).unwrap_or_default();
            let text = text.strip_suffix(&[0]).unwrap_or(text);
            let reason = String::from_utf8_lossy(text).trim().to_owned();
            Err(NetlinkError::Refused { errno: Errno::from_raw(number.saturating_neg()), reason })
        }
    }
}

/// `enum nlmsgerr_attrs` of linux/netlink.h.
const NLMSGERR_ATTR_MSG: u16 = 1;

/// A header as bytes.
fn bytes_of(header: &impl Emitable) -> Vec<u8> {
    let mut bytes = vec![0; header.buffer_len()];
    header.emit(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, os::fd::AsRawFd};

    use netlink_packet_route::link::LinkFlags;
    use nix::{
        sched::{CloneFlags, unshare},
        sys::socket::{MsgFlags, send, socketpair},
    };

    use super::{
        route::{Key, NewRoute},
        *,
    };
    use crate::network::prefix::Prefix;

    /// A socket, and the end on which a kernel would be.
    fn pair() -> (Socket, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        (Socket::over(ours).unwrap(), theirs)
    }

    fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let message = Message::again(kind, 0, payload.to_vec());
        [&message.header(flags, sequence)[..], payload].concat()
    }

    fn say(kernel: &OwnedFd, datagram: &[u8]) {
        send(kernel.as_raw_fd(), datagram, MsgFlags::empty()).unwrap();
    }

    fn list(socket: &Socket) -> Result<Vec<Vec<u8>>> {
        socket.list(&Message::again(18, 0, vec![0; 16]), 16, |payload| Some(payload.to_vec()))
    }

    /// Row R10 of the reliability tests.
    #[test]
    fn an_interrupted_list_is_read_again() {
        let (socket, kernel) = pair();
        say(&kernel, &message(16, NLM_F_DUMP_INTR, 1, b"half"));
        say(&kernel, &message(NLMSG_DONE, 0, 1, &[0; 4]));
        // What is left of somebody's earlier request comes between.
        say(&kernel, &message(16, 0, 99, b"stale"));
        say(&kernel, &[message(16, 0, 2, b"one1"), message(16, 0, 2, b"two2")].concat());
        say(&kernel, &message(17, 0, 2, b"else"));
        say(&kernel, &message(NLMSG_DONE, 0, 2, &[0; 4]));
        assert_eq!(list(&socket).unwrap(), [b"one1", b"two2"]);

        for sequence in 3..3 + READINGS as u32 {
            say(&kernel, &message(NLMSG_DONE, NLM_F_DUMP_INTR, sequence, &[0; 4]));
        }
        assert!(matches!(list(&socket), Err(NetlinkError::Unsteady)));
    }

    /// Row R10 of the reliability tests: so many refusals that the kernel's answers do not fit the socket.
    #[test]
    fn answers_that_were_lost_are_asked_for_again() {
        let work = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
            let socket = Socket::open().unwrap();
            let lo = socket.links().unwrap().remove(0).index;
            socket.set_flags(lo, LinkFlags::Up, LinkFlags::Up).unwrap();
            // The kernel makes it as large as it must be: for two answers or three.
            setsockopt(&socket.fd, sockopt::RcvBuf, &1).unwrap();
            let routes: Vec<_> = (0..300u32).map(|n| on_link(n, if n % 3 == 2 { 999 } else { lo })).collect();
            let outcomes =
                socket.change_each(&routes.iter().map(NewRoute::made).collect::<Vec<_>>()).unwrap();
            assert_eq!(outcomes.len(), routes.len(), "they fit one datagram");
            for (n, outcome) in outcomes.iter().enumerate() {
                let refused = outcome.as_ref().is_err_and(|error| error.is(Errno::ENODEV));
                assert!(if n % 3 == 2 { refused } else { outcome.is_ok() }, "{n}: {outcome:?}");
            }
            assert_eq!(socket.routes().unwrap().len(), 200);

            // Asked for twice, a deletion is refused: what is to be gone is.
            let deleted: Vec<_> = routes.iter().map(NewRoute::deleted).collect();
            socket.change_all(&deleted, |_, error| assert!(error.is(Errno::ESRCH), "{error}"));
            assert!(socket.routes().unwrap().is_empty());
        };
        std::thread::spawn(work).join().unwrap();
    }

    fn on_link(n: u32, link: u32) -> NewRoute {
        let destination = Prefix { address: Ipv4Addr::from_bits(0x0a00_0000 + (n << 8)).into(), length: 24 };
        NewRoute {
            key: Key { destination, metric: 0 },
            link: Some(link),
            gateway: None,
            source: None,
            scope: 253,
            flags: 0,
            mtu: 0,
        }
    }

    /// Of a batch only the refusals and the last one are answered.
    #[test]
    fn a_batch_is_answered_once_it_is_done() {
        let (socket, kernel) = pair();
        let changes = vec![Message::again(24, 0, vec![7; 20]); 3];
        let refused = [&(-libc::EEXIST).to_ne_bytes()[..], &[0; 16]].concat();
        say(&kernel, &message(NLMSG_ERROR, 0, 2, &refused));
        say(&kernel, &message(NLMSG_ERROR, 0, 3, &[0; 20]));
        let outcomes = socket.change_each(&changes).unwrap();
        assert!(
            matches!(&outcomes[..], [Ok(()), Err(error), Ok(())] if error.is(Errno::EEXIST)),
            "{outcomes:?}"
        );
        let mut sent = [0; 256];
        let length = recv(kernel.as_raw_fd(), &mut sent, MsgFlags::empty()).unwrap();
        let flags: Vec<u16> = frames(&sent[..length]).map(|frame| frame.unwrap().flags).collect();
        assert_eq!(flags, [NLM_F_REQUEST, NLM_F_REQUEST, NLM_F_REQUEST | NLM_F_ACK]);

        // What does not fit one datagram is left for the next; one alone is sent whatever its size.
        let large = vec![Message::again(24, 0, vec![0; BATCH / 2]); 3];
        say(&kernel, &message(NLMSG_ERROR, 0, 4, &[0; 20]));
        assert_eq!(socket.change_each(&large).unwrap().len(), 1);
        drop(kernel);
        assert!(socket.change_each(&large).is_err(), "nobody answers");
    }

    #[test]
    fn refusals_are_told_with_the_kernel_s_words() {
        let (socket, kernel) = pair();
        let text = Message::again(0, 0, Vec::new()).with(NLMSGERR_ATTR_MSG, b"Invalid scope\0");
        let payload = [&(-libc::EINVAL).to_ne_bytes()[..], &[0; 16], text.body()].concat();
        say(&kernel, &message(NLMSG_ERROR, 0, 1, &payload));
        let error = socket.change(&Message::again(24, 0, Vec::new())).unwrap_err();
        assert!(error.is(Errno::EINVAL));
        assert_eq!(error.to_string(), "Invalid argument (Invalid scope)");
        say(&kernel, &message(NLMSG_ERROR, 0, 2, &[0; 20]));
        socket.change(&Message::again(24, 0, Vec::new())).unwrap();
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        for junk in [&[1][..], &[0; 16], &[255; 64], &message(16, 0, 1, &[0; 64])[..40], &[0; 5]] {
            let (socket, kernel) = pair();
            say(&kernel, junk);
            drop(kernel);
            assert!(list(&socket).is_err(), "{junk:?}");
        }
    }

    /// A xorshift generator: the test needs variety, and the same bytes on every run.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    /// Row R10 of the reliability tests.
    #[test]
    fn no_attributes_can_make_a_parser_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        for _ in 0..50_000 {
            let length = random(&mut state) as usize % 200;
            let mut payload: Vec<u8> = (0..length).map(|_| random(&mut state) as u8).collect();
            // Mostly attributes of plausible length, so that more than the first is reached.
            for start in (12..length.saturating_sub(4)).step_by(12) {
                payload[start] = 4 + (random(&mut state) as u8 % 12);
                payload[start + 1] = 0;
                payload[start + 2] %= 32;
                payload[start + 3] = 0;
            }
            link::parse(&payload);
            address::parse(&payload);
            route::parse(&payload);
            neighbour::parse(&payload);
            for frame in frames(&payload) {
                let _ = frame.map(|frame| verdict(frame.payload));
            }
        }
        // The longest attribute there can be.
        let mut long = vec![0; 16];
        long.extend(u16::MAX.to_ne_bytes());
        long.extend([3, 0]);
        long.resize(16 + usize::from(u16::MAX), b'n');
        assert_eq!(link::parse(&long).unwrap().name.len(), usize::from(u16::MAX) - 4);
    }
}
