//! What of the memory agent is on from the boot. Hosts change it afterwards by the MemAgent calls.

use crate::guest::memory::settings::{Compact, Reclaim};

/// Both of its works, and whether there is any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemAgent {
    /// Without it the rest means nothing.
    pub enabled: bool,
    /// Taking cold memory back from containers.
    pub reclaim: Reclaim,
    /// Making large pieces of free memory.
    pub compact: Compact,
}

impl Default for MemAgent {
    /// Off; switched on, both works are done.
    fn default() -> Self {
        Self {
            enabled: false,
            reclaim: Reclaim { disabled: false, ..Reclaim::default() },
            compact: Compact { disabled: false, ..Compact::default() },
        }
    }
}

impl MemAgent {
    /// What counts from the boot on.
    pub fn at_boot(&self) -> (Reclaim, Compact) {
        if self.enabled { (self.reclaim, self.compact) } else { Default::default() }
    }
}
