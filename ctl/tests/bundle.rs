//! OCI configurations on their way to the wire.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use berth_protocols::oci::Spec;
use berthctl::{
    bundle::{self, Bundle, wire},
    vmm::workdir::WorkDir,
};
use protobuf::{
    Message,
    reflect::{MessageRef, ReflectValueRef, RuntimeFieldType},
};
use serde_json::{Value, json};

/// A configuration that sets every field the wire has.
fn everything() -> Value {
    let hook = json!([{ "path": "/hook", "args": ["hook", "a"], "env": ["A=b"], "timeout": 7 }]);
    let mapping = json!([{ "hostID": 100000, "containerID": 1, "size": 65536 }]);
    let throttle = json!([{ "major": 8, "minor": 1, "rate": 18446744073709551615_u64 }]);
    json!({
        "ociVersion": "1.2.0",
        "process": {
            "terminal": true,
            "consoleSize": { "height": 25, "width": 80 },
            "user": { "uid": 1, "gid": 2, "additionalGids": [3, 4], "username": "who" },
            "args": ["/bin/sh", "-c", "true"], "env": ["A=b=c"], "cwd": "/tmp",
            "capabilities": {
                "bounding": ["CAP_A"], "effective": ["CAP_B"], "inheritable": ["CAP_C"], "permitted": ["CAP_D"], "ambient": ["CAP_E"],
            },
            "rlimits": [{ "type": "RLIMIT_CORE", "hard": 18446744073709551615_u64, "soft": 1 }],
            "noNewPrivileges": true, "apparmorProfile": "profile", "oomScoreAdj": -997, "selinuxLabel": "label",
        },
        "root": { "path": "rootfs", "readonly": true },
        "hostname": "host",
        "mounts": [{ "destination": "/proc", "source": "proc", "type": "proc", "options": ["ro"] }],
        "hooks": {
            "prestart": hook, "poststart": hook, "poststop": hook, "createRuntime": hook, "createContainer": hook, "startContainer": hook,
        },
        "annotations": { "a.b/c": "d" },
        "linux": {
            "uidMappings": mapping, "gidMappings": mapping,
            "sysctl": { "net.core.somaxconn": "256" },
            "resources": {
                "devices": [{ "allow": true, "type": "c", "major": -1, "minor": -1, "access": "rwm" }],
                "memory": {
                    "limit": -1, "reservation": 2, "swap": -1, "kernel": 3, "kernelTCP": 4, "swappiness": 60, "disableOOMKiller": true,
                },
                "cpu": {
                    "shares": 1024, "quota": -1, "period": 100000, "realtimeRuntime": 5, "realtimePeriod": 6, "cpus": "0-3", "mems": "0",
                },
                "pids": { "limit": -1 },
                "blockIO": {
                    "weight": 10, "leafWeight": 11,
                    "weightDevice": [{ "major": 8, "minor": 1, "weight": 12, "leafWeight": 13 }],
                    "throttleReadBpsDevice": throttle, "throttleWriteBpsDevice": throttle,
                    "throttleReadIOPSDevice": throttle, "throttleWriteIOPSDevice": throttle,
                },
                "hugepageLimits": [{ "pageSize": "2MB", "limit": 14 }],
                "network": { "classID": 15, "priorities": [{ "name": "eth0", "priority": 16 }] },
            },
            "cgroupsPath": "/a/b",
            "namespaces": [{ "type": "network", "path": "/proc/1/ns/net" }],
            "devices": [{ "path": "/dev/x", "type": "c", "major": 1, "minor": 2, "fileMode": 438, "uid": 3, "gid": 4 }],
            "seccomp": {
                "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"], "flags": ["SECCOMP_FILTER_FLAG_LOG"],
                "syscalls": [{
                    "names": ["ptrace"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38,
                    "args": [{ "index": 1, "value": 18446744073709551615_u64, "valueTwo": 2, "op": "SCMP_CMP_EQ" }],
                }],
            },
            "rootfsPropagation": "rslave", "maskedPaths": ["/m"], "readonlyPaths": ["/r"], "mountLabel": "label",
            "intelRdt": { "l3CacheSchema": "L3:0=f" },
        },
    })
}

