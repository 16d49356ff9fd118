//! `kata_agent_*`: the worker as a process, since it is the agent that hosts mean.

use std::collections::HashMap;

use super::{
    super::procfs::{keyed, stat_fields},
    read,
    text::{Exposition, Kind},
};

/// The kernel counts processor time in hundredths of a second for user space, on every machine we run on.
pub(super) const TICKS_PER_SECOND: u64 = 100;

/// Items of `kata_agent_proc_status` and the lines of /proc/self/status they are.
const STATUS: [(&str, &str); 18] = [
    ("vmpeak", "VmPeak"),
    ("vmsize", "VmSize"),
    ("vmlck", "VmLck"),
    ("vmpin", "VmPin"),
    ("vmhwm", "VmHWM"),
    ("vmrss", "VmRSS"),
    ("rssanon", "RssAnon"),
    ("rssfile", "RssFile"),
    ("rssshmem", "RssShmem"),
    ("vmdata", "VmData"),
    ("vmstk", "VmStk"),
    ("vmexe", "VmExe"),
    ("vmlib", "VmLib"),
    ("vmpte", "VmPTE"),
    ("vmswap", "VmSwap"),
    ("hugetlbpages", "HugetlbPages"),
    ("voluntary_ctxt_switches", "voluntary_ctxt_switches"),
    ("nonvoluntary_ctxt_switches", "nonvoluntary_ctxt_switches"),
];

const IO: [&str; 7] =
    ["rchar", "wchar", "syscr", "syscw", "read_bytes", "write_bytes", "cancelled_write_bytes"];

/// Items of `kata_agent_proc_stat` and where they are in /proc/self/stat, counted from the state.
const STAT: [(&str, usize); 4] = [("utime", 11), ("stime", 12), ("cutime", 13), ("cstime", 14)];

pub(super) fn write(out: &mut Exposition, scrapes: u64) {
    let status = read("/proc/self/status");
    let status: HashMap<&str, u64> = keyed(&status).collect();
    let status = |key: &str| status.get(key).copied().unwrap_or(0);
    let stat = read("/proc/self/stat");
    let fields = stat_fields(&stat);
    let field = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);

    out.family("kata_agent_scrape_count", Kind::Counter, "Metrics scrape count").sample(&[], scrapes);
    out.family("kata_agent_threads", Kind::Gauge, "Agent process threads").sample(&[], status("Threads"));
    let seconds = (field(11) + field(12)) as f64 / TICKS_PER_SECOND as f64;
    out.family("kata_agent_total_time", Kind::Gauge, "Agent process total time").sample(&[], seconds);
    out.family("kata_agent_total_vm", Kind::Gauge, "Agent process total VM size").sample(&[], field(20));
    out.family("kata_agent_total_rss", Kind::Gauge, "Agent process total RSS size")
        .sample(&[], status("VmRSS") * 1024);

    let mut family = out.family("kata_agent_proc_status", Kind::Gauge, "Agent process status.");
    for (item, key) in STATUS {
        family.sample(&[("item", item)], status(key));
    }
    let io = read("/proc/self/io");
    let io: HashMap<&str, u64> = keyed(&io).collect();
    let mut family = out.family("kata_agent_io_stat", Kind::Gauge, "Agent process IO statistics.");
    for item in IO {
        family.sample(&[("item", item)], io.get(item).copied().unwrap_or(0));
    }
    let mut family = out.family("kata_agent_proc_stat", Kind::Gauge, "Agent process statistics.");
    for (item, index) in STAT {
        family.sample(&[("item", item)], field(index));
    }
}
