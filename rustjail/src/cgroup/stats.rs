//! What a group used. Both versions give the same structure; a part is `None` where no hierarchy accounts
//! for it, and each file is read once. Unlimited is `u64::MAX` on v2 and the kernel's own huge number on v1.

use std::collections::{BTreeMap, HashMap};

use super::{Cgroup, CgroupError, Controller, dir::Dir, parse};

/// A group's use of resources, with that of the groups below it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// CPU time.
    pub cpu: Option<CpuStats>,
    /// Memory and swap.
    pub memory: Option<MemoryStats>,
    /// Tasks.
    pub pids: Option<PidsStats>,
    /// Block devices.
    pub block_io: Option<BlockIoStats>,
    /// Huge pages, by size ("2MB").
    pub hugetlb: BTreeMap<String, HugetlbStats>,
}

/// CPU time, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuStats {
    /// All of it.
    pub usage: u64,
    /// In user mode.
    pub user: u64,
    /// In the kernel.
    pub system: u64,
    /// For each CPU; v2 does not say.
    pub per_cpu: Vec<u64>,
    /// Bandwidth periods that passed.
    pub periods: u64,
    /// Those in which the quota ran out.
    pub throttled_periods: u64,
    /// Time spent waiting because it had.
    pub throttled: u64,
}

/// A memory counter, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryUsage {
    /// In use.
    pub usage: u64,
    /// The most that was in use, as far as the kernel kept it.
    pub max_usage: u64,
    /// The limit.
    pub limit: u64,
    /// How often the limit was hit.
    pub failures: u64,
}

/// Memory and swap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryStats {
    /// Memory.
    pub memory: MemoryUsage,
    /// Memory and swap together.
    pub with_swap: MemoryUsage,
    /// The part that is kernel memory.
    pub kernel: MemoryUsage,
    /// The part that is page cache.
    pub cache: u64,
    /// The whole of `memory.stat`, with the kernel's names.
    pub detail: HashMap<String, u64>,
}

/// Tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PidsStats {
    /// There are.
    pub current: u64,
    /// There may be.
    pub limit: u64,
}

/// A number for one device and operation ("Read", "Write", "Discard" ...).
#[derive(Clone, Debug, PartialEq)]
pub struct BlockIoEntry {
    /// Major device number.
    pub major: u64,
    /// Minor device number.
    pub minor: u64,
    /// What was done.
    pub operation: String,
    /// How much, or how often.
    pub value: u64,
}

/// Block devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockIoStats {
    /// Bytes moved.
    pub bytes: Vec<BlockIoEntry>,
    /// Requests made.
    pub requests: Vec<BlockIoEntry>,
}

/// Huge pages of one size, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HugetlbStats {
    /// In use.
    pub usage: u64,
    /// The most that was in use; v2 does not say.
    pub max_usage: u64,
    /// How often the limit was hit.
    pub failures: u64,
}

impl Cgroup {
    /// What the group used until now.
    pub fn stats(&self) -> Result<Stats, CgroupError> {
        Ok(Stats {
            cpu: self.cpu_stats()?,
            memory: match self.find("memory") {
                Some(Controller::V1(dir)) => Some(memory_v1(dir)?),
                Some(Controller::V2(dir)) => Some(memory_v2(dir)?),
                None => None,
            },
            pids: match self.find("pids") {
                Some(controller) => {
                    let dir = controller.dir();
                    Some(PidsStats { current: number(dir, "pids.current")?, limit: number(dir, "pids.max")? })
                }
                None => None,
            },
            block_io: match (self.find("io"), self.find("blkio")) {
                (Some(controller), _) => Some(io_stat(&text(controller.dir(), "io.stat")?)),
                (_, Some(controller)) => Some(blkio(controller.dir())?),
                (None, None) => None,
            },
            hugetlb: self.hugetlb_stats()?,
        })
    }

    /// On v1 time is one controller's and throttling another's. `cpu.stat` of cgroup2 gives time without
    /// any controller, so a hybrid without cpuacct uses that.
    fn cpu_stats(&self) -> Result<Option<CpuStats>, CgroupError> {
        let mut cpu = match (self.find("cpuacct"), &self.unified) {
            (Some(controller), _) => cpuacct(controller.dir())?,
            (None, Some(unified)) => cpu_stat(&text(unified.dir(), "cpu.stat")?),
            (None, None) => CpuStats::default(),
        };
        if let Some(Controller::V1(dir)) = self.find("cpu") {
            let throttling = text(dir, "cpu.stat")?;
            cpu.periods = parse::keyed(&throttling, "nr_periods").unwrap_or(0);
            cpu.throttled_periods = parse::keyed(&throttling, "nr_throttled").unwrap_or(0);
            cpu.throttled = parse::keyed(&throttling, "throttled_time").unwrap_or(0);
        } else if self.find("cpuacct").is_none() && self.unified.is_none() {
            return Ok(None);
        }
        Ok(Some(cpu))
    }

