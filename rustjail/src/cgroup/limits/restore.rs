//! Putting a live group back when one of several limits is refused.
//!
//! The kernel takes limits one file at a time, so an update that fails half-way would leave a container with
//! some of the new limits and some of the old. What the files of the requested controllers held is read
//! first, and written back. Files with a line for each device are not: their lines cannot all be written as
//! they are read, and a device's limits are independent of each other.

use oci_spec::runtime::LinuxResources;

use super::{
    super::{Cgroup, CgroupError, Controller, dir::Dir},
    write_in_any_order,
};

const CPU: [&str; 8] = [
    "cpu.max",
    "cpu.max.burst",
    "cpu.cfs_period_us",
    "cpu.cfs_quota_us",
    "cpu.cfs_burst_us",
    "cpu.rt_period_us",
    "cpu.rt_runtime_us",
    "cpu.idle",
];
/// Refused while a group is idle, so they come after the files above.
const CPU_WEIGHT: [&str; 2] = ["cpu.weight", "cpu.shares"];
const CPUSET: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];
const MEMORY: [&str; 9] = [
    "memory.low",
    "memory.max",
    "memory.swap.max",
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.soft_limit_in_bytes",
    "memory.kmem.tcp.limit_in_bytes",
    "memory.swappiness",
    "memory.oom_control",
];
const PIDS: [&str; 1] = ["pids.max"];

/// What some files of a group held.
pub(super) struct Snapshot<'a>(Vec<Held<'a>>);

/// Files of one directory, with what has to be written to each to have it as it was.
struct Held<'a> {
    dir: &'a Dir,
    files: Vec<(String, String)>,
}

impl<'a> Snapshot<'a> {
    /// Of the files that `resources` can change.
    pub(super) fn take(group: &'a Cgroup, resources: &LinuxResources) -> Self {
        let mut wanted: Vec<(&str, &[&str])> = Vec::new();
        if resources.cpu().is_some() {
            wanted.extend([("cpu", &CPU[..]), ("cpu", &CPU_WEIGHT), ("cpuset", &CPUSET)]);
        }
        if resources.memory().is_some() {
            wanted.push(("memory", &MEMORY));
        }
        if resources.pids().is_some() {
            wanted.push(("pids", &PIDS));
        }
        let mut held = Vec::new();
        for (controller, files) in wanted {
            if let Some(controller) = group.find(controller) {
                held.push(Held::read(controller.dir(), files));
            }
        }
        held.extend(unified(group, resources));
        Self(held)
    }

    /// Writes back what has changed.
    pub(super) fn restore(self) -> Result<(), CgroupError> {
        for Held { dir, files } in self.0 {
            let mut writes = Vec::new();
            for (file, before) in &files {
                if dir.read_if_any(file)?.is_some_and(|now| value(file, &now) != *before) {
                    writes.push((file.as_str(), before.clone()));
                }
            }
            write_in_any_order(dir, writes)?;
        }
        Ok(())
    }
}

/// The cgroup2 files that the request names, as far as they hold one value.
fn unified<'a>(group: &'a Cgroup, resources: &LinuxResources) -> Vec<Held<'a>> {
    let files = resources.unified().iter().flat_map(|files| files.keys());
    files
        .filter_map(|file| match group.find(file.split_once('.')?.0)? {
            Controller::V2(dir) => Some(Held::read(dir, &[file.as_str()])),
            Controller::V1(_) => None,
        })
        .filter(|held| held.files.iter().all(|(_, value)| !value.contains(['\n', '='])))
        .collect()
}

impl<'a> Held<'a> {
    /// Files that only other kernels have are absent, and some have no reader.
    fn read(dir: &'a Dir, files: &[&str]) -> Self {
        let read = |file: &&str| Some(((*file).to_owned(), value(file, &dir.read(file).ok()?)));
        Self { dir, files: files.iter().filter_map(read).collect() }
    }
}

/// What has to be written to get what was read.
fn value(file: &str, text: &str) -> String {
    let text = text.trim_end();
    // `oom_kill_disable 0` is the first of its lines, and the only one that can be set.
    let text = match file {
        "memory.oom_control" => {
            text.lines().next().and_then(|line| line.split_once(' ')).map_or("0", |(_, value)| value)
        }
        _ => text,
    };
    text.to_owned()
}
