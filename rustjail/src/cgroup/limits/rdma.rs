//! RDMA handles and objects.

use std::collections::HashMap;

use oci_spec::runtime::LinuxRdma;

use super::super::{Cgroup, CgroupError};

pub(super) fn apply(group: &Cgroup, devices: &HashMap<String, LinuxRdma>) -> Result<(), CgroupError> {
    for (device, limits) in devices {
        // Both versions use the same name and format.
        group.controller("rdma")?.dir().write("rdma.max", &line(device, limits)?)?;
    }
    Ok(())
}

fn line(device: &str, limits: &LinuxRdma) -> Result<String, CgroupError> {
    let pairs = [("hca_handle", limits.hca_handles()), ("hca_object", limits.hca_objects())];
    let given: Vec<String> =
        pairs.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?))).collect();
    if given.is_empty() {
        return Err(CgroupError::invalid("rdma", device, "one of hcaHandles and hcaObjects has to be given"));
    }
    Ok(format!("{device} {}", given.join(" ")))
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::LinuxRdmaBuilder;

    use super::*;

    #[test]
    fn lines() {
        let limits = LinuxRdmaBuilder::default().hca_handles(3_u32).hca_objects(10_u32).build().unwrap();
        assert_eq!(line("mlx5_1", &limits).unwrap(), "mlx5_1 hca_handle=3 hca_object=10");
        assert!(line("mlx5_1", &LinuxRdma::default()).is_err());
    }
}
