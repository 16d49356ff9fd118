//! A container's statistics as runc's `events` shows them.
//!
//! The names are those of runc's types, which containerd's and others' parsers expect; what is 0 is left out
//! where runc leaves it out. What runc does not show (`rdma`, a `limit` of huge pages, bursts of a quota and
//! OOM kills) has names of its own, which those parsers pass over.

use rustjail::cgroup::{
    BlockIoEntry, BlockIoStats, CpuStats, HugetlbStats, MemoryStats, MemoryUsage, PidsStats, Pressure,
    RdmaStats, RdmaUsage, Stall, Stats,
};
use serde_json::{Map, Value, json};

/// The `data` of a `stats` event.
pub fn document(stats: &Stats) -> Value {
    let hugetlb: Map<_, _> =
        stats.hugetlb.iter().map(|(size, pages)| (size.clone(), huge_pages(pages))).collect();
    let rdma: Map<_, _> = stats.rdma.iter().map(|(device, usage)| (device.clone(), rdma(usage))).collect();
    let mut document = json!({
        "cpu": stats.cpu.as_ref().map_or_else(|| json!({"usage": {}, "throttling": {}}), cpu),
        "cpuset": {},
        "memory": stats.memory.as_ref().map_or_else(|| json!({}), memory),
        "pids": stats.pids.as_ref().map_or_else(|| json!({}), pids),
        "blkio": stats.block_io.as_ref().map_or_else(|| json!({}), block_io),
        "hugetlb": hugetlb,
        "intel_rdt": {},
        "network_interfaces": null,
    });
    add(&mut document, "rdma", (!rdma.is_empty()).then(|| rdma.into()));
    document
}

fn cpu(cpu: &CpuStats) -> Value {
    let mut usage = json!({"total": cpu.usage, "kernel": cpu.system, "user": cpu.user});
    for (name, times) in
        [("percpu", &cpu.per_cpu), ("percpu_kernel", &cpu.per_cpu_system), ("percpu_user", &cpu.per_cpu_user)]
    {
        add(&mut usage, name, (!times.is_empty()).then(|| times.clone().into()));
    }
    let throttling = set([
        ("periods", cpu.periods),
        ("throttledPeriods", cpu.throttled_periods),
        ("throttledTime", cpu.throttled),
        ("burstPeriods", cpu.bursts),
        ("burstTime", cpu.burst),
    ]);
    let mut document = json!({"usage": usage, "throttling": throttling});
    add(&mut document, "psi", cpu.pressure.as_ref().map(pressure));
    document
}

fn memory(memory: &MemoryStats) -> Value {
    let mut document = json!({
        "cache": memory.cache,
        "usage": usage(memory.memory),
        "swap": usage(memory.with_swap),
        "kernel": usage(memory.kernel),
        "kernelTCP": usage(memory.kernel_tcp),
        "raw": memory.detail,
        "event_count": {"oom_kill": memory.oom_kills},
    });
    add(&mut document, "psi", memory.pressure.as_ref().map(pressure));
    document
}

fn usage(usage: MemoryUsage) -> Value {
    json!({"limit": usage.limit, "usage": usage.usage, "max": usage.max_usage, "failcnt": usage.failures})
}

fn pids(pids: &PidsStats) -> Value {
    set([("current", pids.current), ("limit", limit(pids.limit)), ("failcnt", pids.failures)])
}

fn block_io(stats: &BlockIoStats) -> Value {
    let mut document = json!({});
    for (name, entries) in [
        ("ioServiceBytesRecursive", &stats.bytes),
        ("ioServicedRecursive", &stats.requests),
        ("ioQueueRecursive", &stats.queued),
        ("ioServiceTimeRecursive", &stats.service_time),
        ("ioWaitTimeRecursive", &stats.wait_time),
        ("ioMergedRecursive", &stats.merged),
        ("ioTimeRecursive", &stats.time),
        ("sectorsRecursive", &stats.sectors),
    ] {
        let list = || entries.iter().map(entry).collect();
        add(&mut document, name, (!entries.is_empty()).then(list));
    }
    add(&mut document, "psi", stats.pressure.as_ref().map(pressure));
    document
}

