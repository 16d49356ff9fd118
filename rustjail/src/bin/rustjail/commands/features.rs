//! `features`: what this runtime does, for those who choose one.

use serde_json::{Value, json};

use super::{Command, print};
use crate::{arguments::Arguments, context::Context, error::Error};

/// The newest version of runtime-spec whose configurations are understood.
pub const VERSION_MAX: &str = "1.3.0";

pub const COMMAND: Command = Command {
    name: "features",
    about: "show what this runtime supports",
    usage: "no operands",
    flags: &[],
    operands: (0, 0),
    flags_end: usize::MAX,
    failure: 1,
    run,
};

fn run(_context: &Context, _arguments: &Arguments) -> Result<u8, Error> {
    let text = serde_json::to_string_pretty(&document()).map_err(Error::json("the features"))?;
    print(&format!("{text}\n")).map(|()| 0)
}

fn document() -> Value {
    let mut options: Vec<&str> = rustjail::compile::mount_options().collect();
    options.sort_unstable();
    let mut capabilities: Vec<String> = caps::all().iter().map(ToString::to_string).collect();
    capabilities.sort_unstable();
    json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": VERSION_MAX,
        "hooks": rustjail::hooks::Kind::ALL.map(rustjail::hooks::Kind::name),
        "mountOptions": options,
        "linux": {
            "namespaces": ["cgroup", "ipc", "mount", "network", "pid", "time", "user", "uts"],
            "capabilities": capabilities,
            "cgroup": {"v1": true, "v2": true, "systemd": false, "systemdUser": false, "rdma": true},
            "seccomp": seccomp(),
            "apparmor": {"enabled": false},
            "selinux": {"enabled": false},
            "intelRdt": {"enabled": false},
            "mountExtensions": {"idmap": {"enabled": true}},
            "netDevices": {"enabled": false},
        },
        "annotations": {"rustjail.version": env!("CARGO_PKG_VERSION")},
    })
}

fn seccomp() -> Value {
    json!({
        "enabled": true,
        "actions": [
            "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS",
            "SCMP_ACT_KILL_THREAD", "SCMP_ACT_LOG", "SCMP_ACT_TRACE", "SCMP_ACT_TRAP",
        ],
        "operators": [
            "SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT", "SCMP_CMP_LE", "SCMP_CMP_LT",
            "SCMP_CMP_MASKED_EQ", "SCMP_CMP_NE",
        ],
        "archs": match std::env::consts::ARCH {
            "x86_64" => json!(["SCMP_ARCH_X32", "SCMP_ARCH_X86", "SCMP_ARCH_X86_64"]),
            "aarch64" => json!(["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]),
            _ => json!([]),
        },
        "knownFlags": FLAGS,
        "supportedFlags": FLAGS,
    })
}

const FLAGS: [&str; 3] =
    ["SECCOMP_FILTER_FLAG_TSYNC", "SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW"];
