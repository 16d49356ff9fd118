//! Mutating calls that are running, by what they ask for.
//!
//! A host that lost its connection, or its patience, asks again. The same request (same method, same bytes,
//! hence the same ids) then joins the call that runs, instead of being carried out twice or being told that
//! the id exists; both get the one result. A result that reached none of them is kept for the next
//! ([`unheard`](super::unheard)).

use std::{
    cell::{Cell, OnceCell, RefCell},
    collections::HashMap,
    future::ready,
    rc::Rc,
    time::Instant,
};

use tokio::sync::Notify;

use super::{
    fingerprint::{Fingerprint, Key},
    reply::{Code, Reply, Status},
    service::{Answer, Work},
    unheard::{self, Subject, Unheard},
};

#[derive(Default)]
struct Slot {
    answer: OnceCell<Result<Vec<u8>, Status>>,
    done: Notify,
    /// Somebody has the answer.
    told: Cell<bool>,
}

/// The table of running calls.
#[derive(Default)]
pub(super) struct Inflight {
    calls: RefCell<HashMap<Key, Rc<Slot>>>,
    fingerprint: Fingerprint,
    unheard: Unheard,
    /// The last call on each subject, until its reply has left or it is replaced by a later one.
    latest: RefCell<HashMap<Subject, Rc<Slot>>>,
}

impl Inflight {
    /// The work of a request: `first`, or the wait for the same request that runs already. The second value
    /// says whether it is `first`.
    pub(super) fn join_or(self: &Rc<Self>, method: &'static str, body: &[u8], first: Work) -> (Work, bool) {
        let key = self.fingerprint.key(method, body);
        let subject = unheard::subject(method, body);
        if let Some(slot) = self.calls.borrow().get(&key) {
            return (Box::pin(wait(self.clone(), key, subject, slot.clone())), false);
        }
        if let Some(reply) =
            subject.as_ref().and_then(|subject| self.unheard.take(subject, key, Instant::now()))
        {
            let slot = Rc::<Slot>::default();
            self.latest.borrow_mut().extend(subject.clone().map(|subject| (subject, slot.clone())));
            let receipt = Receipt::new(self.clone(), key, subject, slot, reply);
            return (Box::pin(ready(Ok(receipt.into_reply()))), false);
        }
        let slot = Rc::<Slot>::default();
        self.calls.borrow_mut().insert(key, slot.clone());
        self.latest.borrow_mut().extend(subject.clone().map(|subject| (subject, slot.clone())));
        let entry = Entry { table: self.clone(), key, subject, slot };
        (Box::pin(async move { entry.finish(first.await) }), true)
    }

    /// Whether no other call on `subject` has begun since the one of `slot`; that one is over.
    fn retire(&self, subject: &Subject, slot: &Rc<Slot>) -> bool {
        let mut latest = self.latest.borrow_mut();
        let is_latest = latest.get(subject).is_some_and(|latest| Rc::ptr_eq(latest, slot));
        if is_latest {
            latest.remove(subject);
        }
        is_latest
    }
}

async fn wait(table: Rc<Inflight>, key: Key, subject: Option<Subject>, slot: Rc<Slot>) -> Answer {
    loop {
        let done = slot.done.notified();
        if let Some(answer) = slot.answer.get() {
            let told = Rc::clone(&slot);
            return answer.clone().map(|reply| {
                Reply::told(reply, move || {
                    told.told.set(true);
                    // The first caller may have been given up already.
                    let _heard =
                        subject.and_then(|subject| table.unheard.take(&subject, key, Instant::now()));
                })
            });
        }
        done.await;
    }
}

/// The first caller's place in the table. Dropped without an answer, because the call panicked, it answers
/// those who wait all the same.
struct Entry {
    table: Rc<Inflight>,
    key: Key,
    subject: Option<Subject>,
    slot: Rc<Slot>,
}

impl Entry {
    fn finish(mut self, answer: Answer) -> Answer {
        let shared = answer.as_ref().map(Reply::to_vec).map_err(Status::clone);
        let _ = self.slot.answer.set(shared);
        let reply = answer?;
        if self.subject.is_none() || !reply.is_plain() {
            return Ok(reply);
        }
        let subject = self.subject.take();
        Ok(Receipt::new(self.table.clone(), self.key, subject, self.slot.clone(), reply.to_vec())
            .into_reply())
    }
}

/// A reply on its way: kept for the next caller if it reaches nobody.
struct Receipt {
    table: Rc<Inflight>,
    key: Key,
    subject: Option<Subject>,
    slot: Rc<Slot>,
    reply: Vec<u8>,
}

impl Receipt {
    fn new(table: Rc<Inflight>, key: Key, subject: Option<Subject>, slot: Rc<Slot>, reply: Vec<u8>) -> Self {
        Self { table, key, subject, slot, reply }
    }

    fn into_reply(self) -> Reply {
        let bytes = self.reply.clone();
        Reply::told(bytes, move || self.slot.told.set(true))
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        let Some(subject) = self.subject.take() else { return };
        // What another call has been about since is history, even if that call began before this one was over.
        if self.table.retire(&subject, &self.slot) && !self.slot.told.get() {
            self.table.unheard.keep(subject, self.key, std::mem::take(&mut self.reply), Instant::now());
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.table.calls.borrow_mut().remove(&self.key);
        // Whoever has the reply has the subject too.
        if let Some(subject) = &self.subject {
            self.table.retire(subject, &self.slot);
        }
        self.slot.answer.get_or_init(|| {
            Err(Status::new(
                Code::Internal,
                format_args!("{} was ended by an error in the agent itself", self.key.method),
            ))
        });
        self.slot.done.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        task::{Context, Poll, Waker},
    };

    use super::*;

    fn poll(work: &mut Work) -> Poll<Answer> {
        work.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_same_request_joins_and_another_does_not() {
        let table = Rc::<Inflight>::default();
        let (runs, gate) = (Rc::new(Cell::new(0)), Rc::new(Notify::new()));
        let start = |body: &[u8]| {
            let (runs, gate) = (runs.clone(), gate.clone());
            let work = async move {
                gate.notified().await;
                runs.set(runs.get() + 1);
                Ok(Reply::message(vec![runs.get()]))
            };
            table.join_or("CreateContainer", body, Box::pin(work))
        };
        let ((mut first, is_first), (mut second, joined)) = (start(b"a"), start(b"a"));
        let (mut other, other_first) = start(b"b");
        assert!(is_first && !joined && other_first);
        for work in [&mut first, &mut second, &mut other] {
            assert!(poll(work).is_pending());
        }
        gate.notify_one();
        let Poll::Ready(Ok(one)) = poll(&mut first) else { panic!("first is not done") };
        let Poll::Ready(Ok(two)) = poll(&mut second) else { panic!("second is not done") };
        assert_eq!((one.to_vec(), two.to_vec()), (vec![1], vec![1]));
        assert!(start(b"a").1, "what is over is not joined");
    }

    #[test]
    fn those_who_joined_a_call_that_vanished_are_told() {
        let table = Rc::<Inflight>::default();
        let (first, _) = table.join_or("ExecProcess", b"x", Box::pin(std::future::pending()));
        let (mut second, _) = table.join_or("ExecProcess", b"x", Box::pin(std::future::pending()));
        assert!(poll(&mut second).is_pending());
        drop(first);
        assert!(matches!(poll(&mut second), Poll::Ready(Err(Status { code: Code::Internal, .. }))));
        assert!(table.calls.borrow().is_empty());
    }
}
