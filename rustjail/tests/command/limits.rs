//! `update`, `events` and `stats`: limits as the kernel has them, and what it counts.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::jail::{Jail, run, wait};

/// The value of a file of the container's memory or pids group, whichever version has it.
fn limit(jail: &Jail, controller: &str, v1: &str, v2: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{}/cgroup", jail.pid("c"))).unwrap();
    let member = |wanted: &str| {
        text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (names, path) = (fields.next()?, fields.next()?);
            names.split(',').any(|name| name == wanted).then(|| path.to_owned())
        })
    };
    let path = match member(controller) {
        Some(path) => format!("/sys/fs/cgroup/{controller}{path}/{v1}"),
        None => format!("/sys/fs/cgroup{}/{v2}", member("").unwrap()),
    };
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}

fn memory(jail: &Jail) -> String {
    limit(jail, "memory", "memory.limit_in_bytes", "memory.max")
}

fn pids(jail: &Jail) -> String {
    limit(jail, "pids", "pids.max", "pids.max")
}

#[test]
fn it_may_run_where_its_maker_may() {
    let jail = Jail::new("grep Cpus_allowed_list: /proc/self/status");
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let all = own.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap();
    assert_eq!(jail.ok(&["run", "c"]), all);
    let first = all.split([':', '-', ',']).nth(1).unwrap().trim();
    let direct = jail.command(&["run", "c"]);
    let mut bound = Command::new("taskset");
    bound.args(["-c", first]).arg(direct.get_program()).args(direct.get_args());
    bound.current_dir(&jail.bundle.path);
    let outcome = run(bound, &jail.bundle.path);
    assert_eq!(outcome.text(), format!("Cpus_allowed_list:\t{first}"));
}

#[test]
fn update_changes_what_it_is_told_to_and_nothing_else() {
    let mut jail = Jail::sleeping();
    jail.bundle.set("/linux/resources", json!({"memory": {"limit": 64 << 20}, "pids": {"limit": 50}}));
    jail.ok(&["run", "-d", "c"]);
    assert_eq!((memory(&jail), pids(&jail)), ("67108864".into(), "50".into()));
    jail.ok(&["update", "--memory", "32m", "c"]);
    assert_eq!((memory(&jail), pids(&jail)), ("33554432".into(), "50".into()));
    jail.ok(&["update", "c", "--pids-limit=20"]);
    assert_eq!((memory(&jail), pids(&jail)), ("33554432".into(), "20".into()));

    let mut command = jail.command(&["update", "--resources", "-", "c"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(br#"{"pids": {"limit": 30}}"#).unwrap();
    assert_eq!(wait(&mut child), 0);
    assert_eq!(pids(&jail), "30");

    jail.refused(&["update", "--memory", "much", "c"], 1, "much");
    jail.refused(&["update", "--memory", "1m", "nosuch"], 1, "does not exist");
    assert_eq!(memory(&jail), "33554432");
}

#[test]
fn statistics_are_the_kernels() {
    let mut jail = Jail::new("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 1000");
    jail.bundle.set("/linux/resources", json!({"pids": {"limit": 50}}));
    jail.ok(&["run", "-d", "c"]);
    for line in [&["events", "--stats", "c"][..], &["stats", "c"]] {
        let event: Value = serde_json::from_str(&jail.ok(line)).unwrap();
        assert_eq!((event["type"].as_str(), event["id"].as_str()), (Some("stats"), Some("c")));
        let data = &event["data"];
        assert!(data["cpu"]["usage"]["total"].as_u64().unwrap() > 0);
        assert!(data["memory"]["usage"]["usage"].as_u64().unwrap() > 0);
        assert!(data["pids"]["current"].as_u64().unwrap() >= 1);
        assert_eq!(data["pids"]["limit"], 50);
    }
    jail.refused(&["stats", "nosuch"], 1, "does not exist");
}

#[test]
fn events_come_at_intervals_until_the_container_ends() {
    let jail = Jail::sleeping();
    jail.ok(&["run", "-d", "c"]);
    let mut command = jail.command(&["events", "--interval", "20ms", "c"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(3);
    for line in lines {
        assert_eq!(serde_json::from_str::<Value>(&line.unwrap()).unwrap()["type"], "stats");
    }
    jail.ok(&["kill", "c", "KILL"]);
    // Its reader is gone by now, so writing may fail as well.
    wait(&mut child);
    jail.refused(&["events", "c"], 1, "not running");
    jail.refused(&["events", "--interval", "soon", "c"], 1, "soon");
}

#[test]
fn an_oom_kill_is_an_event() {
    let mut jail = Jail::new("while [ ! -e /go ]; do sleep 0.05; done; x=x; while :; do x=$x$x; done");
    jail.bundle.set("/linux/resources", json!({"memory": {"limit": 16 << 20, "swap": 16 << 20}}));
    jail.ok(&["run", "-d", "c"]);
    let mut command = jail.command(&["events", "--interval", "20ms", "c"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // It watches from before its first line.
    lines.next().unwrap().unwrap();
    fs::write(jail.bundle.rootfs().join("go"), "").unwrap();
    let oom = lines.map(Result::unwrap).any(|line| line.contains("\"oom\""));
    assert!(oom);
    wait(&mut child);
}
