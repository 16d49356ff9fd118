//! Memory and swap.

use std::collections::HashMap;

use super::{
    super::{Cgroup, CgroupError, Controller, dir::Dir, parse},
    Pressure, number, text,
};

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
    /// Swap alone; v1 only tells how much is in use.
    pub swap: MemoryUsage,
    /// The part that is kernel memory.
    pub kernel: MemoryUsage,
    /// The part of that which is for TCP buffers; v2 only tells how much of all sockets is in use.
    pub kernel_tcp: MemoryUsage,
    /// The part that is page cache.
    pub cache: u64,
    /// Whether groups below are counted too: always on v2.
    pub hierarchical: bool,
    /// Processes the kernel killed for want of memory.
    pub oom_kills: u64,
    /// The whole of `memory.stat`, with the kernel's names.
    pub detail: HashMap<String, u64>,
    /// Tasks that waited for memory; v1 alone does not say.
    pub pressure: Option<Pressure>,
}

pub(super) fn read(group: &Cgroup) -> Result<Option<MemoryStats>, CgroupError> {
    let mut memory = match group.find("memory") {
        Some(Controller::V1(dir)) => v1(dir)?,
        Some(Controller::V2(dir)) => v2(dir)?,
        None => return Ok(None),
    };
    if let Some(unified) = &group.unified {
        memory.pressure = Pressure::read(unified.dir(), "memory.pressure")?;
    }
    Ok(Some(memory))
}

fn v1(dir: &Dir) -> Result<MemoryStats, CgroupError> {
    let counter = |infix: &str| -> Result<MemoryUsage, CgroupError> {
        Ok(MemoryUsage {
            usage: number(dir, &format!("memory{infix}.usage_in_bytes"))?,
            max_usage: number(dir, &format!("memory{infix}.max_usage_in_bytes"))?,
            limit: number(dir, &format!("memory{infix}.limit_in_bytes"))?,
            failures: number(dir, &format!("memory{infix}.failcnt"))?,
        })
    };
    let detail = parse::map(&text(dir, "memory.stat")?);
    let total = |key: &str| detail.get(&format!("total_{key}")).or(detail.get(key)).copied().unwrap_or(0);
    Ok(MemoryStats {
        memory: counter("")?,
        with_swap: counter(".memsw")?,
        swap: MemoryUsage { usage: total("swap"), ..MemoryUsage::default() },
        kernel: counter(".kmem")?,
        kernel_tcp: counter(".kmem.tcp")?,
        cache: total("cache"),
        hierarchical: number(dir, "memory.use_hierarchy")? == 1,
        oom_kills: parse::keyed(&text(dir, "memory.oom_control")?, "oom_kill").unwrap_or(0),
        detail,
        pressure: None,
    })
}

fn v2(dir: &Dir) -> Result<MemoryStats, CgroupError> {
    let counter = |name: &str| -> Result<MemoryUsage, CgroupError> {
        Ok(MemoryUsage {
            usage: number(dir, &format!("{name}.current"))?,
            max_usage: number(dir, &format!("{name}.peak"))?,
            limit: number(dir, &format!("{name}.max"))?,
            failures: 0,
        })
    };
    let detail = parse::map(&text(dir, "memory.stat")?);
    let part = |key: &str| detail.get(key).copied().unwrap_or(0);
    let events = text(dir, "memory.events")?;
    let swap_events = text(dir, "memory.swap.events")?;
    let count = |events: &str, key| parse::keyed(events, key).unwrap_or(0);
    let memory = MemoryUsage { failures: count(&events, "max"), ..counter("memory")? };
    let swap = MemoryUsage { failures: count(&swap_events, "fail"), ..counter("memory.swap")? };
    Ok(MemoryStats {
        memory,
        with_swap: MemoryUsage {
            usage: memory.usage.saturating_add(swap.usage),
            // The two peaks need not have been at the same time, so their sum would be a lie.
            max_usage: 0,
            limit: memory.limit.saturating_add(swap.limit),
            failures: swap.failures,
        },
        swap,
        kernel: MemoryUsage { usage: part("kernel"), ..MemoryUsage::default() },
        kernel_tcp: MemoryUsage { usage: part("sock"), ..MemoryUsage::default() },
        cache: part("file"),
        hierarchical: true,
        oom_kills: count(&events, "oom_kill"),
        detail,
        pressure: None,
    })
}
