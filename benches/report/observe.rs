//! Looking at a running container: statistics, a scrape of all metrics, how soon an OOM kill is told, and how fast
//! the log is.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use berth_protocols::agent::{
    GetMetricsRequest, GetOOMEventRequest, Metrics, OOMEvent, RemoveContainerRequest, StatsContainerRequest,
    StatsContainerResponse,
};
use protobuf::well_known_types::empty::Empty;

use crate::{sample::Samples, server::Server, table::Table};

const ROUNDS: usize = 200;
const KILLS: usize = 5;
/// Log lines on their way at once: fewer than the log's pipe holds, so none is dropped.
const BATCH: usize = 100;
const BATCHES: usize = 200;

pub fn measure(table: &mut Table, agent: &mut Server) {
    agent.begin(&agent.container("observed", &["sleep", "1000"]));
    let request = StatsContainerRequest { container_id: "observed".into(), ..Default::default() };
    let (mut stats, mut scrapes) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        stats.time(|| agent.call::<StatsContainerResponse>("StatsContainer", &request));
        scrapes.time(|| agent.call::<Metrics>("GetMetrics", &GetMetricsRequest::new()));
    }
    table.figure("StatsContainer, p50", stats.median() * 1e3, "us", None);
    table.figure("GetMetrics, p50", scrapes.median(), "ms", None);
    remove(agent, "observed");
    oom(table, agent);
    log(table);
}

/// From the moment the exit of the killed process is told, which is a little after the kill itself.
fn oom(table: &mut Table, agent: &mut Server) {
    let mut samples = Samples::default();
    for round in 0..KILLS {
        let id = format!("oom{round}");
        let mut container = agent.container(&id, &["sh", "-c", "x=a; while :; do x=$x$x; done"]);
        let resources = container.linux().Resources.mut_or_insert_default();
        resources.Memory.mut_or_insert_default().Limit = 32 << 20;
        agent.begin(&container);
        agent.wait(&id, "");
        let killed = Instant::now();
        agent.call::<OOMEvent>("GetOOMEvent", &GetOOMEventRequest::new());
        samples.push(killed.elapsed().max(Duration::from_micros(1)));
        remove(agent, &id);
    }
    table.figure("OOM kill: exit to event, p50", samples.median(), "ms", Some(100.0));
}

fn remove(agent: &mut Server, id: &str) {
    let request = RemoveContainerRequest { container_id: id.into(), ..Default::default() };
    agent.call::<Empty>("RemoveContainer", &request);
}

/// From what has a line logged, through the log's pipe, to a reader at its port; beside the bytes of as many lines
/// through a socket. A reader's own command that is none is logged, so nothing else is in the measurement.
fn log(table: &mut Table) {
    let agent = Server::start_with(&berth::agent_binary(), "log_vport = 1025\n");
    let mut port = UnixStream::connect(agent.socket().with_extension("sock.log")).expect("the log's port");
    let mut lines = BufReader::new(port.try_clone().expect("a second handle"));
    let mut batch = |count: usize| -> usize {
        port.write_all(&b"?\n".repeat(count)).expect("write to the log's port");
        let (mut seen, mut bytes, mut line) = (0, 0, String::new());
        while seen < count {
            line.clear();
            bytes += lines.read_line(&mut line).expect("a line of the log");
            seen += usize::from(line.contains("is no command"));
        }
        bytes
    };
    // The first one has the story of the start before it.
    batch(BATCH);
    let start = Instant::now();
    let bytes: usize = (0..BATCHES).map(|_| batch(BATCH)).sum();
    let ours = start.elapsed();
    let floor = through_a_socket(bytes);
    let rate = |took: Duration| (BATCH * BATCHES) as f64 / took.as_secs_f64();
    table.count(
        "log lines/s, to a reader at the port",
        rate(ours),
        "the bytes alone",
        rate(floor),
        "lines",
        None,
    );
}

fn through_a_socket(bytes: usize) -> Duration {
    let (mut near, mut far) = UnixStream::pair().expect("a pair of sockets");
    let batch = vec![b'x'; bytes / BATCHES];
    let start = Instant::now();
    let reader = thread::spawn(move || far.read_to_end(&mut Vec::new()).expect("read"));
    (0..BATCHES).for_each(|_| near.write_all(&batch).expect("write"));
    drop(near);
    reader.join().expect("the reader");
    start.elapsed()
}
