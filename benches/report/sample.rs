//! Repeated measurements and what is told of them.

use std::time::{Duration, Instant};

/// A set of measurements of one thing.
#[derive(Debug, Default, Clone)]
pub struct Samples(Vec<Duration>);

impl Samples {
    /// Adds one.
    pub fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    /// Runs `work` and adds how long it took.
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.push(start.elapsed());
        result
    }

    /// The middle one, in milliseconds.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort();
        sorted.get(sorted.len() / 2).map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e3)
    }
}

/// Measures several things in turn, `rounds` times each, `gap` apart, so that all see the same machine. The order is
/// another in each round, the same in each run of the bench: what one leaves in caches and in the kernel, the next has the
/// good or the harm of, and none is to have always that of the same. A first round, which warms caches and makes what
/// the others find there, is not counted and in the order that is given.
pub fn interleave(rounds: usize, gap: Duration, works: &mut [&mut dyn FnMut()]) -> Vec<Samples> {
    let mut all = vec![Samples::default(); works.len()];
    let mut order: Vec<usize> = (0..works.len()).collect();
    let mut state = 1;
    for round in 0..=rounds {
        if round > 0 {
            shuffle(&mut order, &mut state);
        }
        for &at in &order {
            std::thread::sleep(gap);
            let start = Instant::now();
            works[at]();
            if round > 0 {
                all[at].push(start.elapsed());
            }
        }
    }
    all
}

/// By Fisher and Yates, with the numbers of a linear congruential generator (Knuth's MMIX).
fn shuffle(order: &mut [usize], state: &mut u64) {
    for last in (1..order.len()).rev() {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(last, (*state >> 33) as usize % (last + 1));
    }
}
