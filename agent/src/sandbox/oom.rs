//! OOM kills on their way from a container's cgroup to the one host that is told of each.
//!
//! ```text
//!   kill counted by the kernel --watch--> queued --GetOOMEvent--> taken --sent--> told (journalled)
//!                                            ^                      |
//!                                            +---- client is gone --+
//! ```
//!
//! Kills are counted, not observed: a watch compares the kernel's count with what it has queued, so none is lost
//! between two looks, and the next worker queues what this one had not told. A watch looks once more when its
//! container is taken down, before the count goes with the cgroup.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::{Future, poll_fn},
    os::fd::{AsFd, OwnedFd},
    pin::pin,
    rc::{Rc, Weak},
    task::Poll,
};

use rustjail::cgroup::OomEvents;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Notify,
};

use super::{
    Core, Error, Result, blocking,
    container::Container,
    error::failed_to,
    oom_watch::{OomWatch, SharedEvents},
};
use crate::reactor::register;

/// Containers with kills that nobody has asked for; beyond it the oldest one's are dropped, and counted.
const MAX_QUEUED: usize = 1024;

/// Kills that are not told yet: one entry for each container, however many of its processes died.
#[derive(Debug, Default)]
pub(super) struct OomQueue {
    entries: RefCell<VecDeque<Entry>>,
    came: Notify,
    closed: Cell<bool>,
    dropped: Cell<u64>,
}

#[derive(Debug)]
struct Entry {
    id: String,
    container: Weak<Container>,
    kills: u64,
}

impl OomQueue {
    fn push(&self, container: &Rc<Container>, kills: u64) {
        let mut entries = self.entries.borrow_mut();
        match entries.iter_mut().find(|entry| entry.container.as_ptr() == Rc::as_ptr(container)) {
            Some(entry) => entry.kills += kills,
            None => {
                let container = (container.id.clone(), Rc::downgrade(container));
                entries.push_back(Entry { id: container.0, container: container.1, kills });
            }
        }
        if entries.len() > MAX_QUEUED
            && let Some(oldest) = entries.pop_front()
        {
            self.dropped.set(self.dropped.get() + oldest.kills);
        }
        self.came.notify_one();
    }

    fn pop(&self) -> Option<(String, Weak<Container>)> {
        let mut entries = self.entries.borrow_mut();
        let entry = entries.front_mut()?;
        entry.kills -= 1;
        let taken = (entry.id.clone(), Weak::clone(&entry.container));
        if entry.kills == 0 {
            entries.pop_front();
        }
        if !entries.is_empty() {
            self.came.notify_one();
        }
        Some(taken)
    }

    fn give_back(&self, id: &str, container: &Weak<Container>) {
        let mut entries = self.entries.borrow_mut();
        match entries.iter_mut().find(|entry| Weak::ptr_eq(&entry.container, container)) {
            Some(entry) => entry.kills += 1,
            None => {
                let container = Weak::clone(container);
                entries.push_front(Entry { id: id.to_owned(), container, kills: 1 });
            }
        }
        self.came.notify_one();
    }

    /// Nothing is queued any more; those who wait are told so.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.came.notify_waiters();
    }

    /// Kills that are queued, and those that were dropped.
    pub(super) fn depth(&self) -> (u64, u64) {
        (self.entries.borrow().iter().map(|entry| entry.kills).sum(), self.dropped.get())
    }
}

/// One OOM kill, which is nobody else's until it is dropped untold.
#[derive(Debug)]
pub struct OomEvent {
    id: String,
    container: Weak<Container>,
    core: Rc<Core>,
    told: bool,
}

impl OomEvent {
    /// Where it happened.
    pub fn container_id(&self) -> &str {
        &self.id
    }

    /// The host has it.
    pub fn told(mut self) {
        self.told = true;
        if let Some(container) = self.container.upgrade() {
            container.oom_told.set(container.oom_told.get() + 1);
            // Not written down, it is told again by the next worker.
            let _reported = self.core.record(&container);
        }
    }
}

impl Drop for OomEvent {
    fn drop(&mut self) {
        if !self.told {
            self.core.oom.give_back(&self.id, &self.container);
        }
    }
}

