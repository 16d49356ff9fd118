//! Spans as the host's trace forwarder gets them, read by the crate that it reads them with. `--features tracing`.

#![cfg(feature = "tracing")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    fs,
    io::Read,
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use berth_protocols::{
    agent::{GetMetricsRequest, GuestDetailsRequest, StatsContainerRequest},
    agent_ttrpc::AgentServiceClient,
    health::CheckRequest,
    health_ttrpc::HealthClient,
};
use opentelemetry::{
    Key, Value,
    sdk::export::trace::SpanData,
    trace::{SpanKind, StatusCode},
};
use ttrpc::{r#async::Client, context::Context};

const PATIENCE: Duration = Duration::from_secs(60);

/// An agent in namespaces of its own; everything is gone when it is dropped.
struct Agent {
    dir: PathBuf,
    tree: Child,
}

impl Agent {
    fn start() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("berth-tracing-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("agent.toml"), "tracing = true\n").unwrap();
        let log = fs::File::create(dir.join("log")).unwrap();
        let tree = Command::new("unshare")
            .args(["--mount", "--pid", "--net", "--fork", "--mount-proc", "--kill-child=KILL", "--"])
            .args(["sh", "-c", "\"$@\" & wait", "scope", env!("CARGO_BIN_EXE_berth-agent"), "--config"])
            .arg(dir.join("agent.toml"))
            .args(["--listen", &format!("unix://{}", dir.join("a.sock").display())])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { dir, tree }
    }

    async fn client(&self) -> Client {
        let address = format!("unix://{}", self.dir.join("a.sock").display());
        let start = Instant::now();
        loop {
            match Client::connect(&address).await {
                Ok(client) => return client,
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}\n{}", self.log()),
            }
            tokio::task::yield_now().await;
        }
    }

    fn forwarder(&self) -> UnixListener {
        UnixListener::bind(self.dir.join("a.sock.trace")).unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the agent's log\n{}", self.log());
        }
        let _ = self.tree.kill();
        let _ = self.tree.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn below(traceparent: &str, tracestate: &str) -> Context {
    let mut context = ttrpc::context::with_duration(PATIENCE);
    context.add("traceparent".into(), traceparent.into());
    context.add("tracestate".into(), tracestate.into());
    context
}

/// As the forwarder does: a length, then that many bytes.
fn next(connection: &mut UnixStream) -> SpanData {
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut length = [0; 8];
    connection.read_exact(&mut length).unwrap();
    let mut text = vec![0; u64::from_be_bytes(length) as usize];
    connection.read_exact(&mut text).unwrap();
    serde_json::from_slice(&text)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&text)))
}

fn attribute(span: &SpanData, key: &'static str) -> Option<Value> {
    span.attributes.get(&Key::new(key)).cloned()
}

#[tokio::test]
async fn each_call_has_a_span_below_its_callers() {
    let agent = Agent::start();
    let forwarder = agent.forwarder();
    let client = agent.client().await;
    let calls = AgentServiceClient::new(client.clone());

    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    calls.get_guest_details(below(parent, "vendor=1,other=2"), &GuestDetailsRequest::new()).await.unwrap();
    let unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    calls.get_guest_details(below(unsampled, ""), &GuestDetailsRequest::new()).await.unwrap();
    let stats = StatsContainerRequest { container_id: "nobody".into(), ..Default::default() };
    calls.stats_container(below(parent, ""), &stats).await.unwrap_err();
    HealthClient::new(client).check(below("nonsense", "a=b"), &CheckRequest::new()).await.unwrap();

    let (mut connection, _) = forwarder.accept().unwrap();
    let [details, stats, check] = std::array::from_fn(|_| next(&mut connection));
    assert_eq!(details.name, "GetGuestDetails");
    assert_eq!(details.span_context.trace_id().to_hex(), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(details.parent_span_id.to_hex(), "b7ad6b7169203331");
    assert_eq!(details.span_context.trace_state().header(), "vendor=1,other=2");
    assert!(details.span_context.is_sampled() && details.span_kind == SpanKind::Server);
    assert!(details.status_code == StatusCode::Ok && details.end_time >= details.start_time);
    assert_eq!(attribute(&details, "rpc.service"), Some("grpc.AgentService".into()));
    assert_eq!(attribute(&details, "container.id"), None);

    assert_eq!((&*stats.name, stats.status_code), ("StatsContainer", StatusCode::Error));
    assert_eq!(stats.status_message, "invalid_argument");
    assert_eq!(attribute(&stats, "container.id"), Some("nobody".into()));
    assert_eq!(stats.parent_span_id, details.parent_span_id);
    assert_ne!(stats.span_context.span_id(), details.span_context.span_id());

    assert_eq!((&*check.name, check.parent_span_id.to_u64()), ("Check", 0));
    assert_ne!(check.span_context.trace_id(), details.span_context.trace_id());
    assert!(check.span_context.is_valid() && check.span_context.trace_state().header().is_empty());
}

#[tokio::test]
async fn without_a_forwarder_spans_are_dropped_and_counted_and_calls_go_on() {
    let agent = Agent::start();
    let calls = AgentServiceClient::new(agent.client().await);
    let dropped = async || -> u64 {
        let context = ttrpc::context::with_duration(PATIENCE);
        let text = calls.get_metrics(context, &GetMetricsRequest::new()).await.unwrap().metrics;
        let line = text.lines().find_map(|line| line.strip_prefix("berth_spans_dropped_total "));
        line.expect("the count").parse().unwrap()
    };
    let start = Instant::now();
    while dropped().await < 20 {
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(agent.log().matches("spans are dropped").count(), 1, "told once");

    // One that comes late, and one that takes its place.
    for _ in 0..2 {
        let forwarder = agent.forwarder();
        forwarder.set_nonblocking(true).unwrap();
        let mut connection = loop {
            dropped().await;
            match forwarder.accept() {
                Ok((connection, _)) => break connection,
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
            }
        };
        connection.set_nonblocking(false).unwrap();
        assert_eq!(next(&mut connection).name, "GetMetrics");
        fs::remove_file(agent.dir.join("a.sock.trace")).unwrap();
    }
    assert!(agent.log().contains("the trace forwarder takes spans"));
}
