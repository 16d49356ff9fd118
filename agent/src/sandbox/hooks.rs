//! The hooks of a container that are run in the guest's own namespaces.
//!
//! A hook takes as long as it does, so the hooks of one step run on a thread of their own: neither the reactor
//! nor the pool, whose few threads other containers need, waits for them. They are children of the worker; one
//! that outlives it is init's.

use std::{io, sync::Arc};

use oci_spec::runtime::{ContainerState, State};
use rustjail::hooks::{self, Kind};
use tokio::sync::oneshot;

use super::{Core, Error, Result, container::Container, error::failed_to};

impl Core {
    /// Runs the hooks of each of `kinds`; the first that fails ends it.
    pub(super) async fn run_hooks(
        &self,
        container: &Container,
        kinds: &'static [Kind],
        status: ContainerState,
    ) -> Result<()> {
        if container.spec.hooks().is_none() {
            return Ok(());
        }
        let spec = Arc::clone(&container.spec);
        let state = self.state_for_hooks(container, status, Some(container.init.pid.get()));
        let outcome =
            on_a_thread(move || kinds.iter().try_for_each(|kind| hooks::run(&spec, *kind, &state))).await?;
        outcome.map_err(Error::from)
    }

    /// Runs the poststop hooks of a container that is gone. Nothing waits for their success.
    pub(super) async fn run_poststop_hooks(&self, container: &Container) {
        let was_made = container.init.maybe_made.get() || container.init.pid.get() != 0;
        if container.spec.hooks().is_none() || !was_made {
            return;
        }
        let spec = Arc::clone(&container.spec);
        let state = self.state_for_hooks(container, ContainerState::Stopped, None);
        let failures = match on_a_thread(move || hooks::run_poststop(&spec, &state)).await {
            Ok(failures) => failures.into_iter().map(Error::from).collect(),
            Err(error) => vec![error],
        };
        for error in failures {
            slog::warn!(self.log, "a poststop hook failed"; "container" => &container.id, "error" => %error);
        }
    }

    fn state_for_hooks(&self, container: &Container, status: ContainerState, pid: Option<i32>) -> State {
        hooks::state(&container.spec, &container.id, &self.journal.bundle(&container.id), status, pid)
    }
}

async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let failed = || failed_to(|| "run hooks".to_owned());
    let (done, outcome) = oneshot::channel();
    std::thread::Builder::new()
        .name("hooks".to_owned())
        .stack_size(128 << 10)
        .spawn(move || {
            let _caller_gone = done.send(work());
        })
        .map_err(failed())?;
    outcome.await.map_err(io::Error::other).map_err(failed())
}
