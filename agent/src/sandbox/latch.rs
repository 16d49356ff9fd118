//! A value that is set once and that any number of tasks may wait for.
//!
//! ```text
//!   unset --set(value)--> set      (a second set changes nothing)
//! ```

use std::cell::Cell;

use tokio::sync::Notify;

/// See the module.
#[derive(Debug)]
pub(crate) struct Latch<T: Copy> {
    value: Cell<Option<T>>,
    changed: Notify,
}

impl<T: Copy> Latch<T> {
    pub(crate) fn new() -> Self {
        Self { value: Cell::new(None), changed: Notify::new() }
    }

    /// Sets the value unless there is one, and wakes everybody.
    pub(crate) fn set(&self, value: T) {
        if self.value.get().is_none() {
            self.value.set(Some(value));
            self.changed.notify_waiters();
        }
    }

    pub(crate) fn get(&self) -> Option<T> {
        self.value.get()
    }

    pub(crate) async fn wait(&self) -> T {
        loop {
            // Made before the check: a `set` after the check then wakes this very waiter.
            let changed = self.changed.notified();
            if let Some(value) = self.value.get() {
                return value;
            }
            changed.await;
        }
    }
}
