//! Exit statuses on their way from init to the process they belong to.
//!
//! A status may come before the reply of the launch it belongs to (the two travel on different sockets): while
//! a launch is under way an unknown pid is kept, else it is nobody's. One pid may name two processes for an
//! instant, the one that just ended and the next with its number: statuses arrive in order, so the older one
//! is first. A status is acknowledged, and so forgotten by init, only when the journal has it.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    io,
    rc::Rc,
};

use tokio::sync::Notify;

use super::{
    Core,
    container::Container,
    process::{Held, Process},
    state::Event,
};
use crate::supervisor::Exit;

type Watched = (Rc<Container>, Rc<Process>);

/// Who waits for which pid.
#[derive(Debug, Default)]
pub(super) struct Exits {
    watched: RefCell<HashMap<i32, VecDeque<Watched>>>,
    early: RefCell<HashMap<i32, i32>>,
    launches: Rc<Launches>,
}

/// How many launches are under way.
#[derive(Debug, Default)]
struct Launches {
    count: Cell<usize>,
    none_left: Notify,
}

/// Held while a launch is under way.
#[derive(Debug)]
pub(super) struct Launching(Rc<Launches>);

impl Drop for Launching {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get().saturating_sub(1));
        if self.0.count.get() == 0 {
            self.0.none_left.notify_waiters();
        }
    }
}

impl Exits {
    pub(super) fn launching(&self) -> Launching {
        self.launches.count.set(self.launches.count.get() + 1);
        Launching(Rc::clone(&self.launches))
    }

    /// Waits for a moment in which every process that exists is known by its pid. It lasts until the next await.
    pub(super) async fn all_known(&self) {
        loop {
            let none_left = self.launches.none_left.notified();
            if self.launches.count.get() == 0 {
                return;
            }
            none_left.await;
        }
    }

    fn owner(&self, pid: i32) -> Option<Watched> {
        let mut watched = self.watched.borrow_mut();
        let queue = watched.get_mut(&pid)?;
        let owner = queue.pop_front();
        if queue.is_empty() {
            watched.remove(&pid);
        }
        owner
    }

    /// Statuses that no launch can claim any more.
    fn nobodys(&self) -> Vec<i32> {
        if self.launches.count.get() > 0 {
            return Vec::new();
        }
        self.early.borrow_mut().drain().map(|(pid, _)| pid).collect()
    }
}

impl Core {
    /// Brings every exit to its process, for as long as there is a link to init.
    pub(super) async fn dispatch_exits(self: Rc<Self>) -> io::Error {
        loop {
            match self.supervisor.next_exit().await {
                Ok(exit) => self.exited(exit),
                Err(error) => return error,
            }
            for pid in self.exits.nobodys() {
                self.acknowledge(pid);
            }
        }
    }

    /// From here on the exit of `process` finds it; it may have come already.
    pub(super) fn watch(&self, container: &Rc<Container>, process: &Rc<Process>) {
        let pid = process.pid.get();
        let owner = (Rc::clone(container), Rc::clone(process));
        self.exits.watched.borrow_mut().entry(pid).or_default().push_back(owner);
        let early = self.exits.early.borrow_mut().remove(&pid);
        if let Some(status) = early {
            self.exited(Exit { pid, status });
        }
    }

    fn exited(&self, Exit { pid, status }: Exit) {
        let Some((container, process)) = self.exits.owner(pid) else {
            if self.exits.launches.count.get() > 0 {
                self.exits.early.borrow_mut().insert(pid, status);
            } else {
                self.acknowledge(pid);
            }
            return;
        };
        process.exit.set(status);
        process.pidfd.take();
        if Rc::ptr_eq(&process, &container.init) {
            // Refused in no state.
            let _always = container.apply(Event::InitExited, "stop");
        }
        slog::info!(self.log, "process exited";
            "container" => &container.id, "exec" => &process.exec_id, "process_pid" => pid, "status" => status);
        // Not written down, it stays with init, and the next worker is told again. The pidfd goes after that, because
        // a process without status and without pidfd is one whose end nobody will ever tell.
        let recorded = self.record(&container).is_ok();
        if recorded {
            self.release(&process, Held::Pidfd);
        }
        self.close_spent(&process);
        self.forget_if_spent(&container, &process);
        if recorded {
            self.acknowledge(pid);
        }
    }

    fn acknowledge(&self, pid: i32) {
        if let Err(error) = self.supervisor.acknowledge(pid) {
            slog::warn!(self.log, "an exit cannot be acknowledged and will come again";
                "process_pid" => pid, "error" => %error);
        }
    }
}
