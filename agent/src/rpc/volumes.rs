//! Volumes that are mounted.

use std::path::{Path, PathBuf};

use berth_protocols::{
    agent::{
        RemoveStaleVirtiofsShareMountsRequest, ResizeVolumeRequest, UpdateEphemeralMountsRequest,
        VolumeStatsRequest,
    },
    csi::{VolumeCondition, VolumeStatsResponse, VolumeUsage, volume_usage::Unit},
};
use protobuf::Message;

use super::{
    agent::{Agent, Method, tied},
    decode::decode,
    reply::{Reply, Status},
    service::Outcome,
    storages::storages,
};
use crate::{sandbox::Error, storage::volume::Usage};

pub(super) fn stats(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: VolumeStatsRequest = decode(body)?;
    let path = absolute(&request.volume_guest_path)?;
    let sandbox = agent.sandbox.clone();
    tied(method, async move {
        let (bytes, inodes) = sandbox.volume_stats(path).await?;
        let condition = VolumeCondition { message: "OK".to_owned(), ..Default::default() };
        let reply = VolumeStatsResponse {
            usage: vec![usage(bytes, Unit::BYTES), usage(inodes, Unit::INODES)],
            volume_condition: Some(condition).into(),
            ..Default::default()
        };
        let bytes = reply.write_to_bytes().map_err(|error| Error::Invalid(error.to_string()))?;
        Ok(Reply::message(bytes))
    })
}

fn usage(usage: Usage, unit: Unit) -> VolumeUsage {
    VolumeUsage {
        available: usage.available,
        total: usage.total,
        used: usage.total.saturating_sub(usage.available),
        unit: unit.into(),
        ..Default::default()
    }
}

pub(super) fn resize(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: ResizeVolumeRequest = decode(body)?;
    let path = absolute(&request.volume_guest_path)?;
    let sandbox = agent.sandbox.clone();
    agent.mutate(method, body, async move {
        sandbox.resize_volume(path, request.size).await?;
        Ok(Reply::empty())
    })
}

pub(super) fn update_ephemeral(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: UpdateEphemeralMountsRequest = decode(body)?;
    let sandbox = agent.sandbox.clone();
    agent.mutate(method, body, async move {
        sandbox.update_ephemeral_mounts(storages(request.storages)).await?;
        Ok(Reply::empty())
    })
}

pub(super) fn touch_shared(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let _: RemoveStaleVirtiofsShareMountsRequest = decode(body)?;
    let sandbox = agent.sandbox.clone();
    agent.mutate(method, body, async move {
        sandbox.touch_shared_mounts().await?;
        Ok(Reply::empty())
    })
}

fn absolute(path: &str) -> Result<PathBuf, Status> {
    match Path::new(path).is_absolute() {
        true => Ok(path.into()),
        false => Err(Status::invalid(format_args!("the volume path {path:?} is not absolute"))),
    }
}