fn entry(entry: &BlockIoEntry) -> Value {
    let mut document = json!({"major": entry.major, "minor": entry.minor, "value": entry.value});
    let operation = Some(&entry.operation).filter(|operation| !operation.is_empty());
    add(&mut document, "op", operation.map(|operation| operation.clone().into()));
    document
}

fn huge_pages(pages: &HugetlbStats) -> Value {
    let mut document = set([
        ("usage", pages.usage),
        ("max", pages.max_usage),
        ("limit", limit(pages.limit)),
        ("reserved", pages.reserved),
    ]);
    add(&mut document, "failcnt", Some(pages.failures.into()));
    document
}

fn rdma(device: &RdmaStats) -> Value {
    let usage =
        |usage: RdmaUsage| set([("handles", limit(usage.handles)), ("objects", limit(usage.objects))]);
    json!({"current": usage(device.current), "limit": usage(device.limit)})
}

fn pressure(pressure: &Pressure) -> Value {
    let stall = |stall: Stall| json!({"avg10": stall.avg10, "avg60": stall.avg60, "avg300": stall.avg300, "total": stall.total});
    json!({"some": stall(pressure.some), "full": stall(pressure.full)})
}

/// runc has 0 for a limit that is none, and then leaves it out.
fn limit(limit: u64) -> u64 {
    if limit == u64::MAX { 0 } else { limit }
}

fn set<const N: usize>(numbers: [(&str, u64); N]) -> Value {
    let present = numbers.into_iter().filter(|(_, number)| *number != 0);
    present.map(|(name, number)| (name.to_owned(), Value::from(number))).collect::<Map<_, _>>().into()
}

fn add(document: &mut Value, name: &str, value: Option<Value>) {
    if let (Value::Object(object), Some(value)) = (document, value) {
        object.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_its_name() {
        let entry = BlockIoEntry { major: 8, minor: 1, operation: "Read".into(), value: 9 };
        let some = Stall { avg10: 0.5, total: 7, ..Stall::default() };
        let pressure = Some(Pressure { some, ..Pressure::default() });
        let stats = Stats {
            cpu: Some(CpuStats { per_cpu_user: vec![1], bursts: 2, pressure, ..CpuStats::default() }),
            memory: Some(MemoryStats { oom_kills: 3, pressure, ..MemoryStats::default() }),
            pids: Some(PidsStats { current: 4, limit: u64::MAX, failures: 0 }),
            block_io: Some(BlockIoStats {
                queued: vec![entry.clone()],
                sectors: vec![BlockIoEntry { operation: String::new(), ..entry }],
                pressure,
                ..BlockIoStats::default()
            }),
            hugetlb: [("2MB".to_owned(), HugetlbStats { limit: 5, ..HugetlbStats::default() })].into(),
            rdma: [("mlx5_0".to_owned(), RdmaStats::default())].into(),
        };
        let shown = document(&stats);
        let none = json!({"avg10": 0.0, "avg60": 0.0, "avg300": 0.0, "total": 0});
        let psi = json!({"some": {"avg10": 0.5, "avg60": 0.0, "avg300": 0.0, "total": 7}, "full": none});
        for (pointer, value) in [
            ("/cpu/usage/percpu_user", json!([1])),
            ("/cpu/throttling", json!({"burstPeriods": 2})),
            ("/cpu/psi", psi.clone()),
            ("/memory/psi", psi.clone()),
            ("/memory/event_count", json!({"oom_kill": 3})),
            ("/pids", json!({"current": 4})),
            ("/blkio/ioQueueRecursive/0", json!({"major": 8, "minor": 1, "op": "Read", "value": 9})),
            ("/blkio/sectorsRecursive/0", json!({"major": 8, "minor": 1, "value": 9})),
            ("/blkio/psi", psi),
            ("/hugetlb/2MB", json!({"limit": 5, "failcnt": 0})),
            ("/rdma/mlx5_0", json!({"current": {}, "limit": {}})),
        ] {
            assert_eq!(shown.pointer(pointer), Some(&value), "{pointer}");
        }
        assert_eq!(document(&Stats::default())["memory"], json!({}));
    }
}
