//! Real Rego documents over real calls: the agent as hosts meet it, on a Unix socket. `--features policy`.

#![cfg(feature = "policy")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use berth_protocols::{
    agent::{
        CreateContainerRequest, CreateSandboxRequest, ExecProcessRequest, GuestDetailsRequest,
        ReadStreamRequest, RemoveContainerRequest, SetPolicyRequest, StartContainerRequest,
    },
    agent_ttrpc::AgentServiceClient,
    health::CheckRequest,
    health_ttrpc::HealthClient,
    oci,
};
use ttrpc::{Code, r#async::Client, context::Context};

/// Before version 1 of the language, as documents of hosts are: no `if`.
const OLD: &str = include_str!("old.rego");
/// Version 1, with state.
const STATEFUL: &str = include_str!("stateful.rego");

fn soon() -> Context {
    ttrpc::context::with_duration(Duration::from_secs(20))
}

/// An agent with a document, or none; everything is gone when it is dropped.
struct Agent {
    dir: PathBuf,
    tree: Child,
    client: Client,
    calls: AgentServiceClient,
}

impl Agent {
    async fn start(document: Option<&str>, further: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("berth-policy-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        if let Some(document) = document {
            fs::write(dir.join("policy.rego"), document).unwrap();
        }
        let config = format!("policy_file = '{}'\n{further}", dir.join("policy.rego").display());
        fs::write(dir.join("agent.toml"), config).unwrap();
        let socket = format!("unix://{}", dir.join("a.sock").display());
        let log = fs::File::create(dir.join("log")).unwrap();
        let tree = Command::new("unshare")
            .args(["--mount", "--pid", "--net", "--fork", "--mount-proc", "--kill-child=KILL", "--"])
            .args(["sh", "-c", "\"$@\" & wait", "scope", env!("CARGO_BIN_EXE_berth-agent"), "--config"])
            .arg(dir.join("agent.toml"))
            .args(["--listen", &socket])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let client = connect(&socket).await;
        let calls = AgentServiceClient::new(client.clone());
        Self { dir, tree, client, calls }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap()
    }

    /// Kills the worker; the next one answers afterwards.
    async fn crash(&mut self) {
        let worker = || {
            let found = Command::new("pgrep")
                .args(["-f", &format!("berth-agent worker .*{}", self.dir.display())])
                .output();
            String::from_utf8(found.unwrap().stdout).unwrap().lines().next().map(str::to_owned)
        };
        let before = worker().expect("a worker");
        assert!(Command::new("kill").args(["-KILL", &before]).status().unwrap().success());
        let start = Instant::now();
        while worker().is_none_or(|now| now == before) {
            assert!(start.elapsed() < Duration::from_secs(20), "{}", self.log());
            tokio::task::yield_now().await;
        }
        self.client = connect(&format!("unix://{}", self.dir.join("a.sock").display())).await;
        self.calls = AgentServiceClient::new(self.client.clone());
    }

    async fn create(&self, id: &str, image: &str) -> (Code, String) {
        let mut spec = oci::Spec::new();
        spec.Version = "1.0.2".into();
        spec.Root.mut_or_insert_default().Path = "/nonexistent".into();
        let process = spec.Process.mut_or_insert_default();
        (process.Args, process.Cwd) = (vec!["sleep".into()], "/".into());
        spec.Annotations.insert("io.example.image".into(), image.into());
        spec.Mounts.push(oci::Mount {
            type_: "tmpfs".into(),
            destination: "/tmp".into(),
            ..Default::default()
        });
        let request =
            CreateContainerRequest { container_id: id.into(), OCI: Some(spec).into(), ..Default::default() };
        outcome(self.calls.create_container(soon(), &request).await)
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

async fn connect(socket: &str) -> Client {
    let start = Instant::now();
    loop {
        if let Ok(client) = Client::connect(socket).await {
            let check = HealthClient::new(client.clone()).check(soon(), &CheckRequest::new()).await;
            if check.is_ok() {
                return client;
            }
        }
        assert!(start.elapsed() < Duration::from_secs(20), "no agent");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn outcome<T>(reply: Result<T, ttrpc::Error>) -> (Code, String) {
    match reply {
        Ok(_) => (Code::OK, String::new()),
        Err(ttrpc::Error::RpcStatus(status)) => (status.code(), status.message),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_document_decides_over_every_call_and_names_the_rule_that_refused() {
    let agent = Agent::start(Some(OLD), "").await;
    let calls = &agent.calls;
    assert_eq!(outcome(calls.get_guest_details(soon(), &GuestDetailsRequest::new()).await).0, Code::OK);
    let sandbox = |hostname: &str| CreateSandboxRequest { hostname: hostname.into(), ..Default::default() };
    let (code, text) = outcome(calls.create_sandbox(soon(), &sandbox("evil")).await);
    assert_eq!(code, Code::PERMISSION_DENIED);
    assert!(
        text.starts_with("CreateSandboxRequest is blocked by policy: ") && text.contains("host name: evil"),
        "{text}"
    );
    assert_eq!(outcome(calls.create_sandbox(soon(), &sandbox("box-7")).await), (Code::OK, String::new()));

    let (code, text) = agent.create("c1", "bad/image").await;
    assert_eq!(
        (code, text.starts_with("CreateContainerRequest is blocked by policy")),
        (Code::PERMISSION_DENIED, true)
    );
    // Permitted, and then fails for a reason of its own.
    let (code, text) = agent.create("c1", "good/image").await;
    assert!(code != Code::PERMISSION_DENIED && text.contains("/nonexistent"), "{code:?}: {text}");

    let exec = |arg: &str| {
        let process = oci::Process { Args: vec![arg.into()], ..Default::default() };
        ExecProcessRequest {
            container_id: "c1".into(),
            exec_id: "e".into(),
            process: Some(process).into(),
            ..Default::default()
        }
    };
    assert_eq!(outcome(calls.exec_process(soon(), &exec("rm")).await).0, Code::PERMISSION_DENIED);
    assert_eq!(
        outcome(calls.exec_process(soon(), &exec("ls")).await).0,
        Code::INVALID_ARGUMENT,
        "an unknown container"
    );

    // A rule that is not in the document is no permission; output that may not be read has ended.
    assert_eq!(outcome(calls.start_container(soon(), &StartContainerRequest::new()).await).0, Code::INTERNAL);
    let read = calls.read_stdout(soon(), &ReadStreamRequest { len: 10, ..Default::default() }).await.unwrap();
    assert!(read.data.is_empty());
    assert!(agent.log().contains("CreateContainerRequest is blocked by policy"));
}

#[tokio::test]
async fn the_state_changes_with_what_was_permitted_and_outlives_a_killed_worker() {
    let mut agent = Agent::start(Some(STATEFUL), "sequential = true").await;
    assert_ne!(agent.create("a", "one").await.0, Code::PERMISSION_DENIED);
    assert_eq!(agent.create("a", "one").await.0, Code::PERMISSION_DENIED, "an id counts once");
    agent.crash().await;
    assert_eq!(agent.create("a", "one").await.0, Code::PERMISSION_DENIED, "also for the next worker");
    assert_ne!(agent.create("b", "one").await.0, Code::PERMISSION_DENIED);
    let (code, text) = agent.create("c", "one").await;
    assert_eq!(code, Code::PERMISSION_DENIED, "{text}");
    let remove = RemoveContainerRequest { container_id: "a".into(), ..Default::default() };
    assert_ne!(outcome(agent.calls.remove_container(soon(), &remove).await).0, Code::PERMISSION_DENIED);
    assert_ne!(agent.create("c", "one").await.0, Code::PERMISSION_DENIED, "there is room again");
}

#[tokio::test]
async fn a_document_is_replaced_only_as_the_one_before_permits() {
    let mut agent = Agent::start(Some(STATEFUL), "").await;
    let set = async |agent: &Agent, policy: &str| {
        let request = SetPolicyRequest { policy: policy.into(), ..Default::default() };
        outcome(agent.calls.set_policy(soon(), &request).await)
    };
    let (code, text) = set(&agent, "package agent_policy\n)(").await;
    assert_eq!(code, Code::INVALID_ARGUMENT, "{text}");
    assert_eq!(set(&agent, "package other\n").await.0, Code::INVALID_ARGUMENT);
    assert_eq!(set(&agent, OLD).await, (Code::OK, String::new()));
    assert_eq!(set(&agent, STATEFUL).await.0, Code::PERMISSION_DENIED, "the new one permits no other");
    agent.crash().await;
    assert_eq!(set(&agent, STATEFUL).await.0, Code::PERMISSION_DENIED, "also after a crash");
}

#[tokio::test]
async fn a_long_document_that_is_broken_is_refused_and_the_one_before_it_stays() {
    let agent = Agent::start(Some(STATEFUL), "").await;
    let set = async |policy: String| {
        let request = SetPolicyRequest { policy, ..Default::default() };
        outcome(agent.calls.set_policy(soon(), &request).await).0
    };
    // Broken at its very end. What no frame holds is refused whatever it is (row T1).
    let long = format!("{OLD}\n{}\n)(", "# 789\n".repeat(690_000));
    assert_eq!(set(long).await, Code::INVALID_ARGUMENT);
    assert_ne!(agent.create("a", "one").await.0, Code::PERMISSION_DENIED);
    assert_eq!(agent.create("a", "one").await.0, Code::PERMISSION_DENIED, "the state is what it was");
    assert_eq!(set(OLD.to_owned()).await, Code::OK);
}

#[tokio::test]
async fn nothing_is_allowed_without_a_document_by_a_broken_one_or_an_endless_one() {
    for document in [None, Some("package agent_policy\n)(")] {
        let agent = Agent::start(document, "").await;
        let (code, text) = outcome(agent.calls.get_guest_details(soon(), &GuestDetailsRequest::new()).await);
        assert_eq!(code, Code::PERMISSION_DENIED);
        assert!(
            text.starts_with("GuestDetailsRequest is blocked by policy") && text.contains("policy.rego"),
            "{text}"
        );
    }
    let endless = "package agent_policy\nimport rego.v1\ndefault GuestDetailsRequest := true\n\
        CreateSandboxRequest if { some a in numbers.range(1, 100000); some b in numbers.range(1, 100000); a * b == 0 }\n";
    let agent = Agent::start(Some(endless), "").await;
    let (code, text) = outcome(agent.calls.create_sandbox(soon(), &CreateSandboxRequest::new()).await);
    assert_eq!(code, Code::INTERNAL, "{text}");
    assert_eq!(outcome(agent.calls.get_guest_details(soon(), &GuestDetailsRequest::new()).await).0, Code::OK);
}
