//! Limits as the properties of a unit.
//!
//! systemd writes a unit's limits again whenever it looks at the unit anew (`daemon-reload`), so those it has
//! properties for have to be told to it. The others, and device rules, are written to the group alone.

use std::collections::HashMap;

use oci_spec::runtime::{LinuxCpu, LinuxMemory, LinuxResources};

use super::{
    super::{CgroupError, limits::shares_to_weight},
    wire::Value,
};

/// What systemd calls "no limit".
const INFINITY: u64 = u64::MAX;

/// The kernel's own period, in microseconds.
const DEFAULT_PERIOD: u64 = 100_000;

type Properties = Vec<(&'static str, Value)>;

/// The properties of `resources`, of which those that are not given are left out. `unified` is whether systemd
/// manages cgroup2, whose limits have other names.
pub(super) fn of(resources: &LinuxResources, unified: bool) -> Result<Properties, CgroupError> {
    let mut properties = Vec::new();
    if let Some(cpu) = resources.cpu() {
        of_cpu(cpu, unified, &mut properties)?;
    }
    if let Some(memory) = resources.memory() {
        of_memory(memory, unified, &mut properties)?;
    }
    if let Some(pids) = resources.pids().as_ref().and_then(|pids| limit(Some(pids.limit()))) {
        properties.push(("TasksMax", Value::U64(pids)));
    }
    let weight = resources.block_io().as_ref().and_then(|block_io| block_io.weight());
    if let Some(weight) = weight.filter(|weight| *weight != 0 && !unified) {
        properties.push(("BlockIOWeight", Value::U64(weight.into())));
    }
    if let Some(files) = resources.unified() {
        of_files(files, &mut properties)?;
    }
    Ok(properties)
}

/// Go's zero is "not given", and a negative number "unlimited".
fn limit(value: Option<i64>) -> Option<u64> {
    value.filter(|value| *value != 0).map(|value| u64::try_from(value).unwrap_or(INFINITY))
}

fn of_cpu(cpu: &LinuxCpu, unified: bool, properties: &mut Properties) -> Result<(), CgroupError> {
    match (cpu.idle(), cpu.shares().filter(|shares| *shares != 0)) {
        // systemd's word for SCHED_IDLE.
        (Some(1), _) if unified => properties.push(("CPUWeight", Value::U64(0))),
        (_, Some(shares)) if unified => properties.push(("CPUWeight", Value::U64(shares_to_weight(shares)))),
        (_, Some(shares)) => properties.push(("CPUShares", Value::U64(shares))),
        _ => {}
    }
    let period = cpu.period().filter(|period| *period != 0);
    if let Some(period) = period {
        properties.push(("CPUQuotaPeriodUSec", Value::U64(period)));
    }
    if let Some(quota) = limit(cpu.quota()) {
        properties
            .push(("CPUQuotaPerSecUSec", Value::U64(per_second(quota, period.unwrap_or(DEFAULT_PERIOD)))));
    }
    if unified {
        for (name, list) in [("AllowedCPUs", cpu.cpus()), ("AllowedMemoryNodes", cpu.mems())] {
            if let Some(list) = list.as_deref().filter(|list| !list.trim().is_empty()) {
                properties.push((name, Value::Bytes(mask(list)?)));
            }
        }
    }
    Ok(())
}

/// systemd keeps quotas by the second and in steps of 10 ms; one that lies between is rounded up, so that
/// nobody gets less than was asked for.
fn per_second(quota: u64, period: u64) -> u64 {
    const STEP: u64 = 10_000;
    if quota == INFINITY {
        return INFINITY;
    }
    let exact = u128::from(quota) * 1_000_000 / u128::from(period.max(1));
    u64::try_from(exact).unwrap_or(INFINITY).checked_next_multiple_of(STEP).unwrap_or(INFINITY)
}

fn of_memory(memory: &LinuxMemory, unified: bool, properties: &mut Properties) -> Result<(), CgroupError> {
    let limited = limit(memory.limit());
    if let Some(limit) = limited {
        properties.push((if unified { "MemoryMax" } else { "MemoryLimit" }, Value::U64(limit)));
    }
    if !unified {
        return Ok(());
    }
    if let Some(reservation) = limit(memory.reservation()) {
        properties.push(("MemoryLow", Value::U64(reservation)));
    }
    match (limit(memory.swap()), limited) {
        (Some(INFINITY), _) | (None, Some(INFINITY)) => {
            properties.push(("MemorySwapMax", Value::U64(INFINITY)))
        }
        (Some(total), Some(limit)) => {
            let reason = "it counts memory and swap together, so it is at least memory.limit";
            let swap =
                total.checked_sub(limit).ok_or_else(|| CgroupError::invalid("memory.swap", total, reason))?;
            properties.push(("MemorySwapMax", Value::U64(swap)));
        }
        // Counted from a limit that only the group itself knows.
        (Some(_), None) | (None, _) => {}
    }
    Ok(())
}

/// The files of cgroup2 that are one number and have a property.
const FILES: [(&str, &str); 8] = [
    ("cpu.weight", "CPUWeight"),
    ("memory.high", "MemoryHigh"),
    ("memory.low", "MemoryLow"),
    ("memory.max", "MemoryMax"),
    ("memory.min", "MemoryMin"),
    ("memory.swap.max", "MemorySwapMax"),
    ("memory.zswap.max", "MemoryZSwapMax"),
    ("pids.max", "TasksMax"),
];

/// They override what the other sections say, as they do in the group.
fn of_files(files: &HashMap<String, String>, properties: &mut Properties) -> Result<(), CgroupError> {
    let mut set = |name: &'static str, value: Value| {
        properties.retain(|(other, _)| *other != name);
        properties.push((name, value));
    };
    for (file, name) in FILES {
        let value = files.get(file).map(|value| value.trim());
        match value {
            Some("max") => set(name, Value::U64(INFINITY)),
            Some(number) => {
                let number = number.parse().map_err(|_| {
                    CgroupError::invalid("unified", format!("{file}={number}"), "it is a number or max")
                })?;
                set(name, Value::U64(number));
            }
            None => {}
        }
    }
    for (file, name) in [("cpuset.cpus", "AllowedCPUs"), ("cpuset.mems", "AllowedMemoryNodes")] {
        if let Some(list) = files.get(file) {
            set(name, Value::Bytes(mask(list)?));
        }
    }
    Ok(())
}

