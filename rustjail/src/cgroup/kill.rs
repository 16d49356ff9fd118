//! Finding and killing what runs in a group.

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        uio::pread,
    },
    unistd::Pid,
};

use super::{
    Cgroup, CgroupError,
    dir::Dir,
    parse,
    walk::{Visitor, walk},
};

impl Cgroup {
    /// Kills every process in the group and below it, frozen ones too.
    ///
    /// With `cgroup.kill` that is one step from which no fork escapes. Without it (v1 alone, or Linux before
    /// 5.14) the group is frozen first, so that nothing forks and no pid is reused while the list is worked
    /// off; should a process resist freezing, a fork may escape: repeat until the group is unpopulated.
    pub fn kill(&self) -> Result<(), CgroupError> {
        if let Some(unified) = &self.unified {
            match unified.dir().write("cgroup.kill", "1") {
                Err(CgroupError::NoFile { .. }) => {}
                done => return done,
            }
        }
        // A group that does not freeze has to be killed all the same.
        let _ = self.freeze();
        let killed = self.pids().and_then(|pids| pids.into_iter().try_for_each(|pid| self.kill_one(pid)));
        // A process frozen by v1 dies only once it is thawed.
        match self.thaw() {
            // The group is gone.
            Err(CgroupError::NoFile { .. }) => killed,
            thawed => killed.and(thawed),
        }
    }

    fn kill_one(&self, pid: i32) -> Result<(), CgroupError> {
        match kill(Pid::from_raw(pid), Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(CgroupError::io("kill a process of", self.path(), errno)),
        }
    }

    /// Processes in the group and below it, without those the caller's PID namespace cannot see.
    pub fn pids(&self) -> Result<Vec<i32>, CgroupError> {
        let Some(dir) = self.tracking() else {
            return Ok(Vec::new());
        };
        let mut pids = Pids(Vec::new());
        walk(dir.try_clone()?, &mut pids)?;
        Ok(pids.0)
    }

    /// Whether a process (not a zombie) is left in the group or below it. Rearms [`Cgroup::events`].
    pub fn populated(&self) -> Result<bool, CgroupError> {
        let Some(unified) = &self.unified else {
            return self.pids().map(|pids| !pids.is_empty());
        };
        let mut events = [0; 128];
        match pread(&unified.events, &mut events, 0) {
            Ok(length) => {
                let events = String::from_utf8_lossy(events.get(..length).unwrap_or_default());
                Ok(parse::keyed(&events, "populated") == Some(1))
            }
            // The group is gone.
            Err(Errno::ENODEV) => Ok(false),
            Err(errno) => Err(CgroupError::io("read the events of", self.path(), errno)),
        }
    }

    /// The directory that knows which processes are in the group. A process is in it in every hierarchy, so
    /// any will do; cgroup2 is the one where birth put it.
    pub(super) fn tracking(&self) -> Option<&Dir> {
        self.unified
            .as_ref()
            .map(|unified| unified.dir())
            .or_else(|| self.v1.first().map(|member| &member.dir))
    }
}

struct Pids(Vec<i32>);

impl Visitor for Pids {
    fn enter(&mut self, dir: &Dir) -> Result<(), CgroupError> {
        // A threaded group has no such list; its processes are in that of the group above.
        if let Some(list) = dir.read_if_any("cgroup.procs")? {
            self.0.extend(list.lines().filter_map(|pid| pid.parse().ok()).filter(|pid: &i32| *pid > 0));
        }
        Ok(())
    }
}
