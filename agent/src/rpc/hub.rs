//! What all connections of a server share.

use std::{
    any::Any,
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    time::Instant,
};

use slog::{Logger, error};

use super::{
    breaker::Breaker,
    budget::Budget,
    envelope::Request,
    limits::Limits,
    reply::{Code, Status},
    service::{Outcome, Service},
};

pub(super) struct Hub {
    service: Rc<dyn Service>,
    pub(super) limits: Limits,
    pub(super) budget: Rc<Budget>,
    pub(super) log: Logger,
    pub(super) connections: Cell<usize>,
    pending: Cell<usize>,
    panics: Cell<u64>,
    breaker: Breaker,
}

impl Hub {
    pub(super) fn new(service: Rc<dyn Service>, limits: Limits, log: Logger) -> Self {
        Self {
            service,
            limits,
            budget: Rc::default(),
            log,
            connections: Cell::new(0),
            pending: Cell::new(0),
            panics: Cell::new(0),
            breaker: Breaker::default(),
        }
    }

    /// Hands a request to the service. A panic there is an answer like any other; a method that panics too often
    /// is not asked for a while.
    pub(super) fn call(&self, request: &Request<'_>) -> Result<Outcome, Status> {
        if let Some(left) = self.breaker.open_for(request.method, Instant::now()) {
            let text = format_args!(
                "{} failed too often by an error in the agent itself; it is served again in {} s",
                request.method,
                left.as_secs() + 1
            );
            return Err(Status::new(Code::Unavailable, text));
        }
        let outcome = self.guarded(request.method, || self.service.call(request))?;
        if matches!(outcome, Outcome::Later(_) | Outcome::Gated(_))
            && self.pending.get() >= self.limits.pending_calls
        {
            let text = format_args!("{} calls are unanswered already", self.pending.get());
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        Ok(outcome)
    }

    /// Hands it a request that has passed its gate.
    pub(super) fn permitted(&self, request: &Request<'_>) -> Result<Outcome, Status> {
        self.guarded(request.method, || self.service.permitted(request))
    }

    fn guarded(
        &self,
        method: &str,
        call: impl FnOnce() -> Result<Outcome, Status>,
    ) -> Result<Outcome, Status> {
        catch_unwind(AssertUnwindSafe(call))
            .unwrap_or_else(|panic| Err(self.panicked(method, panic.as_ref())))
    }

    /// Logs a panic under an id, and gives the answer that names it. What the panic says stays in the guest.
    pub(super) fn panicked(&self, method: &str, panic: &(dyn Any + Send)) -> Status {
        self.panics.update(|count| count + 1);
        self.breaker.panicked(method, Instant::now());
        let id = format!("P{:04}", self.panics.get());
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("a panic without text");
        error!(self.log, "a call panicked"; "method" => method, "error_id" => &id, "panic" => text);
        Status::new(
            Code::Internal,
            format_args!("{method} failed by an error in the agent itself; its log has it as {id}"),
        )
    }

    pub(super) fn call_begins(&self) {
        self.pending.update(|count| count + 1);
    }

    pub(super) fn call_ends(&self) {
        self.pending.update(|count| count - 1);
    }
}
