//! The client and the commands against an agent that is not one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::time::Duration;

use berthctl::{
    Agent,
    client::{Error, Output, ProcessId},
};
use support::Served;
use ttrpc::Code;

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn errors_keep_the_code_and_lost_connections_are_told_apart() {
    let served = Served::new().await;
    let agent = Agent::connect(&served.address, Duration::from_millis(300)).await.unwrap();
    let unknown = agent.wait(&ProcessId::init("none")).await.unwrap_err();
    assert_eq!(unknown.code(), Some(Code::NOT_FOUND));
    assert!(unknown.to_string().starts_with("WaitProcess: no process \"none\""), "{unknown}");
    // The fake never answers this one.
    let late = agent.destroy_sandbox().await.unwrap_err();
    let timed_out = matches!(&late, Error::NoReply { .. }) || late.code() == Some(Code::DEADLINE_EXCEEDED);
    assert!(timed_out, "{late}");
    // The connection is still good.
    assert_eq!(agent.version().await.unwrap().agent_version, "9.8.7");
}

#[tokio::test]
async fn streams_move_by_calls() {
    let served = Served::new().await;
    let agent = Agent::connect(&served.address, Duration::from_secs(5)).await.unwrap();
    served.run(&["exec", "--detach", "--exec", "p1", "box", "cat"], b"").await;
    let process = ProcessId { container: "box".into(), exec: "p1".into() };
    assert_eq!(agent.write_stdin(&process, b"hello".to_vec()).await.unwrap(), 5);
    assert_eq!(agent.read(&process, Output::Stdout, 100).await.unwrap(), b"hello");
    agent.close_stdin(&process).await.unwrap();
    assert_eq!(agent.wait(&process).await.unwrap(), 0);
    assert_eq!(agent.read(&process, Output::Stdout, 100).await.unwrap(), b"");
}

#[tokio::test]
async fn commands_about_the_guest() {
    let served = Served::new().await;
    let check = served.run(&["check"], b"").await;
    assert_eq!((text(&check.stdout), check.status.code()), ("SERVING\n", Some(0)));
    let version = served.run(&["--json", "version"], b"").await;
    assert!(text(&version.stdout).contains("\"agent\":\"9.8.7\""));
    let details = served.run(&["guest-details"], b"").await;
    assert!(text(&details.stdout).contains("memory block size   134217728"), "{}", text(&details.stdout));
    served.run(&["sandbox", "create", "s1", "--hostname", "h", "--dns", "nameserver 1.1.1.1"], b"").await;
    let state = served.fake.state.lock().unwrap();
    assert_eq!(state.sandboxes[0].sandbox_id, "s1");
    assert_eq!(state.sandboxes[0].dns, ["nameserver 1.1.1.1"]);
}

