//! What comes out for what is on the wire, compared as runtime-spec JSON.

use berth_protocols::oci as wire;
use oci_spec::runtime::Spec;
use protobuf::MessageField;
use serde_json::json;

use super::{Error, process, spec};

fn some<T: protobuf::Message>(message: T) -> MessageField<T> {
    MessageField::some(message)
}

fn strings(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| value.to_string()).collect()
}

fn full_process() -> wire::Process {
    wire::Process {
        Terminal: true,
        ConsoleSize: some(wire::Box { Height: 24, Width: 80, ..Default::default() }),
        User: some(wire::User { UID: 1000, GID: 100, AdditionalGids: vec![5, 6], ..Default::default() }),
        Args: strings(&["sh", "-c", "true"]),
        Env: strings(&["B=2", "A=1", "B=3", " C = spaced ", "EMPTY=", "NOEQUALS"]),
        Cwd: "/work".into(),
        Capabilities: some(wire::LinuxCapabilities {
            Bounding: strings(&["CAP_SYSLOG"]),
            ..Default::default()
        }),
        Rlimits: vec![wire::POSIXRlimit {
            Type: "RLIMIT_NOFILE".into(),
            Hard: u64::MAX,
            Soft: 1024,
            ..Default::default()
        }],
        NoNewPrivileges: true,
        OOMScoreAdj: -500,
        SelinuxLabel: "label".into(),
        ..Default::default()
    }
}

