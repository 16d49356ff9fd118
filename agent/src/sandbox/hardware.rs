//! What was plugged into the guest as a whole: CPUs, memory, and volumes that are mounted already.

use std::{path::PathBuf, rc::Rc};

use super::{Core, Result, blocking};
use crate::{
    hotplug::memory,
    storage::{
        Storage,
        volume::{self, Usage},
    },
};

impl Core {
    /// Brings CPUs online until `cpus` are, and all memory; without `wait` it goes on by itself.
    pub(super) async fn online_cpus_and_memory(
        self: &Rc<Self>,
        cpus: usize,
        all_memory: bool,
        wait: bool,
    ) -> Result<()> {
        let core = Rc::clone(self);
        let work = crate::task::spawn(async move {
            let outcome = core.put_to_use(cpus, all_memory).await;
            if let Err(error) = &outcome {
                slog::warn!(core.log, "not all CPUs and memory are in use"; "error" => %error);
            }
            outcome
        });
        match wait {
            true => work
                .await
                .map_err(std::io::Error::other)
                .map_err(super::failed_to(|| "bring CPUs online".to_owned()))?,
            false => Ok(()),
        }
    }

    async fn put_to_use(&self, cpus: usize, all_memory: bool) -> Result<()> {
        if cpus > 0 {
            self.hotplug.online_cpus(cpus).await?;
            self.widen_cpusets().await;
        }
        if all_memory {
            let sys = self.hotplug.roots.sys.clone();
            blocking(move || Ok(memory::online(&sys)?)).await?;
        }
        Ok(())
    }

    /// Lets running containers have the new CPUs their configurations give them. On cgroup v1 a group's CPUs were
    /// fixed when it was made. One whose group is being removed has no use for them.
    async fn widen_cpusets(&self) {
        let containers: Vec<_> = self.table.borrow().values().cloned().collect();
        for container in containers {
            let linux = container.spec.linux().as_ref();
            let cpu = linux.and_then(|linux| linux.resources().as_ref()?.cpu().as_ref());
            let wanted = cpu.and_then(|cpu| cpu.cpus().clone());
            let Some(cgroup) = container.cgroup() else { continue };
            if let Err(error) = blocking(move || Ok(cgroup.widen_cpuset(wanted.as_deref())?)).await {
                slog::warn!(self.log, "a container does not get the new CPUs";
                    "container" => &container.id, "error" => %error);
            }
        }
    }

    pub(super) async fn probe_memory(&self, addresses: Vec<u64>) -> Result<()> {
        let sys = self.hotplug.roots.sys.clone();
        blocking(move || Ok(memory::probe(&sys, &addresses)?)).await
    }

    pub(super) async fn volume_stats(&self, path: PathBuf) -> Result<(Usage, Usage)> {
        blocking(move || Ok(volume::stats(&path)?)).await
    }

    pub(super) async fn resize_volume(&self, path: PathBuf, size: u64) -> Result<()> {
        blocking(move || Ok(volume::resize(&path, size)?)).await
    }

    pub(super) async fn update_ephemeral_mounts(&self, storages: Vec<Storage>) -> Result<()> {
        Ok(self.storages.update_ephemeral(storages).await?)
    }

    pub(super) async fn touch_shared_mounts(&self) -> Result<()> {
        blocking(|| Ok(volume::touch_shared_mounts()?)).await
    }
}
