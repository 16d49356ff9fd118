//! A server in a process of its own, so that its memory, descriptors and processor time can be told apart.

use std::{
    env, fs,
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    rc::Rc,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use berth_agent::rpc::{
    limits::Limits,
    server::{Options, Server},
};
use tokio::task::LocalSet;

use super::{client::Client, probe::Probe};

/// An answer that nothing should hold up comes within this time, on a machine that may be busy.
pub const PROMPT: Duration = Duration::from_secs(2);

const SOCKET: &str = "BERTH_TEST_SOCKET";
const FRAME_MS: &str = "BERTH_TEST_FRAME_MS";
const STALL_MS: &str = "BERTH_TEST_STALL_MS";

fn from_env(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// The child's side.
pub fn run() {
    let Some(socket) = env::var_os(SOCKET) else { return };
    let mut limits = Limits::default();
    if let Some(millis) = from_env(FRAME_MS) {
        limits.frame_progress = Duration::from_millis(millis);
    }
    if let Some(millis) = from_env(STALL_MS) {
        limits.write_stall = Duration::from_millis(millis);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let listener = OwnedFd::from(UnixListener::bind(&socket).unwrap());
        let log = slog::Logger::root(slog::Discard, slog::o!());
        let options = Options { limits, any_cid: false };
        let server = Server::new(Rc::new(Probe::default()), options, log);
        let Err(error) = server.serve(listener).await;
        panic!("{error}");
    });
}

/// The parent's side; killed when dropped.
pub struct Running {
    child: Child,
    pub socket: PathBuf,
}

/// With what a server differs from an ordinary one.
#[derive(Default, Clone, Copy)]
pub struct Setup {
    pub frame_ms: Option<u64>,
    pub stall_ms: Option<u64>,
}

pub fn start(setup: Setup) -> Running {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let socket = env::temp_dir().join(format!("berth-rpc-{}-{number}.sock", std::process::id()));
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "serve", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(SOCKET, &socket).env("RUST_BACKTRACE", "0").stdout(Stdio::null()).stderr(Stdio::null());
    for (name, value) in [(FRAME_MS, setup.frame_ms), (STALL_MS, setup.stall_ms)] {
        if let Some(value) = value {
            command.env(name, value.to_string());
        }
    }
    let child = command.spawn().unwrap();
    let running = Running { child, socket };
    wait_for(|| std::os::unix::net::UnixStream::connect(&running.socket).is_ok());
    running.client().ping();
    running
}

/// Looks again for up to a minute.
pub fn wait_for(mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "it did not happen within a minute");
        thread::sleep(Duration::from_millis(2));
    }
}

impl Running {
    pub fn client(&self) -> Client {
        Client::connect(&self.socket)
    }

    fn proc(&self, file: &str) -> PathBuf {
        Path::new("/proc").join(self.child.id().to_string()).join(file)
    }

    fn status(&self, field: &str) -> usize {
        let status = fs::read_to_string(self.proc("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Resident KiB.
    pub fn resident(&self) -> usize {
        self.status("VmRSS")
    }

    /// Mapped KiB.
    pub fn mapped(&self) -> usize {
        self.status("VmSize")
    }

    pub fn descriptors(&self) -> usize {
        fs::read_dir(self.proc("fd")).unwrap().count()
    }

    /// Processor time used so far.
    pub fn processor(&self) -> Duration {
        let stat = fs::read_to_string(self.proc("stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }

    /// What is served besides: the time within which nine of ten pings are answered.
    pub fn slow_ping(&self) -> Duration {
        let mut client = self.client();
        let mut times: Vec<Duration> = (0..100).map(|_| client.ping()).collect();
        times.sort_unstable();
        times[90]
    }

    /// Gives the server more or fewer descriptors.
    pub fn limit_descriptors(&self, count: u64) {
        let status = Command::new("prlimit")
            .args([format!("--pid={}", self.child.id()), format!("--nofile={}:", count)])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// finished, leases sent, leases dropped, parked
    pub fn counts(&self) -> [u64; 4] {
        let reply = self.client().call("Count", b"").unwrap();
        let text = String::from_utf8(reply).unwrap();
        let counts: Vec<u64> = text.split(' ').map(|count| count.parse().unwrap()).collect();
        counts.try_into().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.socket);
    }
}