/// When a watch looks for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// There may be kills that an earlier worker did not tell of.
    Now,
    /// The group is new.
    Later,
}

impl Container {
    /// What is to be looked at once more before the cgroup goes.
    pub(super) fn last_oom_look(&self) -> Option<SharedEvents> {
        self.oom_watch.borrow().as_ref().map(|watch| watch.events())
    }

    /// Nothing more will happen in it.
    pub(super) fn end_oom_watch(&self) {
        if let Some(watch) = self.oom_watch.take() {
            watch.end();
        }
    }
}

impl Core {
    /// The next kill nobody was told of.
    pub(super) async fn next_oom_event(self: &Rc<Self>) -> Result<OomEvent> {
        loop {
            let came = self.oom.came.notified();
            if self.oom.closed.get() {
                return Err(Error::EventsEnded);
            }
            if let Some((id, container)) = self.oom.pop() {
                return Ok(OomEvent { id, container, core: Rc::clone(self), told: false });
            }
            came.await;
        }
    }

    /// Watches a container that an earlier worker made.
    pub(super) async fn watch_oom(self: &Rc<Self>, container: &Rc<Container>) {
        let Some(cgroup) = container.cgroup() else { return };
        let told = container.oom_told.get();
        let events = blocking(move || Ok(cgroup.oom_events(told)?)).await;
        self.follow_oom(container, events, Look::Now);
    }

    /// Begins to watch `container`. Without it the container runs as well, so a failure is only reported.
    pub(super) fn follow_oom(
        self: &Rc<Self>,
        container: &Rc<Container>,
        events: Result<Option<OomEvents>>,
        first: Look,
    ) {
        let follow = || -> Result<()> {
            let Some(events) = events? else { return Ok(()) };
            let wake = events.as_fd().try_clone_to_owned();
            let wake = wake.and_then(|fd| register(fd, Interest::READABLE));
            let wake = wake.map_err(failed_to(|| "watch an OOM event".to_owned()))?;
            let watch = OomWatch::new(events);
            let (events, stop) = (watch.events(), watch.stop());
            *container.oom_watch.borrow_mut() = Some(watch);
            let (core, container) = (Rc::clone(self), Rc::clone(container));
            crate::task::spawn(async move {
                core.look_whenever_woken(&container, events, &wake, &stop, first).await;
            });
            Ok(())
        };
        if let Err(error) = follow() {
            slog::warn!(self.log, "OOM kills of a container will not be told";
                "container" => &container.id, "error" => %error);
        }
    }

    async fn look_whenever_woken(
        &self,
        container: &Rc<Container>,
        events: SharedEvents,
        wake: &AsyncFd<OwnedFd>,
        stop: &Notify,
        first: Look,
    ) {
        let mut due = first == Look::Now;
        loop {
            if !due && next_wake(wake, stop).await == Wake::Stop {
                return;
            }
            due = false;
            let events = events.clone();
            let kills = blocking(move || Ok(events.look())).await.unwrap_or(0);
            self.oom_killed(container, kills);
        }
    }

    pub(super) fn oom_killed(&self, container: &Rc<Container>, kills: u64) {
        if kills > 0 {
            slog::warn!(self.log, "the kernel killed a process for want of memory";
                "container" => &container.id, "kills" => kills);
            self.oom.push(container, kills);
        }
    }
}

/// Why a watch looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wake {
    Event,
    Stop,
}

async fn next_wake(wake: &AsyncFd<OwnedFd>, stop: &Notify) -> Wake {
    let mut stopped = pin!(stop.notified());
    let mut ready = pin!(wake.readable());
    poll_fn(|cx| {
        if stopped.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Wake::Stop);
        }
        match ready.as_mut().poll(cx) {
            // Cleared before the look: what happens after it is a new edge.
            Poll::Ready(Ok(mut guard)) => {
                guard.clear_ready();
                Poll::Ready(Wake::Event)
            }
            Poll::Ready(Err(_reactor_gone)) => Poll::Ready(Wake::Stop),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
