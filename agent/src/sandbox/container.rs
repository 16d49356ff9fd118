//! One container: its state, its cgroup, its processes.
//!
//! The state changes only through [`Container::apply`], in one synchronous step, so whoever reads it between
//! two awaits sees a state of the drawing in [`state`](super::state). A container stays in the table until
//! everything it had is gone, so its id cannot be taken while something of it is left.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
};

use oci_spec::runtime::Spec;
use rustjail::cgroup::{Cgroup, CgroupPath};
use tokio::sync::Semaphore;

use super::{
    Error, Result,
    latch::Latch,
    oom_watch::OomWatch,
    process::Process,
    state::{Event, State},
};
use crate::device::PciAddresses;

/// The longest id: a file name with room for a suffix.
const MAX_ID: usize = 200;

/// Execs of one container that can be in the making at once; a pause takes all of it.
pub(crate) const SETUPS: u32 = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) id: String,
    state: Cell<State>,
    /// What later execs need of the configuration.
    pub(crate) spec: Arc<Spec>,
    /// Relative to the hierarchies' roots.
    pub(crate) cgroup_path: CgroupPath,
    /// Set once the group exists.
    pub(crate) cgroup: RefCell<Option<Arc<Cgroup>>>,
    /// Its init defines the PID namespace that others of this sandbox join.
    pub(crate) defines_pidns: bool,
    pub(crate) init: Rc<Process>,
    /// The guest's PCI addresses for the host's, for execs.
    pub(crate) pci: RefCell<PciAddresses>,
    /// By exec id; the init is not among them.
    pub(crate) execs: RefCell<BTreeMap<String, Rc<Process>>>,
    /// Set when creation is over: whether it succeeded.
    pub(crate) created: Latch<bool>,
    /// One removal at a time; the others wait for it and find the container gone.
    pub(crate) removal: Semaphore,
    /// One pause or resume at a time.
    pub(crate) steering: Semaphore,
    /// Held by each exec until its program runs; see [`SETUPS`].
    pub(crate) setups: Semaphore,
    /// OOM kills that a host was told of.
    pub(crate) oom_told: Cell<u64>,
    /// Until it is taken down.
    pub(crate) oom_watch: RefCell<Option<OomWatch>>,
}

impl Container {
    pub(crate) fn new(
        id: String,
        state: State,
        spec: Arc<Spec>,
        cgroup_path: CgroupPath,
        defines_pidns: bool,
        init: Rc<Process>,
    ) -> Rc<Self> {
        Rc::new(Self {
            id,
            state: Cell::new(state),
            spec,
            cgroup_path,
            cgroup: RefCell::new(None),
            defines_pidns,
            init,
            pci: RefCell::default(),
            execs: RefCell::default(),
            created: Latch::new(),
            removal: Semaphore::new(1),
            steering: Semaphore::new(1),
            setups: Semaphore::new(SETUPS as usize),
            oom_told: Cell::new(0),
            oom_watch: RefCell::new(None),
        })
    }

    pub(crate) fn state(&self) -> State {
        self.state.get()
    }

    /// Takes the step that `event` means, or says why it cannot be; `action` is the caller's word for it.
    pub(crate) fn apply(&self, event: Event, action: &'static str) -> Result<()> {
        let next = self.state().after(event).ok_or_else(|| self.wrong_state(action))?;
        self.state.set(next);
        Ok(())
    }

    pub(crate) fn wrong_state(&self, action: &'static str) -> Error {
        Error::WrongState { id: self.id.clone(), action, state: self.state() }
    }

    /// The process a call names: "" and the container's id both mean the init.
    pub(crate) fn process(&self, exec_id: &str) -> Result<Rc<Process>> {
        if exec_id.is_empty() || exec_id == self.id {
            return Ok(Rc::clone(&self.init));
        }
        self.execs.borrow().get(exec_id).cloned().ok_or_else(|| Error::UnknownProcess {
            container_id: self.id.clone(),
            exec_id: exec_id.to_owned(),
        })
    }

    /// The init and every exec that is known.
    pub(crate) fn processes(&self) -> Vec<Rc<Process>> {
        let execs = self.execs.borrow();
        std::iter::once(&self.init).chain(execs.values()).cloned().collect()
    }

    pub(crate) fn cgroup(&self) -> Option<Arc<Cgroup>> {
        self.cgroup.borrow().clone()
    }
}

/// Refuses what could not safely be a file name, or would not be readable in a log.
pub(crate) fn validate_id(kind: &'static str, id: &str) -> Result<()> {
    let refuse = |reason| Err(Error::InvalidId { kind, id: id.chars().take(MAX_ID).collect(), reason });
    if id.is_empty() {
        return refuse("it is empty");
    }
    if id.len() > MAX_ID {
        return refuse("it is longer than 200 bytes");
    }
    if !id.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return refuse("it does not start with a letter or a digit");
    }
    if !id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-+:@".contains(&b)) {
        return refuse("it has characters other than letters, digits, '_', '.', '-', '+', ':' and '@'");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::validate_id;

    #[test]
    fn ids_that_cannot_be_file_names_are_refused() {
        let long = "a".repeat(201);
        for id in ["", ".", "..", "../x", "a/b", "a\0b", "a\nb", "-rf", "é", " ", &long] {
            assert!(validate_id("container", id).is_err(), "{id:?} was accepted");
        }
        let hex = "0123456789abcdef".repeat(4);
        for id in ["a", "sandbox-1_2.3", &hex, &"a".repeat(200)] {
            assert!(validate_id("container", id).is_ok(), "{id:?} was refused");
        }
    }
}
