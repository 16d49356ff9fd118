//! A client that writes frames by hand, right ones and wrong ones.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use protobuf::Message;
use ttrpc::proto::{KeyValue, Request, Response};

pub const INVALID_ARGUMENT: i32 = 3;
pub const DEADLINE_EXCEEDED: i32 = 4;
pub const RESOURCE_EXHAUSTED: i32 = 8;
pub const UNIMPLEMENTED: i32 = 12;
pub const INTERNAL: i32 = 13;
pub const UNAVAILABLE: i32 = 14;

/// A status: its code and message.
pub type Status = (i32, String);

pub struct Client {
    pub socket: UnixStream,
    next: u32,
}

/// A frame, whatever is in it.
pub fn frame(length: u32, stream: u32, kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    [&length.to_be_bytes()[..], &stream.to_be_bytes(), &[kind, flags], body].concat()
}

pub fn envelope(method: &str, payload: &[u8], timeout_nano: i64) -> Request {
    let (service, method) = ("test.Probe".into(), method.into());
    Request { service, method, payload: payload.to_vec(), timeout_nano, ..Default::default() }
}

pub fn request(stream: u32, method: &str, payload: &[u8]) -> Vec<u8> {
    let body = envelope(method, payload, 0).write_to_bytes().unwrap();
    frame(body.len() as u32, stream, 1, 0, &body)
}

pub fn with_metadata(stream: u32, pairs: usize) -> Vec<u8> {
    let mut request = envelope("Echo", b"", 0);
    request.metadata = vec![KeyValue::new(); pairs];
    let body = request.write_to_bytes().unwrap();
    frame(body.len() as u32, stream, 1, 0, &body)
}

impl Client {
    pub fn connect(path: &Path) -> Self {
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { socket, next: 1 }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    /// Sends a call and gives its stream.
    pub fn start(&mut self, method: &str, payload: &[u8]) -> u32 {
        let stream = self.next;
        self.next += 2;
        self.send(&request(stream, method, payload));
        stream
    }

    pub fn start_with_timeout(&mut self, method: &str, payload: &[u8], timeout_nano: i64) -> u32 {
        let stream = self.next;
        self.next += 2;
        let body = envelope(method, payload, timeout_nano).write_to_bytes().unwrap();
        self.send(&frame(body.len() as u32, stream, 1, 0, &body));
        stream
    }

    /// The next answer: its stream, and its payload or status.
    pub fn try_answer(&mut self) -> io::Result<(u32, Result<Vec<u8>, Status>)> {
        let mut header = [0; 10];
        self.socket.read_exact(&mut header)?;
        let length = u32::from_be_bytes(header[..4].try_into().unwrap());
        let stream = u32::from_be_bytes(header[4..8].try_into().unwrap());
        assert_eq!(header[8..], [2, 0], "a response without flags");
        let mut body = vec![0; length as usize];
        self.socket.read_exact(&mut body)?;
        let response = Response::parse_from_bytes(&body).unwrap();
        let status = response.status.into_option().map(|status| (status.code.value(), status.message));
        Ok((stream, status.map_or(Ok(response.payload), Err)))
    }

    pub fn answer(&mut self) -> (u32, Result<Vec<u8>, Status>) {
        self.try_answer().unwrap()
    }

    pub fn call(&mut self, method: &str, payload: &[u8]) -> Result<Vec<u8>, Status> {
        let stream = self.start(method, payload);
        let (answered, result) = self.answer();
        assert_eq!(answered, stream);
        result
    }

    /// How many bytes come back for a call.
    pub fn call_size(&mut self, method: &str, payload: &[u8]) -> usize {
        self.start(method, payload);
        let mut header = [0; 10];
        self.socket.read_exact(&mut header).unwrap();
        header.len() + u32::from_be_bytes(header[..4].try_into().unwrap()) as usize
    }

    pub fn ping(&mut self) -> Duration {
        let start = Instant::now();
        assert_eq!(self.call("Echo", b"ping"), Ok(b"ping".to_vec()));
        start.elapsed()
    }

    /// Whether the server has closed this connection, within the read timeout.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.socket.read(&mut [0; 64]), Ok(0))
            || self.socket.take_error().is_ok_and(|error| error.is_some())
    }
}
