//! The replies of one connection on their way into its socket.
//!
//! Small replies lie one after the other in one buffer that is reused, so answering a ping allocates nothing;
//! large bodies are sent from where they are. Invariant: the bytes of `segments`, then of `tail`, less the
//! first `written`, are what the peer has yet to get, and a segment's lease ends with its last byte.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    os::fd::{AsRawFd, BorrowedFd},
};

use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, sendmsg},
};

use super::{
    frame::{Header, RESPONSE},
    limits::{COALESCE, FRAME_MAX, INPUT_BUFFER, SLICES},
    reply::{Body, Lease, Reply, Status},
    service::Answer,
    wire,
};

/// What one attempt to write came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Nothing is left.
    All,
    /// The socket takes no more for now.
    Blocked,
}

#[derive(Default)]
pub(super) struct Output {
    segments: VecDeque<Body>,
    tail: Vec<u8>,
    written: usize,
    bytes: usize,
    sent: u64,
}

impl Output {
    /// Bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// Bytes that the socket has taken, ever.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Encodes the answer to `stream`. One that would not fit a frame becomes an error: no client reads it.
    pub(super) fn push(&mut self, stream: u32, answer: Answer) {
        match answer {
            Ok(reply) if reply.size() > FRAME_MAX - 8 => {
                let text = format_args!(
                    "the reply of {} bytes exceeds the maximum message size of {FRAME_MAX} bytes",
                    reply.size()
                );
                self.push_status(stream, &Status::invalid(text));
            }
            Ok(reply) => self.push_reply(stream, reply),
            Err(status) => self.push_status(stream, &status),
        }
    }

    fn push_status(&mut self, stream: u32, status: &Status) {
        let mut encoded = Vec::with_capacity(status.message.len() + 8);
        status.encode(&mut encoded);
        let length = 1 + wire::varint_size(encoded.len() as u64) + encoded.len();
        self.extend(Header { length: length as u32, stream, kind: RESPONSE, flags: 0 }.to_bytes());
        self.extend([0x0a].into_iter().chain(wire::varint(encoded.len() as u64)));
        self.extend(encoded);
    }

    fn push_reply(&mut self, stream: u32, Reply { prefix, body }: Reply) {
        let size = prefix.as_slice().len() + body.bytes().len();
        let length = if size == 0 { 0 } else { 1 + wire::varint_size(size as u64) + size };
        self.extend(Header { length: length as u32, stream, kind: RESPONSE, flags: 0 }.to_bytes());
        if size > 0 {
            self.extend([0x12].into_iter().chain(wire::varint(size as u64)));
            self.extend(prefix.as_slice().iter().copied());
        }
        match body {
            Body::Owned(bytes) if bytes.len() <= COALESCE => {
                self.tail.extend_from_slice(&bytes);
                self.bytes += bytes.len();
            }
            body => {
                self.bytes += body.bytes().len();
                self.segments.push_back(Body::Owned(std::mem::take(&mut self.tail)));
                self.segments.push_back(body);
            }
        }
    }

    fn extend(&mut self, bytes: impl IntoIterator<Item = u8>) {
        let before = self.tail.len();
        self.tail.extend(bytes);
        self.bytes += self.tail.len() - before;
    }

    /// Writes until everything is out or the socket is full. The leases that ended go to `ended`, for the
    /// caller to run when it no longer borrows this queue.
    pub(super) fn flush(
        &mut self,
        socket: BorrowedFd<'_>,
        ended: &mut Vec<Box<dyn Lease>>,
    ) -> io::Result<Flushed> {
        loop {
            self.retire(ended);
            if self.bytes == 0 {
                return Ok(Flushed::All);
            }
            match self.send(socket) {
                Ok(sent) => {
                    self.written += sent;
                    self.sent += sent as u64;
                    self.bytes = self.bytes.saturating_sub(sent);
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(Flushed::Blocked),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn send(&self, socket: BorrowedFd<'_>) -> nix::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let queued = self.segments.iter().map(Body::bytes).chain([self.tail.as_slice()]);
        let mut skip = self.written;
        let mut used = 0;
        for (slot, bytes) in slices.iter_mut().zip(queued) {
            *slot = IoSlice::new(bytes.get(skip..).unwrap_or_default());
            skip = 0;
            used += 1;
        }
        let slices = slices.get(..used).unwrap_or_default();
        sendmsg::<()>(socket.as_raw_fd(), slices, &[], MsgFlags::MSG_NOSIGNAL, None)
    }

    /// Drops what has been written completely.
    fn retire(&mut self, ended: &mut Vec<Box<dyn Lease>>) {
        while let Some(first) = self.segments.front().map(|first| first.bytes().len()) {
            if self.written < first {
                return;
            }
            self.written -= first;
            if let Some(Body::Leased(lease)) = self.segments.pop_front() {
                ended.push(lease);
            }
        }
        if self.written == self.tail.len() {
            self.written = 0;
            self.tail.clear();
            self.tail.shrink_to(INPUT_BUFFER);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        io::Read,
        os::{fd::AsFd, unix::net::UnixStream},
        rc::Rc,
    };

    use super::*;
    use crate::rpc::frame::HEADER;

    struct Counted(Vec<u8>, Rc<Cell<u32>>);

    impl Lease for Counted {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
        fn sent(self: Box<Self>) {
            self.1.set(self.1.get() + 1);
        }
    }

    fn drain(socket: &mut UnixStream, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        socket.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_lease_ends_with_its_last_byte_and_not_before() {
        let (mut peer, ours) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let sent = Rc::new(Cell::new(0));
        let (mut output, mut ended) = (Output::default(), Vec::new());
        output.push(1, Ok(Reply::message(vec![1, 2])));
        output.push(3, Ok(Reply::leased_field(1, Box::new(Counted(vec![9; 2 << 20], sent.clone())))));
        output.push(5, Ok(Reply::leased_field(1, Box::new(Counted(vec![8; 10], sent.clone())))));
        let total = output.len();

        assert_eq!(output.flush(ours.as_fd(), &mut ended).unwrap(), Flushed::Blocked);
        assert_eq!(ended.len(), 0, "the first lease is not through");
        let mut received = Vec::new();
        while received.len() < total {
            let left = total - output.len() - received.len();
            received.extend(drain(&mut peer, left));
            let _ = output.flush(ours.as_fd(), &mut ended).unwrap();
        }
        assert_eq!(output.len(), 0);
        assert_eq!(ended.len(), 2);
        assert_eq!(&received[..14], [0, 0, 0, 4, 0, 0, 0, 1, 2, 0, 0x12, 2, 1, 2]);
        assert_eq!(&received[total - 12..], [&[0x0a, 10][..], &[8; 10]].concat());
        drop(ended);
        assert_eq!(sent.get(), 0, "only `sent` counts, not the drop");
    }

    #[test]
    fn a_reply_that_fits_no_frame_becomes_an_error() {
        for (size, refused) in [(FRAME_MAX - 8, false), (FRAME_MAX - 7, true)] {
            let mut output = Output::default();
            output.push(1, Ok(Reply::message(vec![0; size])));
            assert_eq!(output.len() < COALESCE, refused);
            assert!(output.len() <= FRAME_MAX + HEADER);
        }
    }
}
