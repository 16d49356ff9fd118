//! Commands about one container and its processes, on an agent that runs already.

use std::path::Path;

use berth_protocols::{
    agent::{CreateContainerRequest, ExecProcessRequest},
    oci::{Process as WireProcess, Spec},
};
use protobuf::MessageField;
use serde_json::json;
use tokio::io::{stderr, stdin as our_stdin, stdout};

use super::{Result, connect, override_process, starting, stdin_is_ours, ui};
use crate::{
    bundle::{self, wire},
    cli::{Attach, Create, Exec, Global, Kill, Process, Read, Resize},
    client::{Output, ProcessId},
    session::Session,
    stdio::{self, RawStreams},
    vmm::image,
};

impl From<Process> for ProcessId {
    fn from(process: Process) -> Self {
        Self { container: process.id, exec: process.exec }
    }
}

pub(super) async fn create(global: &Global, create: Create) -> Result<i32> {
    let mut spec = configuration(create.bundle.as_deref())?;
    let root = spec.Root.mut_or_insert_default();
    match create.rootfs {
        Some(path) => root.Path = path,
        // A relative path means the bundle's directory, which the guest has only where `run` puts it.
        None if !root.Path.starts_with('/') => root.Path = image::guest_rootfs(&create.id),
        None => {}
    }
    override_process(spec.Process.mut_or_insert_default(), &create.process, &create.command);
    let program = spec.Process.Args.first().cloned();
    let request = CreateContainerRequest {
        container_id: create.id,
        OCI: MessageField::some(spec),
        sandbox_pidns: create.sandbox_pidns,
        ..Default::default()
    };
    let agent = connect(global).await?;
    agent.create_container(&request).await.map_err(|error| starting(error, program.as_deref()))?;
    Ok(0)
}

/// The configuration alone: the root filesystem is in the guest.
fn configuration(bundle: Option<&Path>) -> Result<Spec> {
    let Some(bundle) = bundle else {
        let defaults = wire::spec(&bundle::default::spec());
        return Ok(defaults.map_err(|source| bundle::Error::Wire { path: "the default".into(), source })?.0);
    };
    let (spec, lost) = bundle::configuration(bundle)?;
    warn_of(&lost);
    Ok(spec)
}

/// Says which wishes the protocol has no words for.
pub(super) fn warn_of(lost: &[String]) {
    if !lost.is_empty() {
        ui::warning(&format!(
            "the protocol cannot carry, and the container will not have: {}",
            lost.join(", ")
        ));
    }
}

pub(super) async fn start(global: &Global, id: &str) -> Result<i32> {
    connect(global).await?.start_container(id).await.map_err(|error| starting(error, None))?;
    Ok(0)
}

pub(super) async fn exec(global: &Global, exec: Exec) -> Result<i32> {
    let agent = connect(global).await?;
    let options = &exec.process;
    let id = exec.exec.unwrap_or_else(|| format!("exec-{}", std::process::id()));
    let process = ProcessId { container: exec.id, exec: id };
    // Without capabilities of its own it gets the container's.
    let mut wire = WireProcess {
        Cwd: "/".to_owned(),
        Env: vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()],
        NoNewPrivileges: true,
        ..Default::default()
    };
    override_process(&mut wire, options, &exec.command);

    let stdin = stdin_is_ours(options);
    let mut raw = RawStreams::default();
    if let (true, Some(address)) = (options.raw_stdio, &global.address) {
        raw = RawStreams::open(address, stdin, options.tty).await?;
    }
    let (stdin_port, stdout_port, stderr_port) = raw.ports();
    let request = ExecProcessRequest {
        container_id: process.container.clone(),
        exec_id: process.exec.clone(),
        process: MessageField::some(wire),
        stdin_port,
        stdout_port,
        stderr_port,
        ..Default::default()
    };
    agent.exec_process(&request).await.map_err(|error| starting(error, None))?;
    if exec.detach {
        ui::print(&if global.json { json!({ "exec_id": process.exec }).to_string() } else { process.exec })?;
        return Ok(0);
    }
    if !stdin && !options.tty {
        agent.close_stdin(&process).await?;
    }
    Ok(Session { agent, process, terminal: options.tty, stdin, raw }.run(async { Ok(()) }).await?)
}

pub(super) async fn kill(global: &Global, kill: Kill) -> Result<i32> {
    connect(global).await?.signal(&kill.process.into(), kill.signal).await?;
    Ok(0)
}

pub(super) async fn wait(global: &Global, process: Process) -> Result<i32> {
    let status = connect(global).await?.wait(&process.into()).await?;
    if global.json {
        return ui::print(&json!({ "status": status }).to_string());
    }
    Ok(status)
}

pub(super) async fn remove(global: &Global, id: &str) -> Result<i32> {
    connect(global).await?.remove_container(id).await?;
    Ok(0)
}

pub(super) async fn attach(global: &Global, attach: Attach) -> Result<i32> {
    let session = Session {
        agent: connect(global).await?,
        process: attach.process.into(),
        terminal: attach.tty,
        stdin: attach.interactive,
        raw: RawStreams::default(),
    };
    Ok(session.run(async { Ok(()) }).await?)
}

pub(super) async fn stdin(global: &Global, process: Process) -> Result<i32> {
    stdio::input(&connect(global).await?, &process.into(), None, our_stdin()).await?;
    Ok(0)
}

pub(super) async fn read(global: &Global, read: Read) -> Result<i32> {
    let agent = connect(global).await?;
    let process = read.process.into();
    if read.stderr {
        stdio::output(&agent, &process, Output::Stderr, None, stderr()).await?;
    } else {
        stdio::output(&agent, &process, Output::Stdout, None, stdout()).await?;
    }
    Ok(0)
}

pub(super) async fn close_stdin(global: &Global, process: Process) -> Result<i32> {
    connect(global).await?.close_stdin(&process.into()).await?;
    Ok(0)
}

pub(super) async fn resize(global: &Global, resize: Resize) -> Result<i32> {
    connect(global).await?.resize(&resize.process.into(), resize.rows, resize.columns).await?;
    Ok(0)
}
