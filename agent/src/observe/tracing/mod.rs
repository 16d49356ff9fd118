//! Spans: one for each call, sent to the trace forwarder that listens on the host. Feature `tracing`.
//!
//! A call's `traceparent` and `tracestate` say below which span of the host's it belongs; a call without them begins
//! a trace, and one whose trace is not sampled has no span. A span ends when its call is over, which for a call that
//! changes something may be after its client is gone. [`Tracer::begin`] and the end of a span cost a few allocations
//! and never wait: [`forward`] sends from a thread of its own, and what does not fit its queue is dropped and counted.

mod context;
mod forward;
mod record;

use std::{
    cell::Cell,
    hash::{BuildHasher, RandomState},
    io,
    rc::Rc,
    time::{Instant, SystemTime},
};

pub use context::Headers;
use context::Parent;
use forward::Forwarder;
pub use forward::{PORT, place};
use record::{Attributes, SpanContext, SpanData};
use slog::Logger;

use crate::address::Address;

/// Makes spans; cheap to clone.
#[derive(Debug, Clone)]
pub struct Tracer(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    forwarder: Forwarder,
    /// Keyed by the kernel's random numbers: ids that nobody can foretell, without a system call for each.
    ids: RandomState,
    count: Cell<u64>,
}

/// What a call is about.
#[derive(Debug, Default, Clone, Copy)]
pub struct Subject<'a> {
    /// Such as `grpc.AgentService`.
    pub service: &'a str,
    /// The container it names.
    pub container: Option<&'a str>,
    /// The process in it.
    pub exec: Option<&'a str>,
}

/// A span that has begun; without [`Span::end`] it is not told of.
#[derive(Debug)]
pub struct Span {
    tracer: Tracer,
    data: SpanData,
    /// Durations are not taken from the clock that SetGuestDateTime sets.
    began: Instant,
}

impl Tracer {
    /// Sends to the forwarder at `to`, which need not be there yet.
    pub fn start(to: Address, log: Logger) -> io::Result<Self> {
        let forwarder = Forwarder::start(to, log)?;
        Ok(Self(Rc::new(Shared { forwarder, ids: RandomState::new(), count: Cell::new(0) })))
    }

    /// How many spans were dropped.
    pub fn dropped(&self) -> u64 {
        self.0.forwarder.dropped()
    }

    /// A span for a call of `method`; `None` if its trace is not sampled.
    pub fn begin(&self, method: &'static str, headers: &Headers<'_>, subject: &Subject<'_>) -> Option<Span> {
        let parent = headers.parent();
        if parent.as_ref().is_some_and(|parent| !parent.sampled()) {
            return None;
        }
        let mut attributes = Attributes::default();
        attributes.add("rpc.system", "ttrpc");
        attributes.add("rpc.service", subject.service);
        attributes.add("rpc.method", method);
        for (key, value) in [("container.id", subject.container), ("exec.id", subject.exec)] {
            value.into_iter().for_each(|value| attributes.add(key, value));
        }
        let span_context = self.context(parent.as_ref());
        let parent_span_id = parent.map_or(0, |parent| parent.span_id);
        let data = SpanData::new(span_context, parent_span_id, method, attributes, SystemTime::now());
        Some(Span { tracer: self.clone(), data, began: Instant::now() })
    }

    fn context(&self, parent: Option<&Parent>) -> SpanContext {
        match parent {
            Some(parent) => SpanContext {
                trace_id: parent.trace_id,
                span_id: self.id(),
                trace_flags: parent.flags,
                is_remote: false,
                trace_state: parent.state.clone(),
            },
            None => SpanContext {
                trace_id: u128::from(self.id()) << 64 | u128::from(self.id()),
                span_id: self.id(),
                trace_flags: context::SAMPLED,
                is_remote: false,
                trace_state: None,
            },
        }
    }

    /// Not zero, which means "none".
    fn id(&self) -> u64 {
        let count = self.0.count.get() + 1;
        self.0.count.set(count);
        self.0.ids.hash_one(count).max(1)
    }
}

impl Span {
    /// Sends it: the call is over, with an error or none.
    pub fn end(mut self, error: Option<&'static str>) {
        self.data.end(self.began.elapsed(), error);
        self.tracer.0.forwarder.send(self.data);
    }
}
