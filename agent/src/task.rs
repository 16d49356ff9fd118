//! The one place where tasks and work for the pool are started.
//!
//! Of the pool's threads a few do what takes long, and many wait for streams: a workload may hold the lock of its
//! own pipes for as long as it likes ([`crate::stdio`]), and what it holds up must be nobody else's.
//!
//! Work whose result has nowhere to go, because the client it is for does not read, is not begun ([`Room`]). It waits
//! for that before it waits for a thread, and gives the thread back if there is no room any more: a waiter that
//! kept what it was given while its client sleeps would in the end keep all of it.
//!
//! Tasks and work are boxed first, and so is what work on the pool comes to. Tokio compiles its machinery for tasks and
//! channels, about 4 KiB with its unwind tables, once for every type that is spawned or sent; here there are a
//! hundred such types and no task is so short-lived that a box would show.

use std::{
    any::Any,
    future::{Future, poll_fn},
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use tokio::{
    sync::{Semaphore, SemaphorePermit, oneshot},
    task::JoinHandle,
};

/// Threads for what takes long; more of it queues.
const WORKERS: usize = 16;
/// Threads for streams: as many can be held up before the others' streams have to wait.
const STREAMS: usize = 496;
/// What the pool needs room for.
pub const THREADS: usize = WORKERS + STREAMS;

static FOR_WORK: Semaphore = Semaphore::const_new(WORKERS);
static FOR_STREAMS: Semaphore = Semaphore::const_new(STREAMS);

/// Where the result of a task goes.
pub trait Room {
    /// Whether more can be taken; if not, the task is woken once it can.
    fn poll_room(&self, cx: &Context<'_>) -> bool;
}

tokio::task_local! {
    static ROOM: Rc<dyn Room>;
}

/// Polls a task whose result goes to `room`.
pub fn poll_with_room<T>(room: Rc<dyn Room>, poll: impl FnOnce() -> T) -> T {
    ROOM.sync_scope(room, poll)
}

fn has_room(cx: &Context<'_>) -> bool {
    ROOM.try_with(|room| room.poll_room(cx)).unwrap_or(true)
}

type Outcome = Box<dyn Any + Send>;

/// Starts a task on this thread.
pub fn spawn<T: 'static>(work: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    let work: Pin<Box<dyn Future<Output = T>>> = Box::pin(work);
    tokio::task::spawn_local(work)
}

/// Runs on the pool what may block. It runs to its end even if nobody waits any more; an error is its panic.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    unbox(on_the_pool(&FOR_WORK, Box::new(move || Box::new(work()))).await)
}

/// Runs on the pool what touches a pipe that a workload has too, and that ends as soon as its lock can be had.
pub async fn on_stream<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    unbox(on_the_pool(&FOR_STREAMS, Box::new(move || Box::new(work()))).await)
}

fn unbox<T: 'static>(outcome: Option<Outcome>) -> io::Result<T> {
    match outcome.and_then(|outcome| outcome.downcast().ok()) {
        Some(outcome) => Ok(*outcome),
        None => Err(io::Error::other("it panicked, which is a bug in Berth")),
    }
}

async fn on_the_pool(
    threads: &'static Semaphore,
    work: Box<dyn FnOnce() -> Outcome + Send>,
) -> Option<Outcome> {
    let thread = thread(threads).await?;
    let (done, outcome) = oneshot::channel();
    drop(tokio::task::spawn_blocking(move || {
        let result = work();
        // Nobody may be waiting.
        let _ = done.send((result, thread));
    }));
    // Not before its result is taken is the thread the next one's, which looks for room then.
    outcome.await.ok().map(|(result, _thread)| result)
}

async fn thread(threads: &'static Semaphore) -> Option<SemaphorePermit<'static>> {
    loop {
        poll_fn(|cx| if has_room(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
        let thread = threads.acquire().await.ok()?;
        if poll_fn(|cx| Poll::Ready(has_room(cx))).await {
            return Some(thread);
        }
    }
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn what_panics_on_the_pool_is_an_error() {
        assert_eq!(super::blocking(|| 7).await.unwrap(), 7);
        assert!(super::blocking(|| panic!("on purpose")).await.is_err());
    }
}
