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
            "cgroup": {"v1": true, "v2": true, "systemd": true, "systemdUser": false, "rdma": true},
            "seccomp": seccomp(),
            "apparmor": {"enabled": true},
            "selinux": {"enabled": true},
            "intelRdt": {"enabled": true, "schemata": true, "monitoring": true},
            "memoryPolicy": {
                "modes": [
                    "MPOL_BIND", "MPOL_DEFAULT", "MPOL_INTERLEAVE", "MPOL_LOCAL", "MPOL_PREFERRED",
                    "MPOL_PREFERRED_MANY", "MPOL_WEIGHTED_INTERLEAVE",
                ],
                "flags": ["MPOL_F_NUMA_BALANCING", "MPOL_F_RELATIVE_NODES", "MPOL_F_STATIC_NODES"],
            },
            "mountExtensions": {"idmap": {"enabled": true}},
            "netDevices": {"enabled": true},
        },
        "annotations": {"rustjail.version": env!("CARGO_PKG_VERSION")},
    })
}

fn seccomp() -> Value {
    json!({
        "enabled": true,
        "actions": [
            "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS",
            "SCMP_ACT_KILL_THREAD", "SCMP_ACT_LOG", "SCMP_ACT_NOTIFY", "SCMP_ACT_TRACE", "SCMP_ACT_TRAP",
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

const FLAGS: [&str; 4] = [
    "SECCOMP_FILTER_FLAG_LOG",
    "SECCOMP_FILTER_FLAG_SPEC_ALLOW",
    "SECCOMP_FILTER_FLAG_TSYNC",
    "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV",
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use oci_spec::runtime::{Features, LinuxSeccomp, Spec};
    use rustjail::{compile, seccomp};

    use super::*;

    /// What is said to be supported has to be understood by those who are asked for it.
    #[test]
    fn what_is_listed_is_true() {
        let document = document();
        let features: Features = serde_json::from_value(document.clone()).unwrap();
        assert_eq!(features.hooks().clone().unwrap().len(), 6);
        let seccomp = &document["linux"]["seccomp"];
        for action in seccomp["actions"].as_array().unwrap() {
            let profile: LinuxSeccomp = serde_json::from_value(json!({
                "defaultAction": "SCMP_ACT_ALLOW", "architectures": seccomp["archs"],
                "flags": seccomp["supportedFlags"], "listenerPath": "/x",
                "syscalls": [{"names": ["mkdir"], "action": action}],
            }))
            .unwrap();
            assert!(seccomp::compile(&profile).is_ok(), "{action}");
        }
        for mode in document["linux"]["memoryPolicy"]["modes"].as_array().unwrap() {
            let text =
                json!({"ociVersion": VERSION_MAX, "linux": {"memoryPolicy": {"mode": mode, "nodes": ""}}});
            assert!(serde_json::from_value::<Spec>(text).is_ok(), "{mode}");
        }
        assert!(compile::mount_options().any(|option| option == "idmap"));
    }
}
