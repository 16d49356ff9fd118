//! The end of the sandbox: every container goes, then what they shared.

use std::rc::Rc;

use super::{Core, Error, Phase, Result, error::failed_to};

impl Core {
    /// Removes everything, all containers at once. The first failure is told, after all have been tried; a
    /// later call tries again.
    pub(super) async fn destroy_sandbox(self: &Rc<Self>) -> Result<()> {
        let before = self.phase.replace(Phase::Destroying);
        if before == Phase::Destroying {
            return Err(Error::Sandbox("being destroyed"));
        }
        let outcome = self.remove_everything().await;
        if outcome.is_err() {
            self.phase.set(before);
        }
        outcome
    }

    async fn remove_everything(self: &Rc<Self>) -> Result<()> {
        let containers: Vec<_> = self.table.borrow().values().cloned().collect();
        let removals: Vec<_> = containers
            .into_iter()
            .map(|container| {
                let core = Rc::clone(self);
                crate::task::spawn(async move { core.take_down(&container).await })
            })
            .collect();
        let mut first = Ok(());
        for removal in removals {
            let outcome = removal.await.map_err(std::io::Error::other);
            let outcome = outcome.map_err(failed_to(|| "remove a container".to_owned())).flatten();
            first = first.and(outcome);
        }
        first?;
        self.storages.release_all().await?;
        self.oom.close();
        let sandbox = self.sandbox.borrow().clone();
        let Some(sandbox) = sandbox else { return Ok(()) };
        self.let_go(&sandbox).await?;
        self.shared.take();
        self.sandbox.take();
        slog::info!(self.log, "sandbox destroyed"; "sandbox" => &sandbox.id);
        self.named.set_sandbox("");
        Ok(())
    }
}
