//! A guest that runs out of memory as a whole: a container pays for it, and never the agent. Row R2.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use berth::{Vm, code, deadline};
use berth_protocols::agent::GetMetricsRequest;

/// How often the guest is driven out of memory; `make soak` does it 50 times.
fn rounds() -> usize {
    std::env::var("SOAK_OOM").map_or(3, |count| count.parse().expect("SOAK_OOM is a number"))
}

#[tokio::test]
async fn a_guest_out_of_memory_loses_a_container_and_never_the_agent() {
    let (vm, guest) = Vm::with_sandbox(&["mem=192M"]).await;
    guest.create(&vm.container("bystander", &["cat"])).await.unwrap();
    guest.start("bystander").await.unwrap();
    // Without a limit of its own, and with the score that its configuration gives it, which is none.
    let eat = "cat /proc/self/oom_score_adj; (x=a; while :; do x=$x$x; done); echo $?; x=a; while :; do x=$x$x; done";
    for round in 0..rounds() {
        let output = guest.run(&vm.shell("eater", eat)).await;
        assert_eq!((output.status, output.stdout.as_str()), (137, "0\n137\n"), "round {round}: {output:?}");
        guest.write("bystander", "", b"alive\n").await.unwrap();
        assert_eq!(guest.read_until("bystander", "", "\n").await, "alive\n");
    }
    let context = ttrpc::context::with_timeout(0);
    let metrics =
        deadline(guest.agent.get_metrics(context, &GetMetricsRequest::new())).await.unwrap().metrics;
    for role in ["worker", "launcher"] {
        let sample = format!("berth_role_restarts_total{{role=\"{role}\"}} 0\n");
        assert!(metrics.contains(&sample), "{sample}");
    }
    // Not one of them is exempt but the agent.
    assert_eq!(guest.run_in("bystander", "e1", &["cat", "/proc/self/oom_score_adj"]).await.stdout, "0\n");
    assert_eq!(code(guest.stats("eater").await).0, ttrpc::Code::INVALID_ARGUMENT);
    guest.remove("bystander").await.unwrap();
}
