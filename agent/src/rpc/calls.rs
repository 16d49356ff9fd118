//! How long calls take and how they end, counted by method for GetMetrics.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use super::{
    reply::Code,
    service::{Answer, Work},
};
use crate::observe::metrics::MethodCalls;

/// Upper bounds of the buckets, in microseconds: what a call that only looks takes, up to one that waits for a
/// launch or a removal.
const BOUNDS: [u64; 10] = [50, 100, 250, 1_000, 2_500, 10_000, 100_000, 1_000_000, 10_000_000, 60_000_000];

/// Every method's counts; only methods that exist have one, so a client cannot make it grow.
#[derive(Debug, Default)]
pub(super) struct Calls(RefCell<BTreeMap<&'static str, Tally>>);

#[derive(Debug, Default)]
struct Tally {
    buckets: [u64; BOUNDS.len()],
    total: Duration,
    count: u64,
    running: u64,
    errors: BTreeMap<&'static str, u64>,
}

impl Calls {
    /// A call of `method` begins.
    pub(super) fn begin(self: &Rc<Self>, method: &'static str) -> Ticket {
        self.0.borrow_mut().entry(method).or_default().running += 1;
        Ticket {
            calls: Rc::clone(self),
            method,
            start: Instant::now(),
            error: Some(ABANDONED),
            #[cfg(feature = "tracing")]
            span: None,
        }
    }

    /// What has been counted.
    pub(super) fn told(&self) -> Vec<MethodCalls> {
        self.0.borrow().iter().map(|(method, tally)| tally.told(method)).collect()
    }
}

impl Tally {
    fn told(&self, method: &'static str) -> MethodCalls {
        let mut sum = 0;
        let cumulative = BOUNDS.iter().zip(self.buckets).map(|(bound, count)| {
            sum += count;
            (*bound as f64 / 1e6, sum)
        });
        MethodCalls {
            method,
            buckets: cumulative.collect(),
            seconds: self.total.as_secs_f64(),
            count: self.count,
            running: self.running,
            errors: self.errors.iter().map(|(code, count)| (*code, *count)).collect(),
        }
    }
}

/// Its client went away, or it panicked.
const ABANDONED: &str = "abandoned";

/// One call; counted when it is dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    calls: Rc<Calls>,
    method: &'static str,
    start: Instant,
    error: Option<&'static str>,
    /// Told of when the call is over.
    #[cfg(feature = "tracing")]
    pub(super) span: Option<crate::observe::tracing::Span>,
}

impl Ticket {
    /// Notes how the call ended.
    pub(super) fn ended(&mut self, error: Option<Code>) {
        self.error = error.map(name);
    }

    /// `work`, counted when it is done.
    pub(super) fn follow(self, work: Work) -> Work {
        Box::pin(Counted { work, ticket: self })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let took = self.start.elapsed();
        let mut tallies = self.calls.0.borrow_mut();
        let tally = tallies.entry(self.method).or_default();
        tally.running = tally.running.saturating_sub(1);
        tally.count += 1;
        tally.total += took;
        let micros = took.as_micros();
        if let Some((_, bucket)) =
            BOUNDS.iter().zip(&mut tally.buckets).find(|(bound, _)| micros <= u128::from(**bound))
        {
            *bucket += 1;
        }
        if let Some(error) = self.error {
            *tally.errors.entry(error).or_default() += 1;
        }
        #[cfg(feature = "tracing")]
        if let Some(span) = self.span.take() {
            span.end(self.error);
        }
    }
}

struct Counted {
    work: Work,
    ticket: Ticket,
}

impl Future for Counted {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let answer = std::task::ready!(self.work.as_mut().poll(cx));
        self.ticket.ended(answer.as_ref().err().map(|status| status.code));
        Poll::Ready(answer)
    }
}

fn name(code: Code) -> &'static str {
    match code {
        Code::InvalidArgument => "invalid_argument",
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::NotFound => "not_found",
        Code::AlreadyExists => "already_exists",
        Code::PermissionDenied => "permission_denied",
        Code::ResourceExhausted => "resource_exhausted",
        Code::FailedPrecondition => "failed_precondition",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_how_they_end() {
        let calls = Rc::<Calls>::default();
        calls.begin("A").ended(None);
        let mut failed = calls.begin("A");
        failed.ended(Some(Code::NotFound));
        assert_eq!(calls.told()[0].running, 1);
        drop(failed);
        drop(calls.begin("B").follow(Box::pin(std::future::pending())));
        let told = calls.told();
        assert_eq!((told[0].count, told[0].running, told[0].errors.clone()), (2, 0, vec![("not_found", 1)]));
        assert_eq!(told[1].errors, [("abandoned", 1)]);
        assert!(told[0].buckets.is_sorted_by_key(|(_, count)| *count));
    }
}
