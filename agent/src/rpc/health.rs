//! `grpc.Health`.

use berth_protocols::health::{
    CheckRequest, HealthCheckResponse, VersionCheckResponse, health_check_response::ServingStatus,
};

use super::{
    decode::decode,
    dispatch::{Agent, Method, encode},
    reply::Status,
    service::Outcome,
};

/// Being able to answer is being healthy: everything that could hang has a task of its own.
pub(super) fn check(_: &Agent, _: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let _: CheckRequest = decode(body)?;
    let serving = HealthCheckResponse { status: ServingStatus::SERVING.into(), ..Default::default() };
    Ok(Outcome::Now(encode(&serving)?))
}

pub(super) fn version(_: &Agent, _: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let _: CheckRequest = decode(body)?;
    let version = VersionCheckResponse {
        grpc_version: "0.0.1".to_owned(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Default::default()
    };
    Ok(Outcome::Now(encode(&version)?))
}
