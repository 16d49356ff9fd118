//! A host: starts the real agent (init, launcher, worker) in namespaces of its own, and calls it by ttrpc.
//!
//! The agent and everything it makes live in a PID namespace whose first process is a shell, so dropping a
//! [`Host`] ends all of it, whatever state a failed test left it in.

use std::{
    fs,
    os::unix::{fs::symlink, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use berth_protocols::{
    agent::{
        CreateContainerRequest, ExecProcessRequest, GuestDetailsRequest, ReadStreamRequest,
        RemoveContainerRequest, SignalProcessRequest, StartContainerRequest, WaitProcessRequest,
        WriteStreamRequest,
    },
    agent_ttrpc::AgentServiceClient,
    oci,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use ttrpc::{r#async::Client, context::Context};

use crate::support::eventually;

/// Longer than anything here takes, even on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn soon() -> Context {
    ttrpc::context::with_duration(PATIENCE)
}

/// A running agent.
pub struct Host {
    pub dir: PathBuf,
    pub client: AgentServiceClient,
    tree: Child,
    name: String,
}

/// How a process is to be run.
#[derive(Clone, Copy, Default)]
pub struct Run<'a> {
    pub args: &'a [&'a str],
    pub terminal: bool,
    pub pidns: bool,
    pub ports: [u32; 3],
}

/// A shell command.
pub fn sh<'a>(args: &'a [&'a str; 3]) -> Run<'a> {
    Run { args, ..Run::default() }
}

/// Which output.
#[derive(Clone, Copy)]
pub enum Out {
    Stdout,
    Stderr,
}

impl Host {
    pub async fn start() -> Self {
        Self::start_in("", "").await
    }

    /// The same with a configuration, and with what a shell does first in the agent's namespaces. In both `@DIR@` is
    /// the host's own directory.
    pub async fn start_in(toml: &str, scope: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("berth-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(&name);
        fs::create_dir_all(&dir).unwrap();
        let own = |text: &str| text.replace("@DIR@", dir.to_str().unwrap());
        fs::write(dir.join("agent.toml"), own(toml)).unwrap();
        let script = format!("set -e\n{}\n\"$0\" \"$@\" & wait", own(scope));
        let socket = dir.join("agent.sock");
        let log = fs::File::create(dir.join("log")).unwrap();
        let tree = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", &script, env!("CARGO_BIN_EXE_berth-agent"), "--config"])
            .arg(dir.join("agent.toml"))
            .args(["--listen", &format!("unix://{}", socket.display()), "--log", "debug"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let client = connect(&socket).await;
        // The listeners are open before there is a worker; an answer means there is one.
        match client.get_guest_details(soon(), &GuestDetailsRequest::new()).await {
            Ok(_) | Err(ttrpc::Error::RpcStatus(_)) => {}
            Err(error) => panic!("{error}"),
        }
        Self { dir, client, tree, name }
    }

    /// A connection of its own, for instance after the worker was replaced.
    pub async fn connect(&self) -> AgentServiceClient {
        connect(&self.dir.join("agent.sock")).await
    }

    pub fn cgroup_of(&self, id: &str) -> String {
        format!("/{}/{id}", self.name)
    }

    pub async fn create(&self, id: &str, run: Run<'_>) -> ttrpc::Result<()> {
        self.create_with(id, run, |_| {}).await
    }

    /// Creates a container of a configuration that `change` has been at.
    pub async fn create_with(
        &self,
        id: &str,
        run: Run<'_>,
        change: impl FnOnce(&mut oci::Spec),
    ) -> ttrpc::Result<()> {
        self.create_asking(id, run, |request| change(request.OCI.as_mut().unwrap())).await
    }

    /// Creates a container by a request that `change` has been at.
    pub async fn create_asking(
        &self,
        id: &str,
        run: Run<'_>,
        change: impl FnOnce(&mut CreateContainerRequest),
    ) -> ttrpc::Result<()> {
        let mut request = CreateContainerRequest::new();
        request.container_id = id.to_owned();
        request.exec_id = id.to_owned();
        request.sandbox_pidns = run.pidns;
        [request.stdin_port, request.stdout_port, request.stderr_port] = run.ports;
        request.OCI = Some(spec(run, &self.cgroup_of(id))).into();
        change(&mut request);
        self.client.create_container(soon(), &request).await.map(drop)
    }

    pub async fn start_container(&self, id: &str) -> ttrpc::Result<()> {
        let request = StartContainerRequest { container_id: id.to_owned(), ..Default::default() };
        self.client.start_container(soon(), &request).await.map(drop)
    }

    /// Creates and starts.
    pub async fn run(&self, id: &str, run: Run<'_>) -> ttrpc::Result<()> {
        self.create(id, run).await?;
        self.start_container(id).await
    }

    pub async fn exec(&self, id: &str, exec_id: &str, run: Run<'_>) -> ttrpc::Result<()> {
        let mut request = ExecProcessRequest::new();
        request.container_id = id.to_owned();
        request.exec_id = exec_id.to_owned();
        request.process = Some(process(run)).into();
        [request.stdin_port, request.stdout_port, request.stderr_port] = run.ports;
        self.client.exec_process(soon(), &request).await.map(drop)
    }

    pub async fn wait(&self, id: &str, exec_id: &str) -> ttrpc::Result<i32> {
        wait(&self.client, id, exec_id).await
    }

    pub async fn signal(&self, id: &str, exec_id: &str, signal: i32) -> ttrpc::Result<()> {
        let mut request = SignalProcessRequest::new();
        request.container_id = id.to_owned();
        request.exec_id = exec_id.to_owned();
        request.signal = signal as u32;
        self.client.signal_process(soon(), &request).await.map(drop)
    }

    pub async fn remove(&self, id: &str) -> ttrpc::Result<()> {
        let request = RemoveContainerRequest { container_id: id.to_owned(), ..Default::default() };
        self.client.remove_container(soon(), &request).await.map(drop)
    }

    pub async fn write(&self, id: &str, exec_id: &str, data: &[u8]) -> ttrpc::Result<u32> {
        let mut request = WriteStreamRequest::new();
        request.container_id = id.to_owned();
        request.exec_id = exec_id.to_owned();
        request.data = data.to_vec();
        self.client.write_stdin(soon(), &request).await.map(|reply| reply.len)
    }

    pub async fn read(&self, id: &str, exec_id: &str, out: Out) -> ttrpc::Result<Vec<u8>> {
        read(&self.client, id, exec_id, out).await
    }

    /// Everything up to the end of the stream.
    pub async fn read_all(&self, id: &str, exec_id: &str, out: Out) -> ttrpc::Result<String> {
        let mut all = Vec::new();
        loop {
            let data = self.read(id, exec_id, out).await?;
            if data.is_empty() {
                return Ok(String::from_utf8_lossy(&all).into_owned());
            }
            all.extend_from_slice(&data);
        }
    }

    /// The agent's present worker, in the tests' PID namespace.
    pub fn worker(&self) -> Option<i32> {
        self.role("berth-worker")
    }

    pub fn role(&self, name: &str) -> Option<i32> {
        self.processes().into_iter().find(|(_, comm)| comm == name).map(|(pid, _)| pid)
    }

    /// Everything that runs in the agent's PID namespace, and what started it.
    pub fn processes(&self) -> Vec<(i32, String)> {
        let mut found = Vec::new();
        let mut parents = vec![self.tree.id() as i32];
        while let Some(parent) = parents.pop() {
            let children = children(parent);
            parents.extend(children.iter().map(|(pid, _)| *pid));
            found.extend(children);
        }
        found
    }

    /// Kills the worker and waits until there is another.
    pub fn kill_worker(&self, signal: Signal) {
        let before = self.worker().expect("a worker");
        let deadline = Instant::now() + PATIENCE;
        while self.worker().is_none_or(|now| now == before) {
            assert!(Instant::now() < deadline, "no new worker: {}", self.log());
            // Rust's handler takes the first SIGSEGV for a fault that will come again.
            let _gone = kill(Pid::from_raw(before), signal);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// How many descriptors a role has open.
    pub fn descriptors(&self, role: &str) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.role(role).unwrap())).unwrap().count()
    }

    /// Directories of this host's cgroups, in all hierarchies.
    pub fn cgroups(&self) -> Vec<PathBuf> {
        let hierarchies = fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path());
        hierarchies
            .chain(["/sys/fs/cgroup".into()])
            .flat_map(|hierarchy| fs::read_dir(hierarchy.join(&self.name)))
            .flat_map(|entries| entries.flatten().map(|entry| entry.path()).collect::<Vec<_>>())
            .filter(|path| path.is_dir())
            .collect()
    }
}

impl Host {
    fn remove_cgroups(&self) -> bool {
        let children = self.cgroups();
        let own =
            fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path().join(&self.name));
        let all: Vec<_> = children.into_iter().chain(own).filter(|group| group.is_dir()).collect();
        all.iter().filter(|group| fs::remove_dir(group).is_err()).count() == 0
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the agent's log:\n{}", self.log());
        }
        let _gone = self.tree.kill();
        let _status = self.tree.wait();
        // The first process of the PID namespace takes the others with it, but not all at once.
        let deadline = Instant::now() + PATIENCE;
        while !self.remove_cgroups() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _gone = fs::remove_dir_all(&self.dir);
    }
}

pub async fn wait(client: &AgentServiceClient, id: &str, exec_id: &str) -> ttrpc::Result<i32> {
    let mut request = WaitProcessRequest::new();
    request.container_id = id.to_owned();
    request.exec_id = exec_id.to_owned();
    client.wait_process(soon(), &request).await.map(|reply| reply.status)
}

pub async fn read(client: &AgentServiceClient, id: &str, exec_id: &str, out: Out) -> ttrpc::Result<Vec<u8>> {
    let mut request = ReadStreamRequest::new();
    request.container_id = id.to_owned();
    request.exec_id = exec_id.to_owned();
    request.len = 32 << 10;
    let reply = match out {
        Out::Stdout => client.read_stdout(soon(), &request).await,
        Out::Stderr => client.read_stderr(soon(), &request).await,
    };
    reply.map(|reply| reply.data)
}

pub async fn connect_at(dir: &Path) -> AgentServiceClient {
    connect(&dir.join("agent.sock")).await
}

async fn connect(socket: &Path) -> AgentServiceClient {
    let address = format!("unix://{}", socket.display());
    eventually("the agent's socket", || UnixStream::connect(socket).is_ok()).await;
    AgentServiceClient::new(Client::connect(&address).await.unwrap())
}

fn children(parent: i32) -> Vec<(i32, String)> {
    let stat = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (before, after) = stat.rsplit_once(')')?;
        let comm = before.split_once('(')?.1.to_owned();
        Some((comm, after.split_whitespace().nth(1)?.parse::<i32>().ok()?))
    };
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| stat(pid).filter(|(_, of)| *of == parent).map(|(comm, _)| (pid, comm)))
        .collect()
}

