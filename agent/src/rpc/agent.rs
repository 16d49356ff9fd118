//! What every handler is given: the sandbox and what else the worker has, and the ways of answering.

use std::{cell::Cell, future::Future, rc::Rc, time::Duration};

use super::{
    calls::Calls,
    envelope::Request,
    gate::Rules,
    inflight::Inflight,
    limits::METHOD_CAP,
    reply::Status,
    service::{Answer, Fate, Outcome, Running},
};
use crate::{
    copy::Copier,
    network::Network,
    observe::{
        log::Log,
        metrics::{Roles, Snapshot},
    },
    sandbox::Sandbox,
};

/// Parses a request, calls the sandbox, makes the reply.
pub(super) type Handler = fn(&Agent, &Method, &[u8]) -> Result<Outcome, Status>;

/// One row of the table.
pub(super) struct Method {
    pub(super) name: &'static str,
    pub(super) handler: Handler,
}

/// What the worker knows of itself and its guest from its start.
#[derive(Debug)]
pub struct About {
    /// Whether init is process 1 of the machine.
    pub pid1: bool,
    /// Workers before this one.
    pub generation: u32,
    /// What it logs, and loses.
    pub log: Log,
}

/// The service that hosts call.
pub struct Agent {
    pub(super) sandbox: Rc<Sandbox>,
    pub(super) about: About,
    pub(super) network: Rc<Network>,
    pub(super) copier: Rc<Copier>,
    pub(super) end: Rc<dyn Fn()>,
    inflight: Rc<Inflight>,
    calls: Rc<Calls>,
    scrapes: Cell<u64>,
    pub(super) rules: Rules,
    #[cfg(feature = "tracing")]
    tracer: Option<crate::observe::tracing::Tracer>,
}

impl Agent {
    /// `end` asks init to end the machine: it is called once
    /// DestroySandbox has succeeded and its reply has left, or can no longer be sent.
    pub fn new(sandbox: Rc<Sandbox>, about: About, end: impl Fn() + 'static) -> Self {
        Self {
            sandbox,
            about,
            network: Rc::default(),
            copier: Rc::default(),
            end: Rc::new(end),
            inflight: Rc::default(),
            calls: Rc::default(),
            scrapes: Cell::new(0),
            rules: Rules::default(),
            #[cfg(feature = "tracing")]
            tracer: None,
        }
    }

    /// The same, with rules over who may do what and when.
    pub fn with_rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// The same, with a span for each call if there is somewhere to send them.
    #[cfg(feature = "tracing")]
    pub fn with_tracer(self, tracer: Option<crate::observe::tracing::Tracer>) -> Self {
        Self { tracer, ..self }
    }

    /// Everything the worker counts.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.scrapes.set(self.scrapes.get() + 1);
        let roles = Roles {
            worker_restarts: self.about.generation.into(),
            log_lines_dropped: self.about.log.lost(),
            #[cfg(feature = "tracing")]
            spans_dropped: self.tracer.as_ref().map(crate::observe::tracing::Tracer::dropped),
            ..self.sandbox.roles()
        };
        let (census, calls) = (self.sandbox.census(), self.calls.told());
        Snapshot { scrapes: self.scrapes.get(), census, roles, calls }
    }

    /// Has the method's handler answer, and counts how that goes.
    pub(super) fn counted(&self, method: &'static Method, request: &Request<'_>) -> Result<Outcome, Status> {
        let mut ticket = self.calls.begin(method.name);
        #[cfg(feature = "tracing")]
        {
            let tracer = self.tracer.as_ref();
            ticket.span = tracer.and_then(|tracer| super::span::begin(tracer, method.name, request));
        }
        let outcome = (method.handler)(self, method, request.payload);
        match outcome {
            Ok(Outcome::Later(running)) => {
                let work = ticket.follow(running.work);
                Ok(Outcome::Later(Running { work, ..running }))
            }
            done => {
                ticket.ended(done.as_ref().err().map(|status| status.code));
                done
            }
        }
    }

    /// A call that changes something: it runs to its end, and the same call made again meanwhile joins it.
    pub(super) fn mutate(
        &self,
        method: &Method,
        body: &[u8],
        work: impl Future<Output = Answer> + 'static,
    ) -> Result<Outcome, Status> {
        let (work, first) = self.inflight.join_or(method.name, body, Box::pin(work));
        let fate = if first { Fate::Detached } else { Fate::Tied };
        Ok(Outcome::Later(Running { name: method.name, work, fate, cap: Some(METHOD_CAP) }))
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("about", &self.about).finish_non_exhaustive()
    }
}

/// A call that changes something but is not the same when repeated, such as a write.
pub(super) fn detached(
    method: &Method,
    cap: Option<Duration>,
    work: impl Future<Output = Answer> + 'static,
) -> Result<Outcome, Status> {
    Ok(Outcome::Later(Running { name: method.name, work: Box::pin(work), fate: Fate::Detached, cap }))
}

/// A call that waits or looks, for as long as its client does.
pub(super) fn tied(method: &Method, work: impl Future<Output = Answer> + 'static) -> Result<Outcome, Status> {
    Ok(Outcome::Later(Running { name: method.name, work: Box::pin(work), fate: Fate::Tied, cap: None }))
}
