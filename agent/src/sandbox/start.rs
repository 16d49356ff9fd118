//! Running a created container's program.

use std::{os::fd::AsFd, rc::Rc};

use rustjail::sync;

use super::{Core, Result, error::failed_to, state::Event, streams::Sockets};

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
        let outcome = self.await_report(&container, &init, Sockets::default()).await;
        self.end_sync(&init);
        if outcome.is_err() {
            init.exit.wait().await;
        }
        outcome?;
        slog::info!(self.log, "container started"; "container" => id);
        Ok(())
    }
}
