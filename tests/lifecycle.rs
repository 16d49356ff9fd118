//! The life of containers and processes, as a host drives it over a Unix socket.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use berth::{Agent, Output, process};
use nix::sys::signal::Signal;

#[tokio::test]
async fn the_agent_tells_its_health_and_version() {
    let agent = Agent::start().await;
    let guest = agent.client().await;
    let context = || ttrpc::context::with_timeout(0);
    let check = guest.health.check(context(), &Default::default()).await.unwrap();
    assert_eq!(check.status.value(), 1);
    let version = guest.health.version(context(), &Default::default()).await.unwrap();
    assert_eq!(
        (version.grpc_version.as_str(), version.agent_version.as_str()),
        ("0.0.1", env!("CARGO_PKG_VERSION"))
    );
    let details = guest.agent.get_guest_details(context(), &Default::default()).await.unwrap();
    assert_eq!(details.agent_details.version, env!("CARGO_PKG_VERSION"));
    assert!(!details.agent_details.init_daemon);
}

#[tokio::test]
async fn a_container_writes_both_streams_and_returns_its_exit_code() {
    let (agent, guest) = Agent::with_sandbox().await;
    let output = guest.run(&agent.shell("c1", "echo out; echo err >&2; exit 7")).await;
    assert_eq!(output, Output { status: 7, stdout: "out\n".into(), stderr: "err\n".into() });
    assert_eq!(agent.container_pids(), [] as [i32; 0]);
    assert!(agent.cgroups().iter().all(|dir| !dir.ends_with("c1")), "{:?}", agent.cgroups());
}

#[tokio::test]
async fn nothing_of_the_program_runs_before_start() {
    let (agent, guest) = Agent::with_sandbox().await;
    let mark = agent.rootfs.path().join("tmp/mark");
    guest.create(&agent.shell("c1", "echo ran > /tmp/mark")).await.unwrap();
    assert!(!mark.exists());
    guest.start("c1").await.unwrap();
    assert_eq!(guest.wait("c1", "").await.unwrap(), 0);
    assert!(mark.exists());
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn standard_input_reaches_the_program_and_ends_it() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.create(&agent.container("c1", &["cat"])).await.unwrap();
    guest.start("c1").await.unwrap();
    assert_eq!(guest.write("c1", "", b"hello ").await.unwrap(), 6);
    assert_eq!(guest.write("c1", "c1", b"there").await.unwrap(), 5);
    guest.close_stdin("c1", "").await.unwrap();
    let output = guest.collect("c1", "").await;
    assert_eq!((output.status, output.stdout.as_str()), (0, "hello there"));
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn an_exec_sees_the_container_it_joined() {
    let (agent, guest) = Agent::with_sandbox().await;
    let script = "echo secret > /tmp/s; hostname; read line";
    guest.create(&agent.shell("c1", script)).await.unwrap();
    guest.start("c1").await.unwrap();
    assert_eq!(guest.read_until("c1", "", "\n").await, "berth-test\n");
    let output =
        guest.run_in("c1", "e1", &["sh", "-c", "cat /tmp/s; tr '\\0' ' ' < /proc/1/cmdline; exit 3"]).await;
    assert_eq!((output.status, output.stdout), (3, format!("secret\nsh -c {script} ")));
    guest.signal("c1", "", Signal::SIGKILL as i32).await.unwrap();
    assert_eq!(guest.wait("c1", "").await.unwrap(), 137);
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn a_terminal_is_a_terminal() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.create(&agent.container("c1", &["sh"]).terminal()).await.unwrap();
    guest.start("c1").await.unwrap();
    guest.write("c1", "", b"tty; stty size\n").await.unwrap();
    let text = guest.read_until("c1", "", "24 80").await;
    assert!(text.contains("/dev/pts/0") || text.contains("/dev/console"), "{text}");
    guest.resize("c1", "", 40, 132).await.unwrap();
    guest.write("c1", "", b"stty size\n").await.unwrap();
    assert!(guest.read_until("c1", "", "40 132").await.contains("40 132"));
    guest.write("c1", "", b"sh -c 'echo $((40+2)); sleep 1000'\n").await.unwrap();
    guest.read_until("c1", "", "\n42").await;
    guest.write("c1", "", b"\x03").await.unwrap();
    guest.write("c1", "", b"echo ec$?\n").await.unwrap();
    let said = guest.read_until("c1", "", "ec130").await;
    let (_, prompt) = said.split_once("ec130").expect("its status");
    // Typed before the shell edits its next line, an end of input is a NUL in that line.
    if !prompt.contains("# ") {
        guest.read_until("c1", "", "# ").await;
    }
    guest.close_stdin("c1", "").await.unwrap();
    assert_eq!(guest.wait("c1", "").await.unwrap(), 0);
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn every_waiter_gets_the_status_and_may_ask_again() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.create(&agent.shell("c1", "read x; exit 5")).await.unwrap();
    guest.start("c1").await.unwrap();
    let waiters: Vec<_> = (0..8)
        .map(|_| {
            let guest = guest.clone();
            tokio::spawn(async move { guest.wait("c1", "").await.unwrap() })
        })
        .collect();
    guest.write("c1", "", b"go\n").await.unwrap();
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap(), 5);
    }
    assert_eq!(guest.wait("c1", "").await.unwrap(), 5);
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn wait_returns_although_a_background_child_holds_the_output() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.create(&agent.shell("c1", "exec sleep 1000")).await.unwrap();
    guest.start("c1").await.unwrap();
    guest.exec("c1", "e1", process(&["sh", "-c", "echo early; sleep 1000 & exit 4"])).await.unwrap();
    assert_eq!(guest.wait("c1", "e1").await.unwrap(), 4);
    assert_eq!(guest.read_stdout("c1", "e1", 100).await.unwrap(), b"early\n");
    guest.remove("c1").await.unwrap();
    assert_eq!(agent.container_pids(), [] as [i32; 0]);
}

