//! Running a created container's program.

use std::{os::fd::AsFd, rc::Rc};

use oci_spec::runtime::ContainerState;
use rustjail::{hooks::Kind, sync};

use super::{
    Core, Result, container::Container, error::failed_to, remove::kill, state::Event, streams::Sockets,
};

impl Core {
    pub(super) async fn start_container(self: &Rc<Self>, id: &str) -> Result<()> {
        let container = self.container(id)?;
        let init = Rc::clone(&container.init);
        container.apply(Event::Start, "start")?;
        self.record(&container)?;
        let Some(link) = init.sync.borrow().clone() else {
            init.exit.wait().await;
            return Err(container.wrong_state("start"));
        };
        if let Err(error) = sync::start(link.get_ref().as_fd()) {
            if error.kind() != std::io::ErrorKind::BrokenPipe {
                return Err(failed_to(|| format!("let container {id:?} start"))(error));
            }
            // It died a moment ago; its exit is on the way and makes the state say so.
            init.exit.wait().await;
            return Err(container.wrong_state("start"));
        }
        self.follow_start(&container).await?;
        slog::info!(self.log, "container started"; "container" => id);
        Ok(())
    }

    /// From START to the program and its poststart hooks, of which a failure ends the container.
    pub(super) async fn follow_start(self: &Rc<Self>, container: &Rc<Container>) -> Result<()> {
        let init = &container.init;
        let outcome = match self.await_report(container, init, &mut Sockets::default()).await {
            Ok(_execve_succeeded) => {
                let hooks = self.run_hooks(container, &[Kind::Poststart], ContainerState::Running).await;
                if hooks.is_err() {
                    kill(container).await?;
                }
                hooks
            }
            Err(error) => Err(error),
        };
        self.end_sync(init);
        if outcome.is_err() {
            init.exit.wait().await;
        }
        outcome
    }
}
