//! `kata_guest_*`: the machine.

use std::collections::{HashMap, HashSet};

use nix::sys::statvfs::statvfs;

use super::{
    super::procfs::{INTERFACE_COLUMNS, interfaces, keyed, numbers},
    MOST,
    process::TICKS_PER_SECOND,
    read,
    text::{Exposition, Kind},
};

const CPU: [&str; 10] =
    ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice"];

/// The columns of /proc/diskstats after the name.
const DISK: [&str; 17] = [
    "reads",
    "merged",
    "sectors_read",
    "time_reading",
    "writes",
    "writes_merged",
    "sectors_written",
    "time_writing",
    "in_progress",
    "time_in_progress",
    "weighted_time_in_progress",
    "discards",
    "discards_merged",
    "sectors_discarded",
    "time_discarding",
    "flushes",
    "time_flushing",
];

/// Items of `kata_guest_meminfo` and the lines of /proc/meminfo they are.
const MEMORY: [(&str, &str); 58] = [
    ("mem_total", "MemTotal"),
    ("mem_free", "MemFree"),
    ("mem_available", "MemAvailable"),
    ("buffers", "Buffers"),
    ("cached", "Cached"),
    ("swap_cached", "SwapCached"),
    ("active", "Active"),
    ("inactive", "Inactive"),
    ("active_anon", "Active(anon)"),
    ("inactive_anon", "Inactive(anon)"),
    ("active_file", "Active(file)"),
    ("inactive_file", "Inactive(file)"),
    ("unevictable", "Unevictable"),
    ("mlocked", "Mlocked"),
    ("high_total", "HighTotal"),
    ("high_free", "HighFree"),
    ("low_total", "LowTotal"),
    ("low_free", "LowFree"),
    ("mmap_copy", "MmapCopy"),
    ("swap_total", "SwapTotal"),
    ("swap_free", "SwapFree"),
    ("dirty", "Dirty"),
    ("writeback", "Writeback"),
    ("anon_pages", "AnonPages"),
    ("mapped", "Mapped"),
    ("shmem", "Shmem"),
    ("slab", "Slab"),
    ("s_reclaimable", "SReclaimable"),
    ("s_unreclaim", "SUnreclaim"),
    ("kernel_stack", "KernelStack"),
    ("page_tables", "PageTables"),
    ("quicklists", "Quicklists"),
    ("nfs_unstable", "NFS_Unstable"),
    ("bounce", "Bounce"),
    ("writeback_tmp", "WritebackTmp"),
    ("commit_limit", "CommitLimit"),
    ("committed_as", "Committed_AS"),
    ("vmalloc_total", "VmallocTotal"),
    ("vmalloc_used", "VmallocUsed"),
    ("vmalloc_chunk", "VmallocChunk"),
    ("hardware_corrupted", "HardwareCorrupted"),
    ("anon_hugepages", "AnonHugePages"),
    ("shmem_hugepages", "ShmemHugePages"),
    ("shmem_pmd_mapped", "ShmemPmdMapped"),
    ("cma_total", "CmaTotal"),
    ("cma_free", "CmaFree"),
    ("hugepages_total", "HugePages_Total"),
    ("hugepages_free", "HugePages_Free"),
    ("hugepages_rsvd", "HugePages_Rsvd"),
    ("hugepages_surp", "HugePages_Surp"),
    ("hugepagesize", "Hugepagesize"),
    ("hugetlb", "Hugetlb"),
    ("per_cpu", "Percpu"),
    ("direct_map_4k", "DirectMap4k"),
    ("direct_map_4M", "DirectMap4M"),
    ("direct_map_2M", "DirectMap2M"),
    ("direct_map_1G", "DirectMap1G"),
    ("k_reclaimable", "KReclaimable"),
];

/// File systems that hold data of the guest's own.
const FILE_SYSTEMS: [&str; 5] = ["ext4", "xfs", "btrfs", "vfat", "overlay"];

pub(super) fn write(out: &mut Exposition) {
    load(out);
    cpu(out);
    network(out);
    disks(out);
    let mut family = out.family("kata_guest_vm_stat", Kind::Gauge, "Guest virtual memory statistics.");
    for (item, value) in keyed(&read("/proc/vmstat")) {
        family.sample(&[("item", item)], value);
    }
    memory(out);
    file_systems(out);
}

/// `0.01 0.05 0.00 1/98 1234`: three averages, and running/existing tasks.
fn load(out: &mut Exposition) {
    let text = read("/proc/loadavg");
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let mut family = out.family("kata_guest_load", Kind::Gauge, "Guest system load.");
    for (index, item) in ["load1", "load5", "load15"].into_iter().enumerate() {
        let load: f64 = words.get(index).and_then(|word| word.parse().ok()).unwrap_or(0.0);
        family.sample(&[("item", item)], load);
    }
    let tasks = words.get(3).and_then(|word| word.split_once('/')).unwrap_or_default();
    let mut family = out.family("kata_guest_tasks", Kind::Gauge, "Guest tasks: running and existing ones.");
    for (item, word) in [("cur", tasks.0), ("max", tasks.1)] {
        family.sample(&[("item", item)], word.parse::<u64>().unwrap_or(0));
    }
}

