//! RDMA devices.

use std::collections::HashMap;

use super::{
    super::{Cgroup, CgroupError, parse},
    text,
};

/// One RDMA device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RdmaStats {
    /// In use.
    pub current: RdmaUsage,
    /// May be used.
    pub limit: RdmaUsage,
}

/// What the controller counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RdmaUsage {
    /// Handles.
    pub handles: u64,
    /// Objects.
    pub objects: u64,
}

/// Both versions use the same names.
pub(super) fn read(group: &Cgroup) -> Result<HashMap<String, RdmaStats>, CgroupError> {
    let mut devices: HashMap<String, RdmaStats> = HashMap::new();
    if let Some(controller) = group.find("rdma") {
        for (device, usage) in usages(&text(controller.dir(), "rdma.current")?) {
            devices.entry(device).or_default().current = usage;
        }
        for (device, limit) in usages(&text(controller.dir(), "rdma.max")?) {
            devices.entry(device).or_default().limit = limit;
        }
    }
    Ok(devices)
}

/// `mlx5_0 hca_handle=1 hca_object=max` lines.
fn usages(text: &str) -> Vec<(String, RdmaUsage)> {
    let usage = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let device = words.next()?.to_owned();
        let mut usage = RdmaUsage::default();
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let value = parse::number(value).unwrap_or(0);
            match key {
                "hca_handle" => usage.handles = value,
                "hca_object" => usage.objects = value,
                _ => {}
            }
        }
        Some((device, usage))
    };
    text.lines().filter_map(usage).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let usage = RdmaUsage { handles: 1, objects: u64::MAX };
        assert_eq!(usages("mlx5_0 hca_handle=1 hca_object=max\n\n"), [("mlx5_0".to_owned(), usage)]);
    }
}
