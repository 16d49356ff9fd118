//! An agent under measurement, ours or a peer's.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use berth::{Container, RawClient, Rootfs, scratch_dir};
use berth_protocols::agent::{
    CreateSandboxRequest, RemoveContainerRequest, StartContainerRequest, WaitProcessRequest,
    WaitProcessResponse,
};
use protobuf::{Message, well_known_types::empty::Empty};

/// A running agent and one connection to it.
pub struct Server {
    process: Child,
    dir: PathBuf,
    pub rootfs: Rootfs,
    pub client: RawClient,
}

impl Server {
    /// Starts `binary` on a Unix socket and creates a sandbox.
    pub fn start(binary: &Path) -> Self {
        Self::start_with(binary, "")
    }

    /// The same with a configuration file, which a peer would not understand.
    pub fn start_with(binary: &Path, toml: &str) -> Self {
        let dir = scratch_dir("bench");
        let process = spawn(binary, &dir, toml);
        let socket = dir.join("agent.sock");
        let mut client = connect(&socket);
        let request = CreateSandboxRequest {
            hostname: "bench".into(),
            sandbox_id: "bench".into(),
            ..Default::default()
        };
        client.agent::<Empty>("CreateSandbox", &request).expect("CreateSandbox");
        Self { process, dir, rootfs: Rootfs::busybox(), client }
    }

    /// Its ttrpc socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("agent.sock")
    }

    /// The id of its first process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The container that launches are measured with: the default mounts, its own cgroup.
    pub fn container(&self, id: &str, args: &[&str]) -> Container {
        let mut container = Container::new(id, &self.rootfs.path().to_string_lossy(), args);
        // Of its own beside another agent's.
        container.linux().CgroupsPath = format!("/berth-bench/{id}-{}", self.pid());
        container
    }

    /// One call of the agent service that must succeed.
    pub fn call<Reply: Message>(&mut self, method: &str, request: &impl Message) -> Reply {
        self.client.agent(method, request).expect(method)
    }

    /// create + start.
    pub fn begin(&mut self, container: &Container) {
        let id = &container.request.container_id;
        self.call::<Empty>("CreateContainer", &container.request);
        self.call::<Empty>(
            "StartContainer",
            &StartContainerRequest { container_id: id.clone(), ..Default::default() },
        );
    }

    /// wait + remove.
    pub fn finish(&mut self, id: &str) -> i32 {
        let status = self.wait(id, "");
        self.call::<Empty>(
            "RemoveContainer",
            &RemoveContainerRequest { container_id: id.into(), ..Default::default() },
        );
        status
    }

    /// wait.
    pub fn wait(&mut self, id: &str, exec_id: &str) -> i32 {
        let request =
            WaitProcessRequest { container_id: id.into(), exec_id: exec_id.into(), ..Default::default() };
        self.call::<WaitProcessResponse>("WaitProcess", &request).status
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self
            .client
            .agent::<Empty>("DestroySandbox", &berth_protocols::agent::DestroySandboxRequest::new());
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Starts `binary` on `dir`/agent.sock, with a configuration file if there is something to be in it.
pub fn spawn(binary: &Path, dir: &Path, toml: &str) -> Child {
    let (mut settings, mut level) = (Vec::new(), "error");
    if !toml.is_empty() {
        let config = dir.join("agent.toml");
        fs::write(&config, toml).expect("write the configuration");
        settings.extend(["--config".into(), config.into_os_string()]);
        level = "warn";
    }
    Command::new(binary)
        .args(settings)
        .env("KATA_AGENT_SERVER_ADDR", format!("unix://{}", dir.join("agent.sock").display()))
        .env("KATA_AGENT_LOG_LEVEL", level)
        .env("BERTH_STATE_DIR", dir.join("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start the agent")
}

/// Connects as soon as that is possible.
pub fn connect(socket: &Path) -> RawClient {
    let start = Instant::now();
    loop {
        match RawClient::connect(socket) {
            Ok(client) => return client,
            Err(error) if start.elapsed() > Duration::from_secs(10) => {
                panic!("{}: {error}", socket.display())
            }
            Err(_) => std::thread::yield_now(),
        }
    }
}
