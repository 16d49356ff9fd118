//! Stopping every process of a group and letting it go on.
//!
//! ```text
//!            write 1 to cgroup.freeze           the last process stopped
//!   running ------------------------> freezing --------------------------> frozen
//!      ^                                  |  FREEZE_WAIT passed               | write 0
//!      +----------------------------------+-----------------------------------+
//! ```
//! With cgroup2 the end of `freezing` is an event. v1 has none, and its state has to be read again.

use std::{
    os::fd::AsFd as _,
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::uio::pread,
};

use super::{Cgroup, CgroupError, Controller, dir::Dir, parse};

/// How long processes are given to stop. One that has not stopped by then waits for a device or a
/// filesystem that does not answer, and the request has to be answered.
pub(super) const FREEZE_WAIT: Duration = Duration::from_secs(5);

/// Between two looks at a v1 group's state.
const V1_INTERVAL: Duration = Duration::from_millis(1);

impl Cgroup {
    /// Stops every process in the group and waits until all have; if one does not, lets all go on again.
    pub fn freeze(&self) -> Result<(), CgroupError> {
        let frozen = match self.freezer() {
            None => return Ok(()),
            Some(Controller::V2(dir)) => set_v2(dir, true)?,
            Some(Controller::V1(dir)) => freeze_v1(dir)?,
        };
        if frozen {
            return Ok(());
        }
        self.thaw()?;
        Err(CgroupError::NotFrozen { path: self.path().to_owned() })
    }

    /// Undoes [`Cgroup::freeze`].
    pub fn thaw(&self) -> Result<(), CgroupError> {
        match self.freezer() {
            None => Ok(()),
            Some(Controller::V2(dir)) => set_v2(dir, false).map(drop),
            Some(Controller::V1(dir)) => dir.write("freezer.state", "THAWED"),
        }
    }

    /// Whether the group is frozen.
    pub fn frozen(&self) -> Result<bool, CgroupError> {
        Ok(match self.freezer() {
            None => false,
            Some(Controller::V2(dir)) => dir
                .read_if_any("cgroup.events")?
                .is_some_and(|events| parse::keyed(&events, "frozen") == Some(1)),
            Some(Controller::V1(dir)) => is_frozen_v1(dir)?,
        })
    }

    /// cgroup2 before the v1 freezer, see the module above.
    fn freezer(&self) -> Option<Controller<'_>> {
        match &self.unified {
            Some(unified) => Some(Controller::V2(unified.dir())),
            None => self.find("freezer"),
        }
    }
}

/// Whether the group is in the wanted state in the end.
fn set_v2(dir: &Dir, freeze: bool) -> Result<bool, CgroupError> {
    // Not the descriptor of `Cgroup::events`: reading that would swallow an event its owner waits for.
    let events = dir.open_file("cgroup.events", OFlag::O_RDONLY)?;
    dir.write("cgroup.freeze", if freeze { "1" } else { "0" })?;
    let deadline = Instant::now() + FREEZE_WAIT;
    loop {
        let mut text = [0; 128];
        let length = pread(&events, &mut text, 0)
            .map_err(|errno| CgroupError::io("read", dir.path().join("cgroup.events"), errno))?;
        let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default());
        if (parse::keyed(&text, "frozen") == Some(1)) == freeze {
            return Ok(true);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLPRI)], timeout) {
            Ok(0) => return Ok(false),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => {
                return Err(CgroupError::io("wait for", dir.path().join("cgroup.events"), errno));
            }
        }
    }
}

fn freeze_v1(dir: &Dir) -> Result<bool, CgroupError> {
    let deadline = Instant::now() + FREEZE_WAIT;
    while Instant::now() < deadline {
        // Again each time: a process forked during an earlier attempt is caught by the next.
        dir.write("freezer.state", "FROZEN")?;
        if is_frozen_v1(dir)? {
            return Ok(true);
        }
        thread::sleep(V1_INTERVAL);
    }
    Ok(false)
}

fn is_frozen_v1(dir: &Dir) -> Result<bool, CgroupError> {
    Ok(dir.read("freezer.state")?.trim_end() == "FROZEN")
}
