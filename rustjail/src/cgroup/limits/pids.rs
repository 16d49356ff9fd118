//! How many tasks a group may have.

use oci_spec::runtime::LinuxPids;

use super::{
    super::{Cgroup, CgroupError},
    Limit,
};

/// 0 is not given: runtime-spec made the limit optional in 1.3, and neither the wire nor the spec's types
/// here tell an absent one from a zero. A group that may have no task at all could not be started anyway.
pub(super) fn apply(group: &Cgroup, pids: &LinuxPids) -> Result<(), CgroupError> {
    match Limit::given("pids.limit", Some(pids.limit()))? {
        // Both versions use the same name and word.
        Some(limit) => group.controller("pids")?.dir().write("pids.max", &limit.v2()),
        None => Ok(()),
    }
}
