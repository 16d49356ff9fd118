//! Namespaces that exist: each kind joined by its path, alone and together, and what a container may then set.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use support::{Bundle, OUTSIDE};

const ALL: [(&str, &str); 8] = [
    ("user", "user"),
    ("mount", "mnt"),
    ("pid", "pid"),
    ("network", "net"),
    ("ipc", "ipc"),
    ("uts", "uts"),
    ("cgroup", "cgroup"),
    ("time", "time"),
];

/// A process with namespaces of its own, for as long as the value lives.
struct Holder {
    unshare: Child,
    pid: u32,
}

impl Holder {
    fn new(flags: &[&str]) -> Self {
        let mut unshare = Command::new("unshare")
            .args(flags)
            .args([
                "--fork",
                "--kill-child",
                "sh",
                "-c",
                "hostname holder 2>/dev/null; echo ready; exec sleep 600",
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(unshare.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", unshare.id())).unwrap();
        Self { pid: children.trim().parse().unwrap(), unshare }
    }

    fn all(user: bool) -> Self {
        let mut flags = vec!["--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--time"];
        if user {
            flags.push("--user");
        }
        let holder = Self::new(&flags);
        if user {
            for map in ["uid_map", "gid_map"] {
                fs::write(format!("/proc/{}/{map}", holder.pid), format!("0 {OUTSIDE} 65536")).unwrap();
            }
        }
        holder
    }

    fn path(&self, file: &str) -> String {
        format!("/proc/{}/ns/{file}", self.pid)
    }

    /// As a process in it sees the link.
    fn id(&self, file: &str) -> String {
        fs::read_link(self.path(file)).unwrap().to_str().unwrap().to_owned()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

const SEEN: &str = "for n in user mnt pid net ipc uts cgroup time; do readlink /proc/self/ns/$n; done";

/// A container that joins `joined` of `holder` and has the rest for itself.
fn container(holder: &Holder, joined: &[&str], script: &str) -> Bundle {
    let mut bundle = Bundle::new(script);
    bundle.spec.as_object_mut().unwrap().remove("hostname");
    let kinds: Vec<Value> = ALL
        .iter()
        .filter(|(kind, _)| *kind != "user" || joined.contains(kind))
        .map(|(kind, file)| match joined.contains(kind) {
            true => json!({"type": kind, "path": holder.path(file)}),
            false => json!({"type": kind}),
        })
        .collect();
    bundle.set("/linux/namespaces", json!(kinds));
    bundle
}

fn check(holder: &Holder, joined: &[&str], bundle: &Bundle) {
    let outcome = bundle.run();
    for (line, (kind, file)) in outcome.text().lines().zip(ALL) {
        let ours = fs::read_link(format!("/proc/self/ns/{file}")).unwrap();
        match joined.contains(&kind) {
            true => assert_eq!(line, holder.id(file), "{kind}: {outcome:?}"),
            false if kind == "user" => assert_eq!(line, ours.to_str().unwrap()),
            false => {
                assert!(line != holder.id(file) && line != ours.to_str().unwrap(), "{kind}: {outcome:?}")
            }
        }
    }
}

#[test]
fn each_kind_can_be_joined_alone() {
    let holder = Holder::all(false);
    for (kind, _) in ALL.iter().skip(1) {
        // Who pivots in a joined mount namespace takes its processes along, so that comes last.
        if *kind != "mount" {
            check(&holder, &[kind], &container(&holder, &[kind], SEEN));
        }
    }
    check(&holder, &["mount"], &container(&holder, &["mount"], SEEN));
}

#[test]
fn all_kinds_can_be_joined_together() {
    let all = ["mount", "pid", "network", "ipc", "uts", "cgroup", "time"];
    let holder = Holder::all(false);
    check(&holder, &all, &container(&holder, &all, SEEN));
}

#[test]
fn a_user_namespace_is_joined_with_what_belongs_to_it() {
    for joined in [
        &["user"][..],
        &["user", "network", "ipc", "uts"],
        &["user", "network", "ipc", "uts", "pid", "cgroup", "time"],
    ] {
        let holder = Holder::all(true);
        let script = format!(
            "{SEEN}; id -u; cat /proc/self/uid_map | tr -s ' '; cat /proc/self/oom_score_adj; ulimit -n"
        );
        let mut bundle = container(&holder, joined, &script);
        let limit = json!([{"type": "RLIMIT_NOFILE", "soft": 300, "hard": 300}]);
        bundle.set("/process/rlimits", limit).set("/process/oomScoreAdj", json!(200));
        support::give_to_outside(&bundle.rootfs());
        check(&holder, joined, &bundle);
        let outcome = bundle.run();
        let rest: Vec<&str> = outcome.text().lines().skip(ALL.len()).map(str::trim).collect();
        assert_eq!(rest, ["0", "0 100000 65536", "200", "300"], "{joined:?}");
    }
}

#[test]
fn a_new_user_namespace_goes_with_namespaces_of_the_machines() {
    let holder = Holder::all(false);
    let mut bundle =
        container(&holder, &["network", "uts", "ipc"], "readlink /proc/self/ns/net; hostname; id -u");
    // A sysfs belongs to the network namespace's owner.
    bundle.spec["mounts"]
        .as_array_mut()
        .unwrap()
        .retain(|mount| !["/sys", "/dev/mqueue"].contains(&mount["destination"].as_str().unwrap()));
    bundle.set("/linux/maskedPaths", json!([]));
    let outcome = bundle.in_user_namespace().run();
    assert_eq!(outcome.text(), format!("{}\nholder\n0", holder.id("net")));
}

#[test]
fn the_clocks_of_a_joined_time_namespace_are_its_own() {
    let holder = Holder::new(&["--time", "--boottime", "800000000"]);
    let bundle = container(&holder, &["time"], "[ $(cut -d. -f1 /proc/uptime) -gt 800000000 ] && echo late");
    assert_eq!(bundle.run().text(), "late");
}

#[test]
fn what_is_the_machines_is_not_the_containers_to_set() {
    for (kind, file, pointer, value) in [
        ("network", "net", "/linux/sysctl", json!({"net.ipv4.ip_forward": "1"})),
        ("ipc", "ipc", "/linux/sysctl", json!({"kernel.shmmax": "1"})),
        ("uts", "uts", "/hostname", json!("mine")),
        ("uts", "uts", "/domainname", json!("mine")),
    ] {
        let mut bundle = Bundle::new("true");
        bundle.spec.as_object_mut().unwrap().remove("hostname");
        bundle.spec["linux"]["namespaces"]
            .as_array_mut()
            .unwrap()
            .retain(|namespace| namespace["type"] != kind);
        bundle.set("/linux/namespaces/-", json!({"type": kind, "path": format!("/proc/self/ns/{file}")}));
        assert_eq!(bundle.run().text(), "", "{kind}");
        bundle.set(pointer, value);
        let outcome = bundle.run();
        assert!(outcome.refusal().contains(&format!("{kind} namespace: add one")), "{kind}: {outcome:?}");
    }
    // One that is another's may be set up.
    let holder = Holder::all(false);
    let mut bundle = container(&holder, &["network"], "cat /proc/sys/net/ipv4/ip_default_ttl");
    bundle.set("/linux/sysctl", json!({"net.ipv4.ip_default_ttl": "44"}));
    assert_eq!(bundle.run().text(), "44");
}

#[test]
fn a_path_of_another_kind_is_refused() {
    for (kind, file) in ALL {
        let other = if kind == "uts" { "ipc" } else { "uts" };
        let holder = Holder::new(&["--uts", "--ipc"]);
        let mut bundle = Bundle::new("true");
        bundle.spec["linux"]["namespaces"]
            .as_array_mut()
            .unwrap()
            .retain(|namespace| namespace["type"] != kind);
        for path in [holder.path(other), "/dev/null".into()] {
            let before = bundle.spec.clone();
            bundle.set("/linux/namespaces/-", json!({"type": kind, "path": path}));
            let outcome = bundle.run();
            assert!(
                outcome.refusal().contains(&format!("{kind} namespace is a namespace of another kind")),
                "{file}: {outcome:?}"
            );
            bundle.spec = before;
        }
    }
}

#[test]
fn without_a_pid_namespace_a_container_is_among_the_machines_processes() {
    let mut bundle =
        Bundle::new("[ $$ != 1 ] && [ -d /proc/1 ] && echo $$ > /tmp/pid && readlink /proc/self/ns/pid");
    bundle.spec["linux"]["namespaces"].as_array_mut().unwrap().retain(|namespace| namespace["type"] != "pid");
    let ours = fs::read_link("/proc/self/ns/pid").unwrap();
    assert_eq!(bundle.run().text(), ours.to_str().unwrap());
    let exec = bundle.exec(support::process("[ $$ != 1 ] && readlink /proc/self/ns/pid"));
    assert_eq!(exec.text(), ours.to_str().unwrap());
}

#[test]
fn id_maps_are_exact() {
    let map = json!([
        {"containerID": 0, "hostID": 100_000, "size": 1},
        {"containerID": 1000, "hostID": 200_000, "size": 5},
        {"containerID": 4_294_967_294_u32, "hostID": 300_000, "size": 1},
    ]);
    let run = |uid: u32, gids: Value| {
        let mut bundle = Bundle::new("cat /proc/self/uid_map | tr -s ' '; id -u; id -G");
        bundle.in_user_namespace();
        bundle.set("/linux/uidMappings", map.clone()).set("/linux/gidMappings", map.clone());
        bundle.spec["mounts"].as_array_mut().unwrap().retain(|mount| mount["destination"] != "/dev/pts");
        bundle.set("/process/user", json!({"uid": uid, "gid": uid, "additionalGids": gids}));
        bundle.run()
    };
    for uid in [0, 1000, 1004, 4_294_967_294] {
        let outcome = run(uid, json!([1003]));
        let maps = " 0 100000 1\n 1000 200000 5\n4294967294 300000 1";
        assert_eq!(outcome.text(), format!("{maps}\n{uid}\n{uid} 1003"), "{outcome:?}");
    }
    for uid in [1, 999, 1005, 65534] {
        let outcome = run(uid, json!([]));
        assert!(
            outcome.refusal().contains(&format!("process.user.uid \"{uid}\" is not mapped")),
            "{outcome:?}"
        );
    }
    let outcome = run(0, json!([1005]));
    assert!(outcome.refusal().contains("process.user.additionalGids \"1005\" is not mapped"), "{outcome:?}");
}

#[test]
fn offsets_need_a_time_namespace_and_a_clock_that_has_some() {
    let mut bundle = Bundle::new("true");
    bundle.set("/linux/timeOffsets", json!({"boottime": {"secs": 1}}));
    assert!(
        bundle.run().refusal().contains("linux.timeOffsets needs the container to have a time namespace")
    );
    bundle.set("/linux/namespaces/-", json!({"type": "time"}));
    bundle.set("/linux/timeOffsets", json!({"realtime": {"secs": 1}}));
    assert!(bundle.run().refusal().contains("\"realtime\" is not a clock that can be offset"));
    bundle.set("/linux/timeOffsets", json!({"boottime": {"nanosecs": 1_000_000_000}}));
    assert!(bundle.run().refusal().contains("is a second or more"));
    // Before the beginning of time.
    bundle.set("/linux/timeOffsets", json!({"boottime": {"secs": -9_000_000_000_i64}}));
    assert!(bundle.run().refusal().contains("/proc/self/timens_offsets: Numerical result out of range"));
}
