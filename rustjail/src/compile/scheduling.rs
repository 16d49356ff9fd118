//! What a process is to get of processors, disks and memory nodes.

use oci_spec::runtime::{
    ExecCPUAffinity, IOPriorityClass, LinuxIOPriority, LinuxMemoryPolicy, LinuxSchedulerFlag,
    LinuxSchedulerPolicy, MemoryPolicyFlagType, MemoryPolicyModeType, Scheduler as Requested,
};

use super::{CompileError, ranges};
use crate::plan::{Affinity, MemoryPolicy, Scheduler};

/// `linux/sched.h` has no library that names these.
const SCHED_ISO: i32 = 4;
const SCHED_DEADLINE: i32 = 6;

/// The scheduling policy, with the parameters that go with it.
pub(super) fn scheduler(requested: &Requested) -> Result<Scheduler, CompileError> {
    let policy = policy(*requested.policy());
    let (nice, priority) = (requested.nice().unwrap_or(0), requested.priority().unwrap_or(0));
    let real_time = matches!(policy, libc::SCHED_FIFO | libc::SCHED_RR);
    let problem = |value: i32, problem| Err(CompileError::invalid("process.scheduler", value, problem));
    if !(-20..=19).contains(&nice) {
        return problem(nice, "is no nice value: those are from -20 to 19");
    }
    if real_time && !(1..=99).contains(&priority) {
        return problem(priority, "is no priority of SCHED_FIFO or SCHED_RR: those are from 1 to 99");
    }
    if !real_time && priority != 0 {
        return problem(priority, "is a priority, which only SCHED_FIFO and SCHED_RR have");
    }
    let times = [requested.runtime(), requested.deadline(), requested.period()].map(|time| time.unwrap_or(0));
    if policy != SCHED_DEADLINE && times != [0; 3] {
        return problem(policy, "has a runtime, deadline or period, which only SCHED_DEADLINE has");
    }
    let [runtime, deadline, period] = times;
    let flags = requested.flags().iter().flatten().fold(0, |all, flag| all | scheduler_flag(flag));
    Ok(Scheduler { policy: policy as u32, flags, nice, priority: priority as u32, runtime, deadline, period })
}

fn policy(policy: LinuxSchedulerPolicy) -> i32 {
    match policy {
        LinuxSchedulerPolicy::SchedOther => libc::SCHED_OTHER,
        LinuxSchedulerPolicy::SchedFifo => libc::SCHED_FIFO,
        LinuxSchedulerPolicy::SchedRr => libc::SCHED_RR,
        LinuxSchedulerPolicy::SchedBatch => libc::SCHED_BATCH,
        LinuxSchedulerPolicy::SchedIso => SCHED_ISO,
        LinuxSchedulerPolicy::SchedIdle => libc::SCHED_IDLE,
        LinuxSchedulerPolicy::SchedDeadline => SCHED_DEADLINE,
    }
}

/// `SCHED_FLAG_*` of `linux/sched.h`.
fn scheduler_flag(flag: &LinuxSchedulerFlag) -> u64 {
    match flag {
        LinuxSchedulerFlag::SchedResetOnFork => 0x01,
        LinuxSchedulerFlag::SchedFlagReclaim => 0x02,
        LinuxSchedulerFlag::SchedFlagDLOverrun => 0x04,
        LinuxSchedulerFlag::SchedFlagKeepPolicy => 0x08,
        LinuxSchedulerFlag::SchedFlagKeepParams => 0x10,
        LinuxSchedulerFlag::SchedFlagUtilClampMin => 0x20,
        LinuxSchedulerFlag::SchedFlagUtilClampMax => 0x40,
    }
}

/// The I/O priority as ioprio_set(2) takes it.
pub(super) fn io_priority(requested: &LinuxIOPriority) -> Result<u16, CompileError> {
    let class: u16 = match requested.class() {
        IOPriorityClass::IoprioClassRt => 1,
        IOPriorityClass::IoprioClassBe => 2,
        IOPriorityClass::IoprioClassIdle => 3,
    };
    match u16::try_from(requested.priority()) {
        Ok(level @ 0..=7) => Ok(class << 13 | level),
        _ => Err(CompileError::invalid(
            "process.ioPriority",
            requested.priority(),
            "is not a level from 0 to 7",
        )),
    }
}

