//! `grpc.LinuxSeccomp`.

use berth_protocols::oci as wire;
use oci_spec::runtime::{
    LinuxSeccomp, LinuxSeccompArg, LinuxSeccompArgBuilder, LinuxSeccompOperator, LinuxSyscall,
};

use super::{
    Result,
    parse::{built, fit, name, names, non_empty},
};

/// Converts a profile. A profile without a default action is none that could be meant, so that is an error.
pub(super) fn seccomp(wire: wire::LinuxSeccomp) -> Result<LinuxSeccomp> {
    let mut seccomp = LinuxSeccomp::default();
    seccomp
        .set_default_action(name("seccomp action", &wire.DefaultAction)?)
        .set_architectures(names("seccomp architecture", &wire.Architectures)?)
        .set_flags(names("seccomp flag", &wire.Flags)?)
        .set_syscalls(non_empty(wire.Syscalls.into_iter().map(syscall).collect::<Result<Vec<_>>>()?));
    Ok(seccomp)
}

fn syscall(wire: wire::LinuxSyscall) -> Result<LinuxSyscall> {
    let errno = wire.has_errnoret().then(|| wire.errnoret());
    let mut syscall = LinuxSyscall::default();
    syscall
        .set_names(wire.Names)
        .set_action(name("seccomp action", &wire.Action)?)
        .set_errno_ret(errno)
        .set_args(non_empty(wire.Args.iter().map(argument).collect::<Result<Vec<_>>>()?));
    Ok(syscall)
}

fn argument(wire: &wire::LinuxSeccompArg) -> Result<LinuxSeccompArg> {
    let index: u8 = fit("seccomp.syscalls.args.index", wire.Index, "a system call has six arguments")?;
    let builder = LinuxSeccompArgBuilder::default().index(index).value(wire.Value).value_two(wire.ValueTwo);
    let operator: LinuxSeccompOperator = name("seccomp operator", &wire.Op)?;
    built("seccomp argument", builder.op(operator).build())
}
