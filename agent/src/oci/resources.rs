//! `grpc.LinuxResources`: what goes into a control group. Updates use it too, where 0 means "leave as it is".

use berth_protocols::oci as wire;
use oci_spec::runtime::{
    LinuxBlockIo, LinuxCpu, LinuxDeviceCgroup, LinuxHugepageLimit, LinuxInterfacePriority, LinuxMemory,
    LinuxNetwork, LinuxPids, LinuxResources, LinuxThrottleDevice, LinuxThrottleDeviceBuilder,
    LinuxWeightDevice, LinuxWeightDeviceBuilder,
};

use super::{
    Result,
    parse::{built, fit, limit, name, non_empty, non_zero, text},
};

/// Converts limits and device rules.
pub fn resources(wire: wire::LinuxResources) -> Result<LinuxResources> {
    let mut resources = LinuxResources::default();
    resources
        .set_devices(non_empty(wire.Devices.into_iter().map(device).collect::<Result<Vec<_>>>()?))
        .set_memory(wire.Memory.into_option().map(memory).transpose()?)
        .set_cpu(wire.CPU.into_option().map(cpu).transpose()?)
        .set_pids(wire.Pids.into_option().map(pids).transpose()?.flatten())
        .set_block_io(wire.BlockIO.into_option().map(block_io).transpose()?)
        .set_hugepage_limits(non_empty(
            wire.HugepageLimits.into_iter().map(hugepage).collect::<Result<Vec<_>>>()?,
        ))
        .set_network(wire.Network.into_option().map(network));
    Ok(resources)
}

/// A rule's numbers: -1 is any, and a missing number (0) can only be that where no device has it. Major 0 is
/// reserved by the kernel for what has no device, so a rule with it means any; minor 0 is a real number.
fn device(wire: wire::LinuxDeviceCgroup) -> Result<LinuxDeviceCgroup> {
    let must = "it must be -1 (any) or a number of at most 32 bits";
    let number = |field, value| -> Result<Option<i64>> {
        if value == -1 {
            return Ok(None);
        }
        fit::<u32>(field, value, must).map(|number| Some(number.into()))
    };
    let major = number("linux.resources.devices.major", wire.Major)?.filter(|major| *major != 0);
    let minor =
        number("linux.resources.devices.minor", wire.Minor)?.filter(|minor| *minor != 0 || major.is_some());
    let kind = non_empty(wire.Type).map(|kind| name("device type", &kind)).transpose()?;
    let mut rule = LinuxDeviceCgroup::default();
    rule.set_allow(wire.Allow).set_typ(kind).set_major(major).set_minor(minor).set_access(text(wire.Access));
    Ok(rule)
}

#[allow(
    deprecated,
    reason = "the kernel memory limit is still on the wire; cgroup code decides what it is worth"
)]
fn memory(wire: wire::LinuxMemory) -> Result<LinuxMemory> {
    let mut memory = LinuxMemory::default();
    memory
        .set_limit(limit("memory.limit", wire.Limit)?)
        .set_reservation(limit("memory.reservation", wire.Reservation)?)
        .set_swap(limit("memory.swap", wire.Swap)?)
        .set_kernel(limit("memory.kernel", wire.Kernel)?)
        .set_kernel_tcp(limit("memory.kernelTCP", wire.KernelTCP)?)
        .set_swappiness(non_zero(wire.Swappiness))
        .set_disable_oom_killer(non_zero(wire.DisableOOMKiller));
    Ok(memory)
}

fn cpu(wire: wire::LinuxCPU) -> Result<LinuxCpu> {
    let mut cpu = LinuxCpu::default();
    cpu.set_shares(non_zero(wire.Shares))
        .set_quota(limit("cpu.quota", wire.Quota)?)
        .set_period(non_zero(wire.Period))
        .set_realtime_runtime(limit("cpu.realtimeRuntime", wire.RealtimeRuntime)?)
        .set_realtime_period(non_zero(wire.RealtimePeriod))
        .set_cpus(text(wire.Cpus))
        .set_mems(text(wire.Mems));
    Ok(cpu)
}

fn pids(wire: wire::LinuxPids) -> Result<Option<LinuxPids>> {
    Ok(limit("pids.limit", wire.Limit)?.map(|limit| {
        let mut pids = LinuxPids::default();
        pids.set_limit(limit);
        pids
    }))
}

const WEIGHT: &str = "a weight must be at most 65535";

fn block_io(wire: wire::LinuxBlockIO) -> Result<LinuxBlockIo> {
    let mut block_io = LinuxBlockIo::default();
    block_io
        .set_weight(weight("blockIO.weight", wire.Weight)?)
        .set_leaf_weight(weight("blockIO.leafWeight", wire.LeafWeight)?)
        .set_weight_device(non_empty(
            wire.WeightDevice.iter().map(weight_device).collect::<Result<Vec<_>>>()?,
        ))
        .set_throttle_read_bps_device(throttles(&wire.ThrottleReadBpsDevice)?)
        .set_throttle_write_bps_device(throttles(&wire.ThrottleWriteBpsDevice)?)
        .set_throttle_read_iops_device(throttles(&wire.ThrottleReadIOPSDevice)?)
        .set_throttle_write_iops_device(throttles(&wire.ThrottleWriteIOPSDevice)?);
    Ok(block_io)
}

fn weight(field: &'static str, value: u32) -> Result<Option<u16>> {
    fit(field, value, WEIGHT).map(non_zero)
}

fn weight_device(wire: &wire::LinuxWeightDevice) -> Result<LinuxWeightDevice> {
    let mut builder = LinuxWeightDeviceBuilder::default().major(wire.Major).minor(wire.Minor);
    if let Some(weight) = weight("blockIO.weightDevice.weight", wire.Weight)? {
        builder = builder.weight(weight);
    }
    if let Some(weight) = weight("blockIO.weightDevice.leafWeight", wire.LeafWeight)? {
        builder = builder.leaf_weight(weight);
    }
    built("weight device", builder.build())
}

fn throttles(wire: &[wire::LinuxThrottleDevice]) -> Result<Option<Vec<LinuxThrottleDevice>>> {
    let throttle = |wire: &wire::LinuxThrottleDevice| {
        let builder = LinuxThrottleDeviceBuilder::default().major(wire.Major).minor(wire.Minor);
        built("throttle device", builder.rate(wire.Rate).build())
    };
    Ok(non_empty(wire.iter().map(throttle).collect::<Result<Vec<_>>>()?))
}

fn hugepage(wire: wire::LinuxHugepageLimit) -> Result<LinuxHugepageLimit> {
    let bytes = fit("hugepageLimits.limit", wire.Limit, "it must fit 63 bits")?;
    let mut limit = LinuxHugepageLimit::default();
    limit.set_page_size(wire.Pagesize).set_limit(bytes);
    Ok(limit)
}

fn network(wire: wire::LinuxNetwork) -> LinuxNetwork {
    let priorities = wire.Priorities.into_iter().map(|wire| {
        let mut priority = LinuxInterfacePriority::default();
        priority.set_name(wire.Name).set_priority(wire.Priority);
        priority
    });
    let mut network = LinuxNetwork::default();
    network.set_class_id(non_zero(wire.ClassID)).set_priorities(non_empty(priorities.collect::<Vec<_>>()));
    network
}
