//! Closing descriptors that may be slow to close.
//!
//! The last close of a pipe waits for the pipe's lock, which a workload can hold for as long as it likes
//! ([`crate::stdio`]), and init waits for nobody. So what leaves the store is closed by a thread, which the first
//! such descriptor starts. Descriptors are closed in order; behind a slow one a further thread begins when
//! [`PATIENCE`] of them wait, so what can pile up is bounded by how many a workload can make slow.

use std::{
    collections::VecDeque,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex},
    thread,
};

/// How many descriptors may wait before there is another thread, if there are fewer than [`THREADS`].
const PATIENCE: usize = 64;
const THREADS: usize = 16;
/// More than closing needs.
const STACK: usize = 64 << 10;

/// The way to the threads.
#[derive(Debug, Default)]
pub(super) struct Closer {
    queue: Arc<Queue>,
    threads: usize,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<VecDeque<Arc<OwnedFd>>>,
    more: Condvar,
}

impl Closer {
    /// Closes `fd`, unless it is held elsewhere too.
    pub(super) fn close(&mut self, fd: Arc<OwnedFd>) {
        let Ok(mut waiting) = self.queue.waiting.lock() else { return };
        waiting.push_back(fd);
        let too_many = waiting.len() >= PATIENCE && self.threads < THREADS;
        drop(waiting);
        if self.threads == 0 || too_many {
            self.start();
        }
        self.queue.more.notify_one();
    }

    /// Without a thread they wait for the next attempt to start one.
    fn start(&mut self) {
        let queue = Arc::clone(&self.queue);
        let thread = thread::Builder::new().name("berth-closer".to_owned()).stack_size(STACK);
        self.threads += usize::from(thread.spawn(move || queue.serve()).is_ok());
    }
}

impl Queue {
    fn serve(&self) {
        while let Ok(waiting) = self.waiting.lock() {
            let Ok(mut waiting) = self.more.wait_while(waiting, |waiting| waiting.is_empty()) else { return };
            let next = waiting.pop_front();
            drop(waiting);
            drop(next);
        }
    }
}
