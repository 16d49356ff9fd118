//! Freezing a container and letting it go on.
//!
//! The state says Paused before the first process is frozen: an exec that comes then is refused at once, and one
//! that is being set up is let finish first, because its caller could not be answered while it is frozen. Pause
//! and resume of one container take turns.

use std::{io, rc::Rc};

use super::{
    Core, Error, Result, blocking,
    container::{Container, SETUPS},
    error::failed_to,
    state::{Event, State},
};

impl Core {
    pub(super) async fn pause_container(&self, id: &str) -> Result<()> {
        let container = self.container(id)?;
        container.apply(Event::Pause, "pause")?;
        let outcome = self.freeze(&container).await;
        // Its init may have been killed meanwhile.
        if outcome.is_err() && container.state() == State::Paused {
            container.apply(Event::Resume, "resume")?;
        }
        self.record(&container)?;
        outcome?;
        slog::info!(self.log, "container paused"; "container" => id);
        Ok(())
    }

    async fn freeze(&self, container: &Rc<Container>) -> Result<()> {
        self.record(container)?;
        let group = container.cgroup().ok_or_else(|| no_cgroup(container, "pause"))?;
        let busy = || failed_to(|| format!("wait for the turn to pause container {:?}", container.id));
        let _turn = container.steering.acquire().await.map_err(io::Error::other).map_err(busy())?;
        let _no_setups =
            container.setups.acquire_many(SETUPS).await.map_err(io::Error::other).map_err(busy())?;
        // It may have been resumed, or be on its way out, by now.
        if container.state() != State::Paused {
            return Err(container.wrong_state("pause"));
        }
        blocking(move || Ok(group.freeze()?)).await?;
        if container.state() != State::Paused {
            self.thaw(container).await?;
            return Err(container.wrong_state("pause"));
        }
        Ok(())
    }

    pub(super) async fn resume_container(&self, id: &str) -> Result<()> {
        let container = self.container(id)?;
        if container.state() != State::Paused {
            return Err(container.wrong_state("resume"));
        }
        let turn = container.steering.acquire().await.map_err(io::Error::other);
        let _turn = turn.map_err(failed_to(|| format!("wait for the turn to resume container {id:?}")))?;
        self.thaw(&container).await?;
        container.apply(Event::Resume, "resume")?;
        self.record(&container)?;
        slog::info!(self.log, "container resumed"; "container" => id);
        Ok(())
    }

    async fn thaw(&self, container: &Rc<Container>) -> Result<()> {
        let group = container.cgroup().ok_or_else(|| no_cgroup(container, "resume"))?;
        blocking(move || Ok(group.thaw()?)).await
    }

    /// The state of a container that another worker may have been pausing or resuming when it died: what its
    /// cgroup says.
    pub(super) async fn settle_pause(&self, container: &Rc<Container>) {
        let Some(group) = container.cgroup() else { return };
        let event = match (container.state(), blocking(move || Ok(group.frozen()?)).await) {
            (State::Running, Ok(true)) => Event::Pause,
            (State::Paused, Ok(false)) => Event::Resume,
            _ => return,
        };
        // Refused only if its init has just exited.
        let _stopped = container.apply(event, "adopt");
        let _reported = self.record(container);
    }
}

fn no_cgroup(container: &Container, action: &str) -> Error {
    Error::Invalid(format!("cannot {action} container {:?}: it has no cgroup", container.id))
}
