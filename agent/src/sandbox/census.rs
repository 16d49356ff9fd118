//! What there is, in numbers.

use std::{cell::Cell, collections::BTreeMap, rc::Rc};

use super::{Core, Phase, state::State};
use crate::observe::metrics::{Census, Roles};

/// Bytes moved to and from processes, by calls and by raw streams.
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub(super) stdin: Rc<Cell<u64>>,
    pub(super) stdout: Rc<Cell<u64>>,
    pub(super) stderr: Rc<Cell<u64>>,
}

/// Adds to one of them.
pub(super) fn add(counter: &Cell<u64>, bytes: usize) {
    counter.set(counter.get().wrapping_add(bytes as u64));
}

impl Core {
    /// What keeps the agent from making containers and telling how they end.
    pub(super) fn ailment(&self) -> Option<&'static str> {
        if !self.supervisor.is_connected() {
            Some("init is gone")
        } else if self.supervisor.launcher().0 == 0 {
            Some("there is no launcher")
        } else if self.phase.get() == Phase::Destroying {
            Some("the sandbox is being destroyed")
        } else if self.journal_fails.get() {
            Some("the journal cannot be written")
        } else {
            None
        }
    }

    pub(super) fn census(&self) -> Census {
        const STATES: [(State, &str); 6] = [
            (State::Creating, "creating"),
            (State::Created, "created"),
            (State::Running, "running"),
            (State::Paused, "paused"),
            (State::Stopped, "stopped"),
            (State::Removing, "removing"),
        ];
        let mut containers: BTreeMap<&str, u64> = STATES.iter().map(|(_, name)| (*name, 0)).collect();
        let mut processes = 0;
        for container in self.table.borrow().values() {
            let state = STATES.iter().find(|(state, _)| *state == container.state());
            if let Some(count) = state.and_then(|(_, name)| containers.get_mut(name)) {
                *count += 1;
            }
            let execs = container.execs.borrow();
            let all = std::iter::once(&container.init).chain(execs.values());
            processes += all.filter(|it| it.pid.get() != 0 && it.exit.get().is_none()).count() as u64;
        }
        let (oom_queued, oom_dropped) = self.oom.depth();
        let (link_queued, exits_queued) = self.supervisor.queued();
        Census {
            containers: containers.into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
            processes,
            stdio_bytes: [
                ("stdin", self.moved.stdin.get()),
                ("stdout", self.moved.stdout.get()),
                ("stderr", self.moved.stderr.get()),
            ],
            oom_queued,
            oom_dropped,
            link_queued: link_queued as u64,
            exits_queued: exits_queued as u64,
        }
    }

    pub(super) fn roles(&self) -> Roles {
        let (launcher, launcher_restarts) = self.supervisor.launcher();
        Roles {
            pids: vec![
                ("init", nix::unistd::getppid().as_raw()),
                ("worker", nix::unistd::getpid().as_raw()),
                ("launcher", launcher),
            ],
            launcher_restarts,
            ..Roles::default()
        }
    }
}
