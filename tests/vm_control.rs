//! What only a guest of its own shows: cgroup v2 with all controllers, a clock and an entropy pool to change. One VM
//! for all of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::time::{Duration, Instant};

use berth::{Container, Guest, Vm, code, deadline, process};
use berth_protocols::agent::{
    GetMetricsRequest, GetOOMEventRequest, MemAgentCompactConfig, MemAgentMemcgConfig,
    ReseedRandomDevRequest, SetGuestDateTimeRequest, UpdateContainerRequest,
};
use ttrpc::Code;

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn a_guest_of_its_own() {
    let (vm, guest) = Vm::with_sandbox(&[]).await;
    limits_and_statistics(&vm, &guest).await;
    pause(&vm, &guest).await;
    oom_kills(&vm, &guest).await;
    clock(&vm, &guest).await;
    entropy(&guest).await;
    memory_agent(&guest).await;
    metrics(&guest).await;
}

async fn limits_and_statistics(vm: &Vm, guest: &Guest) {
    let script = "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; \
                  dd if=/dev/zero of=/dev/shm/x bs=1M count=8 2>/dev/null; echo done; exec sleep 1000";
    guest.create(&vm.shell("limits", script)).await.unwrap();
    guest.start("limits").await.unwrap();
    guest.read_until("limits", "", "done").await;
    let update = |memory: i64, pids: i64| {
        let mut request = UpdateContainerRequest { container_id: "limits".into(), ..Default::default() };
        let resources = request.resources.mut_or_insert_default();
        resources.Memory.mut_or_insert_default().Limit = memory;
        resources.Pids.mut_or_insert_default().Limit = pids;
        let guest = guest.clone();
        async move { deadline(guest.agent.update_container(ttrpc::context::with_timeout(0), &request)).await }
    };
    update(64 * MIB as i64, 17).await.unwrap();
    let stats = guest.stats("limits").await.unwrap();
    let cgroup = &stats.cgroup_stats;
    assert_eq!((cgroup.memory_stats.usage.limit, cgroup.pids_stats.limit), (64 * MIB, 17));
    assert!(cgroup.memory_stats.usage.usage >= 8 * MIB && cgroup.memory_stats.cache >= 8 * MIB, "{cgroup:?}");
    assert!(cgroup.cpu_stats.cpu_usage.total_usage > 0 && cgroup.cpu_stats.cpu_usage.usage_in_usermode > 0);
    assert_eq!(cgroup.pids_stats.current, 1);
    assert!(stats.network_stats.iter().any(|interface| interface.name == "lo"), "{:?}", stats.network_stats);
    update(-1, -1).await.unwrap();
    let stats = guest.stats("limits").await.unwrap();
    assert_eq!((stats.cgroup_stats.memory_stats.usage.limit, stats.cgroup_stats.pids_stats.limit), (0, 0));
    guest.remove("limits").await.unwrap();
}

async fn pause(vm: &Vm, guest: &Guest) {
    guest.create(&vm.container("pause", &["cat"])).await.unwrap();
    guest.start("pause").await.unwrap();
    guest.pause("pause").await.unwrap();
    guest.write("pause", "", b"hello\n").await.unwrap();
    let (refused, message) = code(guest.exec("pause", "e1", process(&["true"])).await);
    assert_eq!(refused, Code::FAILED_PRECONDITION, "{message}");
    guest.resume("pause").await.unwrap();
    assert_eq!(guest.read_until("pause", "", "\n").await, "hello\n");
    guest.pause("pause").await.unwrap();
    guest.remove("pause").await.unwrap();
}

fn glutton(vm: &Vm, id: &str, kills: u32) -> Container {
    let eat = "sh -c 'echo 1000 > /proc/self/oom_score_adj; x=a; while :; do x=$x$x; done' 2>/dev/null";
    let script =
        format!("i=0; while [ $i -lt {kills} ]; do {eat}; i=$((i+1)); done; echo done; exec sleep 1000");
    let mut container = vm.shell(id, &script);
    let resources = container.linux().Resources.mut_or_insert_default();
    resources.Memory.mut_or_insert_default().Limit = 24 * MIB as i64;
    container
}

