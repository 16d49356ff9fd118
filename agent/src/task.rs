//! The one place where tasks and work for the pool are started.
//!
//! Of the pool's threads a few do what takes long, and many wait for streams: a workload may hold the lock of its
//! own pipes for as long as it likes ([`crate::stdio`]), and what it holds up must be nobody else's.
//!
//! Tasks and work are boxed first, and so is what work on the pool comes to. Tokio compiles its machinery for tasks and
//! channels, about 4 KiB with its unwind tables, once for every type that is spawned or sent; here there are a
//! hundred such types and no task is so short-lived that a box would show.

use std::{any::Any, future::Future, io, pin::Pin};

use tokio::{
    sync::{Semaphore, oneshot},
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
    let thread = threads.acquire().await.ok()?;
    let (done, outcome) = oneshot::channel();
    drop(tokio::task::spawn_blocking(move || {
        let result = work();
        drop(thread);
        // Nobody may be waiting.
        let _ = done.send(result);
    }));
    outcome.await.ok()
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn what_panics_on_the_pool_is_an_error() {
        assert_eq!(super::blocking(|| 7).await.unwrap(), 7);
        assert!(super::blocking(|| panic!("on purpose")).await.is_err());
    }
}
