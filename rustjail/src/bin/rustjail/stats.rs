//! A container's statistics as runc's `events` shows them.
//!
//! The names are those of runc's types, which containerd's and others' parsers expect; what is 0 is left out
//! where runc leaves it out.

use rustjail::cgroup::{BlockIoEntry, CpuStats, MemoryStats, MemoryUsage, Stats};
use serde_json::{Map, Value, json};

/// The `data` of a `stats` event.
pub fn document(stats: &Stats) -> Value {
    let hugetlb: Map<String, Value> = stats
        .hugetlb
        .iter()
        .map(|(size, pages)| {
            (size.clone(), json!({"usage": pages.usage, "max": pages.max_usage, "failcnt": pages.failures}))
        })
        .collect();
    json!({
        "cpu": stats.cpu.as_ref().map_or_else(|| json!({"usage": {}, "throttling": {}}), cpu),
        "cpuset": {},
        "memory": stats.memory.as_ref().map_or_else(|| json!({}), memory),
        "pids": stats.pids.map_or_else(|| json!({}), |pids| {
            set([("current", pids.current), ("limit", limit(pids.limit))])
        }),
        "blkio": stats.block_io.as_ref().map_or_else(|| json!({}), |block_io| {
            let mut lists = Map::new();
            for (name, entries) in [
                ("ioServiceBytesRecursive", &block_io.bytes),
                ("ioServicedRecursive", &block_io.requests),
            ] {
                if !entries.is_empty() {
                    lists.insert(name.into(), entries.iter().map(entry).collect());
                }
            }
            lists.into()
        }),
        "hugetlb": hugetlb,
        "intel_rdt": {},
        "network_interfaces": null,
    })
}

fn cpu(cpu: &CpuStats) -> Value {
    let mut usage = json!({"total": cpu.usage, "kernel": cpu.system, "user": cpu.user});
    if let (false, Value::Object(usage)) = (cpu.per_cpu.is_empty(), &mut usage) {
        usage.insert("percpu".into(), cpu.per_cpu.clone().into());
    }
    let throttling = set([
        ("periods", cpu.periods),
        ("throttledPeriods", cpu.throttled_periods),
        ("throttledTime", cpu.throttled),
    ]);
    json!({"usage": usage, "throttling": throttling})
}

fn memory(memory: &MemoryStats) -> Value {
    json!({
        "cache": memory.cache,
        "usage": usage(memory.memory),
        "swap": usage(memory.with_swap),
        "kernel": usage(memory.kernel),
        "kernelTCP": {"limit": 0, "failcnt": 0},
        "raw": memory.detail,
    })
}

fn usage(usage: MemoryUsage) -> Value {
    json!({"limit": usage.limit, "usage": usage.usage, "max": usage.max_usage, "failcnt": usage.failures})
}

fn entry(entry: &BlockIoEntry) -> Value {
    json!({"major": entry.major, "minor": entry.minor, "op": entry.operation, "value": entry.value})
}

/// runc has 0 for a limit that is none, and then leaves it out.
fn limit(limit: u64) -> u64 {
    if limit == u64::MAX { 0 } else { limit }
}

fn set<const N: usize>(numbers: [(&str, u64); N]) -> Value {
    let present = numbers.into_iter().filter(|(_, number)| *number != 0);
    present.map(|(name, number)| (name.to_owned(), Value::from(number))).collect::<Map<_, _>>().into()
}