fn full_resources() -> wire::LinuxResources {
    let device = |kind: &str, major, minor| wire::LinuxDeviceCgroup {
        Allow: true,
        Type: kind.into(),
        Major: major,
        Minor: minor,
        Access: "rwm".into(),
        ..Default::default()
    };
    wire::LinuxResources {
        Devices: vec![device("", 0, 0), device("c", 1, 0), device("b", -1, -1), device("c", 5, -1)],
        Memory: some(wire::LinuxMemory { Limit: 1 << 20, Swap: -1, Swappiness: 60, ..Default::default() }),
        CPU: some(wire::LinuxCPU {
            Shares: 512,
            Quota: -1,
            Period: 100_000,
            Cpus: "0-1".into(),
            ..Default::default()
        }),
        Pids: some(wire::LinuxPids { Limit: 100, ..Default::default() }),
        BlockIO: some(wire::LinuxBlockIO {
            Weight: 500,
            WeightDevice: vec![wire::LinuxWeightDevice { Major: 8, Weight: 300, ..Default::default() }],
            ThrottleReadIOPSDevice: vec![wire::LinuxThrottleDevice {
                Major: 8,
                Minor: 1,
                Rate: 9,
                ..Default::default()
            }],
            ..Default::default()
        }),
        HugepageLimits: vec![wire::LinuxHugepageLimit {
            Pagesize: "2MB".into(),
            Limit: 4 << 20,
            ..Default::default()
        }],
        Network: some(wire::LinuxNetwork {
            ClassID: 7,
            Priorities: vec![wire::LinuxInterfacePriority {
                Name: "eth0".into(),
                Priority: 3,
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn full_seccomp() -> wire::LinuxSeccomp {
    let mut failing = wire::LinuxSyscall {
        Names: strings(&["clone3"]),
        Action: "SCMP_ACT_ERRNO".into(),
        Args: vec![wire::LinuxSeccompArg {
            Index: 0,
            Value: 7,
            ValueTwo: 8,
            Op: "SCMP_CMP_MASKED_EQ".into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    failing.set_errnoret(38);
    wire::LinuxSeccomp {
        DefaultAction: "SCMP_ACT_ALLOW".into(),
        Architectures: strings(&["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_MIPS64N32"]),
        Flags: strings(&["SECCOMP_FILTER_FLAG_LOG"]),
        Syscalls: vec![failing],
        ..Default::default()
    }
}

fn full_spec() -> wire::Spec {
    let namespace = |kind: &str, path: &str| wire::LinuxNamespace {
        Type: kind.into(),
        Path: path.into(),
        ..Default::default()
    };
    let id = |size| wire::LinuxIDMapping { HostID: 1000, ContainerID: 0, Size: size, ..Default::default() };
    wire::Spec {
        Version: "1.1.0".into(),
        Process: some(full_process()),
        Root: some(wire::Root { Path: "rootfs".into(), Readonly: true, ..Default::default() }),
        Hostname: "box".into(),
        Mounts: vec![wire::Mount {
            destination: "/proc".into(),
            type_: "proc".into(),
            source: "proc".into(),
            ..Default::default()
        }],
        Hooks: some(wire::Hooks {
            CreateRuntime: vec![wire::Hook {
                Path: "/bin/hook".into(),
                Args: strings(&["hook"]),
                Timeout: 5,
                ..Default::default()
            }],
            ..Default::default()
        }),
        Annotations: [("key".to_owned(), "value".to_owned())].into(),
        Linux: some(wire::Linux {
            UIDMappings: vec![id(1)],
            GIDMappings: vec![id(2)],
            Sysctl: [("kernel.shmmax".to_owned(), "1".to_owned())].into(),
            Resources: some(full_resources()),
            CgroupsPath: "/berth/c1".into(),
            Namespaces: vec![namespace("mount", ""), namespace("network", "/proc/1/ns/net")],
            Devices: vec![wire::LinuxDevice {
                Path: "/dev/x".into(),
                Type: "c".into(),
                Major: 1,
                Minor: 3,
                FileMode: 0o666,
                ..Default::default()
            }],
            Seccomp: some(full_seccomp()),
            RootfsPropagation: "rprivate".into(),
            MaskedPaths: strings(&["/proc/kcore"]),
            ReadonlyPaths: strings(&["/proc/sys"]),
            MountLabel: "label".into(),
            IntelRdt: some(wire::LinuxIntelRdt { L3CacheSchema: "L3:0=f".into(), ..Default::default() }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[test]
fn a_full_spec_is_the_runtime_spec_it_stands_for() {
    let expected: Spec = serde_json::from_value(json!({
        "ociVersion": "1.1.0",
        "hostname": "box",
        "root": {"path": "rootfs", "readonly": true},
        "process": {
            "terminal": true,
            "consoleSize": {"height": 24, "width": 80},
            "user": {"uid": 1000, "gid": 100, "additionalGids": [5, 6]},
            "args": ["sh", "-c", "true"],
            "env": ["B=2", "A=1", "B=3", " C = spaced ", "EMPTY=", "NOEQUALS"],
            "cwd": "/work",
            "capabilities": {"bounding": ["CAP_SYSLOG"], "effective": [], "inheritable": [], "permitted": [], "ambient": []},
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": u64::MAX, "soft": 1024}],
            "noNewPrivileges": true,
            "oomScoreAdj": -500,
            "selinuxLabel": "label",
        },
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "hooks": {"createRuntime": [{"path": "/bin/hook", "args": ["hook"], "timeout": 5}]},
        "annotations": {"key": "value"},
        "linux": {
            "uidMappings": [{"hostID": 1000, "containerID": 0, "size": 1}],
            "gidMappings": [{"hostID": 1000, "containerID": 0, "size": 2}],
            "sysctl": {"kernel.shmmax": "1"},
            "cgroupsPath": "/berth/c1",
            "namespaces": [{"type": "mount"}, {"type": "network", "path": "/proc/1/ns/net"}],
            "devices": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666, "uid": 0, "gid": 0}],
            "rootfsPropagation": "rprivate",
            "maskedPaths": ["/proc/kcore"],
            "readonlyPaths": ["/proc/sys"],
            "mountLabel": "label",
            "intelRdt": {"l3CacheSchema": "L3:0=f"},
            "resources": {
                "devices": [
                    {"allow": true, "access": "rwm"},
                    {"allow": true, "type": "c", "major": 1, "minor": 0, "access": "rwm"},
                    {"allow": true, "type": "b", "access": "rwm"},
                    {"allow": true, "type": "c", "major": 5, "access": "rwm"},
                ],
                "memory": {"limit": 1 << 20, "swap": -1, "swappiness": 60},
                "cpu": {"shares": 512, "quota": -1, "period": 100_000, "cpus": "0-1"},
                "pids": {"limit": 100},
                "blockIO": {
                    "weight": 500,
                    "weightDevice": [{"major": 8, "minor": 0, "weight": 300}],
                    "throttleReadIOPSDevice": [{"major": 8, "minor": 1, "rate": 9}],
                },
                "hugepageLimits": [{"pageSize": "2MB", "limit": 4 << 20}],
                "network": {"classID": 7, "priorities": [{"name": "eth0", "priority": 3}]},
            },
            "seccomp": {
                "defaultAction": "SCMP_ACT_ALLOW",
                "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_MIPS64N32"],
                "flags": ["SECCOMP_FILTER_FLAG_LOG"],
                "syscalls": [{
                    "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38,
                    "args": [{"index": 0, "value": 7, "valueTwo": 8, "op": "SCMP_CMP_MASKED_EQ"}],
                }],
            },
        },
    }))
    .unwrap();
    let converted = spec(full_spec()).unwrap();
    assert_eq!(serde_json::to_value(&converted).unwrap(), serde_json::to_value(&expected).unwrap());
    let stored: Spec = serde_json::from_value(serde_json::to_value(&converted).unwrap()).unwrap();
    assert_eq!(stored, converted, "it survives the journal");
}

#[test]
fn nothing_is_added_to_what_was_not_given() {
    let wire = wire::Spec {
        Process: some(wire::Process::new()),
        Linux: some(wire::Linux::new()),
        ..Default::default()
    };
    let expected = json!({
        "ociVersion": "1.0.2",
        "mounts": [],
        "process": {
            "terminal": false, "user": {"uid": 0, "gid": 0}, "args": [], "env": [], "cwd": "", "rlimits": [],
            "noNewPrivileges": false, "oomScoreAdj": 0,
        },
        "linux": {"namespaces": [], "maskedPaths": [], "readonlyPaths": []},
    });
    assert_eq!(serde_json::to_value(spec(wire).unwrap()).unwrap(), expected);
    assert_eq!(
        serde_json::to_value(spec(wire::Spec::new()).unwrap()).unwrap(),
        json!({"ociVersion": "1.0.2", "mounts": []})
    );
}

#[test]
fn zero_is_unset_and_minus_one_is_kept() {
    let pids = |limit| {
        let mut wire = wire::LinuxResources::new();
        wire.Pids = some(wire::LinuxPids { Limit: limit, ..Default::default() });
        super::resources::resources(wire).map(|resources| resources.pids().as_ref().map(|pids| pids.limit()))
    };
    assert_eq!((pids(0), pids(-1), pids(7)), (Ok(None), Ok(Some(-1)), Ok(Some(7))));
    assert!(matches!(pids(-2), Err(Error::Range { value: -2, .. })));
}

#[test]
fn unknown_names_are_errors_that_name_them() {
    type Spoil = fn(&mut wire::Spec);
    let cases: [(&str, Spoil); 11] = [
        ("capability", |spec| {
            spec.Process
                .mut_or_insert_default()
                .Capabilities
                .mut_or_insert_default()
                .Ambient
                .push("CAP_X".into())
        }),
        ("capability", |spec| {
            spec.Process.mut_or_insert_default().Capabilities.mut_or_insert_default().Ambient.push("X".into())
        }),
        ("rlimit", |spec| spec.Process.mut_or_insert_default().Rlimits[0].Type = "X".into()),
        ("namespace", |spec| spec.Linux.mut_or_insert_default().Namespaces[0].Type = "X".into()),
        ("device type", |spec| spec.Linux.mut_or_insert_default().Devices[0].Type = "X".into()),
        ("device type", |spec| {
            spec.Linux.mut_or_insert_default().Resources.mut_or_insert_default().Devices[0].Type = "X".into()
        }),
        ("seccomp action", |spec| {
            spec.Linux.mut_or_insert_default().Seccomp.mut_or_insert_default().DefaultAction = "X".into()
        }),
        ("seccomp action", |spec| {
            spec.Linux.mut_or_insert_default().Seccomp.mut_or_insert_default().Syscalls[0].Action = "X".into()
        }),
        ("seccomp operator", |spec| {
            spec.Linux.mut_or_insert_default().Seccomp.mut_or_insert_default().Syscalls[0].Args[0].Op =
                "X".into()
        }),
        ("seccomp architecture", |spec| {
            spec.Linux.mut_or_insert_default().Seccomp.mut_or_insert_default().Architectures.push("X".into())
        }),
        ("seccomp flag", |spec| {
            spec.Linux.mut_or_insert_default().Seccomp.mut_or_insert_default().Flags.push("X".into())
        }),
    ];
    for (expected, spoil) in cases {
        let mut wire = full_spec();
        spoil(&mut wire);
        match spec(wire) {
            Err(Error::Unknown { what, value }) => assert_eq!((what, value.ends_with('X')), (expected, true)),
            other => panic!("{expected}: {other:?}"),
        }
    }
}

#[test]
fn numbers_out_of_range_are_errors() {
    type Spoil = fn(&mut wire::Spec);
    let cases: [Spoil; 6] = [
        |spec| spec.Process.mut_or_insert_default().OOMScoreAdj = 1001,
        |spec| spec.Process.mut_or_insert_default().OOMScoreAdj = i64::MIN,
        |spec| spec.Linux.mut_or_insert_default().Devices[0].Major = -1,
        |spec| {
            spec.Linux
                .mut_or_insert_default()
                .Resources
                .mut_or_insert_default()
                .Memory
                .mut_or_insert_default()
                .Limit = -2
        },
        |spec| {
            spec.Linux
                .mut_or_insert_default()
                .Resources
                .mut_or_insert_default()
                .BlockIO
                .mut_or_insert_default()
                .Weight = 65_536
        },
        |spec| {
            spec.Linux.mut_or_insert_default().Seccomp.mut_or_insert_default().Syscalls[0].Args[0].Index =
                u64::MAX
        },
    ];
    for (case, spoil) in cases.into_iter().enumerate() {
        let mut wire = full_spec();
        spoil(&mut wire);
        assert!(matches!(spec(wire), Err(Error::Range { .. })), "case {case}");
    }
}

#[test]
fn a_process_without_capabilities_has_none_of_its_own() {
    let mut wire = full_process();
    wire.Capabilities.take();
    assert_eq!(process(wire).unwrap().capabilities(), &None);
}
