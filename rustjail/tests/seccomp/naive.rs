//! The meaning of a profile, call by call: slow, and plain to see.

use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction as Action, LinuxSeccompArg, LinuxSeccompOperator as Op,
    LinuxSyscall,
};
use rustjail::seccomp::Machine;

use crate::{
    bpf::Call,
    calls::{ABIS, CALLS, X32_BIT, multiplexed},
};

pub const KILL_THREAD: u32 = 0;
pub const ENOSYS: u32 = 0x0005_0000 | 38;

/// What should happen to `call`.
pub fn evaluate(profile: &LinuxSeccomp, machine: Machine, call: &Call) -> u32 {
    let default = profile.default_action().as_u32(profile.default_errno_ret());
    let Some(abi) = abi_of(profile, machine, call) else {
        return KILL_THREAD;
    };
    let mut best: Option<u32> = None;
    for entry in profile.syscalls().iter().flatten() {
        let action = entry.action().as_u32(entry.errno_ret());
        let applies = entry.names().iter().any(|name| {
            let number = CALLS.iter().find(|(call, _)| call == name).unwrap().1[abi];
            let direct = number == Some(call.number) && holds(entry, abi, call);
            let inside = ABIS[abi].0 == Arch::ScmpArchX86
                && multiplexed(name) == Some((call.number, call.args[0] as u32))
                && (entry.args().iter().flatten().count() == 0 || strictness(action) < strictness(default));
            direct || inside
        });
        if applies && best.is_none_or(|best| strictness(action) < strictness(best)) {
            best = Some(action);
        }
    }
    match best {
        Some(action) => action,
        None if is_newer_than_profile(profile, abi, call.number) => ENOSYS,
        None => default,
    }
}

fn strictness(action: u32) -> i32 {
    (action & 0xffff_0000) as i32
}

fn abi_of(profile: &LinuxSeccomp, machine: Machine, call: &Call) -> Option<usize> {
    let is_x32 = call.number >= X32_BIT && call.number != u32::MAX;
    let is_enabled = |arch: Arch| {
        matches!(arch, Arch::ScmpArchX86_64 | Arch::ScmpArchAarch64)
            || profile.architectures().iter().flatten().any(|named| *named == arch)
    };
    ABIS.iter().position(|(arch, audit, of)| {
        let numbering = *audit != ABIS[0].1 || is_x32 == (*arch == Arch::ScmpArchX32);
        *of == machine && *audit == call.audit && numbering && is_enabled(*arch)
    })
}

fn is_newer_than_profile(profile: &LinuxSeccomp, abi: usize, number: u32) -> bool {
    let default = profile.default_action().as_u32(profile.default_errno_ret());
    if profile.default_action() != Action::ScmpActErrno || default == ENOSYS {
        return false;
    }
    let (first, end) = match ABIS[abi].0 {
        Arch::ScmpArchX86_64 => (424, X32_BIT),
        Arch::ScmpArchX32 => (X32_BIT + 424, X32_BIT + 512),
        Arch::ScmpArchArm => (424, 0xf_0000),
        _ => (424, u32::MAX),
    };
    let named = profile.syscalls().iter().flatten().flat_map(LinuxSyscall::names);
    let numbers = named.filter_map(|name| {
        let row = CALLS.iter().find(|(call, _)| call == name).unwrap();
        let within =
            if ABIS[abi].0 == Arch::ScmpArchX86 { multiplexed(name).map(|(number, _)| number) } else { None };
        row.1[abi].max(within)
    });
    let newest = numbers.filter(|number| *number < end).max();
    newest.is_some_and(|newest| (first..end).contains(&number) && number > newest)
}

fn holds(entry: &LinuxSyscall, abi: usize, call: &Call) -> bool {
    let args: Vec<_> = entry.args().iter().flatten().collect();
    let twice = args.iter().any(|one| args.iter().filter(|other| other.index() == one.index()).count() > 1);
    let is_32bit = matches!(ABIS[abi].0, Arch::ScmpArchX86 | Arch::ScmpArchX32 | Arch::ScmpArchArm);
    let met = |arg: &&LinuxSeccompArg| {
        let cut = |value: u64| if is_32bit { u64::from(value as u32) } else { value };
        let (is, value) = (cut(call.args[arg.index()]), cut(arg.value()));
        match arg.op() {
            Op::ScmpCmpNe => is != value,
            Op::ScmpCmpLt => is < value,
            Op::ScmpCmpLe => is <= value,
            Op::ScmpCmpEq => is == value,
            Op::ScmpCmpGe => is >= value,
            Op::ScmpCmpGt => is > value,
            Op::ScmpCmpMaskedEq => is & value == value & cut(arg.value_two().unwrap_or(0)),
        }
    };
    if twice { args.iter().any(met) } else { args.iter().all(met) }
}
