//! CPUs and memory that were plugged in.

use berth_protocols::agent::{MemHotplugByProbeRequest, OnlineCPUMemRequest};

use super::{
    agent::{Agent, Method},
    decode::decode,
    reply::{Reply, Status},
    service::Outcome,
};

/// Without `wait` the host only wants it begun: it is answered at once, and how it ends is in the log.
pub(super) fn online(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: OnlineCPUMemRequest = decode(body)?;
    let sandbox = agent.sandbox.clone();
    agent.mutate(method, body, async move {
        let cpus = usize::try_from(request.nb_cpus).unwrap_or(usize::MAX);
        sandbox.online_cpus_and_memory(cpus, !request.cpu_only, request.wait).await?;
        Ok(Reply::empty())
    })
}

pub(super) fn probe_memory(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: MemHotplugByProbeRequest = decode(body)?;
    let sandbox = agent.sandbox.clone();
    agent.mutate(method, body, async move {
        sandbox.probe_memory(request.memHotplugProbeAddr).await?;
        Ok(Reply::empty())
    })
}
