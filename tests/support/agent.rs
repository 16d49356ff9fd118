//! One agent as a plain root process on a Unix socket, in a scope of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{Container, Guest, Rootfs, agent_binary, confined, scratch_dir};

/// A process of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The supervisor.
    Init,
    /// The one that serves calls.
    Worker,
    /// The one that makes container processes.
    Launcher,
}

/// What a scope begins with: the tree hosts copy files into is its own, and so are the locks of iptables.
const SCOPE: &str = "set -e
    mkdir -p /run/kata-containers
    mount -t tmpfs berth-shared /run/kata-containers
    touch /run/xtables.lock /run/kata-containers/xtables.lock
    mount --bind /run/kata-containers/xtables.lock /run/xtables.lock
    \"$@\" & wait";

/// A running agent and the root file system its containers share.
#[derive(Debug)]
pub struct Agent {
    scope: Child,
    dir: PathBuf,
    /// For containers.
    pub rootfs: Rootfs,
}

impl Agent {
    /// Starts one and waits until it answers.
    pub async fn start() -> Self {
        Self::configured("").await
    }

    /// The same, with a configuration file.
    pub async fn configured(toml: &str) -> Self {
        Self::in_scope(toml, "debug", |_, _| scope()).await
    }

    /// One whose memory is what it holds: glibc gives it one arena, and not each thread one in which holes stay.
    pub async fn frugal() -> Self {
        let scope = |_: &Path, _: &Path| {
            let mut command = scope();
            command.env("GLIBC_TUNABLES", "glibc.malloc.arena_max=1");
            command
        };
        Self::in_scope("", "debug", scope).await
    }

    /// One that can do no harm to the machine, whatever it is asked: see the module `confined`. It logs little.
    pub async fn confined(toml: &str) -> Self {
        Self::in_scope(toml, "critical", confined::command).await
    }

