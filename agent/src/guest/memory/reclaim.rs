//! Rounds of taking cold memory back from containers.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use rustjail::cgroup::{Cgroup, CgroupError, Hierarchies};

use super::{
    super::{Error, Result},
    guest_pressure, is_over,
    settings::Reclaim,
};

/// What is taken before it is seen whether it hurts.
const PIECE: u64 = 16 << 20;

/// Refuses where the kernel does not have what it takes.
pub fn supported(hierarchies: &Hierarchies) -> Result<()> {
    const ACTION: &str = "take memory back from containers";
    if !hierarchies.can_reclaim() {
        let missing = "memory.reclaim (cgroup v2 with the memory controller, Linux 5.19)".to_owned();
        return Err(Error::Unsupported { action: ACTION, missing });
    }
    guest_pressure(ACTION).map(drop)
}

/// What earlier rounds saw of each container.
#[derive(Debug, Default)]
pub struct Rounds {
    seen: HashMap<String, Seen>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Instant,
    pressure: u64,
    calm: u64,
}

impl Rounds {
    /// One round over `containers`; gives the bytes that were cold in those it took from. Blocking. A container that
    /// goes away meanwhile is passed over.
    pub fn run(&mut self, settings: &Reclaim, containers: Vec<(String, Arc<Cgroup>)>) -> u64 {
        let mut before = std::mem::take(&mut self.seen);
        let mut cold = 0;
        for (id, cgroup) in containers {
            let Ok(Some(pressure)) = cgroup.memory_pressure() else { continue };
            let now = Instant::now();
            let calm = match before.remove(&id) {
                None => 0,
                Some(seen) => {
                    let suffered = pressure.saturating_sub(seen.pressure);
                    let hot = is_over(suffered, now - seen.at, settings.period_psi_percent_limit);
                    if hot { 0 } else { seen.calm.saturating_add(1) }
                }
            };
            self.seen.insert(id, Seen { at: now, pressure, calm });
            if calm >= settings.eviction_run_aging_count_min.max(1) {
                cold += evict(settings, &cgroup).unwrap_or(0);
            }
        }
        cold
    }
}

/// Takes what is cold piece by piece, until it hurts.
fn evict(settings: &Reclaim, cgroup: &Cgroup) -> std::result::Result<u64, CgroupError> {
    let cold = cgroup.cold_memory(settings.swap)?;
    let swappiness = if settings.swap { settings.swappiness_max } else { 0 };
    let mut left = cold;
    while left > 0 {
        let piece = left.min(PIECE);
        let (start, before) = (Instant::now(), cgroup.memory_pressure()?.unwrap_or(0));
        match cgroup.reclaim(piece, Some(swappiness)) {
            // An older kernel has no such choice, and none to make where there is no swap.
            Err(_) if settings.swap || !has_swap() => cgroup.reclaim(piece, None)?,
            done => done?,
        }
        let suffered = cgroup.memory_pressure()?.unwrap_or(0).saturating_sub(before);
        let elapsed = start.elapsed().max(Duration::from_millis(1));
        if is_over(suffered, elapsed, settings.eviction_psi_percent_limit) {
            break;
        }
        left -= piece;
    }
    Ok(cold)
}

fn has_swap() -> bool {
    // The first line is the heading.
    std::fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}
