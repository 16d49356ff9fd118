//! Raw standard streams: bytes on a connection of their own, no call per chunk.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::PathBuf;

use berth::{Agent, Role, deadline};
use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

/// A connection to the stdio listener, and the port that names it in a request.
async fn stream(agent: &Agent) -> (UnixStream, u32) {
    let path = PathBuf::from(format!("{}.stdio", agent.socket().display()));
    let mut stream = UnixStream::connect(path).await.unwrap();
    stream.write_all(b"CONNECT 1027\n").await.unwrap();
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        line.push(stream.read_u8().await.unwrap());
    }
    let line = String::from_utf8(line).unwrap();
    let port = line.strip_prefix("OK ").and_then(|port| port.trim().parse().ok());
    (stream, port.unwrap_or_else(|| panic!("{line:?}")))
}

async fn all(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    bytes
}

#[tokio::test]
async fn all_three_streams_of_an_init() {
    let (agent, guest) = Agent::with_sandbox().await;
    let (mut stdin, stdin_port) = stream(&agent).await;
    let (mut stdout, stdout_port) = stream(&agent).await;
    let (mut stderr, stderr_port) = stream(&agent).await;
    let mut container = agent.shell("c1", "echo err >&2; cat; exit 3");
    container.request.stdin_port = stdin_port;
    container.request.stdout_port = stdout_port;
    container.request.stderr_port = stderr_port;
    guest.create(&container).await.unwrap();
    guest.start("c1").await.unwrap();
    let data: Vec<u8> = (0..3_000_000u32).map(|n| n as u8).collect();
    let sent = data.clone();
    let writer = tokio::spawn(async move {
        stdin.write_all(&sent).await.unwrap();
        stdin.shutdown().await.unwrap();
    });
    assert_eq!(all(&mut stdout).await, data);
    assert_eq!(all(&mut stderr).await, b"err\n");
    writer.await.unwrap();
    assert_eq!(guest.wait("c1", "").await.unwrap(), 3);
    assert_eq!(guest.read_stdout("c1", "", 100).await.unwrap(), b"", "a raw stream has ended for ReadStdout");
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn an_exec_with_only_stdout_raw() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.create(&agent.container("c1", &["sleep", "1000"])).await.unwrap();
    guest.start("c1").await.unwrap();
    let (mut stdout, port) = stream(&agent).await;
    let request = berth_protocols::agent::ExecProcessRequest {
        container_id: "c1".into(),
        exec_id: "e1".into(),
        stdout_port: port,
        process: protobuf::MessageField::some(berth::process(&["sh", "-c", "seq 1 100000; echo tail >&2"])),
        ..Default::default()
    };
    guest.agent.exec_process(ttrpc::context::with_timeout(0), &request).await.unwrap();
    let expected: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(all(&mut stdout).await, expected.as_bytes());
    assert_eq!(guest.read_stderr("c1", "e1", 100).await.unwrap(), b"tail\n");
    assert_eq!(guest.wait("c1", "e1").await.unwrap(), 0);
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn raw_streams_outlive_the_worker() {
    let (agent, guest) = Agent::with_sandbox().await;
    let (mut stdout, port) = stream(&agent).await;
    let mut container =
        agent.shell("c1", "i=0; while [ $i -lt 400 ]; do echo $i; i=$((i+1)); usleep 5000; done");
    container.request.stdout_port = port;
    guest.create(&container).await.unwrap();
    guest.start("c1").await.unwrap();
    let expected: String = (0..400).map(|n| format!("{n}\n")).collect();
    let mut bytes = Vec::new();
    // Each time another share has come.
    for share in 1..=5 {
        while bytes.len() < share * expected.len() / 6 {
            assert_ne!(deadline(stdout.read_buf(&mut bytes)).await.unwrap(), 0, "the stream ended");
        }
        agent.replace(Role::Worker, Signal::SIGKILL).await;
    }
    bytes.extend(all(&mut stdout).await);
    assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    let guest = agent.client().await;
    assert_eq!(guest.wait("c1", "").await.unwrap(), 0);
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn a_port_nobody_connected_is_an_error() {
    let (agent, guest) = Agent::with_sandbox().await;
    let mut container = agent.container("c1", &["true"]);
    container.request.stdout_port = 4_000_000;
    let (code, message) = berth::code(guest.create(&container).await);
    assert!(message.contains("4000000"), "{code:?} {message}");
    guest.run(&agent.container("c1", &["true"])).await;
}
