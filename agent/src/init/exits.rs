//! How processes ended, kept until the worker has written it down.
//!
//! ```text
//!  reaped --known (settled before)----------------------> kept --told--> told --acknowledged--> (gone)
//!     |                                                    ^               |
//!     +--unknown, a launch is expected--> unclaimed --settled              +--the worker died--> kept
//!     |                                      +--no launch is expected any more--> (gone)
//!     +--unknown, none is expected--> (gone)
//! ```
//!
//! A process may end before its launcher's reply has passed through the worker; `unclaimed` bridges that gap.
//! Everything is bounded, whatever a worker sends and however many orphans die.

use std::collections::{BTreeSet, VecDeque};

use rustjail::sys::wait::Reaped;

/// How many launched processes there can be: the kernel's default pid_max, doubled.
const CAPACITY: usize = 65_536;

/// How many exits of strangers are remembered while a launch is under way. A launch takes milliseconds, in which a
/// machine can reap some thousands.
const UNCLAIMED: usize = 16_384;

/// The table.
#[derive(Debug, Default)]
pub struct Exits {
    watched: BTreeSet<i32>,
    kept: VecDeque<Reaped>,
    /// How many at the front of `kept` this worker knows of.
    told: usize,
    expected: u32,
    unclaimed: VecDeque<Reaped>,
}

impl Exits {
    /// A launch is about to begin.
    pub fn expect(&mut self) {
        self.expected = self.expected.saturating_add(1);
    }

    /// An expected launch is decided. False: the table is full, and this process's end will not be told.
    pub fn settle(&mut self, pid: Option<i32>) -> bool {
        self.expected = self.expected.saturating_sub(1);
        let room = self.watched.len() + self.kept.len() < CAPACITY;
        if let Some(pid) = pid.filter(|_| room) {
            // The newest: the number may have had another owner within the same launch.
            let position = self.unclaimed.iter().rposition(|reaped| reaped.pid == pid);
            match position.and_then(|position| self.unclaimed.remove(position)) {
                Some(reaped) => self.kept.push_back(reaped),
                None => _ = self.watched.insert(pid),
            }
        }
        if self.expected == 0 {
            self.unclaimed = VecDeque::new();
        }
        room || pid.is_none()
    }

    /// Something was reaped that is not one of init's roles.
    pub fn reaped(&mut self, reaped: Reaped) {
        if self.watched.remove(&reaped.pid) {
            self.kept.push_back(reaped);
        } else if self.expected > 0 {
            if self.unclaimed.len() == UNCLAIMED {
                self.unclaimed.pop_front();
            }
            self.unclaimed.push_back(reaped);
        }
    }

    /// The next exit this worker does not know of.
    pub fn untold(&self) -> Option<Reaped> {
        self.kept.get(self.told).copied()
    }

    /// What [`Exits::untold`] returned was sent.
    pub fn told(&mut self) {
        self.told = (self.told + 1).min(self.kept.len());
    }

    /// The worker will not need the oldest told exit of `pid` again.
    pub fn acknowledge(&mut self, pid: i32) {
        if let Some(position) = self.kept.iter().take(self.told).position(|reaped| reaped.pid == pid) {
            self.kept.remove(position);
            self.told -= 1;
        }
    }

    /// The worker died: its successor is told everything anew. Launches that were under way are nobody's; the
    /// successor finds what became of them in their control groups.
    pub fn worker_died(&mut self) {
        self.told = 0;
        self.expected = 0;
        self.unclaimed = VecDeque::new();
    }

    /// The processes whose exits are awaited.
    pub fn watched(&self) -> impl Iterator<Item = i32> {
        self.watched.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(pid: i32, status: i32) -> Reaped {
        Reaped { pid, status }
    }

    fn tell_all(exits: &mut Exits) -> Vec<(i32, i32)> {
        let mut told = Vec::new();
        while let Some(reaped) = exits.untold() {
            exits.told();
            told.push((reaped.pid, reaped.status));
        }
        told
    }

    #[test]
    fn an_exit_is_told_to_each_worker_until_one_acknowledges() {
        let mut exits = Exits::default();
        exits.expect();
        assert!(exits.settle(Some(10)));
        exits.reaped(exit(10, 3));
        for _ in 0..3 {
            assert_eq!(tell_all(&mut exits), [(10, 3)]);
            assert_eq!(tell_all(&mut exits), []);
            exits.worker_died();
        }
        tell_all(&mut exits);
        exits.acknowledge(10);
        exits.acknowledge(10);
        exits.worker_died();
        assert_eq!(tell_all(&mut exits), []);
    }

    #[test]
    fn a_process_that_ends_before_its_launch_is_settled_is_not_lost() {
        let mut exits = Exits::default();
        exits.expect();
        exits.expect();
        exits.reaped(exit(7, 1));
        exits.reaped(exit(8, 2));
        exits.reaped(exit(7, 4));
        assert_eq!(tell_all(&mut exits), []);
        exits.settle(Some(7));
        exits.settle(None);
        assert_eq!(tell_all(&mut exits), [(7, 4)]);
    }

    #[test]
    fn nothing_told_to_nobody_can_be_acknowledged() {
        let mut exits = Exits::default();
        exits.settle(Some(5));
        exits.reaped(exit(5, 0));
        exits.acknowledge(5);
        assert_eq!(tell_all(&mut exits), [(5, 0)]);
    }

    #[test]
    fn two_exits_of_one_number_are_acknowledged_in_turn() {
        let mut exits = Exits::default();
        for status in [1, 2] {
            exits.settle(Some(5));
            exits.reaped(exit(5, status));
        }
        assert_eq!(tell_all(&mut exits), [(5, 1), (5, 2)]);
        exits.acknowledge(5);
        exits.worker_died();
        assert_eq!(tell_all(&mut exits), [(5, 2)]);
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let mut exits = Exits::default();
        for pid in 1..200_000 {
            exits.reaped(exit(pid, 0));
        }
        assert!(exits.unclaimed.is_empty() && exits.kept.is_empty());

        exits.expect();
        for pid in 1..200_000 {
            exits.reaped(exit(pid, 0));
        }
        assert_eq!(exits.unclaimed.len(), UNCLAIMED);
        exits.settle(Some(199_999));
        assert_eq!(exits.unclaimed.capacity(), 0);
        assert_eq!(tell_all(&mut exits), [(199_999, 0)]);

        let settled = (1..200_000).filter(|&pid| exits.settle(Some(pid))).count();
        assert_eq!(settled, CAPACITY - 1);
    }
}
