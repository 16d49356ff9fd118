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

/// Measures several things in turn, `rounds` times each or a few more, `gap` apart, so that all see the same machine. What
/// one leaves in caches and in the kernel, the next has the good or the harm of; so each comes after each other one equally
/// often. A first round, which warms caches and makes what the others find there, is not counted.
pub fn interleave(rounds: usize, gap: Duration, works: &mut [&mut dyn FnMut()]) -> Vec<Samples> {
    let mut all = vec![Samples::default(); works.len()];
    let circuit = circuit(works.len());
    let circuits = (rounds * works.len()).div_ceil(circuit.len());
    for work in works.iter_mut() {
        std::thread::sleep(gap);
        work();
    }
    for &at in circuit.iter().cycle().take(circuits * circuit.len()) {
        std::thread::sleep(gap);
        all[at].time(&mut works[at]);
    }
    all
}

/// Numbers below `count` in an order, to be repeated, in which each comes after each other one once: an Eulerian circuit of
/// the complete graph.
fn circuit(count: usize) -> Vec<usize> {
    if count == 1 {
        return vec![0];
    }
    (0..count).flat_map(|one| (one + 1..count).flat_map(move |other| [one, other])).collect()
}
