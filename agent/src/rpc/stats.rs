//! Statistics as the wire has them.

use berth_protocols::agent as wire;
use rustjail::cgroup::{
    BlockIoEntry, BlockIoStats, CpuStats, HugetlbStats, MemoryStats, MemoryUsage, PidsStats,
};

use crate::{observe::procfs::Interface, sandbox::ContainerStats};

/// From here on a v1 limit is the kernel's way to say that there is none: the greatest multiple of any page size
/// in 63 bits.
const UNLIMITED: u64 = (i64::MAX as u64) & !0xffff;

/// The answer to StatsContainer.
pub(super) fn response(stats: ContainerStats) -> wire::StatsContainerResponse {
    let ContainerStats { cgroup, network } = stats;
    let hugetlb = cgroup.hugetlb.into_iter().map(|(size, stats)| (size, hugetlb(stats)));
    wire::StatsContainerResponse {
        cgroup_stats: Some(wire::CgroupStats {
            cpu_stats: Some(cpu(cgroup.cpu.unwrap_or_default())).into(),
            memory_stats: Some(memory(cgroup.memory.unwrap_or_default())).into(),
            pids_stats: Some(pids(cgroup.pids.unwrap_or_default())).into(),
            blkio_stats: Some(block_io(cgroup.block_io.unwrap_or_default())).into(),
            hugetlb_stats: hugetlb.collect(),
            ..Default::default()
        })
        .into(),
        network_stats: network.iter().map(interface).collect(),
        ..Default::default()
    }
}

fn cpu(stats: CpuStats) -> wire::CpuStats {
    wire::CpuStats {
        cpu_usage: Some(wire::CpuUsage {
            total_usage: stats.usage,
            percpu_usage: stats.per_cpu,
            usage_in_kernelmode: stats.system,
            usage_in_usermode: stats.user,
            ..Default::default()
        })
        .into(),
        throttling_data: Some(wire::ThrottlingData {
            periods: stats.periods,
            throttled_periods: stats.throttled_periods,
            throttled_time: stats.throttled,
            ..Default::default()
        })
        .into(),
        ..Default::default()
    }
}

fn memory(stats: MemoryStats) -> wire::MemoryStats {
    wire::MemoryStats {
        cache: stats.cache,
        usage: Some(usage(stats.memory)).into(),
        swap_usage: Some(usage(stats.with_swap)).into(),
        kernel_usage: Some(usage(stats.kernel)).into(),
        use_hierarchy: stats.hierarchical,
        stats: stats.detail,
        ..Default::default()
    }
}

fn usage(usage: MemoryUsage) -> wire::MemoryData {
    wire::MemoryData {
        usage: usage.usage,
        max_usage: usage.max_usage,
        failcnt: usage.failures,
        limit: limit(usage.limit),
        ..Default::default()
    }
}

fn limit(limit: u64) -> u64 {
    if limit >= UNLIMITED { 0 } else { limit }
}

fn pids(stats: PidsStats) -> wire::PidsStats {
    wire::PidsStats { current: stats.current, limit: limit(stats.limit), ..Default::default() }
}

fn block_io(stats: BlockIoStats) -> wire::BlkioStats {
    let entries = |entries: Vec<BlockIoEntry>| entries.into_iter().map(entry).collect();
    wire::BlkioStats {
        io_service_bytes_recursive: entries(stats.bytes),
        io_serviced_recursive: entries(stats.requests),
        io_queued_recursive: entries(stats.queued),
        io_service_time_recursive: entries(stats.service_time),
        io_wait_time_recursive: entries(stats.wait_time),
        io_merged_recursive: entries(stats.merged),
        io_time_recursive: entries(stats.time),
        sectors_recursive: entries(stats.sectors),
        ..Default::default()
    }
}

fn entry(entry: BlockIoEntry) -> wire::BlkioStatsEntry {
    wire::BlkioStatsEntry {
        major: entry.major,
        minor: entry.minor,
        op: entry.operation,
        value: entry.value,
        ..Default::default()
    }
}

