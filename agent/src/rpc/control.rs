//! Steering and watching a container that exists.

use berth_protocols::agent::{
    GetDiagnosticDataRequest, GetDiagnosticDataResponse, GetOOMEventRequest, PauseContainerRequest,
    ResumeContainerRequest, StatsContainerRequest, UpdateContainerRequest,
};

use super::{
    agent::{Agent, Method, tied},
    decode::decode,
    reply::{Lease, Reply, Status, encode},
    service::Outcome,
    stats,
};
use crate::{oci, sandbox::OomEvent};

/// Without resources nothing changes, and that is no error.
pub(super) fn update(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: UpdateContainerRequest = decode(body)?;
    let resources = request.resources.into_option().map(oci::resources).transpose()?;
    let sandbox = agent.sandbox.clone();
    agent.mutate(method, body, async move {
        sandbox.update_container(&request.container_id, resources).await?;
        Ok(Reply::empty())
    })
}

pub(super) fn pause(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: PauseContainerRequest = decode(body)?;
    let sandbox = agent.sandbox.clone();
    agent.mutate(method, body, async move {
        sandbox.pause_container(&request.container_id).await?;
        Ok(Reply::empty())
    })
}

pub(super) fn resume(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: ResumeContainerRequest = decode(body)?;
    let sandbox = agent.sandbox.clone();
    agent.mutate(method, body, async move {
        sandbox.resume_container(&request.container_id).await?;
        Ok(Reply::empty())
    })
}

pub(super) fn stats(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: StatsContainerRequest = decode(body)?;
    let sandbox = agent.sandbox.clone();
    tied(method, async move {
        let stats = sandbox.stats_container(&request.container_id).await?;
        encode(&stats::response(stats))
    })
}

/// Waits as long as its client does.
pub(super) fn oom_event(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let _: GetOOMEventRequest = decode(body)?;
    let sandbox = agent.sandbox.clone();
    tied(method, async move {
        let event = sandbox.next_oom_event().await?;
        Ok(Reply::leased_field(1, Box::new(event)))
    })
}

/// The event is the next caller's unless this one has it.
impl Lease for OomEvent {
    fn bytes(&self) -> &[u8] {
        self.container_id().as_bytes()
    }

    fn sent(self: Box<Self>) {
        self.told();
    }
}

pub(super) fn diagnostics(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: GetDiagnosticDataRequest = decode(body)?;
    if request.log_type != "termination_log" {
        let kind: String = request.log_type.chars().take(64).collect();
        return Err(Status::invalid(format_args!(
            "GetDiagnosticData: log_type {kind:?} is unknown; \"termination_log\" is the only one"
        )));
    }
    let sandbox = agent.sandbox.clone();
    tied(method, async move {
        let data = sandbox.termination_log(&request.container_id).await?;
        encode(&GetDiagnosticDataResponse { data, ..Default::default() })
    })
}
