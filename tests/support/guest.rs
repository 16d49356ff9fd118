//! A client of one agent, wherever it runs.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use berth_protocols::{
    agent::{
        CloseStdinRequest, CreateSandboxRequest, ExecProcessRequest, PauseContainerRequest,
        ReadStreamRequest, RemoveContainerRequest, ResumeContainerRequest, SignalProcessRequest,
        StartContainerRequest, StatsContainerRequest, StatsContainerResponse, TtyWinResizeRequest,
        WaitProcessRequest, WriteStreamRequest,
    },
    agent_ttrpc::AgentServiceClient,
    health_ttrpc::HealthClient,
    oci,
};
use protobuf::MessageField;
use ttrpc::{Code, context::Context};

use crate::Container;

/// What a container's program wrote and how it ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Output {
    /// Exit code, or 128 + signal.
    pub status: i32,
    /// All of it.
    pub stdout: String,
    /// All of it.
    pub stderr: String,
}

/// Calls on one agent. Each has a deadline of its own, so that a hang fails the test that found it.
#[derive(Clone)]
pub struct Guest {
    /// The connection, for calls that the generated clients would not make.
    pub client: ttrpc::r#async::Client,
    /// The generated client.
    pub agent: AgentServiceClient,
    /// The generated client.
    pub health: HealthClient,
}

impl std::fmt::Debug for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guest").finish_non_exhaustive()
    }
}

/// Fails the test when `work` takes more than a minute.
pub async fn deadline<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("no answer within 60 s")
}

