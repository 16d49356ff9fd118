//! Drivers for devices that come.
//!
//! In a guest whose first process is the agent nobody else loads kernel modules. Whatever the kernel says, the
//! devices without a driver are looked through once more; one pass at a time, and the events that come meanwhile
//! are one more pass.

use super::Hotplug;
use crate::init::modules;

impl Hotplug {
    /// Loads modules for the devices there are and for those that come, for ever.
    pub async fn drive(&self, log: slog::Logger) {
        let mut changes = self.changes.subscribe();
        let mut known = std::collections::BTreeSet::new();
        loop {
            let sys = self.roots.sys.clone();
            let problems = crate::task::blocking(move || modules::drive(&sys)).await.unwrap_or_default();
            for problem in problems.iter().map(ToString::to_string) {
                // Each is told once: a module that cannot be loaded is tried at every pass.
                if known.insert(problem.clone()) {
                    slog::warn!(log, "a device may stay without a driver"; "error" => problem);
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}
