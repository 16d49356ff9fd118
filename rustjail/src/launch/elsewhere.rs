//! Leaving the processor to a child.
//!
//! A child that is placed later mounts while its maker makes the groups, so the two want a processor each. A kernel that
//! packs virtual processors starts a new process on its maker's though others idle, where it waits until the maker
//! sleeps; one after the other they take a tenth longer (docs/performance.md). So the maker goes elsewhere as soon as there is a
//! child. It is the maker and not the child who goes, because what sched_setaffinity(2) sets is kept: it would bound
//! what a cpuset, or a processor that is plugged in, can later add to a container.

use std::io;

use nix::{
    sched::{sched_getaffinity, sched_getcpu, sched_setaffinity},
    unistd::Pid,
};

/// Moves the calling thread to another processor, if it may use one; it may come back at once. For a maker that goes on
/// working beside its child: one that only waits leaves its processor anyway.
///
/// # Errors
///
/// Only if the thread could not come back.
pub fn leave_processor() -> io::Result<()> {
    let this = Pid::from_raw(0);
    // Fails where there are more processors than a set has bits: such a machine is let alone.
    let (Ok(allowed), Ok(own)) = (sched_getaffinity(this), sched_getcpu()) else { return Ok(()) };
    let mut others = allowed;
    others.unset(own)?;
    match sched_setaffinity(this, &others) {
        // There is no other, or none that counts.
        Err(_) => Ok(()),
        Ok(()) => Ok(sched_setaffinity(this, &allowed)?),
    }
}

#[cfg(test)]
mod tests {
    use nix::sched::CpuSet;

    use super::*;

    const SELF: Pid = Pid::from_raw(0);

    #[test]
    fn the_caller_is_elsewhere_afterwards_and_may_come_back() {
        let before = sched_getaffinity(SELF).unwrap();
        let processors = (0..CpuSet::count()).filter(|number| before.is_set(*number).unwrap()).count();
        // The scheduler may move the thread at any time.
        let moved = (0..50).any(|_| {
            let own = sched_getcpu().unwrap();
            leave_processor().unwrap();
            let now = sched_getcpu().unwrap();
            assert_eq!(sched_getaffinity(SELF).unwrap(), before);
            now != own
        });
        assert_eq!(moved, processors > 1);
    }

    #[test]
    fn a_caller_that_has_only_one_stays_there() {
        std::thread::spawn(|| {
            let mut one = CpuSet::new();
            one.set(sched_getcpu().unwrap()).unwrap();
            sched_setaffinity(SELF, &one).unwrap();
            leave_processor().unwrap();
            assert_eq!(sched_getaffinity(SELF).unwrap(), one);
        })
        .join()
        .unwrap();
    }
}
