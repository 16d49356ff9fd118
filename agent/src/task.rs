//! The one place where tasks and work for the pool are started.
//!
//! Both are boxed first, and so is what work on the pool comes to. Tokio compiles its machinery for tasks and
//! channels, about 4 KiB with its unwind tables, once for every type that is spawned or sent; here there are a
//! hundred such types and no task is so short-lived that a box would show.

use std::{any::Any, future::Future, io, pin::Pin};

use tokio::{sync::oneshot, task::JoinHandle};

type Outcome = Box<dyn Any + Send>;

/// Starts a task on this thread.
pub fn spawn<T: 'static>(work: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    let work: Pin<Box<dyn Future<Output = T>>> = Box::pin(work);
    tokio::task::spawn_local(work)
}

/// Runs on the pool what may block. It runs to its end even if nobody waits any more; an error is its panic.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let outcome = on_the_pool(Box::new(move || Box::new(work()))).await;
    match outcome.and_then(|outcome| outcome.downcast().ok()) {
        Some(outcome) => Ok(*outcome),
        None => Err(io::Error::other("it panicked, which is a bug in Berth")),
    }
}

async fn on_the_pool(work: Box<dyn FnOnce() -> Outcome + Send>) -> Option<Outcome> {
    let (done, outcome) = oneshot::channel();
    // Nobody may be waiting.
    drop(tokio::task::spawn_blocking(move || _ = done.send(work())));
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
