//! One ttrpc call on one connection: a request frame out, a response frame in.
//!
//! ```text
//!   frame    { length u32 BE, stream u32 BE, type u8, flags u8 } body
//!   request  { service = 1, method = 2, payload = 3, timeout_nano = 4 }
//!   response { status = 1 { code = 1, message = 2 }, payload = 2 }
//! ```
//!
//! The buffer for a reply grows with what has come, not by what a frame declares.

use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

use tokio::net::UnixStream;

use super::{HubError, Result};
use crate::rpc::{
    limits::FRAME_MAX,
    wire::{Fields, Malformed, Value, varint},
};

const HEADER: usize = 10;
/// The first a client may use.
const STREAM: u32 = 1;
const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
/// As gRPC has it.
const DEADLINE_EXCEEDED: u64 = 4;
/// What is read at once.
const CHUNK: usize = 16 << 10;

/// The payload of the reply.
pub(super) async fn call(
    socket: &Path,
    service: &str,
    method: &'static str,
    payload: &[u8],
    patience: Duration,
) -> Result<Vec<u8>> {
    let start = Instant::now();
    let unreachable = |source| HubError::Unreachable { socket: socket.to_owned(), source };
    let stream = UnixStream::connect(socket).await.map_err(unreachable)?;
    let lost = |source| HubError::Lost { method, source };
    write_all(&stream, &request(service, method, payload, patience)).await.map_err(lost)?;
    let body = read_response(&stream).await.map_err(lost)?;
    let body = body.ok_or(HubError::Malformed { method })?;
    match parse(&body) {
        Ok((None, payload)) => Ok(payload.to_vec()),
        // Its server counts the time too, and may be the first to say that it is over.
        Ok((Some((DEADLINE_EXCEEDED, _)), _)) if start.elapsed() >= patience => {
            Err(HubError::Late { method, patience })
        }
        Ok((Some((code, message)), _)) => {
            Err(HubError::Refused { method, code, message: String::from_utf8_lossy(message).into_owned() })
        }
        Err(Malformed) => Err(HubError::Malformed { method }),
    }
}

fn request(service: &str, method: &str, payload: &[u8], patience: Duration) -> Vec<u8> {
    let mut body = Vec::with_capacity(payload.len() + 128);
    for (number, bytes) in [(1, service.as_bytes()), (2, method.as_bytes()), (3, payload)] {
        body.push(number << 3 | 2);
        body.extend(varint(bytes.len() as u64));
        body.extend_from_slice(bytes);
    }
    body.push(4 << 3);
    body.extend(varint(i64::try_from(patience.as_nanos()).unwrap_or(i64::MAX) as u64));
    // One longer than the wire can say is one the hub refuses.
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let header = [&length.to_be_bytes()[..], &STREAM.to_be_bytes(), &[REQUEST, 0]].concat();
    [header, body].concat()
}

async fn write_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The body of the frame that answers; `None` if another kind of frame comes, or one larger than any may be.
async fn read_response(stream: &UnixStream) -> io::Result<Option<Vec<u8>>> {
    let header = read_exact(stream, HEADER).await?;
    let Some((length, rest)) = header.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    let expected = [&STREAM.to_be_bytes()[..], &[RESPONSE]].concat();
    if length > FRAME_MAX || !rest.starts_with(&expected) {
        return Ok(None);
    }
    read_exact(stream, length).await.map(Some)
}

async fn read_exact(stream: &UnixStream, length: usize) -> io::Result<Vec<u8>> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; CHUNK]);
    while bytes.len() < length {
        stream.readable().await?;
        let room = chunk.get_mut(..CHUNK.min(length - bytes.len())).unwrap_or_default();
        match stream.try_read(room) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes.extend_from_slice(room.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

type Failure<'a> = Option<(u64, &'a [u8])>;

/// The failure a response tells of, and its payload.
fn parse(body: &[u8]) -> std::result::Result<(Failure<'_>, &[u8]), Malformed> {
    let (mut failure, mut payload) = (None, &[][..]);
    let mut fields = Fields::new(body);
    while let Some(field) = fields.next_field()? {
        match field {
            (1, Value::Bytes(status)) => failure = parse_status(status)?,
            (2, Value::Bytes(bytes)) => payload = bytes,
            _ => {}
        }
    }
    Ok((failure, payload))
}

/// `None` is a status that says all is well.
fn parse_status(status: &[u8]) -> std::result::Result<Failure<'_>, Malformed> {
    let (mut code, mut message) = (0, &[][..]);
    let mut fields = Fields::new(status);
    while let Some(field) = fields.next_field()? {
        match field {
            (1, Value::Varint(number)) => code = number,
            (2, Value::Bytes(text)) => message = text,
            _ => {}
        }
    }
    Ok((code != 0).then_some((code, message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_a_payload_or_a_failure() {
        assert_eq!(parse(b"\x12\x02hi"), Ok((None, &b"hi"[..])));
        assert_eq!(parse(b"\x0a\x00\x12\x02hi"), Ok((None, &b"hi"[..])));
        assert_eq!(parse(b"\x0a\x06\x08\x0d\x12\x02no"), Ok((Some((13, &b"no"[..])), &[][..])));
        assert_eq!(parse(b""), Ok((None, &[][..])));
        assert_eq!(parse(b"\x12\x7fcut"), Err(Malformed));
        assert_eq!(parse(b"\x0a\x02\x12\x09"), Err(Malformed));
    }

    #[tokio::test]
    async fn a_hub_that_says_first_that_the_time_is_over_is_late() {
        let socket = std::env::temp_dir().join(format!("berth-hub-{}", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let hub = std::thread::spawn(move || {
            for _ in 0..2 {
                let (mut client, _) = listener.accept().unwrap();
                assert!(io::Read::read(&mut client, &mut [0; 1024]).unwrap() > HEADER);
                let body = b"\x0a\x0b\x08\x04\x12\x07timeout";
                let header = [0, 0, 0, body.len() as u8, 0, 0, 0, 1, RESPONSE, 0];
                io::Write::write_all(&mut client, &[&header[..], body].concat()).unwrap();
            }
        });
        let outcome = async |patience| call(&socket, "s", "M", b"", patience).await.unwrap_err();
        assert!(matches!(outcome(Duration::ZERO).await, HubError::Late { .. }));
        let own = outcome(Duration::from_secs(60)).await;
        assert!(matches!(own, HubError::Refused { code: 4, .. }), "{own}");
        hub.join().unwrap();
        std::fs::remove_file(&socket).unwrap();
    }
}
