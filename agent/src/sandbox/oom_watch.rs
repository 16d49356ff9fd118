//! The watch over one container's OOM kills: the count, and the end of looking at it.

use std::{
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
};

use rustjail::cgroup::OomEvents;
use tokio::sync::Notify;

/// A container's count of kills, looked at by whoever has a turn on the pool.
#[derive(Debug, Clone)]
pub(super) struct SharedEvents(Arc<Mutex<OomEvents>>);

impl SharedEvents {
    /// Kills since the last look; blocking. A group that is gone has none.
    pub(super) fn look(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or(0)
    }
}

/// Held by the container that is watched.
#[derive(Debug)]
pub(super) struct OomWatch {
    events: SharedEvents,
    stop: Rc<Notify>,
}

impl OomWatch {
    pub(super) fn new(events: OomEvents) -> Self {
        Self { events: SharedEvents(Arc::new(Mutex::new(events))), stop: Rc::default() }
    }

    pub(super) fn events(&self) -> SharedEvents {
        self.events.clone()
    }

    /// What is notified when the watch is over.
    pub(super) fn stop(&self) -> Rc<Notify> {
        Rc::clone(&self.stop)
    }

    /// Nothing more will happen in the container.
    pub(super) fn end(&self) {
        self.stop.notify_one();
    }
}