fn hugetlb(stats: HugetlbStats) -> wire::HugetlbStats {
    wire::HugetlbStats {
        usage: stats.usage,
        max_usage: stats.max_usage,
        failcnt: stats.failures,
        ..Default::default()
    }
}

fn interface(interface: &Interface) -> wire::NetworkStats {
    wire::NetworkStats {
        name: interface.name.clone(),
        rx_bytes: interface.counter("recv_bytes"),
        rx_packets: interface.counter("recv_packets"),
        rx_errors: interface.counter("recv_errs"),
        rx_dropped: interface.counter("recv_drop"),
        tx_bytes: interface.counter("sent_bytes"),
        tx_packets: interface.counter("sent_packets"),
        tx_errors: interface.counter("sent_errs"),
        tx_dropped: interface.counter("sent_drop"),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_zero_on_both_versions() {
        for unlimited in [u64::MAX, i64::MAX as u64, 9_223_372_036_854_771_712, 9_223_372_036_854_710_272] {
            assert_eq!(limit(unlimited), 0);
        }
        assert_eq!(limit(1 << 40), 1 << 40);
    }

    #[test]
    fn every_field_is_filled() {
        let entry = || BlockIoEntry { major: 8, minor: 1, operation: "Read".into(), value: 9 };
        let usage = |n| MemoryUsage { usage: n, max_usage: n + 1, limit: n + 2, failures: n + 3 };
        let stats = ContainerStats {
            cgroup: rustjail::cgroup::Stats {
                cpu: Some(CpuStats {
                    usage: 1,
                    user: 2,
                    system: 3,
                    per_cpu: vec![4],
                    periods: 5,
                    throttled_periods: 6,
                    throttled: 7,
                    ..Default::default()
                }),
                memory: Some(MemoryStats {
                    memory: usage(10),
                    with_swap: usage(20),
                    kernel: usage(30),
                    cache: 40,
                    hierarchical: true,
                    detail: [("anon".to_owned(), 41)].into(),
                    ..Default::default()
                }),
                pids: Some(PidsStats { current: 2, limit: 17, failures: 0 }),
                block_io: Some(BlockIoStats {
                    bytes: vec![entry()],
                    sectors: vec![entry()],
                    ..Default::default()
                }),
                hugetlb: [(
                    "2MB".to_owned(),
                    HugetlbStats { usage: 1, max_usage: 2, failures: 3, ..Default::default() },
                )]
                .into(),
                ..Default::default()
            },
            network: vec![Interface { name: "eth0".into(), counters: std::array::from_fn(|i| i as u64 + 1) }],
        };
        let response = response(stats);
        let stats = &response.cgroup_stats;
        let cpu = &stats.cpu_stats;
        assert_eq!((cpu.cpu_usage.total_usage, cpu.throttling_data.throttled_time), (1, 7));
        assert_eq!((cpu.cpu_usage.usage_in_usermode, cpu.cpu_usage.usage_in_kernelmode), (2, 3));
        let memory = &stats.memory_stats;
        assert_eq!((memory.usage.usage, memory.usage.limit, memory.usage.failcnt), (10, 12, 13));
        assert_eq!((memory.swap_usage.usage, memory.kernel_usage.max_usage), (20, 31));
        assert_eq!((memory.cache, memory.stats["anon"], memory.use_hierarchy), (40, 41, true));
        assert_eq!((stats.pids_stats.current, stats.pids_stats.limit), (2, 17));
        assert_eq!(stats.blkio_stats.io_service_bytes_recursive[0].value, 9);
        assert_eq!(stats.blkio_stats.sectors_recursive[0].value, 9);
        assert_eq!(stats.hugetlb_stats["2MB"].failcnt, 3);
        let network = &response.network_stats[0];
        assert_eq!((network.name.as_str(), network.rx_bytes, network.rx_dropped), ("eth0", 1, 4));
        assert_eq!((network.tx_bytes, network.tx_errors, network.tx_dropped), (9, 11, 12));
    }
}
