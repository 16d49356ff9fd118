//! Bytes per second of standard streams, by RPC and raw, beside a bare splice from a pipe to a Unix socket.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use berth_protocols::agent::{
    ReadStreamRequest, ReadStreamResponse, WriteStreamRequest, WriteStreamResponse,
};
use nix::fcntl::{SpliceFFlags, splice};

use crate::{server::Server, table::Table};

const TOTAL: usize = 1 << 29;
const ROUNDS: usize = 7;
const MIB: f64 = 1024.0 * 1024.0;
const DD: [&str; 4] = ["dd", "if=/dev/zero", "bs=64k", "count=8192"];

/// In turn, the middle of `ROUNDS`: with three processes on two processors, a single one says half or twice that.
pub fn measure(table: &mut Table, agent: &mut Server) {
    let mut rounds: Vec<[f64; 5]> = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push([
            splice_floor(),
            raw_stdout(agent),
            rpc_stdout(agent),
            raw_stdin(agent),
            rpc_stdin(agent),
        ]);
    }
    let [floor, out, out_rpc, into, into_rpc] = [0, 1, 2, 3, 4].map(|at| median(&rounds, at));
    table.rate("stdout, raw", out, "pipe to socket splice", floor, Some(0.7));
    table.rate("stdout by ReadStdout", out_rpc, "pipe to socket splice", floor, None);
    table.rate("stdin, raw", into, "pipe to socket splice", floor, None);
    table.rate("stdin by WriteStdin", into_rpc, "pipe to socket splice", floor, None);
}

fn median(rounds: &[[f64; 5]], at: usize) -> f64 {
    let mut rates: Vec<f64> = rounds.iter().map(|round| round[at]).collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn rate(start: Instant, bytes: usize) -> f64 {
    bytes as f64 / MIB / start.elapsed().as_secs_f64()
}

/// Connects to the raw stdio listener as a host does over hybrid vsock; returns the stream and its port.
fn raw_stream(agent: &Server) -> (UnixStream, u32) {
    let socket = agent.socket();
    let mut stream = UnixStream::connect(format!("{}.stdio", socket.display())).expect("the stdio listener");
    stream.write_all(b"CONNECT 1027\n").expect("send CONNECT");
    let mut line = String::new();
    BufReader::with_capacity(1, stream.try_clone().expect("clone")).read_line(&mut line).expect("an answer");
    let port = line.strip_prefix("OK ").and_then(|port| port.trim().parse().ok()).expect("OK <port>");
    (stream, port)
}

fn drain(stream: &mut impl Read) -> usize {
    let mut buffer = vec![0; 1 << 20];
    let mut total = 0;
    loop {
        match stream.read(&mut buffer).expect("read") {
            0 => return total,
            n => total += n,
        }
    }
}

fn raw_stdout(agent: &mut Server) -> f64 {
    let (mut stream, port) = raw_stream(agent);
    let mut container = agent.container("raw", &DD);
    container.request.stdout_port = port;
    let start = Instant::now();
    agent.begin(&container);
    assert_eq!(drain(&mut stream), TOTAL);
    let rate = rate(start, TOTAL);
    assert_eq!(agent.finish("raw"), 0);
    rate
}

fn rpc_stdout(agent: &mut Server) -> f64 {
    let container = agent.container("rpc", &DD);
    let request = ReadStreamRequest { container_id: "rpc".into(), len: 1 << 20, ..Default::default() };
    let start = Instant::now();
    agent.begin(&container);
    let mut total = 0;
    loop {
        match agent.call::<ReadStreamResponse>("ReadStdout", &request).data.len() {
            0 => break,
            n => total += n,
        }
    }
    let rate = rate(start, total);
    assert_eq!(total, TOTAL);
    assert_eq!(agent.finish("rpc"), 0);
    rate
}

fn raw_stdin(agent: &mut Server) -> f64 {
    let (stream, port) = raw_stream(agent);
    let mut container = agent.container("raw", &["dd", "of=/dev/null", "bs=64k"]);
    container.request.stdin_port = port;
    let start = Instant::now();
    agent.begin(&container);
    fill(stream);
    let status = agent.wait("raw", "");
    let rate = rate(start, TOTAL);
    assert_eq!((status, agent.finish("raw")), (0, 0));
    rate
}

fn fill(mut stream: UnixStream) {
    let chunk = vec![0; 1 << 20];
    for _ in 0..TOTAL >> 20 {
        stream.write_all(&chunk).expect("write");
    }
}

fn rpc_stdin(agent: &mut Server) -> f64 {
    let total = TOTAL / 4;
    let container = agent.container("rpc", &["dd", "of=/dev/null", "bs=64k"]);
    let request = |data| WriteStreamRequest { container_id: "rpc".into(), data, ..Default::default() };
    let full = request(vec![0; 1 << 20]);
    let start = Instant::now();
    agent.begin(&container);
    for _ in 0..total >> 20 {
        agent.call::<WriteStreamResponse>("WriteStdin", &full);
    }
    agent.call::<WriteStreamResponse>("WriteStdin", &request(Vec::new()));
    let status = agent.wait("rpc", "");
    let rate = rate(start, total);
    assert_eq!((status, agent.finish("rpc")), (0, 0));
    rate
}

/// The same writer and reader with nothing but a splice between them.
fn splice_floor() -> f64 {
    let mut writer = Command::new("/bin/busybox")
        .args(DD)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("dd");
    let pipe: OwnedFd = writer.stdout.take().expect("a pipe").into();
    let (near, mut far) = UnixStream::pair().expect("a socket pair");
    let start = Instant::now();
    let mover = thread::spawn(move || {
        while splice(&pipe, None, &near, None, 1 << 20, SpliceFFlags::empty()).expect("splice") > 0 {}
    });
    assert_eq!(drain(&mut far), TOTAL);
    let rate = rate(start, TOTAL);
    mover.join().expect("the mover");
    writer.wait().expect("dd");
    rate
}
