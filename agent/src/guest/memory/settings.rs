//! What a host may set, with the defaults and names of Kata's memory agent.

use serde::{Deserialize, Serialize};

use super::super::{Error, Result};

/// Taking cold memory back from containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaim {
    /// Nothing is done.
    pub disabled: bool,
    /// Whether anonymous memory may be swapped out for it.
    pub swap: bool,
    /// How willingly, 0 to 200.
    pub swappiness_max: u32,
    /// Seconds between two rounds.
    pub period_secs: u64,
    /// A container that waited for memory more than this since the last round is left alone.
    pub period_psi_percent_limit: u32,
    /// Taking from a container ends when it makes it wait more than this.
    pub eviction_psi_percent_limit: u32,
    /// Rounds in which a container has to be calm before anything is taken from it.
    pub eviction_run_aging_count_min: u64,
}

impl Default for Reclaim {
    fn default() -> Self {
        Self {
            disabled: true,
            swap: false,
            swappiness_max: 50,
            period_secs: 600,
            period_psi_percent_limit: 1,
            eviction_psi_percent_limit: 1,
            eviction_run_aging_count_min: 3,
        }
    }
}

/// Making large pieces of free memory out of small ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compact {
    /// Nothing is done.
    pub disabled: bool,
    /// Seconds between two rounds.
    pub period_secs: u64,
    /// Nothing is done in a round before which the guest waited for memory more than this.
    pub period_psi_percent_limit: u32,
    /// Compaction ends when it makes the guest wait more than this.
    pub compact_psi_percent_limit: u32,
    /// The longest one compaction may go on, in seconds.
    pub compact_sec_max: i64,
    /// Pieces of 2^order pages are wanted.
    pub compact_order: u32,
    /// Free pages in smaller pieces that make it worth while.
    pub compact_threshold: u64,
    /// Rounds without a compaction after which there is one all the same.
    pub compact_force_times: u64,
}

impl Default for Compact {
    fn default() -> Self {
        Self {
            disabled: true,
            period_secs: 600,
            period_psi_percent_limit: 1,
            compact_psi_percent_limit: 5,
            compact_sec_max: 300,
            compact_order: 9,
            compact_threshold: 2 << 9,
            compact_force_times: u64::MAX,
        }
    }
}

/// The largest order of the kernel's buddy allocator.
const MAX_ORDER: u32 = 10;

impl Reclaim {
    /// Refuses what makes no sense.
    pub fn check(self) -> Result<Self> {
        at_most("swappiness_max", self.swappiness_max, 200)?;
        at_most("period_psi_percent_limit", self.period_psi_percent_limit, 100)?;
        at_most("eviction_psi_percent_limit", self.eviction_psi_percent_limit, 100)?;
        positive("period_secs", self.period_secs)?;
        Ok(self)
    }
}

impl Compact {
    /// Refuses what makes no sense.
    pub fn check(self) -> Result<Self> {
        at_most("compact_order", self.compact_order, MAX_ORDER)?;
        at_most("period_psi_percent_limit", self.period_psi_percent_limit, 100)?;
        at_most("compact_psi_percent_limit", self.compact_psi_percent_limit, 100)?;
        positive("period_secs", self.period_secs)?;
        positive("compact_sec_max", u64::try_from(self.compact_sec_max).unwrap_or(0))?;
        Ok(self)
    }
}

fn at_most(name: &str, value: u32, most: u32) -> Result<()> {
    if value > most {
        return Err(Error::Invalid(format!("{name} is {value}: it must be at most {most}")));
    }
    Ok(())
}

fn positive(name: &str, value: u64) -> Result<()> {
    if value == 0 {
        return Err(Error::Invalid(format!("{name} must be above 0")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(Reclaim::default().check().is_ok() && Compact::default().check().is_ok());
        let reclaim = Reclaim::default();
        assert!(Reclaim { swappiness_max: 256, ..reclaim }.check().is_err());
        assert!(Reclaim { eviction_psi_percent_limit: 101, ..reclaim }.check().is_err());
        assert!(Reclaim { period_secs: 0, ..reclaim }.check().is_err());
        let compact = Compact::default();
        assert!(Compact { compact_order: 11, ..compact }.check().is_err());
        assert!(Compact { compact_sec_max: -1, ..compact }.check().is_err());
    }
}
