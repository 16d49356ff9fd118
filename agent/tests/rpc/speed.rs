//! What a call costs, beside a bare echo over the same kind of socket. Run by hand, optimised:
//! `cargo test --release -p berth-agent --test rpc speed -- --ignored --nocapture`.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use super::{
    client::{Client, envelope, request},
    server::{Running, Setup, start},
};

const ROUNDS: usize = 50_000;

fn percentile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100].as_nanos() as f64 / 1000.0
}

/// Sends the calls and reads `reply` bytes, without decoding, `depth` calls at a time.
fn exchange(
    client: &mut Client,
    call: impl Fn(u32) -> Vec<u8>,
    rounds: usize,
    depth: usize,
    reply: usize,
) -> Vec<Duration> {
    let mut buffer = vec![0; reply * depth];
    let batches: Vec<Vec<u8>> = (0..rounds as u32)
        .map(|round| (0..depth as u32).flat_map(|i| call(2 * (round * depth as u32 + i) + 1)).collect())
        .collect();
    let mut times = Vec::with_capacity(rounds);
    for batch in &batches {
        let start = Instant::now();
        client.socket.write_all(batch).unwrap();
        client.socket.read_exact(&mut buffer).unwrap();
        times.push(start.elapsed());
    }
    times
}

fn report(
    name: &str,
    server: &Running,
    rounds: usize,
    depth: usize,
    call: impl Fn(u32) -> Vec<u8>,
    reply: usize,
) {
    let mut client = server.client();
    exchange(&mut client, &call, rounds / 10, depth, reply);
    let mut client = server.client();
    let before = server.processor();
    let mut times = exchange(&mut client, &call, rounds, depth, reply);
    let took: Duration = times.iter().sum();
    let calls = (rounds * depth) as f64;
    println!(
        "{name:28} p50 {:8.1} us  p99 {:8.1} us  {:9.0} calls/s  {:7.0} MiB/s  server {:6.2} us/call",
        percentile(&mut times, 50),
        percentile(&mut times, 99),
        calls / took.as_secs_f64(),
        calls * reply as f64 / took.as_secs_f64() / 1_048_576.0,
        (server.processor() - before).as_micros() as f64 / calls,
    );
}

fn raw_echo() {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let echo = thread::spawn(move || {
        let mut buffer = [0; 110];
        while theirs.read_exact(&mut buffer).is_ok() {
            theirs.write_all(&buffer[..10]).unwrap();
        }
    });
    let (request, mut reply) = ([0; 110], [0; 10]);
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            ours.write_all(&request).unwrap();
            ours.read_exact(&mut reply).unwrap();
            start.elapsed()
        })
        .collect();
    drop(ours);
    echo.join().unwrap();
    println!(
        "{:28} p50 {:8.1} us  p99 {:8.1} us",
        "raw echo, two threads",
        percentile(&mut times, 50),
        percentile(&mut times, 99)
    );
}

async fn crate_client(server: &Running) {
    let client =
        ttrpc::asynchronous::Client::connect(&format!("unix://{}", server.socket.display())).await.unwrap();
    let mut times = Vec::with_capacity(ROUNDS);
    let before = server.processor();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        client.request(envelope("Echo", b"ping", 0)).await.unwrap();
        times.push(start.elapsed());
    }
    let cost = (server.processor() - before).as_micros() as f64 / ROUNDS as f64;
    let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    println!(
        "{:28} p50 {p50:8.1} us  p99 {p99:8.1} us  server {cost:6.2} us/call",
        "ping, the crate's client"
    );
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let server = start(Setup::default());
    raw_echo();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(crate_client(&server));
    let ping = |stream| request(stream, "Echo", b"ping");
    report("ping", &server, ROUNDS, 1, ping, 16);
    report("ping, 16 at a time", &server, ROUNDS, 16, ping, 16);
    report("ping, 64 at a time", &server, ROUNDS / 4, 64, ping, 16);
    for (name, bytes, rounds) in [
        ("read 32 KiB", 32 << 10, ROUNDS),
        ("read 1 MiB", 1 << 20, 5000),
        ("read 4,194,000 B", 4_194_000, 1000),
    ] {
        let payload = bytes.to_string();
        let call = |stream| request(stream, "Shared", payload.as_bytes());
        let reply = server.client().call_size("Shared", payload.as_bytes());
        report(name, &server, rounds, 1, call, reply);
    }
    let body = vec![0; 1 << 20];
    report("write 1 MiB", &server, 2000, 1, |stream| request(stream, "Swallow", &body), 10);
}
