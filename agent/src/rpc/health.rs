//! `grpc.Health`.

use berth_protocols::health::{
    CheckRequest, HealthCheckResponse, VersionCheckResponse, health_check_response::ServingStatus,
};

use super::{
    agent::{Agent, Method},
    decode::decode,
    reply::{Status, encode},
    service::Outcome,
};

/// Says SERVING when a container could be made and its end be told. The service's name is ignored: there is one
/// answer for all.
pub(super) fn check(agent: &Agent, _: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let _: CheckRequest = decode(body)?;
    let status = match agent.sandbox.ailment() {
        None if agent.rules.serve() => ServingStatus::SERVING,
        _ => ServingStatus::NOT_SERVING,
    };
    Ok(Outcome::Now(encode(&HealthCheckResponse { status: status.into(), ..Default::default() })?))
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
