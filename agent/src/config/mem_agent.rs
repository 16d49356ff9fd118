//! When memory is reclaimed and compacted: the values hosts set at boot, and by the MemAgent calls afterwards.

use std::time::Duration;

/// Both halves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemAgent {
    /// Without it the rest means nothing.
    pub enabled: bool,
    /// Reclaim of cold pages.
    pub memcg: Memcg,
    /// Compaction.
    pub compact: Compact,
}

/// Reclaim of cold pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memcg {
    /// Switched off.
    pub disabled: bool,
    /// Whether anonymous pages are swapped out.
    pub swap: bool,
    /// The most swappiness, 0 to 200.
    pub swappiness_max: u8,
    /// How often.
    pub period: Duration,
    /// Not while memory pressure is above this many percent.
    pub period_psi_percent_limit: u8,
    /// Stops evicting when pressure rises above this many percent.
    pub eviction_psi_percent_limit: u8,
    /// After how many agings without use a page is evicted.
    pub eviction_run_aging_count_min: u64,
}

impl Default for Memcg {
    fn default() -> Self {
        Self {
            disabled: false,
            swap: false,
            swappiness_max: 50,
            period: Duration::from_secs(600),
            period_psi_percent_limit: 1,
            eviction_psi_percent_limit: 1,
            eviction_run_aging_count_min: 3,
        }
    }
}

/// Compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compact {
    /// Switched off.
    pub disabled: bool,
    /// How often.
    pub period: Duration,
    /// Not while memory pressure is above this many percent.
    pub period_psi_percent_limit: u8,
    /// Stops when pressure rises above this many percent.
    pub psi_percent_limit: u8,
    /// The longest one compaction may take.
    pub longest: Duration,
    /// The order of blocks that there should be more of.
    pub order: u8,
    /// How many pages must have become movable since the last time.
    pub threshold: u64,
    /// After how many skipped periods it is done all the same.
    pub force_times: u64,
}

impl Default for Compact {
    fn default() -> Self {
        Self {
            disabled: false,
            period: Duration::from_secs(600),
            period_psi_percent_limit: 1,
            psi_percent_limit: 5,
            longest: Duration::from_secs(300),
            order: 9,
            threshold: 1024,
            force_times: u64::MAX,
        }
    }
}