    fn hugetlb_stats(&self) -> Result<BTreeMap<String, HugetlbStats>, CgroupError> {
        let mut sizes = BTreeMap::new();
        let Some(controller) = self.find("hugetlb") else {
            return Ok(sizes);
        };
        let dir = controller.dir();
        // The sizes are the machine's; only the names of the files tell them.
        let end = match controller {
            Controller::V1(_) => ".usage_in_bytes",
            Controller::V2(_) => ".current",
        };
        for file in dir.files()? {
            let size = file.to_str().and_then(|file| file.strip_prefix("hugetlb.")?.strip_suffix(end));
            let Some(size) = size.filter(|size| !size.contains('.')) else {
                continue;
            };
            let of = |what: &str| format!("hugetlb.{size}.{what}");
            let stats = match controller {
                Controller::V1(_) => HugetlbStats {
                    usage: number(dir, &of("usage_in_bytes"))?,
                    max_usage: number(dir, &of("max_usage_in_bytes"))?,
                    failures: number(dir, &of("failcnt"))?,
                },
                Controller::V2(_) => HugetlbStats {
                    usage: number(dir, &of("current"))?,
                    max_usage: 0,
                    failures: parse::keyed(&text(dir, &of("events"))?, "max").unwrap_or(0),
                },
            };
            sizes.insert(size.to_owned(), stats);
        }
        Ok(sizes)
    }
}

/// A file's text, empty where the kernel has no such file.
fn text(dir: &Dir, file: &str) -> Result<String, CgroupError> {
    Ok(dir.read_if_any(file)?.unwrap_or_default())
}

/// A file's number, 0 where the kernel has no such file.
fn number(dir: &Dir, file: &str) -> Result<u64, CgroupError> {
    Ok(parse::number(&text(dir, file)?).unwrap_or(0))
}

fn cpuacct(dir: &Dir) -> Result<CpuStats, CgroupError> {
    Ok(CpuStats {
        usage: number(dir, "cpuacct.usage")?,
        user: number(dir, "cpuacct.usage_user")?,
        system: number(dir, "cpuacct.usage_sys")?,
        per_cpu: parse::list(&text(dir, "cpuacct.usage_percpu")?),
        ..CpuStats::default()
    })
}

fn cpu_stat(text: &str) -> CpuStats {
    let mut cpu = CpuStats::default();
    for (key, value) in parse::flat(text) {
        let nanoseconds = value.saturating_mul(1000);
        match key {
            "usage_usec" => cpu.usage = nanoseconds,
            "user_usec" => cpu.user = nanoseconds,
            "system_usec" => cpu.system = nanoseconds,
            "nr_periods" => cpu.periods = value,
            "nr_throttled" => cpu.throttled_periods = value,
            "throttled_usec" => cpu.throttled = nanoseconds,
            _ => {}
        }
    }
    cpu
}

fn memory_v1(dir: &Dir) -> Result<MemoryStats, CgroupError> {
    let counter = |infix: &str| -> Result<MemoryUsage, CgroupError> {
        Ok(MemoryUsage {
            usage: number(dir, &format!("memory{infix}.usage_in_bytes"))?,
            max_usage: number(dir, &format!("memory{infix}.max_usage_in_bytes"))?,
            limit: number(dir, &format!("memory{infix}.limit_in_bytes"))?,
            failures: number(dir, &format!("memory{infix}.failcnt"))?,
        })
    };
    let detail = parse::map(&text(dir, "memory.stat")?);
    Ok(MemoryStats {
        memory: counter("")?,
        with_swap: counter(".memsw")?,
        kernel: counter(".kmem")?,
        cache: detail.get("total_cache").or(detail.get("cache")).copied().unwrap_or(0),
        detail,
    })
}

