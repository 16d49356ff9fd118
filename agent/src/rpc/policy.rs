//! SetPolicy.

use super::{
    agent::{Agent, Method},
    reply::{Code, Status},
    service::Outcome,
};

/// Where nothing evaluates policies; where something does, it is answered at the gate.
pub(super) fn set(_: &Agent, _: &Method, _: &[u8]) -> Result<Outcome, Status> {
    // COMPAT: hosts know by this code that the agent was built without.
    Err(Status::new(Code::NotFound, "/grpc.AgentService/SetPolicy is not supported"))
}