/// Where an exec runs.
pub(super) fn affinity(requested: &ExecCPUAffinity) -> Result<Affinity, CompileError> {
    let set = |field, list: &Option<String>| ranges::mask(field, list.as_deref().unwrap_or_default());
    Ok(Affinity {
        initial: set("process.execCPUAffinity.initial", requested.initial())?,
        settled: set("process.execCPUAffinity.final", requested.cpu_affinity_final())?,
    })
}

/// The NUMA policy as set_mempolicy(2) takes it; the numbers are those of `linux/mempolicy.h`.
pub(super) fn memory_policy(requested: &LinuxMemoryPolicy) -> Result<MemoryPolicy, CompileError> {
    let (mode, wants_nodes) = match requested.mode() {
        MemoryPolicyModeType::MpolDefault => (0, Some(false)),
        MemoryPolicyModeType::MpolPreferred => (1, None),
        MemoryPolicyModeType::MpolBind => (2, Some(true)),
        MemoryPolicyModeType::MpolInterleave => (3, Some(true)),
        MemoryPolicyModeType::MpolLocal => (4, Some(false)),
        MemoryPolicyModeType::MpolPreferredMany => (5, Some(true)),
        MemoryPolicyModeType::MpolWeightedInterleave => (6, Some(true)),
    };
    let nodes = requested.nodes().as_deref().unwrap_or_default();
    let mask = ranges::mask("linux.memoryPolicy.nodes", nodes)?;
    let problem = match (wants_nodes, mask.is_empty()) {
        (Some(true), true) => Some("has to name nodes with this mode"),
        (Some(false), false) => Some("names nodes, which this mode has none of"),
        _ => None,
    };
    if let Some(problem) = problem {
        return Err(CompileError::invalid("linux.memoryPolicy.nodes", nodes, problem));
    }
    let flag = |flag: &MemoryPolicyFlagType| match flag {
        MemoryPolicyFlagType::MpolFNumaBalancing => 1 << 13,
        MemoryPolicyFlagType::MpolFRelativeNodes => 1 << 14,
        MemoryPolicyFlagType::MpolFStaticNodes => 1 << 15,
    };
    let flags = requested.flags().iter().flatten().fold(0, |all, one| all | flag(one));
    Ok(MemoryPolicy { mode: mode | flags, nodes: mask })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn policies_have_the_parameters_that_are_theirs() {
        let fine = |value| scheduler(&parse(value)).unwrap();
        assert_eq!(fine(json!({"policy": "SCHED_BATCH", "nice": 5})).nice, 5);
        let fifo = fine(json!({"policy": "SCHED_FIFO", "priority": 9, "flags": ["SCHED_RESET_ON_FORK"]}));
        assert_eq!((fifo.policy, fifo.priority, fifo.flags), (1, 9, 1));
        let times = json!({"policy": "SCHED_DEADLINE", "runtime": 1, "deadline": 2, "period": 3});
        assert_eq!(fine(times).period, 3);
        for value in [
            json!({"policy": "SCHED_OTHER", "nice": 20}),
            json!({"policy": "SCHED_OTHER", "priority": 1}),
            json!({"policy": "SCHED_FIFO"}),
            json!({"policy": "SCHED_RR", "priority": 100}),
            json!({"policy": "SCHED_RR", "priority": 1, "runtime": 1}),
        ] {
            assert!(scheduler(&parse(value.clone())).is_err(), "{value}");
        }
    }

    #[test]
    fn io_priorities_are_classes_with_levels() {
        let of = |priority| io_priority(&parse(json!({"class": "IOPRIO_CLASS_BE", "priority": priority})));
        assert_eq!(of(4).unwrap(), 2 << 13 | 4);
        assert!(of(8).is_err() && of(-1).is_err());
    }

    #[test]
    fn a_memory_policy_names_nodes_where_its_mode_has_some() {
        let of = |value| memory_policy(&parse(value));
        let bind = json!({"mode": "MPOL_BIND", "nodes": "0,2", "flags": ["MPOL_F_STATIC_NODES"]});
        assert_eq!(of(bind).unwrap(), MemoryPolicy { mode: 2 | 1 << 15, nodes: vec![5] });
        assert!(of(json!({"mode": "MPOL_BIND"})).is_err());
        assert!(of(json!({"mode": "MPOL_LOCAL", "nodes": "0"})).is_err());
        assert!(of(json!({"mode": "MPOL_PREFERRED"})).is_ok());
    }
}
