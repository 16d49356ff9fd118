//! The processes of a container.

use berth_protocols::agent::{
    ExecProcessRequest, SignalProcessRequest, WaitProcessRequest, WaitProcessResponse,
};
use protobuf::Message;

use super::{
    agent::{Agent, Method, detached, tied},
    decode::decode,
    ids,
    limits::METHOD_CAP,
    reply::{Reply, Status},
    service::Outcome,
};
use crate::{
    oci,
    sandbox::{Error, ExecRequest, StdioPorts},
};

pub(super) fn exec(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: ExecProcessRequest = decode(body)?;
    ids::exec(&request.container_id, &request.exec_id)?;
    let process = request.process.into_option().ok_or_else(|| {
        Status::invalid(format_args!("ExecProcess {:?}: the request has no process", request.exec_id))
    })?;
    let exec = ExecRequest {
        container_id: request.container_id,
        exec_id: request.exec_id,
        process: oci::process(process)?,
        ports: StdioPorts {
            stdin: request.stdin_port,
            stdout: request.stdout_port,
            stderr: request.stderr_port,
        },
    };
    let sandbox = agent.sandbox.clone();
    agent.mutate(method, body, async move {
        sandbox.exec_process(exec).await?;
        Ok(Reply::empty())
    })
}

/// Never joined: two equal real-time signals are two signals.
pub(super) fn signal(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: SignalProcessRequest = decode(body)?;
    let sandbox = agent.sandbox.clone();
    detached(method, Some(METHOD_CAP), async move {
        sandbox.signal_process(&request.container_id, &request.exec_id, request.signal).await?;
        Ok(Reply::empty())
    })
}

pub(super) fn wait(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: WaitProcessRequest = decode(body)?;
    let sandbox = agent.sandbox.clone();
    tied(method, async move {
        let status = sandbox.wait_process(&request.container_id, &request.exec_id).await?;
        let reply = WaitProcessResponse { status, ..Default::default() };
        let bytes = reply.write_to_bytes().map_err(|error| Error::Invalid(error.to_string()))?;
        Ok(Reply::message(bytes))
    })
}