fn memory_v2(dir: &Dir) -> Result<MemoryStats, CgroupError> {
    let counter = |name: &str, key: &str| -> Result<MemoryUsage, CgroupError> {
        Ok(MemoryUsage {
            usage: number(dir, &format!("{name}.current"))?,
            max_usage: number(dir, &format!("{name}.peak"))?,
            limit: number(dir, &format!("{name}.max"))?,
            failures: parse::keyed(&text(dir, &format!("{name}.events"))?, key).unwrap_or(0),
        })
    };
    let detail = parse::map(&text(dir, "memory.stat")?);
    let memory = counter("memory", "max")?;
    let swap = counter("memory.swap", "fail")?;
    Ok(MemoryStats {
        memory,
        with_swap: MemoryUsage {
            usage: memory.usage.saturating_add(swap.usage),
            // The two peaks need not have been at the same time, so their sum would be a lie.
            max_usage: 0,
            limit: memory.limit.saturating_add(swap.limit),
            failures: swap.failures,
        },
        kernel: MemoryUsage { usage: detail.get("kernel").copied().unwrap_or(0), ..MemoryUsage::default() },
        cache: detail.get("file").copied().unwrap_or(0),
        detail,
    })
}

fn blkio(dir: &Dir) -> Result<BlockIoStats, CgroupError> {
    // Every request passes the throttling layer; what BFQ scheduled is a part of it.
    Ok(BlockIoStats {
        bytes: blkio_entries(&text(dir, "blkio.throttle.io_service_bytes_recursive")?),
        requests: blkio_entries(&text(dir, "blkio.throttle.io_serviced_recursive")?),
    })
}

/// `8:0 Read 4096`; the last line, `Total 4096`, is of no device.
fn blkio_entries(text: &str) -> Vec<BlockIoEntry> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (major, minor) = parse::device(words.next()?)?;
            let operation = words.next()?.to_owned();
            Some(BlockIoEntry { major, minor, operation, value: words.next()?.parse().ok()? })
        })
        .collect()
}

/// `8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0`.
fn io_stat(text: &str) -> BlockIoStats {
    let mut stats = BlockIoStats::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some((major, minor)) = words.next().and_then(parse::device) else {
            continue;
        };
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let (list, operation) = match key {
                "rbytes" => (&mut stats.bytes, "Read"),
                "wbytes" => (&mut stats.bytes, "Write"),
                "dbytes" => (&mut stats.bytes, "Discard"),
                "rios" => (&mut stats.requests, "Read"),
                "wios" => (&mut stats.requests, "Write"),
                "dios" => (&mut stats.requests, "Discard"),
                _ => continue,
            };
            if let Ok(value) = value.parse() {
                list.push(BlockIoEntry { major, minor, operation: operation.to_owned(), value });
            }
        }
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(operation: &str, value: u64) -> BlockIoEntry {
        BlockIoEntry { major: 8, minor: 0, operation: operation.to_owned(), value }
    }

    #[test]
    fn block_devices_of_both_versions() {
        let v1 = "8:0 Read 4096\n8:0 Write 0\n8:0 Total 4096\nTotal 4096\n";
        assert_eq!(blkio_entries(v1), [entry("Read", 4096), entry("Write", 0), entry("Total", 4096)]);
        let v2 = io_stat("8:0 rbytes=4096 rios=2 wbytes=x cost.usage=3\n8:16\n\n:: rbytes=1\n");
        assert_eq!((v2.bytes, v2.requests), (vec![entry("Read", 4096)], vec![entry("Read", 2)]));
    }

    #[test]
    fn cpu_time_is_in_nanoseconds() {
        let cpu =
            cpu_stat("usage_usec 5\nuser_usec 3\nnr_throttled 2\nthrottled_usec 18446744073709551615\n");
        assert_eq!((cpu.usage, cpu.user, cpu.throttled_periods, cpu.throttled), (5000, 3000, 2, u64::MAX));
    }

    /// Whatever is cut off or damaged, the parsers give what is left.
    #[test]
    fn damaged_files() {
        let text = "8:0 rbytes=4096 wbytes=1 rios=2\n8:0 Read 12\nusage_usec 5\nTotal 3\n";
        for end in 0..=text.len() {
            for damage in [None, Some('\u{fffd}'), Some('\0'), Some('=')] {
                let mut part = text[..end].to_owned();
                part.extend(damage);
                let _ = (blkio_entries(&part), io_stat(&part), cpu_stat(&part));
            }
        }
        let huge = "8:0 rbytes=1\n".repeat(100_000);
        assert_eq!(io_stat(&huge).bytes.len(), 100_000);
    }
}
