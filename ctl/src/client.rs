//! A connection to one agent, with a typed method for every call `berthctl` makes.
//!
//! A call has the connection's time limit; the ones that wait for a workload (WaitProcess and the streams) have
//! none, because only their process knows when they end. An error keeps the ttrpc code the agent gave, and is told
//! apart from a connection that broke: after the latter nobody knows whether the call took effect.

mod control;

use std::{fmt, time::Duration};

use berth_protocols::{
    agent::{
        ARPNeighbors, AddARPNeighborsRequest, AddSwapPathRequest, CloseStdinRequest, CopyFileRequest,
        CreateContainerRequest, CreateSandboxRequest, DestroySandboxRequest, ExecProcessRequest,
        GetIPTablesRequest, GuestDetailsRequest, GuestDetailsResponse, ListInterfacesRequest,
        ListRoutesRequest, ReadStreamRequest, RemoveContainerRequest, Routes, SetIPTablesRequest,
        SetPolicyRequest, SignalProcessRequest, StartContainerRequest, TtyWinResizeRequest,
        UpdateInterfaceRequest, UpdateRoutesRequest, WaitProcessRequest, WriteStreamRequest,
    },
    agent_ttrpc::AgentServiceClient,
    health::{CheckRequest, HealthCheckResponse, VersionCheckResponse},
    health_ttrpc::HealthClient,
    types::{ARPNeighbor, Interface, Route},
};
use protobuf::MessageField;
use ttrpc::{
    Code,
    r#async::{Client, transport::Socket},
    context::{Context, with_duration},
};

use crate::address::{Address, ConnectError};

/// What most calls may take, like the hosts of today allow.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a call gave no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no connection to begin with.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The agent refused or failed.
    #[error("{method}: {message} ({})", code_name(*.code))]
    Rpc {
        /// The call.
        method: String,
        /// The agent's code.
        code: Code,
        /// The agent's text.
        message: String,
    },
    /// The connection broke, or the time was up: the call may or may not have taken effect.
    #[error("{method}: no reply: {reason}")]
    NoReply {
        /// The call.
        method: String,
        /// What became of the connection.
        reason: String,
    },
}

impl Error {
    /// The code the agent answered with, if it did.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Rpc { code, .. } => Some(*code),
            Self::Connect(_) | Self::NoReply { .. } => None,
        }
    }

    /// Sorts what the ttrpc crate reports by what it means to a caller.
    pub fn of(method: &str, error: ttrpc::Error) -> Self {
        let method = method.to_owned();
        let reason = match error {
            ttrpc::Error::RpcStatus(status) => {
                return Self::Rpc { method, code: status.code(), message: status.message };
            }
            ttrpc::Error::Socket(text) | ttrpc::Error::Others(text) => text,
            ttrpc::Error::LocalClosed | ttrpc::Error::RemoteClosed | ttrpc::Error::Eof => {
                "the agent closed the connection".to_owned()
            }
            other => other.to_string(),
        };
        Self::NoReply { method, reason }
    }
}

fn code_name(code: Code) -> String {
    format!("{code:?}")
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Names one process: a container's init when `exec` is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessId {
    /// The container.
    pub container: String,
    /// The process within it.
    pub exec: String,
}

impl ProcessId {
    /// The init of a container.
    pub fn init(container: &str) -> Self {
        Self { container: container.to_owned(), exec: String::new() }
    }
}

/// One of a process's output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Descriptor 1, or the terminal.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

/// A connection to an agent. Clones share it.
#[derive(Clone)]
pub struct Agent {
    client: Client,
    agent: AgentServiceClient,
    health: HealthClient,
    timeout: Duration,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Agent {
    /// Connects; every call but the waiting ones may then take `timeout`.
    pub async fn connect(address: &Address, timeout: Duration) -> Result<Self> {
        let client = Client::new(Socket::new(address.connect().await?));
        let agent = AgentServiceClient::new(client.clone());
        let health = HealthClient::new(client.clone());
        Ok(Self { client, agent, health, timeout })
    }

    /// The ttrpc connection, for calls that have no method here.
    pub fn ttrpc(&self) -> &Client {
        &self.client
    }

    /// What a call may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    fn limited(&self) -> Context {
        with_duration(self.timeout)
    }

    /// Health.Check.
    pub async fn check(&self) -> Result<HealthCheckResponse> {
        let reply = self.health.check(self.limited(), &CheckRequest::new()).await;
        reply.map_err(|error| Error::of("Check", error))
    }