#[tokio::test]
async fn output_of_a_process_that_is_gone_is_all_there() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.create(&agent.shell("c1", "exec sleep 1000")).await.unwrap();
    guest.start("c1").await.unwrap();
    for round in 0..50 {
        let exec_id = format!("e{round}");
        guest.exec("c1", &exec_id, process(&["sh", "-c", "seq 1 2000"])).await.unwrap();
        assert_eq!(guest.wait("c1", &exec_id).await.unwrap(), 0);
        let output = guest.collect("c1", &exec_id).await;
        let expected: String = (1..=2000).map(|n| format!("{n}\n")).collect();
        assert_eq!(output.stdout.len(), expected.len(), "round {round}");
        assert_eq!(output.stdout, expected);
    }
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn a_signal_reaches_exactly_its_process() {
    let (agent, guest) = Agent::with_sandbox().await;
    let script =
        "trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    guest.create(&agent.shell("c1", script)).await.unwrap();
    guest.start("c1").await.unwrap();
    guest.read_until("c1", "", "ready").await;
    guest.exec("c1", "e1", process(&["sleep", "1000"])).await.unwrap();
    guest.signal("c1", "", Signal::SIGUSR1 as i32).await.unwrap();
    assert_eq!(guest.read_until("c1", "", "usr1").await, "usr1\n");
    guest.signal("c1", "e1", Signal::SIGTERM as i32).await.unwrap();
    assert_eq!(guest.wait("c1", "e1").await.unwrap(), 128 + 15);
    guest.signal("c1", "", Signal::SIGTERM as i32).await.unwrap();
    assert_eq!(guest.wait("c1", "").await.unwrap(), 9);
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn sigterm_ends_an_init_that_does_not_handle_it() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.create(&agent.container("c1", &["sleep", "1000"])).await.unwrap();
    guest.start("c1").await.unwrap();
    guest.signal("c1", "", Signal::SIGTERM as i32).await.unwrap();
    assert_eq!(guest.wait("c1", "").await.unwrap(), 137);
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn containers_share_the_sandbox_pid_namespace_when_asked() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest
        .create(&agent.shell("c1", "exec sleep 1111").shared_pidns())
        .await
        .unwrap_or_else(|error| panic!("the first container defines the namespace: {error}"));
    guest.start("c1").await.unwrap();
    let shared = guest.run(&agent.shell("c2", "ps -o args; readlink /proc/self/ns/ipc").shared_pidns()).await;
    assert!(shared.stdout.contains("sleep 1111"), "{shared:?}");
    let own = guest.run(&agent.shell("c3", "ps -o args; readlink /proc/self/ns/ipc")).await;
    assert!(!own.stdout.contains("sleep 1111"), "{own:?}");
    let ipc = |output: &Output| output.stdout.lines().last().unwrap().to_owned();
    assert_eq!(ipc(&shared), ipc(&own), "all containers share the sandbox's IPC namespace");
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn one_stuck_container_does_not_hold_up_another() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.create(&agent.container("stuck", &["sleep", "1000"])).await.unwrap();
    guest.start("stuck").await.unwrap();
    let parked = guest.clone();
    let reader = tokio::spawn(async move { parked.read_stdout("stuck", "", 100).await });
    let output = guest.run(&agent.shell("c1", "echo on")).await;
    assert_eq!(output.stdout, "on\n");
    assert!(!reader.is_finished());
    guest.remove("stuck").await.unwrap();
    assert_eq!(reader.await.unwrap().unwrap(), b"");
}

#[tokio::test]
async fn a_limit_on_pids_and_memory_holds() {
    let (agent, guest) = Agent::with_sandbox().await;
    let mut container = agent.shell("c1", "for i in 1 2 3 4 5 6 7 8; do sleep 5 & done; wait");
    let resources = container.linux().Resources.mut_or_insert_default();
    resources.Pids.mut_or_insert_default().Limit = 4;
    resources.Memory.mut_or_insert_default().Limit = 64 << 20;
    let output = guest.run(&container).await;
    assert!(output.stderr.contains("fork"), "{output:?}");
}

#[tokio::test]
async fn destroy_sandbox_removes_everything_and_ends_the_agent() {
    let (agent, guest) = Agent::with_sandbox().await;
    for n in 0..5 {
        let id = format!("c{n}");
        guest.create(&agent.container(&id, &["sleep", "1000"])).await.unwrap();
        guest.start(&id).await.unwrap();
    }
    guest.agent.destroy_sandbox(ttrpc::context::with_timeout(0), &Default::default()).await.unwrap();
    assert_eq!(
        agent.cgroups().iter().filter(|dir| !dir.ends_with(agent.dir().file_name().unwrap())).count(),
        0
    );
    agent.ended();
}
