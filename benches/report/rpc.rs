//! A call that does nothing, beside an echo over the same kind of socket, and beside clients who hardly read.

use std::{
    env,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use berth::RawClient;
use berth_protocols::{
    agent::{GetMetricsRequest, Metrics},
    health::{CheckRequest, HealthCheckResponse},
};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity},
    unistd::Pid,
};

use crate::{
    sample::{Samples, interleave},
    server::{Server, connect},
    table::Table,
};

const CALLS: usize = 20_000;
/// What a Check request and its reply occupy on the wire, roughly.
const REQUEST: usize = 32;
const REPLY: usize = 14;
/// Clients that take a KiB of their replies in a second.
const SLOW: usize = 16;
/// What each of them asks for at once, in calls of GetMetrics: more than is kept for one connection.
const ASKED: usize = 1000;
/// Calls of one sample beside them.
const SAMPLE: usize = 2_000;

pub fn measure(table: &mut Table, agent: &Server, peer: Option<&Server>) {
    let mut echo = Echo::start();
    let floor = round_trips(|| echo.round_trip());
    let ours = checks(agent);
    table.time("null call, p50", ours.median(), "raw echo", floor.median(), Some(2.5));
    if let Some(peer) = peer {
        table.time("null call, p50", ours.median(), "peer agent", checks(peer).median(), None);
    }
    slow_readers(table);
}

/// Two agents in turn, of which one has slow readers. All of it is on one processor: with more, a call takes half or
/// twice as long where the kernel happens to have client and worker on the same.
fn slow_readers(table: &mut Table) {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).expect("the processors of this thread");
    let mut one = CpuSet::new();
    one.set(sched_getcpu().expect("the processor of this thread")).expect("a set of it alone");
    sched_setaffinity(this, &one).expect("stay there");
    beside_slow_readers(table);
    sched_setaffinity(this, &allowed).expect("go anywhere again");
}

fn beside_slow_readers(table: &mut Table) {
    let [alone, beside] = [(); 2].map(|()| Server::start(&berth::agent_binary()));
    let readers = SlowReaders::start(&beside.socket());
    let [mut one, mut other] = [&alone, &beside].map(|server| connect(&server.socket()));
    let samples = interleave(20, Duration::ZERO, &mut [&mut || sample(&mut one), &mut || sample(&mut other)]);
    let [alone, beside] = [0, 1].map(|index| SAMPLE as f64 / samples[index].median() * 1e3);
    let what = format!("calls beside {SLOW} slow readers");
    table.rate_of("calls/s", &what, beside, "alone", alone, Some(0.8));
    readers.stop();
}

fn sample(client: &mut RawClient) {
    for _ in 0..SAMPLE {
        check(client);
    }
}

fn check(client: &mut RawClient) {
    client.call::<HealthCheckResponse>("grpc.Health", "Check", &CheckRequest::new()).expect("Check");
}

struct SlowReaders {
    over: Arc<AtomicBool>,
    reader: JoinHandle<()>,
}

impl SlowReaders {
    /// Returns once the agent has done for them what it does before they read on.
    fn start(socket: &Path) -> Self {
        let mut clients: Vec<RawClient> = (0..SLOW).map(|_| connect(socket)).collect();
        for client in &mut clients {
            // The agent stops reading before it has read them all.
            client.stream.set_nonblocking(true).expect("a socket that does not block");
            let asked = |client: &mut RawClient| {
                client.send("grpc.AgentService", "GetMetrics", &GetMetricsRequest::new())
            };
            let sent = (0..ASKED).take_while(|_| asked(client).is_ok()).count();
            assert!(sent > ASKED / 10, "only {sent} requests were taken");
            client.stream.set_nonblocking(false).expect("a socket that blocks");
        }
        let mut looker = connect(socket);
        let mut before: Option<u64> = None;
        loop {
            let now = asked_for(&mut looker);
            if before.is_some_and(|before| now == before + 1) {
                break;
            }
            before = Some(now);
            thread::sleep(Duration::from_millis(200));
        }
        let over = Arc::<AtomicBool>::default();
        let told = Arc::clone(&over);
        let reader = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                for client in &mut clients {
                    client.stream.read_exact(&mut [0; 1024]).expect("replies");
                }
                thread::sleep(Duration::from_secs(1));
            }
        });
        Self { over, reader }
    }

    fn stop(self) {
        self.over.store(true, Ordering::Relaxed);
        self.reader.join().expect("the slow readers were served until the end");
    }
}

/// How often metrics have been asked for, this time left out.
fn asked_for(client: &mut RawClient) -> u64 {
    let text: Metrics = client.agent("GetMetrics", &GetMetricsRequest::new()).expect("GetMetrics");
    let sample = "berth_rpc_duration_seconds_count{method=\"GetMetrics\"} ";
    let count = text.metrics.lines().find_map(|line| line.strip_prefix(sample));
    count.map_or(0, |count| count.parse().expect("a count"))
}

fn checks(server: &Server) -> Samples {
    let mut client = connect(&server.socket());
    round_trips(|| check(&mut client))
}

fn round_trips(mut once: impl FnMut()) -> Samples {
    let mut samples = Samples::default();
    for call in 0..CALLS + CALLS / 10 {
        if call < CALLS / 10 {
            once();
        } else {
            samples.time(&mut once);
        }
    }
    samples
}

struct Echo {
    process: std::process::Child,
    stream: UnixStream,
}

impl Echo {
    fn start() -> Self {
        let path = berth::scratch_dir("echo").join("sock");
        let process = Command::new(env::current_exe().expect("this program"))
            .args(["echo".as_ref(), path.as_os_str()])
            .spawn()
            .expect("start the echo server");
        let stream = connect(&path).stream;
        Self { process, stream }
    }

    fn round_trip(&mut self) {
        let mut reply = [0; REPLY];
        self.stream.write_all(&[0; REQUEST]).expect("send");
        self.stream.read_exact(&mut reply).expect("receive");
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Answers each request with a fixed reply, blocking.
pub fn echo_server(path: &str) {
    let listener = UnixListener::bind(path).expect("bind");
    let (mut stream, _) = listener.accept().expect("accept");
    let mut request = [0; REQUEST];
    while stream.read_exact(&mut request).is_ok() {
        stream.write_all(&[0; REPLY]).expect("reply");
    }
}