    async fn in_scope(toml: &str, level: &str, scope: impl Fn(&Path, &Path) -> Command) -> Self {
        let dir = scratch_dir("agent");
        let rootfs = Rootfs::busybox();
        let config = dir.join("agent.toml");
        fs::write(&config, toml).expect("write the agent's configuration");
        let log = fs::File::create(dir.join("log")).expect("create the agent's log");
        let scope = scope(&dir, rootfs.path())
            .arg(agent_binary())
            .arg("--config")
            .arg(&config)
            .arg("--listen")
            .arg(format!("unix://{}", dir.join("agent.sock").display()))
            .env("BERTH_STATE_DIR", dir.join("state"))
            .env("KATA_AGENT_LOG_LEVEL", level)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("clone the log"))
            .stderr(log)
            .spawn()
            .expect("run unshare (package util-linux) and busybox (busybox-static)");
        let agent = Self { scope, dir, rootfs };
        agent.client().await;
        agent
    }

    /// Started, and with a sandbox.
    pub async fn with_sandbox() -> (Self, Guest) {
        let agent = Self::start().await;
        let guest = agent.client().await;
        guest.create_sandbox("berth-test").await.expect("CreateSandbox");
        (agent, guest)
    }

    /// A new connection; the first waits for the socket to appear.
    pub async fn client(&self) -> Guest {
        let address = format!("unix://{}", self.socket().display());
        let start = Instant::now();
        loop {
            match ttrpc::r#async::Client::connect(&address).await {
                Ok(client) => return Guest::new(client),
                Err(error) if start.elapsed() > Duration::from_secs(60) => {
                    panic!("cannot connect to {address}: {error}\n{}", self.log())
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// The ttrpc socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("agent.sock")
    }

    /// A directory of the test's own, removed with the agent.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The tree that hosts copy files into, as seen from here; the agent's own.
    pub fn shared(&self) -> PathBuf {
        format!("/proc/{}/root/run/kata-containers/shared/containers", self.role(Role::Init)).into()
    }

    /// What the agent has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// A container of this agent, in its own cgroup below the agent's prefix.
    pub fn container(&self, id: &str, args: &[&str]) -> Container {
        let mut container = Container::new(id, &self.rootfs.path().to_string_lossy(), args);
        container.linux().CgroupsPath = format!("{}/{id}", self.cgroup_prefix());
        container
    }

    /// `sh -c script`.
    pub fn shell(&self, id: &str, script: &str) -> Container {
        self.container(id, &["sh", "-c", script])
    }

    fn cgroup_prefix(&self) -> String {
        let name = self.dir.file_name().expect("the scratch directory has a name");
        format!("/{}", name.to_string_lossy())
    }

    /// What a file of a container's cgroup says, in the v1 hierarchy of `controller`.
    pub fn cgroup_file(&self, controller: &str, id: &str, file: &str) -> String {
        let path = format!("/sys/fs/cgroup/{controller}{}/{id}/{file}", self.cgroup_prefix());
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        text.trim_end().to_owned()
    }

    /// The process id of a role, as the test sees it; waits for it to exist.
    pub fn role(&self, role: Role) -> Pid {
        let start = Instant::now();
        loop {
            if let Some(pid) = self.find(role) {
                return pid;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "no {role:?}\n{}", self.log());
            std::thread::yield_now();
        }
    }

    fn find(&self, role: Role) -> Option<Pid> {
        let scope = children(self.scope.id() as i32);
        let shell = scope.first()?;
        let init = *children(*shell).first()?;
        let wanted = match role {
            Role::Init => return Some(Pid::from_raw(init)),
            Role::Worker => "worker",
            Role::Launcher => "launcher",
        };
        children(init).into_iter().find(|pid| has_argument(*pid, wanted)).map(Pid::from_raw)
    }

    /// Signals a role.
    pub fn kill(&self, role: Role, signal: Signal) -> Pid {
        let pid = self.role(role);
        kill(pid, signal).expect("signal a role");
        pid
    }

    /// Kills a role by `signal` and waits for its successor. The signal is repeated, because Rust's handler for
    /// stack overflows lets the first SIGSEGV that another process sent pass.
    pub async fn replace(&self, role: Role, signal: Signal) {
        let killed = self.kill(role, signal);
        while self.role(role) == killed {
            let _ = kill(killed, signal);
            tokio::task::yield_now().await;
        }
    }

    /// Process ids of all tasks below the agent's init except its roles.
    pub fn container_pids(&self) -> Vec<i32> {
        let init = self.role(Role::Init).as_raw();
        children(init)
            .into_iter()
            .filter(|pid| !has_argument(*pid, "worker") && !has_argument(*pid, "launcher"))
            .collect()
    }

    /// Waits for the whole agent to have ended.
    pub fn ended(mut self) {
        self.scope.wait().expect("wait for the scope");
    }

    /// Directories of this agent's cgroup prefix that still exist.
    pub fn cgroups(&self) -> Vec<PathBuf> {
        let prefix = self.cgroup_prefix();
        let mut found = Vec::new();
        for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            walk(&hierarchy.path().join(prefix.trim_start_matches('/')), &mut found);
        }
        found
    }
}

/// What every agent but a confined one runs in.
fn scope() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--net", "--fork", "--mount-proc", "--kill-child=KILL", "--"]).args([
        "/bin/busybox",
        "sh",
        "-c",
        SCOPE,
        "scope",
    ]);
    command
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the agent's log\n{}", self.log());
        }
        let _ = self.scope.kill();
        let _ = self.scope.wait();
        // The processes of the scope die after the one that was waited for, and until then their groups are busy.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            self.cgroups().iter().rev().for_each(|dir| drop(fs::remove_dir(dir)));
            if self.cgroups().is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    if !dir.is_dir() {
        return;
    }
    found.push(dir.to_owned());
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        walk(&entry.path(), found);
    }
}

fn children(pid: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn has_argument(pid: i32, argument: &str) -> bool {
    let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    text.split(|byte| *byte == 0).any(|part| part == argument.as_bytes())
}
