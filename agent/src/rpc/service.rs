//! What the transport serves: anything that turns a request into an answer.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use tokio::sync::OwnedMutexGuard;

use super::{
    envelope::Request,
    reply::{Reply, Status},
};

/// How a call ended.
pub type Answer = Result<Reply, Status>;

/// A call that is still running.
pub type Work = Pin<Box<dyn Future<Output = Answer>>>;

/// What becomes of a call when its client is gone or its deadline has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It runs to its end: it changes something, and half a change is worse than one nobody waits for.
    Detached,
    /// It is dropped: it only waits or looks, and would pile up. Its work on the pool is also not begun while the
    /// connection's reply queue is full, so what it would read stays where it is.
    Tied,
}

/// A call that could not be answered at once.
pub struct Running {
    /// The method, for the log.
    pub name: &'static str,
    /// The rest of the call.
    pub work: Work,
    /// See [`Fate`].
    pub fate: Fate,
    /// The longest the client is kept waiting, whatever time it gave.
    pub cap: Option<Duration>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("name", &self.name).field("fate", &self.fate).finish_non_exhaustive()
    }
}

/// A call's turn; over when it is dropped.
pub type Turn = Option<OwnedMutexGuard<()>>;

/// What a gate lets through.
#[derive(Debug)]
pub enum Passed {
    /// The call is to be done now.
    Go(Turn),
    /// It is answered already.
    Answered(Reply),
}

/// Resolves when it is decided whether a call may be done.
pub type Gate = Pin<Box<dyn Future<Output = Result<Passed, Status>>>>;

/// What a service makes of a call.
pub enum Outcome {
    /// The answer; the fast path, without a task.
    Now(Reply),
    /// Work to be done.
    Later(Running),
    /// A decision to be waited for; what passes comes back by [`Service::permitted`]. Never cut off by its client's
    /// going away, because a decision may change what is decided next.
    Gated(Gate),
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(reply) => f.debug_tuple("Now").field(reply).finish(),
            Self::Later(running) => f.debug_tuple("Later").field(running).finish(),
            Self::Gated(_) => f.write_str("Gated"),
        }
    }
}

/// Serves requests. `call` runs on the reactor: it parses the payload, which is borrowed from the read buffer,
/// and must not block. A panic, in it or in the work, is answered INTERNAL.
pub trait Service: 'static {
    /// Answers `request`, or gives the work that will.
    fn call(&self, request: &Request<'_>) -> Result<Outcome, Status>;

    /// Answers a request that has passed its gate, which is never gated again.
    fn permitted(&self, request: &Request<'_>) -> Result<Outcome, Status> {
        self.call(request)
    }
}
