//! A call that does nothing, beside an echo over the same kind of socket.

use std::{
    env,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    process::Command,
};

use berth_protocols::health::{CheckRequest, HealthCheckResponse};

use crate::{sample::Samples, server::Server, table::Table};

const CALLS: usize = 20_000;
/// What a Check request and its reply occupy on the wire, roughly.
const REQUEST: usize = 32;
const REPLY: usize = 14;

pub fn measure(table: &mut Table, agent: &Server, peer: Option<&Server>) {
    let mut echo = Echo::start();
    let floor = round_trips(|| echo.round_trip());
    let ours = checks(agent);
    table.time("null call, p50", ours.median(), "raw echo", floor.median(), Some(2.5));
    if let Some(peer) = peer {
        table.time("null call, p50", ours.median(), "peer agent", checks(peer).median(), None);
    }
}

fn checks(server: &Server) -> Samples {
    let mut client = crate::server::connect(&server.socket());
    round_trips(|| {
        client.call::<HealthCheckResponse>("grpc.Health", "Check", &CheckRequest::new()).expect("Check");
    })
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
        let stream = crate::server::connect(&path).stream;
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
