//! Addresses, and the handshake of hybrid vsock against a listener that behaves in every possible way.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{path::PathBuf, time::Duration};

use berthctl::{Address, address::ConnectError, vmm::workdir::WorkDir};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixListener,
};

#[test]
fn every_form_is_read_and_written_alike() {
    let cases = [
        ("unix:///run/a.sock", Address::Unix("/run/a.sock".into())),
        ("unix://relative", Address::Unix("relative".into())),
        ("unix://@name", Address::Abstract("name".into())),
        ("vsock://3:1024", Address::Vsock { cid: 3, port: 1024 }),
        ("vsock://4294967295:4294967295", Address::Vsock { cid: u32::MAX, port: u32::MAX }),
        ("hvsock:///run/v.sock:1024", Address::Hybrid { path: "/run/v.sock".into(), port: 1024 }),
        ("hvsock:///odd:name:1024", Address::Hybrid { path: "/odd:name".into(), port: 1024 }),
    ];
    for (text, address) in cases {
        assert_eq!(text.parse(), Ok(address.clone()), "{text}");
        assert_eq!(address.to_string(), text);
    }
}

#[test]
fn what_is_no_address_is_refused() {
    for text in [
        "",
        "unix://",
        "unix://@",
        "/run/a.sock",
        "tcp://1:2",
        "vsock://3",
        "vsock://:1024",
        "vsock://x:1",
        "vsock://-1:1",
        "vsock://3:4294967296",
        "hvsock:///run/v.sock",
        "hvsock://:1024",
        "hvsock:///run/v.sock:port",
    ] {
        assert!(text.parse::<Address>().is_err(), "{text}");
    }
}

struct Peer {
    _dir: WorkDir,
    path: PathBuf,
    listener: UnixListener,
}

fn peer() -> Peer {
    let dir = WorkDir::new().unwrap();
    let path = dir.join("vsock");
    let listener = UnixListener::bind(&path).unwrap();
    Peer { _dir: dir, path, listener }
}

/// Connects while the peer answers with `pieces`, one write each.
async fn answered(pieces: &[&[u8]]) -> (Result<tokio::net::UnixStream, ConnectError>, Vec<u8>) {
    let Peer { _dir, path, listener } = peer();
    let address = Address::Hybrid { path, port: 1024 };
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = vec![0; b"CONNECT 1024\n".len()];
        stream.read_exact(&mut asked).await.unwrap();
        for piece in pieces {
            stream.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        asked
    };
    tokio::join!(address.connect(), server)
}

#[tokio::test]
async fn the_stream_behind_the_answer_is_untouched() {
    let (stream, asked) = answered(&[b"O", b"K 10", b"73741824\nfirst", b" second"]).await;
    assert_eq!(asked, b"CONNECT 1024\n");
    let mut rest = String::new();
    stream.unwrap().read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "first second");
}

#[tokio::test]
async fn wrong_answers_are_errors_that_show_them() {
    for (pieces, shown) in [
        (&[][..], "nothing listens"),
        (&[&b"ERR no\n"[..]], "ERR no"),
        (&[b"OK x\n"], "OK x"),
        (&[b"OK 99999999999999999999999999\n"], "OK 99999"),
        (&[b"OK 1"], "answered \"OK 1\""),
    ] {
        let (stream, _) = answered(pieces).await;
        let text = stream.unwrap_err().to_string();
        assert!(text.contains(shown), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_not_waited_for() {
    let Peer { _dir, path, listener } = peer();
    let address = Address::Hybrid { path, port: 1024 };
    let started = tokio::time::Instant::now();
    let (connected, kept) = tokio::join!(address.connect(), listener.accept());
    let text = connected.unwrap_err().to_string();
    assert!(text.contains("no answer within"), "{text}");
    assert!(started.elapsed() <= Duration::from_secs(11));
    drop(kept);
}

async fn stdio_answered(answer: &[u8]) -> Result<u32, ConnectError> {
    let dir = WorkDir::new().unwrap();
    let listener = UnixListener::bind(dir.join("agent.sock.stdio")).unwrap();
    let address = Address::Unix(dir.join("agent.sock"));
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = vec![0; b"CONNECT 1027\n".len()];
        stream.read_exact(&mut asked).await.unwrap();
        assert_eq!(asked, b"CONNECT 1027\n");
        stream.write_all(answer).await.unwrap();
    };
    let (stdio, ()) = tokio::join!(address.connect_stdio(), server);
    stdio.map(|stdio| stdio.port)
}

#[tokio::test]
async fn stdio_of_a_unix_agent_is_beside_it() {
    assert_eq!(stdio_answered(b"OK 77\n").await.unwrap(), 77);
}

#[tokio::test]
async fn a_device_that_keeps_our_port_to_itself_cannot_do_raw_stdio() {
    let text = stdio_answered(b"OK 1027\n").await.unwrap_err().to_string();
    assert!(text.contains("leave raw stdio out"), "{text}");
}

#[tokio::test]
async fn a_missing_socket_says_what_to_look_at() {
    let address: Address = "unix:///nowhere/agent.sock".parse().unwrap();
    let text = address.connect().await.unwrap_err().to_string();
    assert!(text.contains("unix:///nowhere/agent.sock") && text.contains("is the VM running"), "{text}");
}
