//! `spec`: writes a configuration to begin with.

use std::{fs::OpenOptions, io::Write, path::Path};

use nix::unistd::{getegid, geteuid};
use serde_json::{Value, json};

use super::Command;
use crate::{
    arguments::{Arguments, Flag, switch, value},
    context::Context,
    error::Error,
};

const FLAGS: &[Flag] = &[
    value(&["bundle", "b"], "directory to write config.json to (default: the working directory)"),
    switch(&["rootless"], "for a container of a user without privileges"),
];

pub const COMMAND: Command = Command {
    name: "spec",
    about: "write a config.json to begin with",
    usage: "no operands",
    flags: &[FLAGS],
    operands: (0, 0),
    flags_end: usize::MAX,
    failure: 1,
    run,
};

fn run(_context: &Context, arguments: &Arguments) -> Result<u8, Error> {
    let path = Path::new(arguments.get("bundle").unwrap_or(".")).join("config.json");
    let mut document = document();
    if arguments.has("rootless") {
        make_rootless(&mut document);
    }
    let text = serde_json::to_string_pretty(&document).map_err(Error::json(&path))?;
    // Never over one that exists.
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(Error::io("write a new", &path))?;
    Ok(0)
}

fn document() -> Value {
    let capabilities = json!(["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]);
    let kinds = ["pid", "network", "ipc", "uts", "mount", "cgroup"];
    json!({
        "ociVersion": super::features::VERSION_MAX,
        "process": {
            "terminal": true,
            "user": {"uid": 0, "gid": 0},
            "args": ["sh"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"],
            "cwd": "/",
            "capabilities": {
                "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
            },
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
            "noNewPrivileges": true,
        },
        "root": {"path": "rootfs", "readonly": true},
        "hostname": "rustjail",
        "mounts": mounts(),
        "linux": {
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            "namespaces": kinds.map(|kind| json!({"type": kind})),
            "maskedPaths": [
                "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
                "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi",
            ],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    })
}

fn mounts() -> Value {
    json!([
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
         "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
        {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
         "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
         "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]},
        {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue",
         "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs",
         "options": ["nosuid", "noexec", "nodev", "ro"]},
        {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
         "options": ["nosuid", "noexec", "nodev", "relatime", "ro"]},
    ])
}

/// A user namespace that maps the caller to root; what takes privileges over the machine is left out.
fn make_rootless(document: &mut Value) {
    let linux = document.get_mut("linux").and_then(Value::as_object_mut);
    if let Some(linux) = linux {
        let kinds = ["pid", "ipc", "uts", "mount", "cgroup", "user"];
        linux.insert("namespaces".into(), kinds.iter().map(|kind| json!({"type": kind})).collect());
        let map = |host: u32| json!([{"containerID": 0, "hostID": host, "size": 1}]);
        linux.insert("uidMappings".into(), map(geteuid().as_raw()));
        linux.insert("gidMappings".into(), map(getegid().as_raw()));
        linux.remove("resources");
    }
    if let Some(mounts) = document.get_mut("mounts").and_then(Value::as_array_mut) {
        mounts.retain(|mount| mount["type"] != "cgroup");
        for mount in mounts {
            match mount["destination"].as_str() {
                // The host's network is shown, so its sysfs cannot be mounted anew.
                Some("/sys") => {
                    *mount = json!({"destination": "/sys", "type": "none", "source": "/sys",
                        "options": ["rbind", "nosuid", "noexec", "nodev", "ro"]});
                }
                // Group 5 is not mapped.
                Some("/dev/pts") => {
                    mount["options"] =
                        json!(["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]);
                }
                _ => {}
            }
        }
    }
}
