//! What stands before a call: its turn, where calls are done one at a time, and the policy, in builds that have one.

use std::sync::Arc;

use tokio::sync::Mutex;

#[cfg(any(feature = "initdata", feature = "policy"))]
use super::reply::{Code, Status};
#[cfg(feature = "policy")]
use super::reply::{Reply, encode};
use super::{
    envelope::Request,
    service::{Fate, Gate, Outcome, Passed, Running, Turn},
};

/// Calls that wait for a workload, or end one. They change nothing that another call's permission rests on, and
/// must not be kept waiting behind one that hangs.
const OUT_OF_TURN: [&str; 6] =
    ["GetOOMEvent", "ReadStderr", "ReadStdout", "SignalProcess", "WaitProcess", "WriteStdin"];

/// Rules over all calls of grpc.AgentService.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Held by the call that is being done, where only one may be.
    pub turn: Option<Arc<Mutex<()>>>,
    /// Why nothing is to be done at all: the guest was given a policy or a configuration that it cannot use.
    #[cfg(feature = "initdata")]
    pub barred: Option<std::rc::Rc<str>>,
    /// Who decides.
    #[cfg(feature = "policy")]
    pub policy: Option<std::rc::Rc<crate::policy::Policy>>,
}

impl Rules {
    /// Whether any call is done.
    pub(super) fn serve(&self) -> bool {
        #[cfg(feature = "initdata")]
        return self.barred.is_none();
        #[cfg(not(feature = "initdata"))]
        true
    }

    /// The gate before a call; `None` where there is nothing to wait for.
    pub(super) fn gate(&self, request: &Request<'_>) -> Option<Gate> {
        #[cfg(feature = "initdata")]
        if let Some(reason) = self.barred.clone() {
            return Some(Box::pin(async move { Err(Status::new(Code::PermissionDenied, reason)) }));
        }
        let turn = self.turn.clone().filter(|_| !OUT_OF_TURN.contains(&request.method));
        #[cfg(feature = "policy")]
        if let Some(policy) = self.policy.clone() {
            let (method, payload) = (request.method.to_owned(), request.payload.to_vec());
            return Some(Box::pin(async move {
                // The turn first, so that nothing changes between the decision and the deed.
                let turn = wait(turn).await;
                decided(&method, policy.decide(&method, &payload).await)
                    .map(|answer| answer.map_or(Passed::Go(turn), Passed::Answered))
            }));
        }
        let turn = turn?;
        Some(Box::pin(async move { Ok(Passed::Go(Some(turn.lock_owned().await))) }))
    }
}

#[cfg(feature = "policy")]
async fn wait(turn: Option<Arc<Mutex<()>>>) -> Turn {
    match turn {
        Some(turn) => Some(turn.lock_owned().await),
        None => None,
    }
}

/// The answer to a call that is not to be done any further.
#[cfg(feature = "policy")]
fn decided(method: &str, decision: Result<(), crate::policy::PolicyError>) -> Result<Option<Reply>, Status> {
    use crate::policy::PolicyError;
    use berth_protocols::agent::ReadStreamResponse;
    match decision {
        Ok(()) if method == "SetPolicy" => Ok(Some(Reply::empty())),
        Ok(()) => Ok(None),
        // COMPAT: output that may not be seen is an end of file, or hosts would report a broken container.
        Err(PolicyError::Denied { .. } | PolicyError::Absent { .. })
            if method == "ReadStdout" || method == "ReadStderr" =>
        {
            encode(&ReadStreamResponse::new()).map(Some)
        }
        Err(error) => {
            let code = match error {
                PolicyError::Denied { .. } | PolicyError::Absent { .. } => Code::PermissionDenied,
                PolicyError::Input(_) | PolicyError::Document(_) => Code::InvalidArgument,
                PolicyError::Evaluation { .. } | PolicyError::Journal { .. } | PolicyError::Unreachable => {
                    Code::Internal
                }
            };
            Err(Status::new(code, error))
        }
    }
}

/// Lets `turn` be over when what `outcome` still has to do is done.
pub(super) fn hold(outcome: Outcome, turn: Turn) -> Outcome {
    match (outcome, turn) {
        (Outcome::Later(running), Some(turn)) if running.fate == Fate::Detached => {
            let Running { name, work, fate, cap } = running;
            let work = Box::pin(async move {
                let answer = work.await;
                drop(turn);
                answer
            });
            Outcome::Later(Running { name, work, fate, cap })
        }
        (outcome, _) => outcome,
    }
}