    /// Health.Version.
    pub async fn version(&self) -> Result<VersionCheckResponse> {
        let reply = self.health.version(self.limited(), &CheckRequest::new()).await;
        reply.map_err(|error| Error::of("Version", error))
    }

    /// GetGuestDetails, with everything it can tell.
    pub async fn guest_details(&self) -> Result<GuestDetailsResponse> {
        let request =
            GuestDetailsRequest { mem_block_size: true, mem_hotplug_probe: true, ..Default::default() };
        let reply = self.agent.get_guest_details(self.limited(), &request).await;
        reply.map_err(|error| Error::of("GetGuestDetails", error))
    }

    /// SetPolicy.
    pub async fn set_policy(&self, policy: String) -> Result<()> {
        let request = SetPolicyRequest { policy, ..Default::default() };
        let reply = self.agent.set_policy(self.limited(), &request).await;
        reply.map(drop).map_err(|error| Error::of("SetPolicy", error))
    }

    /// CreateSandbox.
    pub async fn create_sandbox(&self, request: &CreateSandboxRequest) -> Result<()> {
        let reply = self.agent.create_sandbox(self.limited(), request).await;
        reply.map(drop).map_err(|error| Error::of("CreateSandbox", error))
    }

    /// DestroySandbox: every container goes, and then the VM.
    pub async fn destroy_sandbox(&self) -> Result<()> {
        let reply = self.agent.destroy_sandbox(self.limited(), &DestroySandboxRequest::new()).await;
        reply.map(drop).map_err(|error| Error::of("DestroySandbox", error))
    }

    /// CreateContainer.
    pub async fn create_container(&self, request: &CreateContainerRequest) -> Result<()> {
        let reply = self.agent.create_container(self.limited(), request).await;
        reply.map(drop).map_err(|error| Error::of("CreateContainer", error))
    }

    /// StartContainer.
    pub async fn start_container(&self, id: &str) -> Result<()> {
        let request = StartContainerRequest { container_id: id.to_owned(), ..Default::default() };
        let reply = self.agent.start_container(self.limited(), &request).await;
        reply.map(drop).map_err(|error| Error::of("StartContainer", error))
    }

    /// RemoveContainer; what is left in it is killed.
    pub async fn remove_container(&self, id: &str) -> Result<()> {
        let request = RemoveContainerRequest { container_id: id.to_owned(), ..Default::default() };
        let reply = self.agent.remove_container(self.limited(), &request).await;
        reply.map(drop).map_err(|error| Error::of("RemoveContainer", error))
    }

    /// ExecProcess.
    pub async fn exec_process(&self, request: &ExecProcessRequest) -> Result<()> {
        let reply = self.agent.exec_process(self.limited(), request).await;
        reply.map(drop).map_err(|error| Error::of("ExecProcess", error))
    }

    /// SignalProcess. SIGKILL to a container's init kills the whole container.
    pub async fn signal(&self, process: &ProcessId, signal: u32) -> Result<()> {
        let request = SignalProcessRequest {
            container_id: process.container.clone(),
            exec_id: process.exec.clone(),
            signal,
            ..Default::default()
        };
        let reply = self.agent.signal_process(self.limited(), &request).await;
        reply.map(drop).map_err(|error| Error::of("SignalProcess", error))
    }

    /// WaitProcess: the exit code, or 128 + signal.
    pub async fn wait(&self, process: &ProcessId) -> Result<i32> {
        let request = WaitProcessRequest {
            container_id: process.container.clone(),
            exec_id: process.exec.clone(),
            ..Default::default()
        };
        let reply = self.agent.wait_process(Context::default(), &request).await;
        reply.map(|reply| reply.status).map_err(|error| Error::of("WaitProcess", error))
    }

    /// ReadStdout or ReadStderr: waits for 1..=`len` bytes; empty is the end of the stream.
    pub async fn read(&self, process: &ProcessId, from: Output, len: u32) -> Result<Vec<u8>> {
        let request = ReadStreamRequest {
            container_id: process.container.clone(),
            exec_id: process.exec.clone(),
            len,
            ..Default::default()
        };
        let (method, reply) = match from {
            Output::Stdout => ("ReadStdout", self.agent.read_stdout(Context::default(), &request).await),
            Output::Stderr => ("ReadStderr", self.agent.read_stderr(Context::default(), &request).await),
        };
        reply.map(|reply| reply.data).map_err(|error| Error::of(method, error))
    }