async fn oom_kills(vm: &Vm, guest: &Guest) {
    guest.create(&glutton(vm, "oom", 3)).await.unwrap();
    guest.start("oom").await.unwrap();
    for _ in 0..3 {
        let event = GetOOMEventRequest::new();
        let event =
            deadline(guest.agent.get_oom_event(ttrpc::context::with_timeout(0), &event)).await.unwrap();
        assert_eq!(event.container_id, "oom");
    }
    guest.read_until("oom", "", "done").await;
    let context = ttrpc::context::with_duration(Duration::from_millis(500));
    let more = guest.agent.get_oom_event(context, &GetOOMEventRequest::new()).await;
    assert!(more.is_err(), "{more:?}");
    guest.remove("oom").await.unwrap();
}

/// The clock jumps ten years both ways: what waits is not disturbed, and what asks sees the new time.
async fn clock(vm: &Vm, guest: &Guest) {
    guest.create(&vm.container("clock", &["sleep", "1000"])).await.unwrap();
    guest.start("clock").await.unwrap();
    let waiter = {
        let guest = guest.clone();
        tokio::spawn(async move { guest.wait("clock", "").await })
    };
    for seconds in [1_400_000_000, 2_000_000_000, 100_000, 1_700_000_000] {
        let request = SetGuestDateTimeRequest { Sec: seconds, Usec: 250_000, ..Default::default() };
        let context = ttrpc::context::with_timeout(0);
        deadline(guest.agent.set_guest_date_time(context, &request)).await.unwrap();
        let seen = guest.run_in("clock", &format!("e{seconds}"), &["date", "+%s"]).await;
        let seen: i64 = seen.stdout.trim().parse().unwrap();
        assert!((seconds..seconds + 60).contains(&seen), "{seen} after {seconds}");
    }
    let start = Instant::now();
    let context = ttrpc::context::with_duration(Duration::from_secs(1));
    assert!(guest.agent.get_oom_event(context, &GetOOMEventRequest::new()).await.is_err());
    assert!(start.elapsed() >= Duration::from_millis(900), "no deadline is early");
    assert!(!waiter.is_finished());
    guest.signal("clock", "", 9).await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap(), 137);
    guest.remove("clock").await.unwrap();
}

async fn entropy(guest: &Guest) {
    let seed = |data: &[u8]| {
        let (guest, request) =
            (guest.clone(), ReseedRandomDevRequest { data: data.to_vec(), ..Default::default() });
        async move { deadline(guest.agent.reseed_random_dev(ttrpc::context::with_timeout(0), &request)).await }
    };
    seed(&[0x5a; 32]).await.unwrap();
    seed(&[7; 100_000]).await.unwrap();
    assert_eq!(code(seed(&[]).await), (Code::INVALID_ARGUMENT, "missing entropy data".to_owned()));
}

/// What the guest's kernel has is used, and what it lacks is named.
async fn memory_agent(guest: &Guest) {
    let context = || ttrpc::context::with_timeout(0);
    let reclaim = MemAgentMemcgConfig { disabled: Some(false), period_secs: Some(1), ..Default::default() };
    let compact = MemAgentCompactConfig { disabled: Some(false), period_secs: Some(1), ..Default::default() };
    let answers = [
        deadline(guest.agent.mem_agent_memcg_set(context(), &reclaim)).await,
        deadline(guest.agent.mem_agent_compact_set(context(), &compact)).await,
    ];
    for answer in answers {
        if let Err(error) = answer {
            let (refused, message) = code(Err::<(), _>(error));
            assert_eq!(refused, Code::FAILED_PRECONDITION, "{message}");
            assert!(message.contains("its kernel has no"), "{message}");
        }
    }
    let nonsense = MemAgentCompactConfig { compact_order: Some(256), ..Default::default() };
    let refused = deadline(guest.agent.mem_agent_compact_set(context(), &nonsense)).await;
    assert_eq!(code(refused).0, Code::INVALID_ARGUMENT);
}

async fn metrics(guest: &Guest) {
    let request = GetMetricsRequest::new();
    let metrics =
        deadline(guest.agent.get_metrics(ttrpc::context::with_timeout(0), &request)).await.unwrap().metrics;
    for sample in ["kata_guest_meminfo{item=\"mem_total\"}", "berth_role_resident_bytes{role=\"init\"}"] {
        assert!(metrics.contains(sample), "{sample} is not in\n{metrics}");
    }
}
