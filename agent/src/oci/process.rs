//! `grpc.Process`.

use berth_protocols::oci as wire;
use oci_spec::runtime::{
    BoxBuilder, Capabilities, Capability, LinuxCapabilities, PosixRlimit, PosixRlimitBuilder,
    PosixRlimitType, Process, User,
};

use super::{
    Error, Result,
    parse::{built, fit, name, non_empty, text},
};

/// Converts a process. The environment stays as it is, byte for byte and in order. Without capabilities on the
/// wire there are none here either: an exec then takes those of its container.
pub fn process(wire: wire::Process) -> Result<Process> {
    let size = wire.ConsoleSize.into_option();
    let size = size.map(|size| {
        built("consoleSize", BoxBuilder::default().height(size.Height).width(size.Width).build())
    });
    let score = fit::<i32>("process.oomScoreAdj", wire.OOMScoreAdj, SCORE)?;
    if !(-1000..=1000).contains(&score) {
        return Err(Error::Range { field: "process.oomScoreAdj", value: score.into(), must: SCORE });
    }
    let mut process = Process::default();
    process
        .set_terminal(Some(wire.Terminal))
        .set_console_size(size.transpose()?)
        .set_user(user(wire.User.unwrap_or_default()))
        .set_args(Some(wire.Args))
        .set_env(Some(wire.Env))
        .set_cwd(wire.Cwd.into())
        .set_capabilities(wire.Capabilities.into_option().map(capabilities).transpose()?)
        .set_rlimits(Some(wire.Rlimits.iter().map(rlimit).collect::<Result<_>>()?))
        .set_no_new_privileges(Some(wire.NoNewPrivileges))
        .set_apparmor_profile(text(wire.ApparmorProfile))
        // 0 is written, not left out: else the process would keep the agent's own -997.
        .set_oom_score_adj(Some(score))
        .set_selinux_label(text(wire.SelinuxLabel));
    Ok(process)
}

const SCORE: &str = "it must be from -1000 to 1000";

fn user(wire: wire::User) -> User {
    let mut user = User::default();
    user.set_uid(wire.UID)
        .set_gid(wire.GID)
        .set_additional_gids(non_empty(wire.AdditionalGids))
        .set_username(text(wire.Username));
    user
}

fn capabilities(wire: wire::LinuxCapabilities) -> Result<LinuxCapabilities> {
    let mut capabilities = LinuxCapabilities::default();
    capabilities
        .set_bounding(Some(set(&wire.Bounding)?))
        .set_effective(Some(set(&wire.Effective)?))
        .set_inheritable(Some(set(&wire.Inheritable)?))
        .set_permitted(Some(set(&wire.Permitted)?))
        .set_ambient(Some(set(&wire.Ambient)?));
    Ok(capabilities)
}

fn set(names: &[String]) -> Result<Capabilities> {
    names.iter().map(|name| capability(name)).collect()
}

fn capability(value: &str) -> Result<Capability> {
    let unknown = || Error::Unknown { what: "capability", value: value.to_owned() };
    value.strip_prefix("CAP_").ok_or_else(unknown)?.parse().map_err(|_| unknown())
}

fn rlimit(wire: &wire::POSIXRlimit) -> Result<PosixRlimit> {
    let kind: PosixRlimitType = name("rlimit", &wire.Type)?;
    built("rlimit", PosixRlimitBuilder::default().typ(kind).hard(wire.Hard).soft(wire.Soft).build())
}
