//! Raw streams: the host's own connections instead of calls.

use std::time::Duration;

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
};

use crate::host::{Host, Out, Run, sh};

/// Connects to the stdio listener as a host does through a VMM, and learns its port.
pub async fn connect(host: &Host) -> (u32, UnixStream) {
    let mut stream = UnixStream::connect(host.dir.join("agent.sock.stdio")).await.unwrap();
    stream.write_all(b"CONNECT 1027\n").await.unwrap();
    let mut line = String::new();
    let mut reader = BufReader::with_capacity(1, stream);
    reader.read_line(&mut line).await.unwrap();
    let port = line.strip_prefix("OK ").expect(&line).trim().parse().unwrap();
    (port, reader.into_inner())
}

#[tokio::test]
async fn bytes_go_straight_through_both_ways() {
    let host = Host::start().await;
    let (stdin, mut input) = connect(&host).await;
    let (stdout, mut output) = connect(&host).await;
    assert_ne!(stdin, stdout);
    host.run("box", Run { args: &["cat"], ports: [stdin, stdout, 0], ..Run::default() }).await.unwrap();
    let sent: Vec<u8> = (0..8u32 << 20).map(|n| (n ^ (n >> 8)) as u8).collect();
    let expected = sent.clone();
    let writer = tokio::spawn(async move {
        input.write_all(&sent).await.unwrap();
        input.shutdown().await.unwrap();
        input
    });
    let mut seen = Vec::new();
    output.read_to_end(&mut seen).await.unwrap();
    assert!(seen == expected, "{} of {} bytes", seen.len(), expected.len());
    writer.await.unwrap();
    assert_eq!(host.wait("box", "").await.unwrap(), 0);
    assert_eq!(host.read("box", "", Out::Stdout).await.unwrap(), b"");
    assert!(host.write("box", "", b"x").await.is_err());
    host.remove("box").await.unwrap();
}

#[tokio::test]
async fn a_terminal_is_raw_too_and_execs_also() {
    let host = Host::start().await;
    host.run("box", Run { args: &["sleep", "1000"], ..Run::default() }).await.unwrap();
    let (stdin, mut input) = connect(&host).await;
    let (stdout, mut output) = connect(&host).await;
    let run = Run { terminal: true, ports: [stdin, stdout, 0], ..sh(&["sh", "-c", "read a; echo got $a"]) };
    host.exec("box", "ex", run).await.unwrap();
    input.write_all(b"it\n").await.unwrap();
    let mut seen = String::new();
    output.read_to_string(&mut seen).await.unwrap();
    assert!(seen.contains("got it\r\n"), "{seen:?}");
    assert_eq!(host.wait("box", "ex").await.unwrap(), 0);
}

#[tokio::test]
async fn a_connection_that_never_comes_fails_the_call_and_leaves_nothing() {
    let host = Host::start().await;
    let error =
        host.create("box", Run { args: &["cat"], ports: [9, 0, 0], ..Run::default() }).await.unwrap_err();
    assert!(error.to_string().contains("port 9"), "{error}");
    assert!(host.cgroups().is_empty());
    host.run("box", sh(&["sh", "-c", "exit 0"])).await.unwrap();
}

#[tokio::test]
async fn a_raw_stream_outlives_the_worker() {
    let host = Host::start().await;
    let (stdin, mut input) = connect(&host).await;
    let (stdout, mut output) = connect(&host).await;
    host.run("box", Run { args: &["cat"], ports: [stdin, stdout, 0], ..Run::default() }).await.unwrap();
    let mut line = [0; 64];
    for n in 0..5 {
        let text = format!("line {n}\n");
        input.write_all(text.as_bytes()).await.unwrap();
        output.read_exact(&mut line[..text.len()]).await.unwrap();
        assert_eq!(&line[..text.len()], text.as_bytes());
        host.kill_worker(nix::sys::signal::Signal::SIGKILL);
    }
    input.shutdown().await.unwrap();
    assert_eq!(output.read(&mut line).await.unwrap(), 0);
}

#[tokio::test]
async fn a_stranger_at_the_listener_gets_nowhere() {
    let host = Host::start().await;
    for greeting in
        ["GET / HTTP/1.1\r\n\r\n", "CONNECT \n", "CONNECT 99999999999999999999999999999999999999\n"]
    {
        let mut stream = UnixStream::connect(host.dir.join("agent.sock.stdio")).await.unwrap();
        stream.write_all(greeting.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await;
        assert!(closed.is_ok() && answer.is_empty(), "{greeting:?} got {answer:?}");
    }
}
