//! A container's resources: changing its limits, and what it has used.

use std::{fs, io, os::fd::AsFd, rc::Rc};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use oci_spec::runtime::LinuxResources;
use rustjail::cgroup;

use super::{Core, Result, blocking, container::Container, error::failed_to, state::State};
use crate::observe::procfs::{Interface, interfaces};

/// What a container has used.
#[derive(Debug, Default)]
pub struct ContainerStats {
    /// By its control group; all parts are missing where it has none.
    pub cgroup: cgroup::Stats,
    /// Of the interfaces in its network namespace; none once its init has ended.
    pub network: Vec<Interface>,
}

impl Core {
    /// Changes what `resources` names; `None` changes nothing, but the container must exist all the same.
    pub(super) async fn update_container(&self, id: &str, resources: Option<LinuxResources>) -> Result<()> {
        let container = self.container(id)?;
        if matches!(container.state(), State::Creating | State::Removing) {
            return Err(container.wrong_state("update"));
        }
        let (Some(resources), Some(cgroup)) = (resources, container.cgroup()) else {
            return Ok(());
        };
        blocking(move || Ok(cgroup.update(&resources)?)).await?;
        slog::info!(self.log, "container updated"; "container" => id);
        Ok(())
    }

    pub(super) async fn stats_container(&self, id: &str) -> Result<ContainerStats> {
        let container = self.container(id)?;
        let cgroup = container.cgroup();
        let init = self.live_init(&container);
        blocking(move || {
            Ok(ContainerStats {
                cgroup: cgroup.map_or_else(|| Ok(cgroup::Stats::default()), |cgroup| cgroup.stats())?,
                network: match init {
                    Some((pid, pidfd)) => network_of(pid, &pidfd)?,
                    None => Vec::new(),
                },
            })
        })
        .await
    }

    fn live_init(&self, container: &Rc<Container>) -> Option<(i32, std::sync::Arc<std::os::fd::OwnedFd>)> {
        let pidfd = container.init.pidfd.borrow().clone()?;
        Some((container.init.pid.get(), pidfd))
    }
}

/// What was read is of that process only if it is still alive afterwards: until then its number is its own.
fn network_of(pid: i32, pidfd: impl AsFd) -> Result<Vec<Interface>> {
    let path = format!("/proc/{pid}/net/dev");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        // ESRCH or EINVAL: a zombie has no namespaces any more.
        Err(_) if has_ended(&pidfd) => return Ok(Vec::new()),
        Err(error) => return Err(failed_to(|| format!("read {path}"))(error)),
    };
    Ok(if has_ended(&pidfd) { Vec::new() } else { interfaces(&text) })
}

fn has_ended(pidfd: impl AsFd) -> bool {
    let mut ended = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    !matches!(poll(&mut ended, PollTimeout::ZERO), Ok(0))
}
