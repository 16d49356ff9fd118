//! An agent without a guest: the generated service traits over processes that exist only as channels.
//!
//! A program is chosen by its arguments: `echo X`, `complain X` (to standard error), `cat`, `exit N`, `sleep` (until
//! a signal), `env`, `missing`, `forbidden`, `linger` (ends, but keeps its output open).

#![allow(dead_code, unreachable_pub)]

use std::{
    collections::HashMap,
    path::PathBuf,
    process::{Output, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use berth_protocols::{
    agent::{
        AgentDetails, CloseStdinRequest, CreateContainerRequest, CreateSandboxRequest, ExecProcessRequest,
        GuestDetailsRequest, GuestDetailsResponse, ReadStreamRequest, ReadStreamResponse,
        SignalProcessRequest, StartContainerRequest, TtyWinResizeRequest, WaitProcessRequest,
        WaitProcessResponse, WriteStreamRequest, WriteStreamResponse,
    },
    agent_ttrpc::{AgentService, create_agent_service},
    health::{CheckRequest, HealthCheckResponse, VersionCheckResponse, health_check_response::ServingStatus},
    health_ttrpc::{Health, create_health},
    oci::Process as WireProcess,
};
use berthctl::{Address, vmm::workdir::WorkDir};
use protobuf::{MessageField, well_known_types::empty::Empty};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    process::Command,
    sync::{Mutex as AsyncMutex, mpsc, watch},
};
use ttrpc::{
    Code,
    r#async::{Server, TtrpcContext},
    error::get_rpc_status,
};

type Sender = mpsc::UnboundedSender<Vec<u8>>;
type Receiver = AsyncMutex<mpsc::UnboundedReceiver<Vec<u8>>>;

pub struct Running {
    stdin: Mutex<Option<Sender>>,
    stdout: Receiver,
    stderr: Receiver,
    /// Held for `linger`.
    kept: Mutex<Option<Sender>>,
    exit: watch::Sender<Option<i32>>,
}

/// What the agent was told.
#[derive(Default)]
pub struct State {
    pub processes: HashMap<(String, String), Arc<Running>>,
    pub created: Vec<CreateContainerRequest>,
    pub executed: Vec<ExecProcessRequest>,
    pub sandboxes: Vec<CreateSandboxRequest>,
    pub sizes: Vec<(u32, u32)>,
    pub signals: Vec<u32>,
    raw: HashMap<u32, UnixStream>,
}

pub struct Fake {
    pub state: Mutex<State>,
}

fn spawn(process: &WireProcess) -> Arc<Running> {
    let (stdin, mut input) = mpsc::unbounded_channel::<Vec<u8>>();
    let (out, stdout) = mpsc::unbounded_channel::<Vec<u8>>();
    let (err, stderr) = mpsc::unbounded_channel::<Vec<u8>>();
    let (exit, _) = watch::channel(None);
    let args: Vec<_> = process.Args.iter().map(String::as_str).collect();
    let mut kept = None;
    let ended = match args.as_slice() {
        ["echo", text] => {
            out.send(format!("{text}\n").into_bytes()).unwrap();
            Some(0)
        }
        ["complain", text] => {
            err.send(format!("{text}\n").into_bytes()).unwrap();
            Some(1)
        }
        ["env"] => {
            out.send(process.Env.join("\n").into_bytes()).unwrap();
            Some(0)
        }
        ["linger"] => {
            out.send(b"said\n".to_vec()).unwrap();
            kept = Some(out);
            Some(0)
        }
        ["exit", code] => Some(code.parse().unwrap()),
        ["cat"] => {
            let exit = exit.clone();
            tokio::spawn(async move {
                while let Some(data) = input.recv().await {
                    let _ = out.send(data);
                }
                exit.send_replace(Some(0));
            });
            None
        }
        _ => {
            // `sleep`: its output stays open until a signal ends it.
            let mut ended = exit.subscribe();
            tokio::spawn(async move {
                let _ = ended.wait_for(Option::is_some).await;
                drop((out, err));
            });
            None
        }
    };
    if ended.is_some() {
        exit.send_replace(ended);
    }
    Arc::new(Running {
        stdin: Mutex::new(Some(stdin)),
        stdout: AsyncMutex::new(stdout),
        stderr: AsyncMutex::new(stderr),
        kept: Mutex::new(kept),
        exit,
    })
}

impl Fake {
    fn find(&self, container: &str, exec: &str) -> ttrpc::Result<Arc<Running>> {
        let exec = if exec.is_empty() { container } else { exec };
        let known =
            self.state.lock().unwrap().processes.get(&(container.to_owned(), exec.to_owned())).cloned();
        known.ok_or_else(|| {
            get_rpc_status(Code::NOT_FOUND, format!("no process {exec:?} in container {container:?}"))
        })
    }

    fn start(
        &self,
        container: &str,
        exec: &str,
        process: &WireProcess,
        ports: [u32; 3],
    ) -> ttrpc::Result<()> {
        let reason = match process.Args.first().map(String::as_str) {
            Some("missing") => Some("cannot execute missing: No such file or directory (os error 2)"),
            Some("forbidden") => Some("cannot execute forbidden: Permission denied (os error 13)"),
            _ => None,
        };
        if let Some(reason) = reason {
            return Err(get_rpc_status(Code::INTERNAL, reason));
        }
        let running = spawn(process);
        let raw = ports.map(|port| self.state.lock().unwrap().raw.remove(&port));
        connect_raw(&running, raw);
        self.state.lock().unwrap().processes.insert((container.to_owned(), exec.to_owned()), running);
        Ok(())
    }
}

fn connect_raw(running: &Arc<Running>, [stdin, stdout, stderr]: [Option<UnixStream>; 3]) {
    if let Some(mut stream) = stdin {
        let sender = running.stdin.lock().unwrap().take().unwrap();
        tokio::spawn(async move {
            let mut buffer = vec![0; 4096];
            while let Ok(got @ 1..) = stream.read(&mut buffer).await {
                let _ = sender.send(buffer[..got].to_vec());
            }
        });
    }
    for (stream, first) in [(stdout, true), (stderr, false)] {
        let Some(mut stream) = stream else { continue };
        let running = running.clone();
        tokio::spawn(async move {
            let mut output = if first { running.stdout.lock().await } else { running.stderr.lock().await };
            while let Some(data) = output.recv().await {
                stream.write_all(&data).await.unwrap();
            }
        });
    }
}

#[async_trait]
impl AgentService for Fake {
    async fn create_sandbox(&self, _: &TtrpcContext, request: CreateSandboxRequest) -> ttrpc::Result<Empty> {
        self.state.lock().unwrap().sandboxes.push(request);
        Ok(Empty::new())
    }

    async fn create_container(
        &self,
        _: &TtrpcContext,
        request: CreateContainerRequest,
    ) -> ttrpc::Result<Empty> {
        self.state.lock().unwrap().created.push(request);
        Ok(Empty::new())
    }

    async fn start_container(
        &self,
        _: &TtrpcContext,
        request: StartContainerRequest,
    ) -> ttrpc::Result<Empty> {
        let id = request.container_id;
        let created =
            self.state.lock().unwrap().created.iter().find(|created| created.container_id == id).cloned();
        let created =
            created.ok_or_else(|| get_rpc_status(Code::INVALID_ARGUMENT, "Invalid container id"))?;
        let ports = [created.stdin_port, created.stdout_port, created.stderr_port];
        self.start(&id, &id, &created.OCI.Process, ports)?;
        Ok(Empty::new())
    }

    async fn exec_process(&self, _: &TtrpcContext, request: ExecProcessRequest) -> ttrpc::Result<Empty> {
        let ports = [request.stdin_port, request.stdout_port, request.stderr_port];
        self.start(&request.container_id, &request.exec_id, &request.process, ports)?;
        self.state.lock().unwrap().executed.push(request);
        Ok(Empty::new())
    }

    async fn signal_process(&self, _: &TtrpcContext, request: SignalProcessRequest) -> ttrpc::Result<Empty> {
        let running = self.find(&request.container_id, &request.exec_id)?;
        self.state.lock().unwrap().signals.push(request.signal);
        running.exit.send_replace(Some(128 + request.signal as i32));
        Ok(Empty::new())
    }

    async fn wait_process(
        &self,
        _: &TtrpcContext,
        request: WaitProcessRequest,
    ) -> ttrpc::Result<WaitProcessResponse> {
        let running = self.find(&request.container_id, &request.exec_id)?;
        let status = running.exit.subscribe().wait_for(Option::is_some).await.unwrap().unwrap();
        Ok(WaitProcessResponse { status, ..Default::default() })
    }

    async fn write_stdin(
        &self,
        _: &TtrpcContext,
        request: WriteStreamRequest,
    ) -> ttrpc::Result<WriteStreamResponse> {
        let running = self.find(&request.container_id, &request.exec_id)?;
        let len = request.data.len() as u32;
        match running.stdin.lock().unwrap().as_ref() {
            Some(stdin) => _ = stdin.send(request.data),
            None => return Err(get_rpc_status(Code::INTERNAL, "stdin is closed")),
        }
        Ok(WriteStreamResponse { len, ..Default::default() })
    }

    async fn read_stdout(
        &self,
        _: &TtrpcContext,
        request: ReadStreamRequest,
    ) -> ttrpc::Result<ReadStreamResponse> {
        let running = self.find(&request.container_id, &request.exec_id)?;
        let data = running.stdout.lock().await.recv().await.unwrap_or_default();
        Ok(ReadStreamResponse { data, ..Default::default() })
    }

    async fn read_stderr(
        &self,
        _: &TtrpcContext,
        request: ReadStreamRequest,
    ) -> ttrpc::Result<ReadStreamResponse> {
        let running = self.find(&request.container_id, &request.exec_id)?;
        let data = running.stderr.lock().await.recv().await.unwrap_or_default();
        Ok(ReadStreamResponse { data, ..Default::default() })
    }

    async fn close_stdin(&self, _: &TtrpcContext, request: CloseStdinRequest) -> ttrpc::Result<Empty> {
        self.find(&request.container_id, &request.exec_id)?.stdin.lock().unwrap().take();
        Ok(Empty::new())
    }

    async fn tty_win_resize(&self, _: &TtrpcContext, request: TtyWinResizeRequest) -> ttrpc::Result<Empty> {
        self.state.lock().unwrap().sizes.push((request.row, request.column));
        Ok(Empty::new())
    }

    async fn get_guest_details(
        &self,
        _: &TtrpcContext,
        _: GuestDetailsRequest,
    ) -> ttrpc::Result<GuestDetailsResponse> {
        let details =
            AgentDetails { version: "9.8.7".to_owned(), supports_seccomp: true, ..Default::default() };
        let agent_details = MessageField::some(details);
        Ok(GuestDetailsResponse { mem_block_size_bytes: 1 << 27, agent_details, ..Default::default() })
    }

    async fn destroy_sandbox(
        &self,
        _: &TtrpcContext,
        _: berth_protocols::agent::DestroySandboxRequest,
    ) -> ttrpc::Result<Empty> {
        std::future::pending().await
    }
}

struct Healthy;

#[async_trait]
impl Health for Healthy {
    async fn check(&self, _: &TtrpcContext, _: CheckRequest) -> ttrpc::Result<HealthCheckResponse> {
        Ok(HealthCheckResponse { status: ServingStatus::SERVING.into(), ..Default::default() })
    }

    async fn version(&self, _: &TtrpcContext, _: CheckRequest) -> ttrpc::Result<VersionCheckResponse> {
        let (grpc_version, agent_version) = ("0.0.1".to_owned(), "9.8.7".to_owned());
        Ok(VersionCheckResponse { grpc_version, agent_version, ..Default::default() })
    }
}

/// A fake agent that serves on a Unix socket of its own.
pub struct Served {
    pub fake: Arc<Fake>,
    pub address: Address,
    dir: WorkDir,
    _server: Server,
}

impl Served {
    pub async fn new() -> Self {
        let dir = WorkDir::new().unwrap();
        let socket = dir.join("agent.sock");
        let fake = Arc::new(Fake { state: Mutex::default() });
        let mut server = Server::new()
            .bind(&format!("unix://{}", socket.display()))
            .unwrap()
            .register_service(create_agent_service(fake.clone()))
            .register_service(create_health(Arc::new(Healthy)));
        server.start().await.unwrap();
        let stdio = UnixListener::bind(dir.join("agent.sock.stdio")).unwrap();
        tokio::spawn(serve_stdio(stdio, fake.clone()));
        Self { fake, address: Address::Unix(socket), dir, _server: server }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn berthctl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berthctl"));
        command.arg("--address").arg(self.address.to_string()).args(arguments).kill_on_drop(true);
        command
    }

    /// Runs `berthctl` to its end with `input` on its standard input.
    pub async fn run(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut command = self.berthctl(arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let _ = stdin.write_all(input).await;
        drop(stdin);
        tokio::time::timeout(Duration::from_secs(20), child.wait_with_output())
            .await
            .expect("berthctl ends")
            .unwrap()
    }
}

async fn serve_stdio(listener: UnixListener, fake: Arc<Fake>) {
    let mut port = 4000;
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut asked = vec![0; b"CONNECT 1027\n".len()];
        stream.read_exact(&mut asked).await.unwrap();
        assert_eq!(asked, b"CONNECT 1027\n");
        port += 1;
        stream.write_all(format!("OK {port}\n").as_bytes()).await.unwrap();
        fake.state.lock().unwrap().raw.insert(port, stream);
    }
}
