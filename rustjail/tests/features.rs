//! One row for each feature of the specification, looked at from inside: in a container of root's, and in one
//! in a user namespace.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use serde_json::{Value, json};
use support::Bundle;

struct Row {
    name: &'static str,
    /// What is set, by its place in the configuration.
    changes: Vec<(&'static str, Value)>,
    script: &'static str,
    /// What the script says.
    as_root: &'static str,
    /// The same in a user namespace, where it differs.
    in_user_namespace: Option<&'static str>,
}

fn row(
    name: &'static str,
    changes: Vec<(&'static str, Value)>,
    script: &'static str,
    as_root: &'static str,
) -> Row {
    Row { name, changes, script, as_root, in_user_namespace: None }
}

fn rows() -> Vec<Row> {
    let process = |name: &'static str, field: &'static str, value, script, expected| {
        row(name, vec![(field, value)], script, expected)
    };
    vec![
        row(
            "host and domain name",
            vec![("/hostname", json!("box")), ("/domainname", json!("example"))],
            "hostname; cat /proc/sys/kernel/domainname",
            "box\nexample",
        ),
        process(
            "ordinary scheduler",
            "/process/scheduler",
            json!({"policy": "SCHED_BATCH", "nice": -5}),
            "cut -d' ' -f19,41 /proc/self/stat",
            "-5 3",
        ),
        process(
            "idle scheduler",
            "/process/scheduler",
            json!({"policy": "SCHED_IDLE"}),
            "cut -d' ' -f41 /proc/self/stat",
            "5",
        ),
        process(
            "real-time scheduler, not for children",
            "/process/scheduler",
            json!({"policy": "SCHED_RR", "priority": 7, "flags": ["SCHED_RESET_ON_FORK"]}),
            "cut -d' ' -f40,41 /proc/1/stat; cut -d' ' -f40,41 /proc/self/stat; true",
            "7 2\n0 0",
        ),
        process(
            "best-effort I/O priority",
            "/process/ioPriority",
            json!({"class": "IOPRIO_CLASS_BE", "priority": 3}),
            "ionice -p 1",
            "best-effort: prio 3",
        ),
        process(
            "idle I/O priority",
            "/process/ioPriority",
            json!({"class": "IOPRIO_CLASS_IDLE", "priority": 0}),
            "ionice -p 1",
            "idle",
        ),
        process(
            "memory policy",
            "/linux/memoryPolicy",
            json!({"mode": "MPOL_INTERLEAVE", "nodes": "0", "flags": ["MPOL_F_STATIC_NODES"]}),
            "head -n 1 /proc/self/numa_maps | cut -d' ' -f2",
            "interleave=static:0",
        ),
        process(
            "personality",
            "/linux/personality",
            json!({"domain": "LINUX32"}),
            "uname -m | cut -c1; cat /proc/self/personality",
            if cfg!(target_arch = "x86_64") { "i\n00000008" } else { "a\n00000008" },
        ),
        row(
            "time namespace",
            vec![
                ("/linux/namespaces/-", json!({"type": "time"})),
                (
                    "/linux/timeOffsets",
                    json!({
                        "boottime": {"secs": 900_000_000, "nanosecs": 5},
                        "monotonic": {"secs": -1},
                    }),
                ),
            ],
            "cat /proc/self/timens_offsets | tr -s ' '; [ $(cut -d. -f1 /proc/uptime) -gt 900000000 ] && echo late",
            "monotonic -1 0\nboottime 900000000 5\nlate",
        ),
        row(
            "time namespace as it is",
            vec![("/linux/namespaces/-", json!({"type": "time"}))],
            "cat /proc/self/timens_offsets | tr -s ' '",
            "monotonic 0 0\nboottime 0 0",
        ),
        row(
            "umask, limits, score and groups",
            vec![
                ("/process/user", json!({"uid": 5, "gid": 6, "umask": 0o027, "additionalGids": [7, 8]})),
                ("/process/rlimits", json!([{"type": "RLIMIT_CORE", "soft": 0, "hard": 0}])),
                ("/process/oomScoreAdj", json!(77)),
            ],
            "umask; id -u; id -g; id -G; ulimit -c; cat /proc/self/oom_score_adj",
            "0027\n5\n6\n6 7 8\n0\n77",
        ),
        row(
            "sysctls of its namespaces",
            vec![("/linux/sysctl", json!({"net.ipv4.ip_default_ttl": "33", "kernel.shmmni": "77"}))],
            "cat /proc/sys/net/ipv4/ip_default_ttl /proc/sys/kernel/shmmni",
            "33\n77",
        ),
        Row {
            name: "devices",
            changes: vec![(
                "/linux/devices",
                json!([{"path": "/dev/full", "type": "c", "major": 1, "minor": 7, "fileMode": 0o600, "uid": 1, "gid": 2}]),
            )],
            script: "stat -c '%t:%T %a %u:%g' /dev/full",
            as_root: "1:7 600 1:2",
            // The machine's own node, whose owner is nobody inside.
            in_user_namespace: Some("1:7 666 65534:65534"),
        },
        row(
            "cgroups",
            vec![(
                "/mounts/-",
                json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
                                      "options": ["nosuid", "noexec", "nodev", "relatime", "ro"]}),
            )],
            "[ -n \"$(ls /sys/fs/cgroup)\" ] && touch /sys/fs/cgroup/x 2>&1; true",
            "touch: /sys/fs/cgroup/x: Read-only file system",
        ),
        row(
            "cgroup2",
            vec![(
                "/mounts/-",
                json!({"destination": "/sys/fs/cgroup", "type": "cgroup2", "source": "cgroup",
                                      "options": ["ro"]}),
            )],
            "ls /sys/fs/cgroup/cgroup.procs",
            "/sys/fs/cgroup/cgroup.procs",
        ),
        row(
            "loopback",
            vec![],
            "ip -o addr show dev lo | grep -c 127.0.0.1; cat /sys/class/net/lo/flags",
            "1\n0x9",
        ),
        row(
            "a read-only root",
            vec![("/root/readonly", json!(true))],
            "touch /x 2>&1; touch /dev/shm/x && echo fine",
            "touch: /x: Read-only file system\nfine",
        ),
    ]
}

