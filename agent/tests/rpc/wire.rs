//! Frames and envelopes, right and wrong.

use std::{
    io::Write,
    net::Shutdown,
    time::{Duration, Instant},
};

use super::{
    client::{INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, frame, request, with_metadata},
    server::{PROMPT, Setup, start},
};

#[test]
fn t1_an_oversize_frame_is_skipped_in_place_and_refused() {
    let server = start(Setup::default());
    let mut client = server.client();
    let base = server.resident();
    for (stream, length) in [(1, (4 << 20) + 1), (3, 9 << 20), (5, (16 << 20) - 1)] {
        client.send(&frame(length, stream, 1, 0, &[]));
        client.send(&vec![0; length as usize]);
        let start = Instant::now();
        let (answered, result) = client.answer();
        assert!(start.elapsed() < PROMPT);
        assert_eq!((answered, result.unwrap_err().0), (stream, RESOURCE_EXHAUSTED));
    }
    assert!(server.resident() < base + 128, "{} KiB more", server.resident() - base);
    client.send(&request(7, "Echo", b"still here"));
    assert_eq!(client.answer(), (7, Ok(b"still here".to_vec())));
}

#[test]
fn t2_a_first_length_byte_that_is_not_zero_closes_the_connection() {
    let server = start(Setup::default());
    for length in [16 << 20, 1 << 31, u32::MAX] {
        let mut client = server.client();
        client.ping();
        let start = Instant::now();
        client.send(&frame(length, 3, 1, 0, &[]));
        assert!(client.is_closed());
        assert!(start.elapsed() < PROMPT);
    }
    server.client().ping();
}

#[test]
fn t9_stream_ids_are_odd_and_come_in_any_order() {
    let server = start(Setup::default());
    let mut client = server.client();
    let mut expect = |stream, refused: Option<&str>| {
        client.send(&request(stream, "Echo", b"x"));
        let (answered, result) = client.answer();
        assert_eq!(answered, stream);
        match refused {
            None => assert_eq!(result, Ok(b"x".to_vec())),
            Some(text) => assert_eq!(result, Err((INVALID_ARGUMENT, text.to_owned()))),
        }
    };
    let odd = Some("StreamID must be odd for client initiated streams");
    expect(2, odd);
    expect(0, odd);
    expect(5, None);
    expect(5, None);
    expect(3, None);
    expect(4, odd);
    expect(7, None);
    expect(u32::MAX, None);
    expect(1, None);
}

#[test]
fn t10_unknown_types_and_data_are_skipped() {
    let server = start(Setup::default());
    let mut client = server.client();
    let base = server.resident();
    for kind in [0, 2, 3, 4, 255] {
        client.send(&frame(3 << 20, 1, kind, 0xff, &vec![1; 3 << 20]));
        client.send(&frame(0, 1, kind, 0, &[]));
    }
    assert!(server.resident() < base + 256);
    let body = &request(1, "Echo", b"flags")[10..];
    client.send(&frame(body.len() as u32, 1, 1, 0xff, body));
    assert_eq!(client.answer(), (1, Ok(b"flags".to_vec())));
}

#[test]
fn unknown_services_and_methods_have_the_known_texts() {
    let server = start(Setup::default());
    let mut client = server.client();
    client.send(&frame(0, 1, 1, 0, &[]));
    assert_eq!(client.answer().1.unwrap_err().0, UNIMPLEMENTED, "an empty request names no method");
    let body = [0x0a, 0xff];
    client.send(&frame(2, 3, 1, 0, &body));
    assert_eq!(client.answer().1.unwrap_err().0, INVALID_ARGUMENT);
}

#[test]
fn t13_metadata_floods_are_refused_without_being_stored() {
    let server = start(Setup::default());
    let mut client = server.client();
    client.send(&with_metadata(1, 64));
    assert_eq!(client.answer(), (1, Ok(Vec::new())));
    let flood = with_metadata(3, 2_000_000);
    let base = server.resident();
    client.send(&flood);
    assert_eq!(client.answer().1.unwrap_err().0, INVALID_ARGUMENT);
    assert!(server.resident() < base + 5 * 1024, "{} KiB more", server.resident() - base);
}

#[test]
fn t22_a_client_that_has_shut_its_side_gets_what_is_pending() {
    let server = start(Setup::default());
    let mut client = server.client();
    let working = client.start("Work", b"100");
    let reading = client.start("Read", b"3000000");
    client.socket.shutdown(Shutdown::Write).unwrap();
    let (first, bytes) = client.answer();
    assert_eq!((first, bytes.unwrap().len()), (reading, 3_000_005));
    assert_eq!(client.answer(), (working, Ok(b"100".to_vec())));
    assert!(client.is_closed(), "nothing can come any more");
}

#[test]
fn replies_up_to_a_whole_frame_are_sent_and_larger_ones_refused() {
    let server = start(Setup::default());
    let mut client = server.client();
    let largest = (4 << 20) - 5;
    assert_eq!(client.call("Make", (largest - 3).to_string().as_bytes()).unwrap().len(), largest - 3);
    let error = client.call("Make", (4 << 20).to_string().as_bytes()).unwrap_err();
    assert_eq!(error.0, INVALID_ARGUMENT);
    client.ping();
}

#[test]
fn frames_may_come_in_any_pieces() {
    let server = start(Setup::default());
    let (mut client, mut other) = (server.client(), server.client());
    let mut bytes = request(1, "Echo", b"one");
    bytes.extend(request(3, "Echo", &vec![b'x'; 40_000]));
    bytes.extend(request(5, "Echo", b"three"));
    for piece in bytes.chunks(997) {
        client.socket.write_all(piece).unwrap();
        // Whoever is served after it shows that it was read by itself.
        other.ping();
    }
    assert_eq!(client.answer(), (1, Ok(b"one".to_vec())));
    assert_eq!(client.answer(), (3, Ok(vec![b'x'; 40_000])));
    assert_eq!(client.answer(), (5, Ok(b"three".to_vec())));
}

#[test]
fn a_frame_that_makes_no_progress_is_given_up() {
    let server = start(Setup { frame_ms: Some(200), ..Setup::default() });
    let mut idle = server.client();
    let mut slow = server.client();
    idle.ping();
    let start = Instant::now();
    slow.send(&request(1, "Echo", b"x")[..12]);
    assert!(slow.is_closed());
    let waited = start.elapsed();
    assert!(waited > Duration::from_millis(150) && waited < Duration::from_secs(2), "{waited:?}");
    idle.ping();
}