/// `0-2,7` as bits, the lowest first.
fn mask(list: &str) -> Result<Vec<u8>, CgroupError> {
    /// More CPUs than any kernel is built for.
    const LIMIT: usize = 1 << 16;
    let invalid = || CgroupError::invalid("cpuset", list, "it is a list of numbers and ranges, like 0-2,7");
    let mut mask = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|number| *number < LIMIT);
        let (first, last) =
            number(first).zip(number(last)).filter(|(first, last)| first <= last).ok_or_else(invalid)?;
        if mask.len() <= last / 8 {
            mask.resize(last / 8 + 1, 0);
        }
        for bit in first..=last {
            if let Some(byte) = mask.get_mut(bit / 8) {
                *byte |= 1 << (bit % 8);
            }
        }
    }
    Ok(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(json: &str, unified: bool) -> Properties {
        let mut properties = of(&serde_json::from_str(json).unwrap(), unified).unwrap();
        properties.sort_by_key(|(name, _)| *name);
        properties
    }

    #[test]
    fn limits_of_both_versions() {
        let json = r#"{"cpu": {"shares": 1024, "quota": 15000, "period": 100000, "cpus": "0-2,9"},
                       "memory": {"limit": 1000, "swap": 1500, "reservation": 10}, "pids": {"limit": -1},
                       "blockIO": {"weight": 300}}"#;
        assert_eq!(
            properties(json, true),
            [
                ("AllowedCPUs", Value::Bytes(vec![0b111, 0b10])),
                ("CPUQuotaPerSecUSec", Value::U64(150_000)),
                ("CPUQuotaPeriodUSec", Value::U64(100_000)),
                ("CPUWeight", Value::U64(100)),
                ("MemoryLow", Value::U64(10)),
                ("MemoryMax", Value::U64(1000)),
                ("MemorySwapMax", Value::U64(500)),
                ("TasksMax", Value::U64(INFINITY)),
            ]
        );
        assert_eq!(
            properties(json, false),
            [
                ("BlockIOWeight", Value::U64(300)),
                ("CPUQuotaPerSecUSec", Value::U64(150_000)),
                ("CPUQuotaPeriodUSec", Value::U64(100_000)),
                ("CPUShares", Value::U64(1024)),
                ("MemoryLimit", Value::U64(1000)),
                ("TasksMax", Value::U64(INFINITY)),
            ]
        );
    }

    #[test]
    fn files_are_the_more_specific_request() {
        let json = r#"{"memory": {"limit": 1000}, "unified": {"memory.max": "max", "memory.high": "7", "io.max": "8:0 x"}}"#;
        assert_eq!(
            properties(json, true),
            [("MemoryHigh", Value::U64(7)), ("MemoryMax", Value::U64(INFINITY))]
        );
        assert_eq!(properties(r#"{"cpu": {"idle": 1, "shares": 5}}"#, true), [("CPUWeight", Value::U64(0))]);
    }

    #[test]
    fn edges() {
        assert_eq!(per_second(1, 1_000_000), 10_000);
        assert_eq!(per_second(10_001, 1_000_000), 20_000);
        assert_eq!(per_second(u64::MAX - 1, 1), INFINITY);
        assert_eq!(per_second(INFINITY, 100_000), INFINITY);
        for list in ["", "x", "2-1", "1-", "0,,1", "99999999", "-1"] {
            assert!(mask(list).is_err(), "{list:?}");
        }
        assert_eq!(mask("7").unwrap(), [0x80]);
        let swap = serde_json::from_str(r#"{"memory": {"limit": 10, "swap": 9}}"#).unwrap();
        assert!(of(&swap, true).is_err());
    }
}