/// A root file system with busybox and nothing else; made once.
fn rootfs() -> &'static Path {
    static ROOTFS: OnceLock<PathBuf> = OnceLock::new();
    ROOTFS.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let root = target.join("rootfs");
        let fresh = target.join(format!("rootfs-{}", std::process::id()));
        for dir in ["bin", "proc", "dev", "sys", "tmp", "etc"] {
            fs::create_dir_all(fresh.join(dir)).unwrap();
        }
        fs::copy("/bin/busybox", fresh.join("bin/busybox")).unwrap();
        for applet in
            ["sh", "cat", "echo", "true", "sleep", "stty", "hostname", "ps", "seq", "head", "dd", "yes"]
        {
            symlink("busybox", fresh.join("bin").join(applet)).unwrap();
        }
        // Another test process may have been faster; then its copy serves and this one goes.
        if fs::rename(&fresh, &root).is_err() {
            fs::remove_dir_all(&fresh).unwrap();
        }
        root
    })
}

fn process(run: Run<'_>) -> oci::Process {
    oci::Process {
        Terminal: run.terminal,
        Args: run.args.iter().map(|arg| (*arg).to_owned()).collect(),
        Env: vec!["PATH=/bin".to_owned()],
        Cwd: "/".to_owned(),
        User: Some(oci::User::default()).into(),
        ..Default::default()
    }
}

/// The configuration of a container that runs `run`.
pub fn spec(run: Run<'_>, cgroup: &str) -> oci::Spec {
    let mount = |destination: &str, kind: &str, options: &[&str]| oci::Mount {
        destination: destination.to_owned(),
        source: kind.to_owned(),
        type_: kind.to_owned(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
        ..Default::default()
    };
    let namespaces = ["mount", "ipc", "uts"]
        .map(|kind| oci::LinuxNamespace { Type: kind.to_owned(), ..Default::default() });
    oci::Spec {
        Version: "1.2.0".to_owned(),
        Process: Some(process(run)).into(),
        Root: Some(oci::Root { Path: rootfs().display().to_string(), ..Default::default() }).into(),
        Mounts: vec![
            mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
            mount("/dev", "tmpfs", &["nosuid", "mode=755", "size=64k"]),
            mount("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
        ],
        Linux: Some(oci::Linux {
            Namespaces: namespaces.to_vec(),
            CgroupsPath: cgroup.to_owned(),
            ..Default::default()
        })
        .into(),
        ..Default::default()
    }
}
