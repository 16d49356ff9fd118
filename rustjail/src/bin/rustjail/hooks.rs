//! The hooks that are run in the command's own namespaces, with the state they are told.

use oci_spec::runtime::{ContainerState, Spec, State};
use rustjail::hooks::{self, Kind};

use crate::{
    error::Error,
    log::Log,
    store::{Container, Record},
};

/// Those of `kinds`; the first that fails ends it.
pub fn run(
    container: &Container,
    spec: &Spec,
    record: &Record,
    kinds: &[Kind],
    status: ContainerState,
    pid: i32,
) -> Result<(), Error> {
    let state = state(container, spec, record, status, Some(pid));
    kinds.iter().try_for_each(|kind| hooks::run(spec, *kind, &state)).map_err(Error::from)
}

/// Those that follow the start; a container that has ended meanwhile has them all the same.
pub fn poststart(container: &Container, record: &Record) -> Result<(), Error> {
    if !record.has_sequel {
        return Ok(());
    }
    let spec = container.config()?;
    let pid = record.init.as_ref().map(|init| init.pid).unwrap_or_default();
    run(container, &spec, record, &[Kind::Poststart], ContainerState::Running, pid)
}

/// Those that follow the end. The container is gone whatever comes of them, so a failure is only told.
pub fn poststop(log: &Log, container: &Container, spec: &Spec, record: &Record) {
    let state = state(container, spec, record, ContainerState::Stopped, None);
    for error in hooks::run_poststop(spec, &state) {
        log.warning(error);
    }
}

/// What hooks, and agents that decide about calls, are told of it.
pub fn state(
    container: &Container,
    spec: &Spec,
    record: &Record,
    status: ContainerState,
    pid: Option<i32>,
) -> State {
    hooks::state(spec, &container.id, &record.bundle, status, pid)
}
