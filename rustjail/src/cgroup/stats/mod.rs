//! What a group used, in one structure for both versions.
//!
//! A part is `None` where no hierarchy accounts for it, and each file is read once. Nothing is invented: what
//! a version does not tell is 0 or empty, and the field says which version that is. Unlimited is `u64::MAX`
//! on v2 and the kernel's own huge number on v1. Reading takes no lock of the group's, so numbers of
//! different files may be of slightly different times.

mod block_io;
mod cpu;
mod hugetlb;
mod memory;
mod pressure;
mod rdma;

use std::collections::HashMap;

pub use self::{
    block_io::{BlockIoEntry, BlockIoStats},
    cpu::CpuStats,
    hugetlb::HugetlbStats,
    memory::{MemoryStats, MemoryUsage},
    pressure::{Pressure, Stall},
    rdma::{RdmaStats, RdmaUsage},
};
use super::{Cgroup, CgroupError, dir::Dir, parse};

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
    pub hugetlb: HashMap<String, HugetlbStats>,
    /// RDMA devices, by name.
    pub rdma: HashMap<String, RdmaStats>,
}

/// Tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PidsStats {
    /// There are.
    pub current: u64,
    /// There may be.
    pub limit: u64,
    /// Forks the limit refused.
    pub failures: u64,
}

impl Cgroup {
    /// What the group used until now.
    pub fn stats(&self) -> Result<Stats, CgroupError> {
        Ok(Stats {
            cpu: cpu::read(self)?,
            memory: memory::read(self)?,
            pids: match self.find("pids") {
                Some(controller) => Some(pids(controller.dir())?),
                None => None,
            },
            block_io: block_io::read(self)?,
            hugetlb: hugetlb::read(self)?,
            rdma: rdma::read(self)?,
        })
    }
}

/// Both versions use the same names.
fn pids(dir: &Dir) -> Result<PidsStats, CgroupError> {
    Ok(PidsStats {
        current: number(dir, "pids.current")?,
        limit: number(dir, "pids.max")?,
        failures: parse::keyed(&text(dir, "pids.events")?, "max").unwrap_or(0),
    })
}

/// A file's text, empty where the kernel has no such file.
fn text(dir: &Dir, file: &str) -> Result<String, CgroupError> {
    Ok(dir.read_if_any(file)?.unwrap_or_default())
}

/// A file's number, 0 where the kernel has no such file.
fn number(dir: &Dir, file: &str) -> Result<u64, CgroupError> {
    Ok(parse::number(&text(dir, file)?).unwrap_or(0))
}
