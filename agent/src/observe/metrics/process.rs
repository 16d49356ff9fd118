//! `kata_agent_*`: the worker as a process, since it is the agent that hosts mean.

use std::collections::HashMap;

use rustjail::procfs::Stat;

use super::{
    super::procfs::keyed,
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

/// Items of `kata_agent_proc_stat` and their fields in proc_pid_stat(5).
const STAT: [(&str, usize); 4] = [("utime", 14), ("stime", 15), ("cutime", 16), ("cstime", 17)];

pub(super) fn write(out: &mut Exposition, scrapes: u64) {
    let status = read("/proc/self/status");
    let status: HashMap<&str, u64> = keyed(&status).collect();
    let status = |key: &str| status.get(key).copied().unwrap_or(0);
    let stat = Stat::own().ok();
    let field = |number| stat.as_ref().and_then(|stat| stat.field(number)).unwrap_or(0);

    out.family("kata_agent_scrape_count", Kind::Counter, "Metrics scrape count").sample(&[], scrapes);
    out.family("kata_agent_threads", Kind::Gauge, "Agent process threads").sample(&[], status("Threads"));
    let seconds = (field(14) + field(15)) as f64 / TICKS_PER_SECOND as f64;
    out.family("kata_agent_total_time", Kind::Gauge, "Agent process total time").sample(&[], seconds);
    out.family("kata_agent_total_vm", Kind::Gauge, "Agent process total VM size").sample(&[], field(23));
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
    for (item, number) in STAT {
        family.sample(&[("item", item)], field(number));
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::{
        resource::{UsageWho, getrusage},
        time::TimeVal,
    };

    use super::*;

    #[test]
    fn the_figures_are_those_of_this_process() {
        let used = || {
            let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
            let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
            seconds(usage.user_time()) + seconds(usage.system_time())
        };
        let begin = used();
        while used() < begin + 0.2 {}
        let mut out = Exposition::default();
        let before = used();
        write(&mut out, 1);
        let after = used();
        let text = out.finish();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
        };
        let time = value("kata_agent_total_time");
        // Each of its two parts is in whole ticks.
        let tick = 1.0 / TICKS_PER_SECOND as f64;
        assert!((before - 3.0 * tick..after + 3.0 * tick).contains(&time), "{before} {time} {after}");
        let shown = value("kata_agent_proc_status{item=\"vmsize\"}") * 1024.0;
        let ratio = value("kata_agent_total_vm") / shown;
        assert!((0.8..1.25).contains(&ratio), "{ratio}");
    }
}
