//! The life of a container.

use std::{
    path::{Component, Path},
    time::Duration,
};

use berth_protocols::agent::{
    CreateContainerRequest, RemoveContainerRequest, SharedMount, StartContainerRequest,
};

use super::{
    agent::{Agent, Method},
    decode::decode,
    ids,
    reply::{Reply, Status},
    service::Outcome,
    storages::{devices, storages},
};
use crate::{
    oci,
    sandbox::{self, CreateRequest, StdioPorts},
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
    let shared_mounts = request.shared_mounts.into_iter().map(shared_mount).collect::<Result<_, _>>()?;
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
        shared_mounts,
    })
}

/// `dst_ctr` is the new container by definition, and `name` only names the entry.
fn shared_mount(wire: SharedMount) -> Result<sandbox::SharedMount, Status> {
    for path in [&wire.src_path, &wire.dst_path].map(Path::new) {
        let plain = |component| matches!(component, Component::RootDir | Component::Normal(_));
        if !path.is_absolute() || path == Path::new("/") || !path.components().all(plain) {
            return Err(Status::invalid(format_args!(
                "the shared mount {:?} of {:?} has no absolute path without \"..\" at {path:?}",
                wire.name, wire.src_ctr
            )));
        }
    }
    let [source_path, target_path] =
        [wire.src_path, wire.dst_path].map(|path| Path::new(&path).components().collect());
    Ok(sandbox::SharedMount { source: wire.src_ctr, source_path, target_path })
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
    use berth_protocols::oci as wire;
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
        refused(|request| request.shared_mounts.push(SharedMount::new()), "has no absolute path");
        refused(|request| request.OCI.clear(), "no OCI spec");
        refused(|request| request.container_id = "../etc".into(), "invalid container id");
        let unknown = |request: &mut CreateContainerRequest| {
            let namespace = wire::LinuxNamespace { Type: "warp".into(), ..Default::default() };
            request.OCI.mut_or_insert_default().Linux.mut_or_insert_default().Namespaces.push(namespace);
        };
        refused(unknown, "unknown namespace: \"warp\"");
    }
}
