//! Waiting for processes, and forgetting those that nobody can ask about any more.
//!
//! Every waiter gets the status. An init's stays until its container is removed. An exec is forgotten once its
//! status has been told and its output read to the end; of those that were waited for but whose output nobody
//! reads, a bounded number is kept, and the oldest gives way.

use std::rc::Rc;

use super::{Core, Result, container::Container, process::Process};

/// Execs of one container that ended, were waited for, and still have output.
const MAX_UNREAD: usize = 256;

impl Core {
    pub(super) async fn wait_process(&self, id: &str, exec_id: &str) -> Result<i32> {
        let container = self.container(id)?;
        let process = container.process(exec_id)?;
        let status = process.exit.wait().await;
        if !process.waited.replace(true) && !Rc::ptr_eq(&process, &container.init) {
            self.close_spent(&process);
            self.forget_if_spent(&container, &process);
            self.forget_oldest_unread(&container);
        }
        Ok(status)
    }

    /// Forgets an exec that has ended and about which everything has been asked.
    pub(super) fn forget_if_spent(&self, container: &Container, process: &Rc<Process>) {
        if process.is_spent() && !Rc::ptr_eq(process, &container.init) {
            self.forget_exec(container, process);
        }
    }

    fn forget_oldest_unread(&self, container: &Container) {
        let mut unread: Vec<_> = container.execs.borrow().values().cloned().collect();
        unread.retain(|process| process.waited.get() && process.exit.get().is_some());
        if unread.len() <= MAX_UNREAD {
            return;
        }
        // Keys are given out in order.
        if let Some(oldest) = unread.into_iter().min_by_key(|process| process.keys.0) {
            slog::info!(self.log, "forgetting a process whose output nobody reads";
                "container" => &container.id, "exec" => &oldest.exec_id);
            self.forget_exec(container, &oldest);
        }
    }

    /// Takes an exec out of its container and closes everything it had.
    pub(super) fn forget_exec(&self, container: &Container, process: &Rc<Process>) {
        let is_current =
            container.execs.borrow().get(&process.exec_id).is_some_and(|p| Rc::ptr_eq(p, process));
        if is_current {
            container.execs.borrow_mut().remove(&process.exec_id);
        }
        // Until this is written the journal names keys that are gone, which recovery takes for closed streams.
        self.release_all(process);
        let _reported = self.record(container);
    }
}
