//! Control groups that systemd makes: a transient scope for each container.
//!
//! A scope begins with a process and ends with its last one. So one is made that only waits, and is killed as soon
//! as the container's own is there; should we die meanwhile, it dies with us, and the scope with it.
//!
//! ```text
//!   keeper --start--> scope --adopt--> group --clone3--> init in it; keeper killed ... delete --stop--> (nothing)
//! ```

use std::os::fd::{AsFd, OwnedFd};

use nix::{
    sys::{prctl, signal::Signal},
    unistd::{Pid, getpid, getppid, pause},
};
use oci_spec::runtime::LinuxResources;
use rustjail::{
    cgroup::{
        Cgroup, Hierarchies,
        systemd::{Systemd, Unit},
    },
    sys::{
        clone::{Cloned, clone3},
        pidfd,
        process::exit_now,
    },
};

use crate::error::Error;

/// A process that is in a scope so that there is one, until it is dropped.
#[derive(Debug)]
pub struct Keeper {
    pid: i32,
    pidfd: OwnedFd,
}

impl Keeper {
    fn new() -> Result<Self, Error> {
        let maker = getpid();
        match clone3(0, None, false).map_err(Error::io("make", "a process for the scope"))? {
            Cloned::Parent(pid, pidfd) => Ok(Self { pid, pidfd }),
            Cloned::Child => keep(maker),
        }
    }
}

/// To the death of `maker`, or by its hand.
fn keep(maker: Pid) -> ! {
    let follows = prctl::set_pdeathsig(Signal::SIGKILL).is_ok();
    // It may have died before it could be followed.
    while follows && getppid() == maker {
        pause();
    }
    exit_now(0)
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Either fails only when it is gone already.
        let _ = pidfd::signal(self.pidfd.as_fd(), libc::SIGKILL);
        let _ = pidfd::wait(self.pidfd.as_fd());
    }
}

/// Starts `unit` and makes its group ours. It ends with the keeper, unless somebody else is in it by then.
pub fn create(
    hierarchies: &Hierarchies,
    unit: &Unit,
    resources: Option<&LinuxResources>,
) -> Result<(Cgroup, Keeper), Error> {
    let mut systemd = Systemd::connect(hierarchies)?;
    let keeper = Keeper::new()?;
    systemd.start(unit, u32::try_from(keeper.pid).ok(), resources)?;
    match Cgroup::adopt(hierarchies, &unit.path()?, resources) {
        Ok(group) => Ok((group, keeper)),
        Err(error) => {
            drop(keeper);
            // The first error is the one to report.
            let _ = remove(unit);
            Err(error.into())
        }
    }
}

/// Changes limits: of the group, and in what systemd would write anew.
pub fn update(group: &Cgroup, unit: &Unit, resources: &LinuxResources) -> Result<(), Error> {
    let mut systemd = Systemd::connect(&Hierarchies::detect()?)?;
    // The group first: what the kernel refuses leaves it as it was.
    group.update(resources)?;
    Ok(systemd.update(unit, resources)?)
}

/// Ends `unit` and removes its group, which systemd may have done in a part of the trees when it was empty.
pub fn remove(unit: &Unit) -> Result<(), Error> {
    let hierarchies = Hierarchies::detect()?;
    Systemd::connect(&hierarchies)?.stop(unit)?;
    Ok(Cgroup::remove(&hierarchies, &unit.path()?)?)
}
