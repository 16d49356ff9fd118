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

/// Measures several things in turn, `rounds` times each, `gap` apart, so that all see the same machine.
pub fn interleave(rounds: usize, gap: Duration, works: &mut [&mut dyn FnMut()]) -> Vec<Samples> {
    let mut all = vec![Samples::default(); works.len()];
    for round in 0..=rounds {
        for (work, samples) in works.iter_mut().zip(&mut all) {
            std::thread::sleep(gap);
            let start = Instant::now();
            work();
            // The first round warms caches and is not counted.
            if round > 0 {
                samples.push(start.elapsed());
            }
        }
    }
    all
}