#[tokio::test]
async fn any_call_can_be_made_with_json() {
    let served = Served::new().await;
    let details = served.run(&["call", "getguestdetails", r#"{"mem_block_size": true}"#], b"").await;
    assert!(text(&details.stdout).contains("134217728"), "{details:?}");
    let check = served.run(&["call", "grpc.Health/Check", "-"], b"{}").await;
    assert!(text(&check.stdout).contains("SERVING"), "{check:?}");
    let typo = served.run(&["call", "GetGuest"], b"").await;
    assert_eq!(typo.status.code(), Some(125));
    assert!(text(&typo.stderr).contains("did you mean GetGuestDetails?"), "{typo:?}");
    let wrong = served.run(&["call", "WaitProcess", r#"{"container": "x"}"#], b"").await;
    assert!(text(&wrong.stderr).contains("WaitProcessRequest"), "{wrong:?}");
    let unsupported = served.run(&["call", "GetMetrics"], b"").await;
    assert!(text(&unsupported.stderr).contains("not supported"), "{unsupported:?}");
    let list = served.run(&["call", "--list"], b"").await;
    assert_eq!(text(&list.stdout).lines().count(), berthctl::call::methods().len());
}

#[tokio::test]
async fn exec_carries_output_and_exit_code() {
    let served = Served::new().await;
    let echo = served.run(&["exec", "box", "echo", "hi"], b"").await;
    assert_eq!((text(&echo.stdout), text(&echo.stderr), echo.status.code()), ("hi\n", "", Some(0)));
    let complain = served.run(&["exec", "box", "complain", "no"], b"").await;
    assert_eq!(
        (text(&complain.stdout), text(&complain.stderr), complain.status.code()),
        ("", "no\n", Some(1))
    );
    assert_eq!(served.run(&["exec", "box", "exit", "42"], b"").await.status.code(), Some(42));
    assert_eq!(served.run(&["exec", "box", "exit", "255"], b"").await.status.code(), Some(255));
    // Without -i the process gets an end of file at once.
    assert_eq!(served.run(&["exec", "box", "cat"], b"unsent").await.stdout, b"");
}

#[tokio::test]
async fn standard_input_arrives_whole_by_calls_and_raw() {
    let served = Served::new().await;
    let input: Vec<u8> = (0..400_000_u32).map(|at| (at % 253) as u8).collect();
    let called = served.run(&["exec", "-i", "box", "cat"], &input).await;
    assert!(called.stdout == input, "{} of {} bytes", called.stdout.len(), input.len());
    let raw = served.run(&["exec", "-i", "--raw-stdio", "box", "cat"], &input).await;
    assert!(raw.stdout == input, "{} of {} bytes", raw.stdout.len(), input.len());
    let state = served.fake.state.lock().unwrap();
    let ports = |at: usize| {
        let request = &state.executed[at];
        [request.stdin_port, request.stdout_port, request.stderr_port]
    };
    assert_eq!(ports(0), [0, 0, 0]);
    assert!(ports(1).iter().all(|port| *port > 4000), "{:?}", ports(1));
}

#[tokio::test]
async fn a_program_that_cannot_run_has_the_shells_codes() {
    let served = Served::new().await;
    for (program, code) in [("missing", 127), ("forbidden", 126)] {
        let exec = served.run(&["exec", "box", program], b"").await;
        assert_eq!(exec.status.code(), Some(code));
        assert!(text(&exec.stderr).contains(program), "{exec:?}");
    }
    // No rights to the container's files is not the program's fault, nor is a wrong command line anybody's exit code.
    assert_eq!(served.run(&["wait", "nobody"], b"").await.status.code(), Some(125));
    assert_eq!(served.run(&["exec"], b"").await.status.code(), Some(125));
}

#[tokio::test]
async fn a_container_is_made_from_the_options() {
    let served = Served::new().await;
    let create = ["create", "box", "-e", "A=1", "-e", "PATH=/x", "-w", "/w", "-u", "7:8", "--", "env", "-x"];
    let created = served.run(&create, b"").await;
    assert_eq!(created.status.code(), Some(0), "{created:?}");
    {
        let state = served.fake.state.lock().unwrap();
        let spec = &state.created[0].OCI;
        assert_eq!(spec.Root.Path, "/bundles/box/rootfs");
        let process = &spec.Process;
        assert_eq!(process.Args, ["env", "-x"]);
        assert_eq!(process.Env, ["A=1", "PATH=/x"]);
        assert_eq!((process.User.UID, process.User.GID, process.Cwd.as_str()), (7, 8, "/w"));
    }
    assert_eq!(served.run(&["start", "box"], b"").await.status.code(), Some(0));
    assert_eq!(served.run(&["kill", "box", "KILL"], b"").await.status.code(), Some(0));
    assert_eq!(served.run(&["wait", "box"], b"").await.status.code(), Some(137));
    assert_eq!(served.fake.state.lock().unwrap().signals, [9]);
}

#[tokio::test]
async fn an_exec_whose_child_keeps_the_output_open_still_ends() {
    let served = Served::new().await;
    let linger = served.run(&["exec", "box", "linger"], b"").await;
    assert_eq!((text(&linger.stdout), linger.status.code()), ("said\n", Some(0)));
}

#[tokio::test]
async fn a_reader_that_left_ends_the_process_with_sigpipe() {
    let served = Served::new().await;
    let mut berthctl = served.berthctl(&["exec", "-i", "box", "cat"]);
    let mut child =
        berthctl.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, b"nobody reads this").await.unwrap();
    let status = tokio::time::timeout(Duration::from_secs(20), child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(141));
    assert_eq!(served.fake.state.lock().unwrap().signals, [13]);
}

#[tokio::test]
async fn advice_when_there_is_nobody() {
    let served = Served::new().await;
    let mut lonely = tokio::process::Command::new(env!("CARGO_BIN_EXE_berthctl"));
    let nobody = lonely.arg("check").env_remove("BERTH_ADDRESS").output().await.unwrap();
    assert!(text(&nobody.stderr).contains("BERTH_ADDRESS"));
    // A socket file whose listener is gone.
    let stale = served.path("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let mut refused = tokio::process::Command::new(env!("CARGO_BIN_EXE_berthctl"));
    let refused = refused
        .arg("check")
        .env("BERTH_ADDRESS", format!("unix://{}", stale.display()))
        .output()
        .await
        .unwrap();
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).contains("nobody listens"), "{refused:?}");
}
