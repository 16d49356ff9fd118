//! Block devices: weights and rates.

use oci_spec::runtime::{LinuxBlockIo, LinuxThrottleDevice};

use super::super::{Cgroup, CgroupError, dir::Dir};

/// The spec's four rate lists, with the v1 file and the v2 key of each.
fn rates(
    block_io: &LinuxBlockIo,
) -> impl Iterator<Item = (&'static str, &'static str, &LinuxThrottleDevice)> {
    [
        ("blkio.throttle.read_bps_device", "rbps", block_io.throttle_read_bps_device()),
        ("blkio.throttle.write_bps_device", "wbps", block_io.throttle_write_bps_device()),
        ("blkio.throttle.read_iops_device", "riops", block_io.throttle_read_iops_device()),
        ("blkio.throttle.write_iops_device", "wiops", block_io.throttle_write_iops_device()),
    ]
    .into_iter()
    .flat_map(|(file, key, rates)| rates.iter().flatten().map(move |rate| (file, key, rate)))
}

fn given(weight: Option<u16>) -> Option<u16> {
    weight.filter(|weight| *weight != 0)
}

pub(super) fn apply(group: &Cgroup, block_io: &LinuxBlockIo) -> Result<(), CgroupError> {
    let nothing = given(block_io.weight()).is_none()
        && given(block_io.leaf_weight()).is_none()
        && block_io.weight_device().as_ref().is_none_or(Vec::is_empty)
        && rates(block_io).next().is_none();
    if nothing {
        return Ok(());
    }
    match group.find("io") {
        Some(controller) => v2(controller.dir(), block_io),
        // Only v1 calls it so.
        None => v1(group.controller("blkio")?.dir(), block_io),
    }
}

fn v1(dir: &Dir, block_io: &LinuxBlockIo) -> Result<(), CgroupError> {
    // Linux 5.0 removed CFQ and its files; BFQ has its own, and no leaf weights.
    let (weight_file, device_file) = if dir.has("blkio.weight") {
        ("blkio.weight", "blkio.weight_device")
    } else {
        ("blkio.bfq.weight", "blkio.bfq.weight_device")
    };
    if let Some(weight) = given(block_io.weight()) {
        dir.write(weight_file, &weight.to_string())?;
    }
    if let Some(weight) = given(block_io.leaf_weight()) {
        dir.write("blkio.leaf_weight", &weight.to_string())?;
    }
    for device in block_io.weight_device().iter().flatten() {
        let (major, minor) = (device.major(), device.minor());
        if let Some(weight) = given(device.weight()) {
            dir.write(device_file, &format!("{major}:{minor} {weight}"))?;
        }
        if let Some(weight) = given(device.leaf_weight()) {
            dir.write("blkio.leaf_weight_device", &format!("{major}:{minor} {weight}"))?;
        }
    }
    rates(block_io).try_for_each(|(file, _, rate)| {
        dir.write(file, &format!("{}:{} {}", rate.major(), rate.minor(), rate.rate()))
    })
}

fn v2(dir: &Dir, block_io: &LinuxBlockIo) -> Result<(), CgroupError> {
    let devices = block_io.weight_device().iter().flatten();
    if given(block_io.leaf_weight()).is_some()
        || devices.clone().any(|device| given(device.leaf_weight()).is_some())
    {
        return Err(CgroupError::OnlyV1 { setting: "blockIO.leafWeight" });
    }
    // BFQ takes the spec's weights as they are; io.weight has a range of its own.
    let (file, convert): (_, fn(u16) -> u64) = if dir.has("io.bfq.weight") {
        ("io.bfq.weight", u64::from)
    } else {
        ("io.weight", weight_to_io_weight)
    };
    if let Some(weight) = given(block_io.weight()) {
        dir.write(file, &format!("default {}", convert(weight)))?;
    }
    for device in devices {
        if let Some(weight) = given(device.weight()) {
            dir.write(file, &format!("{}:{} {}", device.major(), device.minor(), convert(weight)))?;
        }
    }
    rates(block_io).try_for_each(|(_, key, rate)| {
        // v1 lifts a limit by 0, which v2 refuses.
        let to = if rate.rate() == 0 { "max".to_owned() } else { rate.rate().to_string() };
        dir.write("io.max", &format!("{}:{} {key}={to}", rate.major(), rate.minor()))
    })
}

/// 10 to 1000 as 1 to 10000, in a straight line.
fn weight_to_io_weight(weight: u16) -> u64 {
    let above = u64::from(weight.clamp(10, 1000)) - 10;
    1 + above * 9999 / 990
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::{LinuxBlockIoBuilder, LinuxThrottleDeviceBuilder, LinuxWeightDeviceBuilder};

    use super::{super::fixture::Fixture, *};

    #[test]
    fn weights_fill_the_range() {
        for (from, to) in [(1, 1), (10, 1), (505, 5000), (1000, 10_000), (u16::MAX, 10_000)] {
            assert_eq!(weight_to_io_weight(from), to);
        }
    }

    #[test]
    fn v2_lines() {
        let rate =
            |rate: u64| LinuxThrottleDeviceBuilder::default().major(8).minor(16).rate(rate).build().unwrap();
        let files = Fixture::new(&[("io.weight", ""), ("io.max", "")]);
        let block_io =
            LinuxBlockIoBuilder::default().weight(1000_u16).throttle_read_bps_device(vec![rate(4096)]);
        v2(&files.dir, &block_io.build().unwrap()).unwrap();
        assert_eq!(files.text("io.weight"), "default 10000");
        assert_eq!(files.text("io.max"), "8:16 rbps=4096");

        let files = Fixture::new(&[("io.bfq.weight", ""), ("io.max", "")]);
        let device = LinuxWeightDeviceBuilder::default().major(8).minor(0).weight(300_u16).build().unwrap();
        let block_io = LinuxBlockIoBuilder::default()
            .weight_device(vec![device])
            .throttle_write_iops_device(vec![rate(0)]);
        v2(&files.dir, &block_io.build().unwrap()).unwrap();
        assert_eq!(files.text("io.bfq.weight"), "8:0 300");
        assert_eq!(files.text("io.max"), "8:16 wiops=max");
    }

    #[test]
    fn missing_weight_files_are_named() {
        let files = Fixture::new(&[]);
        let block_io = LinuxBlockIoBuilder::default().weight(100_u16).build().unwrap();
        let error = v1(&files.dir, &block_io).unwrap_err();
        assert!(error.to_string().contains("blkio.bfq.weight does not exist"), "{error}");
    }
}