#[test]
fn each_feature_is_there_for_a_container_of_roots() {
    check(|bundle, row| (bundle.run(), row.as_root));
}

#[test]
fn each_feature_is_there_in_a_user_namespace() {
    check(|bundle, row| {
        bundle.in_user_namespace();
        (bundle.run(), row.in_user_namespace.unwrap_or(row.as_root))
    });
}

/// All rows, so that one failure does not hide another.
fn check(run: impl Fn(&mut Bundle, &Row) -> (support::Outcome, &'static str)) {
    let mut wrong = Vec::new();
    for row in rows() {
        let mut bundle = Bundle::new(row.script);
        for (pointer, value) in &row.changes {
            bundle.set(pointer, value.clone());
        }
        let (outcome, expected) = run(&mut bundle, &row);
        if outcome.code != 0 || outcome.stdout != expected {
            wrong.push(format!("{}: {outcome:?}, not {expected:?}", row.name));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn an_exec_has_what_the_init_has() {
    let mut bundle = Bundle::new("");
    bundle.set("/process/scheduler", json!({"policy": "SCHED_BATCH", "nice": 3}));
    bundle.set("/process/ioPriority", json!({"class": "IOPRIO_CLASS_BE", "priority": 6}));
    bundle.set("/linux/memoryPolicy", json!({"mode": "MPOL_BIND", "nodes": "0"}));
    bundle.set("/linux/namespaces/-", json!({"type": "time"}));
    bundle.set("/linux/timeOffsets", json!({"boottime": {"secs": 900_000_000}}));
    let script = "cut -d' ' -f19,41 /proc/self/stat; ionice -p $$; \
                  head -n 1 /proc/self/numa_maps | cut -d' ' -f2; \
                  [ $(cut -d. -f1 /proc/uptime) -gt 900000000 ] && echo late";
    let expected = "3 3\nbest-effort: prio 6\nbind:0\nlate";
    assert_eq!(bundle.exec(support::process(script)).text(), expected);
    assert_eq!(bundle.in_user_namespace().exec(support::process(script)).text(), expected);
}

#[test]
fn an_exec_runs_where_it_is_told() {
    let mut process = support::process("grep Cpus_allowed_list /proc/self/status | tr -d '\\t'");
    process["execCPUAffinity"] = json!({"initial": "0", "final": "0"});
    let mut bundle = Bundle::new("");
    assert_eq!(bundle.exec(process.clone()).text(), "Cpus_allowed_list:0");
    process["execCPUAffinity"] = json!({"final": "8000"});
    assert!(bundle.exec(process).refusal().contains("cannot run on the processors of execCPUAffinity"));
}

#[test]
fn network_devices_move_with_their_addresses_under_new_names() {
    for user in [false, true] {
        let mut bundle = Bundle::new(
            "ip -o addr show | grep -v '^1:' | grep -v fe80 | awk '{ print $2, $4 }' | sort; \
             cat /sys/class/net/inner/flags /sys/class/net/plain/flags",
        );
        bundle.set("/linux/netDevices", json!({"outer": {"name": "inner"}, "plain": {}}));
        if user {
            bundle.in_user_namespace();
        }
        let outcome = bundle.run_after(
            "ip link add outer type veth peer name plain; \
             ip addr add 10.9.8.7/24 dev outer; ip -6 addr add fd00::7/64 dev outer nodad; ip link set outer up",
        );
        assert_eq!(outcome.text(), "inner 10.9.8.7/24\ninner fd00::7/64\n0x1003\n0x1002", "{outcome:?}");
    }
}

#[test]
fn network_devices_that_cannot_be_had_are_named() {
    let mut bundle = Bundle::new("true");
    bundle.set("/linux/netDevices", json!({"nosuch": {}}));
    let missing = bundle.run();
    assert!(missing.refusal().contains("cannot use the device nosuch: No such device"), "{missing:?}");

    let mut bundle = Bundle::new("true");
    bundle.set("/linux/netDevices", json!({"outer": {"name": "lo"}}));
    let taken = bundle.run_after("ip link add outer type veth peer name plain");
    assert!(
        taken.refusal().contains("hand the network device outer to the container as lo: File exists"),
        "{taken:?}"
    );

    let kinds = ["pid", "ipc", "uts", "mount"];
    bundle.set("/linux/namespaces", json!(kinds.map(|kind| json!({"type": kind}))));
    let shared = bundle.run_after("ip link add outer type veth peer name plain");
    assert!(shared.refusal().contains("needs the container to have a network namespace"), "{shared:?}");
}

#[test]
fn labels_of_modules_that_do_not_run_are_refused() {
    for (pointer, text) in [
        (
            "/process/apparmorProfile",
            "process.apparmorProfile is a label of AppArmor, which this kernel does not run",
        ),
        ("/process/selinuxLabel", "process.selinuxLabel is a label of SELinux"),
        ("/linux/mountLabel", "linux.mountLabel is a label of SELinux"),
    ] {
        let mut bundle = Bundle::new("true");
        bundle.set(pointer, json!("name"));
        let outcome = bundle.run();
        let module_runs = outcome.code == 0 || !outcome.stderr.contains("does not run");
        if module_runs {
            println!("skipped {pointer}: this kernel runs the module");
            continue;
        }
        assert!(outcome.refusal().starts_with(text), "{outcome:?}");
    }
}

#[test]
fn each_process_has_a_session_keyring_of_its_own() {
    let script = "grep _ses /proc/keys | grep -v _uid_ses | awk '{ print $1 }'";
    let mut bundle = Bundle::new(script);
    bundle.set("/linux/maskedPaths", json!([]));
    let serials: Vec<String> = (0..2).map(|_| bundle.run().text().to_owned()).collect();
    assert!(!serials[0].is_empty() && serials[0] != serials[1], "{serials:?}");
}
