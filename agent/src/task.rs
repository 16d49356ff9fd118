//! The one place where tasks and work for the pool are started.
//!
//! Both are boxed first. Tokio compiles its task machinery, about 4 KiB with its unwind tables, once for every type
//! that is spawned; here there are a hundred such types and no task is so short-lived that a box would show.

use std::{future::Future, io, pin::Pin};

use tokio::{sync::oneshot, task::JoinHandle};

/// Starts a task on this thread.
pub fn spawn<T: 'static>(work: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    let work: Pin<Box<dyn Future<Output = T>>> = Box::pin(work);
    tokio::task::spawn_local(work)
}

/// Runs on the pool what may block. It runs to its end even if nobody waits any more; an error is its panic.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (done, outcome) = oneshot::channel();
    // Nobody may be waiting.
    let work: Box<dyn FnOnce() + Send> = Box::new(move || _ = done.send(work()));
    drop(tokio::task::spawn_blocking(work));
    outcome.await.map_err(|_panicked| io::Error::other("it panicked, which is a bug in Berth"))
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn what_panics_on_the_pool_is_an_error() {
        assert_eq!(super::blocking(|| 7).await.unwrap(), 7);
        assert!(super::blocking(|| panic!("on purpose")).await.is_err());
    }
}