/// Looks until `happened`, for what nothing tells of from outside; fails the test after a minute.
pub async fn until(what: &str, mut happened: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !happened().await {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The ttrpc code of a call that must fail, and its message.
pub fn code<T: std::fmt::Debug>(result: ttrpc::Result<T>) -> (Code, String) {
    match result {
        Err(ttrpc::Error::RpcStatus(status)) => {
            (status.code.enum_value().expect("a known code"), status.message)
        }
        other => panic!("expected a status, got {other:?}"),
    }
}

fn context() -> Context {
    ttrpc::context::with_duration(Duration::from_secs(60))
}

impl Guest {
    /// Over an established connection.
    pub fn new(client: ttrpc::r#async::Client) -> Self {
        Self {
            agent: AgentServiceClient::new(client.clone()),
            health: HealthClient::new(client.clone()),
            client,
        }
    }

    /// CreateSandbox with a hostname.
    pub async fn create_sandbox(&self, hostname: &str) -> ttrpc::Result<()> {
        let request = CreateSandboxRequest {
            hostname: hostname.into(),
            sandbox_id: "test".into(),
            ..Default::default()
        };
        self.agent.create_sandbox(context(), &request).await.map(drop)
    }

    /// CreateContainer.
    pub async fn create(&self, container: &Container) -> ttrpc::Result<()> {
        deadline(self.agent.create_container(context(), &container.request)).await.map(drop)
    }

    /// StartContainer.
    pub async fn start(&self, id: &str) -> ttrpc::Result<()> {
        let request = StartContainerRequest { container_id: id.into(), ..Default::default() };
        deadline(self.agent.start_container(context(), &request)).await.map(drop)
    }

    /// RemoveContainer.
    pub async fn remove(&self, id: &str) -> ttrpc::Result<()> {
        let request = RemoveContainerRequest { container_id: id.into(), ..Default::default() };
        deadline(self.agent.remove_container(context(), &request)).await.map(drop)
    }

    /// PauseContainer.
    pub async fn pause(&self, id: &str) -> ttrpc::Result<()> {
        let request = PauseContainerRequest { container_id: id.into(), ..Default::default() };
        deadline(self.agent.pause_container(context(), &request)).await.map(drop)
    }

    /// ResumeContainer.
    pub async fn resume(&self, id: &str) -> ttrpc::Result<()> {
        let request = ResumeContainerRequest { container_id: id.into(), ..Default::default() };
        deadline(self.agent.resume_container(context(), &request)).await.map(drop)
    }

    /// StatsContainer.
    pub async fn stats(&self, id: &str) -> ttrpc::Result<StatsContainerResponse> {
        let request = StatsContainerRequest { container_id: id.into(), ..Default::default() };
        deadline(self.agent.stats_container(context(), &request)).await
    }

    /// ExecProcess.
    pub async fn exec(&self, id: &str, exec_id: &str, process: oci::Process) -> ttrpc::Result<()> {
        let request = ExecProcessRequest {
            container_id: id.into(),
            exec_id: exec_id.into(),
            process: MessageField::some(process),
            ..Default::default()
        };
        deadline(self.agent.exec_process(context(), &request)).await.map(drop)
    }

    /// SignalProcess.
    pub async fn signal(&self, id: &str, exec_id: &str, signal: i32) -> ttrpc::Result<()> {
        let request = SignalProcessRequest {
            container_id: id.into(),
            exec_id: exec_id.into(),
            signal: signal as u32,
            ..Default::default()
        };
        deadline(self.agent.signal_process(context(), &request)).await.map(drop)
    }

    /// WaitProcess.
    pub async fn wait(&self, id: &str, exec_id: &str) -> ttrpc::Result<i32> {
        let request =
            WaitProcessRequest { container_id: id.into(), exec_id: exec_id.into(), ..Default::default() };
        deadline(self.agent.wait_process(context(), &request)).await.map(|reply| reply.status)
    }

    /// WriteStdin; an empty slice closes it.
    pub async fn write(&self, id: &str, exec_id: &str, data: &[u8]) -> ttrpc::Result<u32> {
        let request = WriteStreamRequest {
            container_id: id.into(),
            exec_id: exec_id.into(),
            data: data.to_vec(),
            ..Default::default()
        };
        deadline(self.agent.write_stdin(context(), &request)).await.map(|reply| reply.len)
    }

    /// CloseStdin.
    pub async fn close_stdin(&self, id: &str, exec_id: &str) -> ttrpc::Result<()> {
        let request =
            CloseStdinRequest { container_id: id.into(), exec_id: exec_id.into(), ..Default::default() };
        deadline(self.agent.close_stdin(context(), &request)).await.map(drop)
    }

    /// TtyWinResize.
    pub async fn resize(&self, id: &str, exec_id: &str, row: u32, column: u32) -> ttrpc::Result<()> {
        let request = TtyWinResizeRequest {
            container_id: id.into(),
            exec_id: exec_id.into(),
            row,
            column,
            ..Default::default()
        };
        deadline(self.agent.tty_win_resize(context(), &request)).await.map(drop)
    }

    /// ReadStdout, once.
    pub async fn read_stdout(&self, id: &str, exec_id: &str, len: u32) -> ttrpc::Result<Vec<u8>> {
        let request =
            ReadStreamRequest { container_id: id.into(), exec_id: exec_id.into(), len, ..Default::default() };
        deadline(self.agent.read_stdout(context(), &request)).await.map(|reply| reply.data)
    }

    /// ReadStderr, once.
    pub async fn read_stderr(&self, id: &str, exec_id: &str, len: u32) -> ttrpc::Result<Vec<u8>> {
        let request =
            ReadStreamRequest { container_id: id.into(), exec_id: exec_id.into(), len, ..Default::default() };
        deadline(self.agent.read_stderr(context(), &request)).await.map(|reply| reply.data)
    }

    /// Reads stdout until `wanted` has appeared or the stream ended; returns all of it.
    pub async fn read_until(&self, id: &str, exec_id: &str, wanted: &str) -> String {
        let mut all = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&all).into_owned();
            let data = self.read_stdout(id, exec_id, 8192).await;
            let data = data.unwrap_or_else(|error| panic!("{error} waiting for {wanted:?} after {text:?}"));
            all.extend_from_slice(&data);
            let text = String::from_utf8_lossy(&all).into_owned();
            if data.is_empty() || text.contains(wanted) {
                return text;
            }
        }
    }

    /// All output of a process and its status, as a host collects them: streams and wait at once.
    pub async fn collect(&self, id: &str, exec_id: &str) -> Output {
        let stdout = async {
            let mut all = Vec::new();
            loop {
                let data = self.read_stdout(id, exec_id, 32768).await.expect("read stdout");
                if data.is_empty() {
                    return all;
                }
                all.extend(data);
            }
        };
        let stderr = async {
            let mut all = Vec::new();
            loop {
                let data = self.read_stderr(id, exec_id, 32768).await.expect("read stderr");
                if data.is_empty() {
                    return all;
                }
                all.extend(data);
            }
        };
        let (stdout, stderr, status) = tokio::join!(stdout, stderr, self.wait(id, exec_id));
        Output {
            status: status.expect("wait"),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    /// Create, start, collect, remove.
    pub async fn run(&self, container: &Container) -> Output {
        let id = &container.request.container_id;
        self.create(container).await.expect("create");
        self.start(id).await.expect("start");
        let output = self.collect(id, "").await;
        self.remove(id).await.expect("remove");
        output
    }

    /// Exec and collect.
    pub async fn run_in(&self, id: &str, exec_id: &str, args: &[&str]) -> Output {
        self.exec(id, exec_id, crate::process(args)).await.expect("exec");
        self.collect(id, exec_id).await
    }
}
