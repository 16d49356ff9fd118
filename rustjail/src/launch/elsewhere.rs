//! Leaving the processor to a child.
//!
//! A child that is placed later mounts while its maker makes the groups, so the two want a processor each. A kernel that
//! packs virtual processors starts a new process on its maker's though others idle, where it waits until the maker
//! sleeps; one after the other they take a tenth longer (docs/performance.md). So the maker goes elsewhere when that is where
//! the child is; when it is not, going could lead to the child. It is the maker and not the child who goes, because what
//! sched_setaffinity(2) sets is kept: it would bound what a cpuset, or a processor that is plugged in, can later add to a
//! container.

use std::io;

use nix::{
    sched::{sched_getaffinity, sched_getcpu, sched_setaffinity},
    unistd::Pid,
};

use crate::procfs::Stat;

/// The field of [`Stat`] that is the processor a process is on, or waits for.
const PROCESSOR: usize = 39;

/// Moves the calling thread from the processor of its new `child` to another, if it may use one; it may come back at once.
/// For a maker that goes on working beside its child: one that only waits leaves its processor anyway.
///
/// # Errors
///
/// Only if the thread could not come back.
pub fn leave_processor_to(child: &Stat) -> io::Result<()> {
    let this = Pid::from_raw(0);
    // Fails where there are more processors than a set has bits: such a machine is let alone.
    let (Ok(allowed), Ok(own)) = (sched_getaffinity(this), sched_getcpu()) else { return Ok(()) };
    if child.field(PROCESSOR) != Some(own as u64) {
        return Ok(());
    }
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
    use nix::{sched::CpuSet, unistd::gettid};

    use super::*;

    const SELF: Pid = Pid::from_raw(0);

    #[test]
    fn who_is_where_the_child_is_goes_elsewhere_and_may_come_back() {
        let before = sched_getaffinity(SELF).unwrap();
        let processors = (0..CpuSet::count()).filter(|number| before.is_set(*number).unwrap()).count();
        // The scheduler may move the thread at any time.
        let moved = (0..50).any(|_| {
            let own = sched_getcpu().unwrap();
            leave_processor_to(&Stat::of(gettid().as_raw()).unwrap()).unwrap();
            let now = sched_getcpu().unwrap();
            assert_eq!(sched_getaffinity(SELF).unwrap(), before);
            now != own
        });
        assert_eq!(moved, processors > 1);
    }

    #[test]
    fn who_is_where_the_child_is_not_stays_there() {
        let (stay, told) = std::sync::mpsc::channel::<()>();
        let (tell, child) = std::sync::mpsc::channel();
        let allowed = sched_getaffinity(SELF).unwrap();
        let mut all = (0..CpuSet::count()).filter(|number| allowed.is_set(*number).unwrap());
        let (Some(here), Some(there)) = (all.next(), all.next()) else { return };
        let other = std::thread::spawn(move || {
            only_on(there);
            tell.send(gettid()).unwrap();
            told.recv().unwrap_err();
        });
        let stat = Stat::of(child.recv().unwrap().as_raw()).unwrap();
        // The scheduler may move the thread at any time, but seldom does.
        let stayed = (0..50).filter(|_| {
            only_on(here);
            sched_setaffinity(SELF, &allowed).unwrap();
            leave_processor_to(&stat).unwrap();
            sched_getcpu().unwrap() == here
        });
        assert!(stayed.count() > 25);
        drop(stay);
        other.join().unwrap();
    }

    #[test]
    fn a_caller_that_has_only_one_stays_there() {
        std::thread::spawn(|| {
            let one = only_on(sched_getcpu().unwrap());
            leave_processor_to(&Stat::of(gettid().as_raw()).unwrap()).unwrap();
            assert_eq!(sched_getaffinity(SELF).unwrap(), one);
        })
        .join()
        .unwrap();
    }

    fn only_on(processor: usize) -> CpuSet {
        let mut one = CpuSet::new();
        one.set(processor).unwrap();
        sched_setaffinity(SELF, &one).unwrap();
        one
    }
}