/// Milliseconds, for the sum of all CPUs ("total") and for each by its index.
fn cpu(out: &mut Exposition) {
    let text = read("/proc/stat");
    let mut family = out.family("kata_guest_cpu_time", Kind::Gauge, "Guest CPU statistics.");
    for (cpu, line) in text.lines().filter_map(|line| line.strip_prefix("cpu")?.split_once(' ')) {
        let cpu = if cpu.is_empty() { "total" } else { cpu };
        for (item, ticks) in CPU.into_iter().zip(numbers(line)) {
            family.sample(&[("cpu", cpu), ("item", item)], ticks.saturating_mul(1000 / TICKS_PER_SECOND));
        }
    }
}

fn network(out: &mut Exposition) {
    let text = read("/proc/thread-self/net/dev");
    let mut family = out.family("kata_guest_netdev_stat", Kind::Gauge, "Guest net devices statistics.");
    for interface in interfaces(&text).into_iter().take(MOST) {
        for (item, value) in INTERFACE_COLUMNS.into_iter().zip(interface.counters) {
            family.sample(&[("interface", &interface.name), ("item", item)], value);
        }
    }
}

fn disks(out: &mut Exposition) {
    let text = read("/proc/diskstats");
    let mut family = out.family("kata_guest_diskstat", Kind::Gauge, "Guest disk statistics.");
    for line in text.lines().take(MOST) {
        let mut words = line.split_ascii_whitespace().skip(2);
        let Some(disk) = words.next() else { continue };
        for item in DISK {
            // Discards and flushes came with Linux 4.18 and 5.5.
            let value: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            family.sample(&[("disk", disk), ("item", item)], value);
        }
    }
}

/// Bytes, but for the numbers of huge pages.
fn memory(out: &mut Exposition) {
    let text = read("/proc/meminfo");
    let lines: HashMap<&str, u64> = keyed(&text).collect();
    let mut family =
        out.family("kata_guest_meminfo", Kind::Gauge, "Statistics about memory usage in the system.");
    for (item, key) in MEMORY {
        let unit = if key.starts_with("HugePages_") { 1 } else { 1024 };
        family.sample(&[("item", item)], lines.get(key).copied().unwrap_or(0).saturating_mul(unit));
    }
}

struct FileSystem {
    device: String,
    mount: String,
    bytes: [u64; 3],
    inodes: [u64; 3],
}

fn file_systems(out: &mut Exposition) {
    let all = writable_file_systems(&read("/proc/self/mounts"));
    for (name, help, figures) in [
        (
            "kata_guest_filesystem_bytes",
            "Guest filesystem size in bytes.",
            (|it| it.bytes) as fn(&FileSystem) -> [u64; 3],
        ),
        ("kata_guest_filesystem_inodes", "Guest filesystem inodes.", |it| it.inodes),
    ] {
        let mut family = out.family(name, Kind::Gauge, help);
        for it in &all {
            for (item, value) in ["total", "used", "available"].into_iter().zip(figures(it)) {
                family.sample(&[("mount", &it.mount), ("device", &it.device), ("item", item)], value);
            }
        }
    }
}

/// The first mount of each device.
fn writable_file_systems(mounts: &str) -> Vec<FileSystem> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for line in mounts.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let &[device, mount, kind, options, ..] = words.as_slice() else { continue };
        let writable = options.split(',').any(|option| option == "rw");
        if !FILE_SYSTEMS.contains(&kind) || !writable || found.len() == MOST || !seen.insert(device) {
            continue;
        }
        let mount = unescape(mount);
        let Ok(figures) = statvfs(mount.as_str()) else { continue };
        let of = |total: u64, free: u64, available: u64, unit: u64| {
            [total, total.saturating_sub(free), available].map(|count| count.saturating_mul(unit))
        };
        found.push(FileSystem {
            device: unescape(device),
            mount,
            bytes: of(
                figures.blocks(),
                figures.blocks_free(),
                figures.blocks_available(),
                figures.fragment_size(),
            ),
            inodes: of(figures.files(), figures.files_free(), figures.files_available(), 1),
        });
    }
    found
}

/// The kernel writes space, tab, line feed and backslash of a path as octal escapes.
fn unescape(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.into_iter().fold(text.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mount_of_each_writable_device_is_told() {
        let mounts = "dev1 / ext4 rw,relatime 0 0\ndev1 /tmp ext4 rw 0 0\ndev2 /proc xfs ro 0 0\n\
                      tmpfs /run tmpfs rw 0 0\ndev3 /no\\040where ext4 rw 0 0\nbroken\n";
        let found = writable_file_systems(mounts);
        let [root] = found.as_slice() else { panic!("{} file systems", found.len()) };
        assert_eq!((root.device.as_str(), root.mount.as_str()), ("dev1", "/"));
        assert!(root.bytes[0] >= root.bytes[1] && root.bytes[0] > 0);
        assert_eq!(unescape("a\\040b\\134"), "a b\\");
    }

    #[test]
    fn every_item_that_hosts_scrape_is_there() {
        let mut out = Exposition::default();
        write(&mut out);
        let text = out.finish();
        for sample in [
            "kata_guest_load{item=\"load15\"}",
            "kata_guest_tasks{item=\"max\"}",
            "kata_guest_cpu_time{cpu=\"total\",item=\"guest_nice\"}",
            "kata_guest_cpu_time{cpu=\"0\",item=\"user\"}",
            "kata_guest_netdev_stat{interface=\"lo\",item=\"sent_carrier\"}",
            "kata_guest_vm_stat{item=\"nr_free_pages\"}",
            "kata_guest_meminfo{item=\"mem_total\"}",
            "kata_guest_meminfo{item=\"direct_map_4M\"}",
            "kata_guest_filesystem_bytes{mount=\"/\"",
        ] {
            assert!(text.contains(sample), "{sample}");
        }
    }
}
