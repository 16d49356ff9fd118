//! The memory agent's two works over this sandbox: their settings, which outlive a worker, and their rounds.

use std::{cell::Cell, rc::Rc, sync::Arc, time::Duration};

use rustjail::cgroup::Cgroup;
use serde::{Deserialize, Serialize};
use tokio::{sync::Notify, time::timeout};

use super::{Core, state::State};
use crate::{
    config::MemAgent,
    guest::{
        Result, blocking,
        memory::{
            compact, reclaim,
            settings::{Compact, Reclaim},
        },
    },
};

/// What hosts have set.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) version: u32,
    pub(crate) reclaim: Reclaim,
    pub(crate) compact: Compact,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct MemoryAgent {
    boot: MemAgent,
    settings: Cell<Settings>,
    reclaim_changed: Notify,
    compact_changed: Notify,
}

impl MemoryAgent {
    /// Does nothing yet; `boot` is what it begins with.
    pub(super) fn new(boot: MemAgent) -> Self {
        Self { boot, ..Self::default() }
    }
}

impl Core {
    /// Takes `change` to the settings of the first work; refused where the kernel cannot do it.
    pub(super) async fn set_reclaim(&self, change: impl Fn(Reclaim) -> Reclaim) -> Result<()> {
        change(self.memory.settings.get().reclaim).check()?;
        let hierarchies = self.hierarchies.clone();
        blocking(move || reclaim::supported(&hierarchies)).await?;
        let mut settings = self.memory.settings.get();
        settings.reclaim = change(settings.reclaim).check()?;
        self.keep_settings(settings);
        self.memory.reclaim_changed.notify_one();
        Ok(())
    }

    /// The same for the second.
    pub(super) async fn set_compact(&self, change: impl Fn(Compact) -> Compact) -> Result<()> {
        change(self.memory.settings.get().compact).check()?;
        blocking(compact::supported).await?;
        let mut settings = self.memory.settings.get();
        settings.compact = change(settings.compact).check()?;
        self.keep_settings(settings);
        self.memory.compact_changed.notify_one();
        Ok(())
    }

    fn keep_settings(&self, settings: Settings) {
        self.memory.settings.set(settings);
        if let Err(error) = self.journal.write_memory(&settings) {
            slog::error!(self.log, "the memory agent's settings will not outlive this worker"; "error" => %error);
        }
    }

    /// Goes on with what an earlier worker was told, or begins with what the boot says, and waits for more.
    pub(super) async fn start_memory_agent(self: &Rc<Self>) {
        let settings = match self.journal.read_memory() {
            Some(settings) => settings,
            None => self.possible_at_boot().await,
        };
        self.memory.settings.set(settings);
        crate::task::spawn(Rc::clone(self).reclaim_forever());
        crate::task::spawn(Rc::clone(self).compact_forever());
    }

    /// What the boot asks for, without what this kernel cannot do.
    async fn possible_at_boot(&self) -> Settings {
        let (mut reclaim, mut compact) = self.memory.boot.at_boot();
        let impossible = |error: &crate::guest::Error| {
            slog::warn!(self.log, "a work of the memory agent is not begun"; "error" => %error);
        };
        if !reclaim.disabled {
            let hierarchies = self.hierarchies.clone();
            let supported = blocking(move || reclaim::supported(&hierarchies)).await;
            reclaim.disabled = supported.inspect_err(impossible).is_err();
        }
        if !compact.disabled {
            compact.disabled = blocking(compact::supported).await.inspect_err(impossible).is_err();
        }
        Settings { reclaim, compact, ..Settings::default() }
    }

    async fn reclaim_forever(self: Rc<Self>) {
        let mut rounds = reclaim::Rounds::default();
        loop {
            let settings = self.memory.settings.get().reclaim;
            if !is_due(settings.disabled, settings.period_secs, &self.memory.reclaim_changed).await {
                continue;
            }
            let containers = self.running_groups();
            let ran = blocking(move || Ok((rounds.run(&settings, containers), rounds))).await;
            rounds = match ran {
                Ok((cold, rounds)) => {
                    slog::debug!(self.log, "took cold memory back"; "cold_bytes" => cold);
                    rounds
                }
                Err(error) => {
                    slog::warn!(self.log, "no memory is taken back in this round"; "error" => %error);
                    reclaim::Rounds::default()
                }
            };
        }
    }

    async fn compact_forever(self: Rc<Self>) {
        let mut rounds = None;
        loop {
            let settings = self.memory.settings.get().compact;
            if !is_due(settings.disabled, settings.period_secs, &self.memory.compact_changed).await {
                continue;
            }
            let before: Option<compact::Rounds> = rounds.take();
            let ran = blocking(move || {
                let Some(mut rounds) = before else { return Ok((false, compact::Rounds::begin()?)) };
                Ok((rounds.run(&settings)?, rounds))
            });
            match ran.await {
                Ok((compacted, after)) => {
                    slog::debug!(self.log, "compaction looked after"; "compacted" => compacted);
                    rounds = Some(after);
                }
                Err(error) => {
                    slog::warn!(self.log, "memory is not compacted in this round"; "error" => %error);
                }
            }
        }
    }

    fn running_groups(&self) -> Vec<(String, Arc<Cgroup>)> {
        let table = self.table.borrow();
        let running = table.values().filter(|container| container.state() == State::Running);
        running.filter_map(|container| Some((container.id.clone(), container.cgroup()?))).collect()
    }
}

/// Waits for the next round, or for other settings.
async fn is_due(disabled: bool, period: u64, changed: &Notify) -> bool {
    if disabled {
        changed.notified().await;
        return false;
    }
    timeout(Duration::from_secs(period), changed.notified()).await.is_err()
}