    /// WriteStdin; waits until the process has room for it.
    pub async fn write_stdin(&self, process: &ProcessId, data: Vec<u8>) -> Result<u32> {
        let request = WriteStreamRequest {
            container_id: process.container.clone(),
            exec_id: process.exec.clone(),
            data,
            ..Default::default()
        };
        let reply = self.agent.write_stdin(Context::default(), &request).await;
        reply.map(|reply| reply.len).map_err(|error| Error::of("WriteStdin", error))
    }

    /// CloseStdin.
    pub async fn close_stdin(&self, process: &ProcessId) -> Result<()> {
        let request = CloseStdinRequest {
            container_id: process.container.clone(),
            exec_id: process.exec.clone(),
            ..Default::default()
        };
        let reply = self.agent.close_stdin(self.limited(), &request).await;
        reply.map(drop).map_err(|error| Error::of("CloseStdin", error))
    }

    /// TtyWinResize.
    pub async fn resize(&self, process: &ProcessId, rows: u16, columns: u16) -> Result<()> {
        let request = TtyWinResizeRequest {
            container_id: process.container.clone(),
            exec_id: process.exec.clone(),
            row: rows.into(),
            column: columns.into(),
            ..Default::default()
        };
        let reply = self.agent.tty_win_resize(self.limited(), &request).await;
        reply.map(drop).map_err(|error| Error::of("TtyWinResize", error))
    }

    /// UpdateInterface.
    pub async fn update_interface(&self, interface: Interface) -> Result<()> {
        let request =
            UpdateInterfaceRequest { interface: MessageField::some(interface), ..Default::default() };
        let reply = self.agent.update_interface(self.limited(), &request).await;
        reply.map(drop).map_err(|error| Error::of("UpdateInterface", error))
    }

    /// ListInterfaces.
    pub async fn list_interfaces(&self) -> Result<Vec<Interface>> {
        let reply = self.agent.list_interfaces(self.limited(), &ListInterfacesRequest::new()).await;
        reply.map(|reply| reply.Interfaces).map_err(|error| Error::of("ListInterfaces", error))
    }

    /// UpdateRoutes: adds or replaces; answers all there are then.
    pub async fn update_routes(&self, routes: Vec<Route>) -> Result<Vec<Route>> {
        let routes = MessageField::some(Routes { Routes: routes, ..Default::default() });
        let request = UpdateRoutesRequest { routes, ..Default::default() };
        let reply = self.agent.update_routes(self.limited(), &request).await;
        reply.map(|reply| reply.Routes).map_err(|error| Error::of("UpdateRoutes", error))
    }

    /// ListRoutes.
    pub async fn list_routes(&self) -> Result<Vec<Route>> {
        let reply = self.agent.list_routes(self.limited(), &ListRoutesRequest::new()).await;
        reply.map(|reply| reply.Routes).map_err(|error| Error::of("ListRoutes", error))
    }

    /// AddARPNeighbors.
    pub async fn add_neighbours(&self, neighbours: Vec<ARPNeighbor>) -> Result<()> {
        let neighbors = MessageField::some(ARPNeighbors { ARPNeighbors: neighbours, ..Default::default() });
        let request = AddARPNeighborsRequest { neighbors, ..Default::default() };
        let reply = self.agent.add_arp_neighbors(self.limited(), &request).await;
        reply.map(drop).map_err(|error| Error::of("AddARPNeighbors", error))
    }

    /// GetIPTables.
    pub async fn iptables(&self, is_ipv6: bool) -> Result<Vec<u8>> {
        let request = GetIPTablesRequest { is_ipv6, ..Default::default() };
        let reply = self.agent.get_ip_tables(self.limited(), &request).await;
        reply.map(|reply| reply.data).map_err(|error| Error::of("GetIPTables", error))
    }

    /// SetIPTables.
    pub async fn set_iptables(&self, request: &SetIPTablesRequest) -> Result<()> {
        let reply = self.agent.set_ip_tables(self.limited(), request).await;
        reply.map(drop).map_err(|error| Error::of("SetIPTables", error))
    }

    /// CopyFile: one piece.
    pub async fn copy_file(&self, request: &CopyFileRequest) -> Result<()> {
        let reply = self.agent.copy_file(self.limited(), request).await;
        reply.map(drop).map_err(|error| Error::of("CopyFile", error))
    }

    /// AddSwapPath.
    pub async fn add_swap_path(&self, path: &str) -> Result<()> {
        let request = AddSwapPathRequest { path: path.to_owned(), ..Default::default() };
        let reply = self.agent.add_swap_path(self.limited(), &request).await;
        reply.map(drop).map_err(|error| Error::of("AddSwapPath", error))
    }
}
