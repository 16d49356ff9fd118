//! Tags for the packets of a group, which only v1 has.

use oci_spec::runtime::LinuxNetwork;

use super::super::{Cgroup, CgroupError};

pub(super) fn apply(group: &Cgroup, network: &LinuxNetwork) -> Result<(), CgroupError> {
    if let Some(class) = network.class_id().filter(|class| *class != 0) {
        group.controller("net_cls")?.dir().write("net_cls.classid", &class.to_string())?;
    }
    for priority in network.priorities().iter().flatten() {
        let line = format!("{} {}", priority.name(), priority.priority());
        group.controller("net_prio")?.dir().write("net_prio.ifpriomap", &line)?;
    }
    Ok(())
}
