//! Steering and watching containers: limits, freezing, statistics, OOM kills. Here on cgroup v1; `tests/vm.rs` has v2.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::time::Duration;

use berth::{Agent, Container, Guest, Role, code, deadline, process};
use berth_protocols::{
    agent::{GetDiagnosticDataRequest, GetOOMEventRequest, UpdateContainerRequest},
    oci,
};
use nix::sys::signal::Signal;
use ttrpc::Code;

const MIB: u64 = 1 << 20;

async fn sleeping(agent: &Agent, guest: &Guest, id: &str) {
    guest.create(&agent.container(id, &["sleep", "1000"])).await.unwrap();
    guest.start(id).await.unwrap();
}

async fn update(guest: &Guest, id: &str, resources: Option<oci::LinuxResources>) -> ttrpc::Result<()> {
    let request =
        UpdateContainerRequest { container_id: id.into(), resources: resources.into(), ..Default::default() };
    deadline(guest.agent.update_container(ttrpc::context::with_timeout(0), &request)).await.map(drop)
}

fn limits(memory: i64, pids: i64, quota: i64) -> oci::LinuxResources {
    let mut resources = oci::LinuxResources::new();
    resources.Memory.mut_or_insert_default().Limit = memory;
    resources.Pids.mut_or_insert_default().Limit = pids;
    let cpu = resources.CPU.mut_or_insert_default();
    (cpu.Quota, cpu.Period) = (quota, 100_000);
    resources
}

