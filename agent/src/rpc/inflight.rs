//! Mutating calls that are running, by what they ask for.
//!
//! A host that lost its connection, or its patience, asks again. The same request (same method, same bytes,
//! hence the same ids) then joins the call that runs, instead of being carried out twice or being told that
//! the id exists; both get the one result.

use std::{
    cell::{OnceCell, RefCell},
    collections::{HashMap, hash_map::RandomState},
    future::Future,
    hash::BuildHasher,
    rc::Rc,
};

use tokio::sync::Notify;

use super::{
    reply::{Code, Reply, Status},
    service::{Answer, Work},
};

/// What makes two requests the same. The bytes are kept as a keyed 64-bit hash and a length: among 16,384
/// pending calls two different requests collide once in 10^11 times, and keeping them would double the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    method: &'static str,
    length: usize,
    hash: u64,
}

#[derive(Default)]
struct Slot {
    answer: OnceCell<Result<Vec<u8>, Status>>,
    done: Notify,
}

/// The table of running calls.
#[derive(Default)]
pub(super) struct Inflight {
    calls: RefCell<HashMap<Key, Rc<Slot>>>,
    hasher: RandomState,
}

impl Inflight {
    /// The work of a request: `first`, or the wait for the same request that runs already. The second value
    /// says whether it is `first`.
    pub(super) fn join_or<F>(self: &Rc<Self>, method: &'static str, body: &[u8], first: F) -> (Work, bool)
    where
        F: Future<Output = Answer> + 'static,
    {
        let key = Key { method, length: body.len(), hash: self.hasher.hash_one(body) };
        if let Some(slot) = self.calls.borrow().get(&key) {
            return (Box::pin(wait(slot.clone())), false);
        }
        let slot = Rc::<Slot>::default();
        self.calls.borrow_mut().insert(key, slot.clone());
        let entry = Entry { table: self.clone(), key, slot };
        (Box::pin(async move { entry.finish(first.await) }), true)
    }
}

async fn wait(slot: Rc<Slot>) -> Answer {
    loop {
        let done = slot.done.notified();
        if let Some(answer) = slot.answer.get() {
            return answer.clone().map(Reply::message);
        }
        done.await;
    }
}

/// The first caller's place in the table. Dropped without an answer, because the call panicked, it answers
/// those who wait all the same.
struct Entry {
    table: Rc<Inflight>,
    key: Key,
    slot: Rc<Slot>,
}

impl Entry {
    fn finish(self, answer: Answer) -> Answer {
        let shared = answer.as_ref().map(Reply::to_vec).map_err(Status::clone);
        let _ = self.slot.answer.set(shared);
        answer
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.table.calls.borrow_mut().remove(&self.key);
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
            table.join_or("CreateContainer", body, async move {
                gate.notified().await;
                runs.set(runs.get() + 1);
                Ok(Reply::message(vec![runs.get()]))
            })
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
        let (first, _) = table.join_or("ExecProcess", b"x", std::future::pending());
        let (mut second, _) = table.join_or("ExecProcess", b"x", std::future::pending());
        assert!(poll(&mut second).is_pending());
        drop(first);
        assert!(matches!(poll(&mut second), Poll::Ready(Err(Status { code: Code::Internal, .. }))));
        assert!(table.calls.borrow().is_empty());
    }
}
