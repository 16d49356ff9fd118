//! The life of a container.

use std::time::Duration;

use berth_protocols::agent::{CreateContainerRequest, RemoveContainerRequest, StartContainerRequest};

use super::{
    decode::decode,
    dispatch::{Agent, Method},
    ids,
    reply::{Reply, Status},
    service::Outcome,
    storages::{devices, storages},
};
use crate::{
    oci,
    sandbox::{CreateRequest, StdioPorts},
};

pub(super) fn create(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request = parse_create(body)?;
    let sandbox = agent.sandbox.clone();
    agent.mutate(method, body, async move {
        sandbox.create_container(request).await?;
        Ok(Reply::empty())
    })
}

/// `exec_id` is the container's own id by definition; `string_user` is for Windows guests.
fn parse_create(body: &[u8]) -> Result<CreateRequest, Status> {
    let request: CreateContainerRequest = decode(body)?;
    let id = request.container_id;
    ids::container(&id)?;
    let unsupported = [("shared_mounts", request.shared_mounts.len())];
    if let Some((what, count)) = unsupported.into_iter().find(|(_, count)| *count > 0) {
        return Err(Status::invalid(format_args!(
            "CreateContainer {id:?}: {what} ({count} given) are not supported by this agent"
        )));
    }
    let no_spec = || Status::invalid(format_args!("CreateContainer {id:?}: the request has no OCI spec"));
    let spec = oci::spec(request.OCI.into_option().ok_or_else(no_spec)?)?;
    let ports =
        StdioPorts { stdin: request.stdin_port, stdout: request.stdout_port, stderr: request.stderr_port };
    Ok(CreateRequest {
        id,
        spec,
        sandbox_pidns: request.sandbox_pidns,
        ports,
        storages: storages(request.storages),
        devices: devices(request.devices),
    })
}

pub(super) fn start(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: StartContainerRequest = decode(body)?;
    let sandbox = agent.sandbox.clone();
    agent.mutate(method, body, async move {
        sandbox.start_container(&request.container_id).await?;
        Ok(Reply::empty())
    })
}

/// A `timeout` of 0 sets none.
pub(super) fn remove(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: RemoveContainerRequest = decode(body)?;
    let timeout = (request.timeout > 0).then(|| Duration::from_secs(request.timeout.into()));
    let sandbox = agent.sandbox.clone();
    agent.mutate(method, body, async move {
        sandbox.remove_container(&request.container_id, timeout).await?;
        Ok(Reply::empty())
    })
}

#[cfg(test)]
mod tests {
    use berth_protocols::{agent::SharedMount, oci as wire};
    use protobuf::Message;

    use super::*;

    fn refusal(change: impl FnOnce(&mut CreateContainerRequest)) -> Option<String> {
        let mut request = CreateContainerRequest { container_id: "c1".into(), ..Default::default() };
        request.OCI = Some(wire::Spec::new()).into();
        change(&mut request);
        parse_create(&request.write_to_bytes().unwrap()).err().map(|status| status.message)
    }

    #[test]
    fn what_cannot_be_done_is_refused_not_ignored() {
        assert_eq!(refusal(|_| {}), None);
        let refused = |change: fn(&mut CreateContainerRequest), text: &str| {
            let message = refusal(change).unwrap();
            assert!(message.contains(text), "{message}");
        };
        refused(|request| request.shared_mounts.push(SharedMount::new()), "shared_mounts (1 given)");
        refused(|request| request.OCI.clear(), "no OCI spec");
        refused(|request| request.container_id = "../etc".into(), "invalid container id");
        let unknown = |request: &mut CreateContainerRequest| {
            let namespace = wire::LinuxNamespace { Type: "warp".into(), ..Default::default() };
            request.OCI.mut_or_insert_default().Linux.mut_or_insert_default().Namespaces.push(namespace);
        };
        refused(unknown, "unknown namespace: \"warp\"");
    }
}
