//! The last few compiled profiles.
//!
//! A sandbox runs many containers under one or two profiles, and an exec takes its container's. An entry is
//! found by comparing profiles outright: unequal ones nearly always differ in the first fields, and equal
//! ones compare in less time than hashing one takes. The most recently used entry is first; the last one
//! makes room. The owner decides how long the cache lives, and how many entries it has bounds its size.

use std::{collections::VecDeque, sync::Arc};

use oci_spec::runtime::LinuxSeccomp;

use super::{Filter, SeccompError, compile};

/// Compiled profiles, at most `capacity` of them.
#[derive(Debug)]
pub struct Cache {
    capacity: usize,
    entries: VecDeque<(LinuxSeccomp, Arc<Filter>)>,
}

impl Cache {
    /// An empty cache for `capacity` profiles; with none it compiles every time.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, entries: VecDeque::new() }
    }

    /// The filter of `profile`, compiled now unless it was lately.
    pub fn filter(&mut self, profile: &LinuxSeccomp) -> Result<Arc<Filter>, SeccompError> {
        let known = self.entries.iter().position(|(of, _)| of == profile);
        let entry = match known.and_then(|at| self.entries.remove(at)) {
            Some(entry) => entry,
            None => (profile.clone(), Arc::new(compile(profile)?)),
        };
        let filter = Arc::clone(&entry.1);
        self.entries.push_front(entry);
        self.entries.truncate(self.capacity);
        Ok(filter)
    }
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::{LinuxSeccompAction, LinuxSeccompBuilder};

    use super::*;

    fn profile(errno: u32) -> LinuxSeccomp {
        LinuxSeccompBuilder::default()
            .default_action(LinuxSeccompAction::ScmpActErrno)
            .default_errno_ret(errno)
            .build()
            .unwrap()
    }

    #[test]
    fn an_equal_profile_shares_the_filter_and_the_least_used_goes_first() {
        let mut cache = Cache::new(2);
        let first = cache.filter(&profile(1)).unwrap();
        let second = cache.filter(&profile(2)).unwrap();
        assert_ne!(first, second);
        assert!(Arc::ptr_eq(&first, &cache.filter(&profile(1)).unwrap()));
        cache.filter(&profile(3)).unwrap();
        assert!(Arc::ptr_eq(&first, &cache.filter(&profile(1)).unwrap()));
        assert!(!Arc::ptr_eq(&second, &cache.filter(&profile(2)).unwrap()));
        assert_eq!(cache.entries.len(), 2);
    }

    #[test]
    fn a_profile_that_does_not_compile_leaves_no_entry() {
        let mut cache = Cache::new(2);
        assert!(cache.filter(&profile(70_000)).is_err());
        assert!(cache.entries.is_empty());
    }
}