#[tokio::test]
async fn limits_are_changed_and_lifted() {
    let (agent, guest) = Agent::with_sandbox().await;
    sleeping(&agent, &guest, "c1").await;
    update(&guest, "c1", Some(limits(64 * MIB as i64, 17, 50_000))).await.unwrap();
    let stats = guest.stats("c1").await.unwrap();
    assert_eq!(stats.cgroup_stats.memory_stats.usage.limit, 64 * MIB);
    assert_eq!(stats.cgroup_stats.pids_stats.limit, 17);
    assert_eq!(agent.cgroup_file("cpu", "c1", "cpu.cfs_quota_us"), "50000");

    update(&guest, "c1", Some(oci::LinuxResources::new())).await.unwrap();
    update(&guest, "c1", None).await.unwrap();
    assert_eq!(guest.stats("c1").await.unwrap().cgroup_stats.pids_stats.limit, 17, "absent changes nothing");

    update(&guest, "c1", Some(limits(-1, -1, -1))).await.unwrap();
    let stats = guest.stats("c1").await.unwrap();
    assert_eq!((stats.cgroup_stats.memory_stats.usage.limit, stats.cgroup_stats.pids_stats.limit), (0, 0));
    assert_eq!(agent.cgroup_file("cpu", "c1", "cpu.cfs_quota_us"), "-1");
    let (refused, message) = code(update(&guest, "c1", Some(limits(-2, 0, 0))).await);
    assert_eq!(refused, Code::INVALID_ARGUMENT, "{message}");
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn a_paused_container_stands_still_and_refuses_execs_at_once() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest
        .create(&agent.shell("c1", "i=0; while :; do i=$((i+1)); echo $i > /tmp/n; usleep 1000; done"))
        .await
        .unwrap();
    let (early, message) = code(guest.pause("c1").await);
    assert_eq!(early, Code::FAILED_PRECONDITION, "{message}");
    guest.start("c1").await.unwrap();
    let count = || std::fs::read_to_string(agent.rootfs.path().join("tmp/n")).unwrap_or_default();
    while count().is_empty() {
        tokio::task::yield_now().await;
    }

    guest.pause("c1").await.unwrap();
    let before = count();
    let (refused, message) = code(guest.exec("c1", "e1", process(&["true"])).await);
    assert_eq!(refused, Code::FAILED_PRECONDITION, "{message}");
    assert!(message.contains("it is paused"), "{message}");
    assert_eq!(code(guest.pause("c1").await).0, Code::FAILED_PRECONDITION);
    assert!(guest.stats("c1").await.unwrap().cgroup_stats.cpu_stats.cpu_usage.total_usage > 0);
    // Another one gets as far meanwhile.
    let other =
        guest.run(&agent.shell("c2", "i=0; while [ $i -lt 100 ]; do i=$((i+1)); usleep 1000; done")).await;
    assert_eq!((other.status, count()), (0, before.clone()));

    guest.resume("c1").await.unwrap();
    while count() == before {
        tokio::task::yield_now().await;
    }
    assert_eq!(code(guest.resume("c1").await).0, Code::FAILED_PRECONDITION);
    assert_eq!(guest.run_in("c1", "e1", &["echo", "back"]).await.stdout, "back\n");
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn a_paused_container_is_killed_and_removed_like_any_other() {
    let (agent, guest) = Agent::with_sandbox().await;
    sleeping(&agent, &guest, "c1").await;
    guest.pause("c1").await.unwrap();
    guest.signal("c1", "", Signal::SIGKILL as i32).await.unwrap();
    assert_eq!(guest.wait("c1", "").await.unwrap(), 137);
    guest.remove("c1").await.unwrap();

    sleeping(&agent, &guest, "c2").await;
    guest.pause("c2").await.unwrap();
    guest.remove("c2").await.unwrap();
    assert_eq!(agent.container_pids(), [] as [i32; 0]);
}

#[tokio::test]
async fn a_pause_survives_the_worker() {
    let (agent, guest) = Agent::with_sandbox().await;
    sleeping(&agent, &guest, "c1").await;
    guest.pause("c1").await.unwrap();
    agent.replace(Role::Worker, Signal::SIGKILL).await;
    let guest = agent.client().await;
    let (refused, message) = code(guest.exec("c1", "e1", process(&["true"])).await);
    assert_eq!(refused, Code::FAILED_PRECONDITION, "{message}");
    guest.resume("c1").await.unwrap();
    assert_eq!(guest.run_in("c1", "e1", &["echo", "back"]).await.stdout, "back\n");
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn pauses_resumes_and_execs_at_once_end_in_a_known_state() {
    let (agent, guest) = Agent::with_sandbox().await;
    sleeping(&agent, &guest, "c1").await;
    let mut all = Vec::new();
    for n in 0..60 {
        let guest = guest.clone();
        all.push(tokio::spawn(async move {
            match n % 3 {
                0 => drop(guest.pause("c1").await),
                1 => drop(guest.resume("c1").await),
                _ => drop(guest.exec("c1", &format!("e{n}"), process(&["true"])).await),
            }
        }));
    }
    // An exec that was let in before a pause may be thawed only by a resume.
    let thaw = async {
        for task in all {
            task.await.unwrap();
        }
    };
    deadline(thaw).await;
    let _maybe_running = guest.resume("c1").await;
    assert_eq!(guest.run_in("c1", "last", &["echo", "ok"]).await.stdout, "ok\n");
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn statistics_tell_what_was_used() {
    let (agent, guest) = Agent::with_sandbox().await;
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; \
                  dd if=/dev/zero of=/dev/shm/x bs=1M count=16 2>/dev/null; echo done; exec sleep 1000";
    guest.create(&agent.shell("c1", script)).await.unwrap();
    guest.start("c1").await.unwrap();
    guest.read_until("c1", "", "done").await;
    let stats = guest.stats("c1").await.unwrap();
    let cgroup = &stats.cgroup_stats;
    let cpu = &cgroup.cpu_stats.cpu_usage;
    assert!(cpu.total_usage > 1_000_000 && cpu.usage_in_usermode > 0, "{cpu:?}");
    assert_eq!(cpu.percpu_usage.len(), std::thread::available_parallelism().unwrap().get());
    let memory = &cgroup.memory_stats;
    assert!(memory.usage.usage >= 16 * MIB && memory.usage.max_usage >= memory.usage.usage, "{memory:?}");
    assert!(memory.cache >= 16 * MIB && memory.stats.contains_key("mapped_file") && memory.use_hierarchy);
    assert_eq!(cgroup.pids_stats.current, 1);
    let lo = stats.network_stats.iter().find(|interface| interface.name == "lo").expect("an interface");
    assert_eq!(lo.rx_errors, 0);

    guest.signal("c1", "", Signal::SIGKILL as i32).await.unwrap();
    guest.wait("c1", "").await.unwrap();
    let dead = guest.stats("c1").await.unwrap();
    assert!(dead.cgroup_stats.cpu_stats.cpu_usage.total_usage > 0 && dead.network_stats.is_empty());
    guest.remove("c1").await.unwrap();
    assert_eq!(code(guest.stats("c1").await).0, Code::INVALID_ARGUMENT);
}

/// A container that is killed for want of memory, `kills` times in a row; its init lives.
fn glutton(agent: &Agent, id: &str, kills: u32) -> Container {
    let eat = "sh -c 'echo 1000 > /proc/self/oom_score_adj; x=a; while :; do x=$x$x; done' 2>/dev/null";
    let script =
        format!("i=0; while [ $i -lt {kills} ]; do {eat}; i=$((i+1)); done; echo done; exec sleep 1000");
    let mut container = agent.shell(id, &script);
    container.linux().Resources.mut_or_insert_default().Memory.mut_or_insert_default().Limit =
        32 * MIB as i64;
    container
}

async fn oom_event(guest: &Guest) -> ttrpc::Result<String> {
    let reply =
        deadline(guest.agent.get_oom_event(ttrpc::context::with_timeout(0), &GetOOMEventRequest::new()))
            .await;
    reply.map(|event| event.container_id)
}

/// That nothing more is to be told.
async fn no_oom_event(guest: &Guest) {
    let context = ttrpc::context::with_duration(Duration::from_millis(300));
    let more = guest.agent.get_oom_event(context, &GetOOMEventRequest::new()).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test]
async fn every_oom_kill_is_told_exactly_once() {
    let (agent, guest) = Agent::with_sandbox().await;
    for (id, kills) in [("c1", 3), ("c2", 2)] {
        guest.create(&glutton(&agent, id, kills)).await.unwrap();
        guest.start(id).await.unwrap();
    }
    let waiters: Vec<_> = (0..5)
        .map(|_| {
            let guest = guest.clone();
            tokio::spawn(async move { oom_event(&guest).await.unwrap() })
        })
        .collect();
    let mut told = Vec::new();
    for waiter in waiters {
        told.push(waiter.await.unwrap());
    }
    told.sort();
    assert_eq!(told, ["c1", "c1", "c1", "c2", "c2"]);
    for id in ["c1", "c2"] {
        guest.read_until(id, "", "done").await;
    }
    no_oom_event(&guest).await;
    for id in ["c1", "c2"] {
        guest.remove(id).await.unwrap();
    }
    no_oom_event(&guest).await;
}

#[tokio::test]
async fn clients_that_vanish_take_no_oom_event_with_them() {
    let (agent, guest) = Agent::with_sandbox().await;
    for _ in 0..200 {
        let gone = agent.client().await;
        let call = tokio::spawn(async move { oom_event(&gone).await });
        tokio::task::yield_now().await;
        call.abort();
    }
    guest.create(&glutton(&agent, "c1", 1)).await.unwrap();
    guest.start("c1").await.unwrap();
    guest.read_until("c1", "", "done").await;
    assert_eq!(oom_event(&guest).await.unwrap(), "c1");
    no_oom_event(&guest).await;
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn oom_kills_that_nobody_was_told_of_outlive_the_worker() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.create(&glutton(&agent, "c1", 3)).await.unwrap();
    guest.start("c1").await.unwrap();
    assert_eq!(oom_event(&guest).await.unwrap(), "c1");
    guest.read_until("c1", "", "done").await;
    agent.replace(Role::Worker, Signal::SIGKILL).await;
    let guest = agent.client().await;
    for _ in 0..2 {
        assert_eq!(oom_event(&guest).await.unwrap(), "c1");
    }
    no_oom_event(&guest).await;
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn a_container_killed_whole_and_removed_at_once_is_still_told() {
    let (agent, guest) = Agent::with_sandbox().await;
    let mut container = agent.shell("c1", "x=a; while :; do x=$x$x; done");
    container.linux().Resources.mut_or_insert_default().Memory.mut_or_insert_default().Limit =
        32 * MIB as i64;
    guest.create(&container).await.unwrap();
    guest.start("c1").await.unwrap();
    assert_eq!(guest.wait("c1", "").await.unwrap(), 137);
    guest.remove("c1").await.unwrap();
    assert_eq!(oom_event(&guest).await.unwrap(), "c1");
}

#[tokio::test]
async fn the_termination_message_is_read_from_the_mounted_file() {
    let (agent, guest) = Agent::with_sandbox().await;
    let source = agent.dir().join("message");
    std::fs::write(&source, "").unwrap();
    let mut container = agent.shell("c1", "printf 'it broke: \\377' > /dev/termination-log; exec sleep 1000");
    container
        .spec()
        .Annotations
        .insert("io.kubernetes.container.terminationMessagePath".into(), "/dev/termination-log".into());
    container.spec().Mounts.push(oci::Mount {
        destination: "/dev/termination-log".into(),
        source: source.to_string_lossy().into_owned(),
        type_: "bind".into(),
        options: vec!["rbind".into(), "rw".into()],
        ..Default::default()
    });
    guest.create(&container).await.unwrap();
    guest.start("c1").await.unwrap();
    let ask = |id: &str, log_type: &str| {
        let request = GetDiagnosticDataRequest {
            log_type: log_type.into(),
            container_id: id.into(),
            ..Default::default()
        };
        let guest = guest.clone();
        async move {
            let reply = guest.agent.get_diagnostic_data(ttrpc::context::with_timeout(0), &request).await;
            reply.map(|reply| reply.data)
        }
    };
    while ask("c1", "termination_log").await.unwrap() != "it broke: \u{fffd}" {
        tokio::task::yield_now().await;
    }
    guest.create(&agent.container("c2", &["true"])).await.unwrap();
    assert_eq!(ask("c2", "termination_log").await.unwrap(), "");
    assert_eq!(code(ask("c2", "dmesg").await).0, Code::INVALID_ARGUMENT);
    assert_eq!(code(ask("c3", "termination_log").await).0, Code::INVALID_ARGUMENT);
}
