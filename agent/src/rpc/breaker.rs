//! Keeps a method that panics again and again from doing so for ever.
//!
//! ```text
//!   closed --third panic within 60 s--> open --60 s after the first of them--> closed
//! ```
//!
//! An open method answers UNAVAILABLE at once. The others are served as before: a panic is a bug in one of them,
//! and what it half did is undone only so far as its own code does it.

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

/// Panics of one method that open it.
const PANICS: usize = 3;
/// For how long a panic counts.
const WINDOW: Duration = Duration::from_secs(60);

/// The last panics of each method. Only methods that exist can panic, so a client cannot make it grow.
#[derive(Debug, Default)]
pub(super) struct Breaker(RefCell<HashMap<String, VecDeque<Instant>>>);

impl Breaker {
    /// `method` has panicked.
    pub(super) fn panicked(&self, method: &str, now: Instant) {
        let mut all = self.0.borrow_mut();
        let panics = all.entry(method.to_owned()).or_default();
        panics.push_back(now);
        if panics.len() > PANICS {
            panics.pop_front();
        }
    }

    /// How long `method` stays open; `None` if it is served.
    pub(super) fn open_for(&self, method: &str, now: Instant) -> Option<Duration> {
        let all = self.0.borrow();
        let panics = all.get(method).filter(|panics| panics.len() == PANICS)?;
        let left = WINDOW.saturating_sub(now.duration_since(*panics.front()?));
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_panics_in_a_minute_open_one_method_until_the_first_is_a_minute_old() {
        let breaker = Breaker::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        breaker.panicked("A", at(0));
        breaker.panicked("A", at(50));
        assert_eq!(breaker.open_for("A", at(50)), None);
        breaker.panicked("A", at(55));
        assert_eq!(breaker.open_for("A", at(55)), Some(Duration::from_secs(5)));
        assert_eq!(breaker.open_for("B", at(55)), None);
        assert_eq!(breaker.open_for("A", at(60)), None);
        breaker.panicked("A", at(61));
        assert_eq!(breaker.open_for("A", at(61)), Some(Duration::from_secs(49)));
    }
}
