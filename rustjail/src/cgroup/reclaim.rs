//! Taking cold memory back from a group, and how much the group suffers from it. cgroup v2 only: v1 can neither
//! be asked for an amount nor told apart what hurts.

use nix::errno::Errno;

use super::{Cgroup, CgroupError, Controller, Hierarchies, dir::Dir, parse};

impl Hierarchies {
    /// Whether groups can be asked to give memory back: cgroup v2 with its memory controller, since Linux 5.19.
    pub fn can_reclaim(&self) -> bool {
        self.v2.as_ref().is_some_and(|unified| {
            unified.controllers.iter().any(|controller| controller == "memory")
                && unified.root.has("memory.reclaim")
        })
    }
}

impl Cgroup {
    /// Microseconds in which at least one task waited for memory, since the group's creation; `None` where the
    /// kernel does not count them.
    pub fn memory_pressure(&self) -> Result<Option<u64>, CgroupError> {
        let Some(dir) = self.reclaimable() else { return Ok(None) };
        Ok(dir.read_if_any("memory.pressure")?.and_then(|text| parse::pressure(&text)))
    }

    /// Bytes that were not used lately: of files, and with `anonymous` of everything that could be swapped out.
    pub fn cold_memory(&self, anonymous: bool) -> Result<u64, CgroupError> {
        let Some(dir) = self.reclaimable() else { return Ok(0) };
        let text = dir.read_if_any("memory.stat")?.unwrap_or_default();
        let of = |key| parse::keyed(&text, key).unwrap_or(0);
        Ok(of("inactive_file") + if anonymous { of("inactive_anon") } else { 0 })
    }

    /// Has the kernel take up to `bytes` back, which it may not be able to do in full. Without a `swappiness`,
    /// which needs Linux 6.11, the kernel's own applies.
    pub fn reclaim(&self, bytes: u64, swappiness: Option<u32>) -> Result<(), CgroupError> {
        let Some(dir) = self.reclaimable() else { return Ok(()) };
        let wish = match swappiness {
            Some(swappiness) => format!("{bytes} swappiness={swappiness}"),
            None => bytes.to_string(),
        };
        match dir.write("memory.reclaim", &wish) {
            // Less was taken than asked for.
            Err(error) if error.errno() == Some(Errno::EAGAIN as i32) => Ok(()),
            done => done,
        }
    }

    fn reclaimable(&self) -> Option<&Dir> {
        match self.find("memory") {
            Some(Controller::V2(dir)) => Some(dir),
            _ => None,
        }
    }
}