#[test]
fn every_field_of_the_wire_is_reached() {
    let (spec, lost) = wire::spec(&everything()).unwrap();
    assert_eq!(lost, Vec::<String>::new());

    let mut unset = Vec::new();
    collect_unset(MessageRef::new(&spec), "", &mut unset);
    assert_eq!(unset, ["Solaris", "Windows"], "the other systems' parts are the only ones left out");

    let process = &spec.Process;
    assert_eq!((process.OOMScoreAdj, process.User.AdditionalGids.as_slice()), (-997, &[3, 4][..]));
    assert_eq!(process.Rlimits[0].Hard, u64::MAX);
    assert_eq!(spec.Linux.Resources.Devices[0].Major, -1);
    assert_eq!(spec.Linux.Seccomp.Syscalls[0].errnoret(), 38);
    assert_eq!(spec.Linux.Seccomp.Syscalls[0].Args[0].Value, u64::MAX);
    assert_eq!(spec.Annotations["a.b/c"], "d");
    let sent = Spec::parse_from_bytes(&spec.write_to_bytes().unwrap()).unwrap();
    assert_eq!(sent, spec);
}

fn collect_unset(message: MessageRef<'_>, path: &str, unset: &mut Vec<String>) {
    for field in message.descriptor_dyn().fields() {
        let path = if path.is_empty() { field.name().to_owned() } else { format!("{path}.{}", field.name()) };
        match field.runtime_field_type() {
            RuntimeFieldType::Singular(_) => match field.get_singular(&*message) {
                None => unset.push(path),
                Some(ReflectValueRef::Message(inner)) => collect_unset(inner, &path, unset),
                Some(_) => {}
            },
            RuntimeFieldType::Repeated(_) => {
                let list = field.get_repeated(&*message);
                if list.is_empty() {
                    unset.push(path.clone());
                }
                for item in list {
                    if let ReflectValueRef::Message(inner) = item {
                        collect_unset(inner, &path, unset);
                    }
                }
            }
            RuntimeFieldType::Map(..) => {
                if field.get_map(&*message).is_empty() {
                    unset.push(path);
                }
            }
        }
    }
}

#[test]
fn what_the_wire_cannot_say_is_named() {
    let config = json!({
        "ociVersion": "1.2.0",
        "domainname": "x",
        "process": { "user": { "umask": 18 }, "ioPriority": { "class": "IOPRIO_CLASS_IDLE" }, "env": null },
        "linux": { "resources": { "unified": { "memory.high": "1" } }, "seccomp": { "syscalls": [{ "names": ["a"], "comment": "why" }] } },
    });
    let (_, mut lost) = wire::spec(&config).unwrap();
    lost.sort();
    assert_eq!(
        lost,
        [
            "domainname",
            "linux.resources.unified",
            "linux.seccomp.syscalls[0].comment",
            "process.ioPriority",
            "process.user.umask"
        ]
    );
}

#[test]
fn a_wrong_type_is_refused_with_its_place() {
    for (config, place) in [
        (json!({ "process": { "args": ["sh", 7] } }), "process.args[1] must be a string, not a number"),
        (json!({ "process": [] }), "process must be an object, not a list"),
        (json!({ "root": { "readonly": "yes" } }), "root.readonly must be true or false, not a string"),
        (json!({ "annotations": { "a": 1 } }), "annotations.a must be a string"),
        (
            json!({ "linux": { "resources": { "pids": { "limit": 1.5 } } } }),
            "linux.resources.pids.limit must be a whole number",
        ),
        (json!([]), "the configuration must be an object"),
    ] {
        let text = wire::spec(&config).unwrap_err().to_string();
        assert!(text.contains(place), "{text}");
    }
    let too_large = json!({ "process": { "user": { "uid": 4294967296_u64 } } });
    assert!(wire::spec(&too_large).is_err());
}

#[test]
fn a_bundle_is_read_from_its_directory() {
    let dir = WorkDir::new().unwrap();
    assert!(matches!(Bundle::load(dir.path()), Err(bundle::Error::Read { .. })));
    std::fs::write(dir.join("config.json"), bundle::default::spec().to_string()).unwrap();
    assert!(matches!(Bundle::load(dir.path()), Err(bundle::Error::NoRootfs { .. })));
    std::fs::create_dir(dir.join("rootfs")).unwrap();
    let bundle = Bundle::load(dir.path()).unwrap();
    assert_eq!(bundle.rootfs, dir.join("rootfs"));
    assert_eq!(bundle.spec.Root.Path, "rootfs");
    std::fs::write(dir.join("config.json"), "{").unwrap();
    assert!(matches!(Bundle::load(dir.path()), Err(bundle::Error::Json { .. })));
}
