//! Create, start, exec, signal, wait, remove.

use std::sync::Arc;

use berth_protocols::agent::{CreateSandboxRequest, DestroySandboxRequest};
use tokio::task::JoinSet;

use crate::{
    host::{Host, Out, Run, sh, soon},
    support::eventually,
};

#[tokio::test]
async fn a_container_runs_and_is_gone_afterwards() {
    let host = Host::start().await;
    let before = (host.descriptors("berth-worker"), host.descriptors("berth-agent"));
    host.run("c1", sh(&["sh", "-c", "echo out; echo err >&2; exit 7"])).await.unwrap();
    assert_eq!(host.read_all("c1", "", Out::Stdout).await.unwrap(), "out\n");
    assert_eq!(host.read_all("c1", "c1", Out::Stderr).await.unwrap(), "err\n");
    for exec_id in ["", "c1", ""] {
        assert_eq!(host.wait("c1", exec_id).await.unwrap(), 7);
    }
    host.remove("c1").await.unwrap();
    assert!(host.wait("c1", "").await.is_err());
    assert_eq!(host.cgroups(), Vec::<std::path::PathBuf>::new());
    let state = host.dir.join("agent.sock.state");
    for dir in ["journal", "containers", "quarantine"] {
        assert_eq!(std::fs::read_dir(state.join(dir)).unwrap().count(), 0, "{dir}");
    }
    // Init takes a message at a time; a round trip is not an answer to those.
    let now = || (host.descriptors("berth-worker"), host.descriptors("berth-agent"));
    eventually(&format!("as many descriptors as before, {before:?}"), || now() == before).await;
}

#[tokio::test]
async fn a_second_container_of_one_id_is_refused_and_the_first_goes_on() {
    let host = Host::start().await;
    host.run("box", sh(&["sh", "-c", "read line; echo got $line"])).await.unwrap();
    let refused = host.create("box", sh(&["sh", "-c", "exit 0"])).await.unwrap_err();
    assert!(refused.to_string().contains("already exists"), "{refused}");
    let started_again = host.start_container("box").await.unwrap_err();
    assert!(started_again.to_string().contains("cannot start container"), "{started_again}");
    host.write("box", "", b"it\n").await.unwrap();
    assert_eq!(host.read_all("box", "", Out::Stdout).await.unwrap(), "got it\n");
    assert_eq!(host.wait("box", "").await.unwrap(), 0);
}

#[tokio::test]
async fn ids_that_lead_elsewhere_are_refused() {
    let host = Host::start().await;
    for id in ["", "..", "../../etc", "a/b", "-x", "a\nb"] {
        assert!(host.create(id, sh(&["sh", "-c", "exit 0"])).await.is_err(), "{id:?}");
    }
}

#[tokio::test]
async fn execs_need_a_running_container() {
    let host = Host::start().await;
    let echo = sh(&["sh", "-c", "echo $$"]);
    host.create("box", sh(&["sh", "-c", "read line"])).await.unwrap();
    let created = host.exec("box", "ex", echo).await.unwrap_err();
    assert!(created.to_string().contains("it is created"), "{created}");
    host.start_container("box").await.unwrap();

    host.exec("box", "ex", echo).await.unwrap();
    let pid: u32 = host.read_all("box", "ex", Out::Stdout).await.unwrap().trim().parse().unwrap();
    assert!(pid > 1, "the exec is in the container's PID namespace and not its first process");
    assert_eq!(host.wait("box", "ex").await.unwrap(), 0);

    let missing = host.exec("box", "mm", Run { args: &["/bin/nosuch"], ..Run::default() }).await.unwrap_err();
    assert!(missing.to_string().contains("nosuch"), "{missing}");
    assert!(host.wait("box", "mm").await.is_err(), "nothing of a failed exec is left");
    host.exec("box", "mm", echo).await.unwrap();
    let twice = host.exec("box", "mm", echo).await.unwrap_err();
    assert!(twice.to_string().contains("already exists"), "{twice}");

    host.write("box", "", b"\n").await.unwrap();
    host.wait("box", "").await.unwrap();
    let dead = host.exec("box", "dd", echo).await.unwrap_err();
    assert!(dead.to_string().contains("it is stopped"), "{dead}");
    let started = host.start_container("box").await.unwrap_err();
    assert!(started.to_string().contains("it is stopped"), "{started}");
}

#[tokio::test]
async fn a_program_that_is_not_there_fails_with_its_name() {
    let host = Host::start().await;
    host.create("box", Run { args: &["/no/such/program"], ..Run::default() }).await.ok();
    let error = host.start_container("box").await.unwrap_err();
    assert!(
        error.to_string().contains("/no/such/program") || error.to_string().contains("Invalid container"),
        "{error}"
    );
    host.remove("box").await.ok();
    assert!(host.cgroups().is_empty(), "{:?}", host.cgroups());
    host.run("box", sh(&["sh", "-c", "exit 3"])).await.unwrap();
    assert_eq!(host.wait("box", "").await.unwrap(), 3);
}

#[tokio::test]
async fn an_init_that_dies_before_its_start_is_told() {
    let host = Host::start().await;
    host.create("box", sh(&["sh", "-c", "exit 0"])).await.unwrap();
    host.signal("box", "", 9).await.unwrap();
    let error = host.start_container("box").await.unwrap_err();
    assert!(error.to_string().contains("it is stopped"), "{error}");
    assert_eq!(host.wait("box", "").await.unwrap(), 128 + 9);
    host.remove("box").await.unwrap();
}

#[tokio::test]
async fn signals_reach_one_process_or_all() {
    let host = Host::start().await;
    host.run("box", sh(&["sh", "-c", "trap 'exit 42' USR1; sleep 1000 & echo up; while :; do wait; done"]))
        .await
        .unwrap();
    host.read("box", "", Out::Stdout).await.unwrap();
    host.exec("box", "ex", Run { args: &["sleep", "1000"], ..Run::default() }).await.unwrap();
    host.signal("box", "ex", 15).await.unwrap();
    assert_eq!(host.wait("box", "ex").await.unwrap(), 128 + 15);
    host.signal("box", "box", 10).await.unwrap();
    assert_eq!(host.wait("box", "").await.unwrap(), 42);
    host.signal("box", "box", 10).await.unwrap();
    assert!(host.signal("box", "", 65).await.is_err());
    host.remove("box").await.unwrap();

    // It neither handles, blocks nor ignores SIGTERM: as the first process it would never get it.
    host.run("tt", Run { args: &["sleep", "1000"], ..Run::default() }).await.unwrap();
    host.signal("tt", "", 15).await.unwrap();
    assert_eq!(host.wait("tt", "").await.unwrap(), 128 + 9);

    host.run("kk", Run { args: &["sleep", "1000"], ..Run::default() }).await.unwrap();
    host.exec("kk", "ex", Run { args: &["sleep", "1000"], ..Run::default() }).await.unwrap();
    host.signal("kk", "", 9).await.unwrap();
    assert_eq!(host.wait("kk", "ex").await.unwrap(), 137);
    assert_eq!(host.wait("kk", "").await.unwrap(), 137);
}

#[tokio::test]
async fn every_waiter_gets_the_status() {
    let host = Host::start().await;
    host.run("box", sh(&["sh", "-c", "read line; exit 5"])).await.unwrap();
    let waits: Vec<_> = (0..20)
        .map(|_| {
            let client = host.client.clone();
            tokio::spawn(async move { crate::host::wait(&client, "box", "").await })
        })
        .collect();
    host.write("box", "", b"go\n").await.unwrap();
    for wait in waits {
        assert_eq!(wait.await.unwrap().unwrap(), 5);
    }
}

#[tokio::test]
async fn containers_share_what_the_sandbox_has() {
    let host = Host::start().await;
    let mut request = CreateSandboxRequest::new();
    request.hostname = "shared-box".to_owned();
    host.client.create_sandbox(soon(), &request).await.unwrap();
    assert!(host.client.create_sandbox(soon(), &request).await.is_err());
    let first = Run { pidns: true, ..sh(&["sh", "-c", "hostname; read line"]) };
    host.run("first", first).await.unwrap();
    assert_eq!(host.read("first", "", Out::Stdout).await.unwrap(), b"shared-box\n");
    let second = Run { pidns: true, ..sh(&["sh", "-c", "echo $$; hostname; cat /proc/1/cmdline"]) };
    host.run("second", second).await.unwrap();
    let seen = host.read_all("second", "", Out::Stdout).await.unwrap();
    let mut lines = seen.lines();
    assert_ne!(lines.next(), Some("1"), "it is in the first container's PID namespace");
    assert_eq!(lines.next(), Some("shared-box"));
    assert!(seen.contains("read line"), "{seen}");
    let alone = sh(&["sh", "-c", "echo $$"]);
    host.run("alone", alone).await.unwrap();
    assert_eq!(host.read_all("alone", "", Out::Stdout).await.unwrap(), "1\n");

    host.remove("first").await.unwrap();
    assert_eq!(host.wait("second", "").await.unwrap(), 0);
    let orphan = host.create("late", first).await.unwrap_err();
    assert!(orphan.to_string().contains("sandbox_pidns"), "{orphan}");
    host.client.destroy_sandbox(soon(), &DestroySandboxRequest::new()).await.unwrap();
    assert!(host.cgroups().is_empty());
}

#[tokio::test]
async fn a_removal_takes_everything_even_a_fork_bomb() {
    let host = Host::start().await;
    host.run(
        "box",
        sh(&[
            "sh",
            "-c",
            "n=0; while [ $n -lt 200 ]; do (trap '' TERM; sleep 1000) & n=$((n+1)); done; echo up; wait",
        ]),
    )
    .await
    .unwrap();
    host.read("box", "", Out::Stdout).await.unwrap();
    let before = std::time::Instant::now();
    host.remove("box").await.unwrap();
    assert!(before.elapsed().as_secs() < 5, "{:?}", before.elapsed());
    assert!(host.cgroups().is_empty());
}

#[tokio::test]
async fn two_removals_at_once_both_succeed_or_find_nothing() {
    let host = Host::start().await;
    host.run("box", Run { args: &["sleep", "1000"], ..Run::default() }).await.unwrap();
    let (first, second) = tokio::join!(host.remove("box"), host.remove("box"));
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    assert!(host.remove("box").await.is_err());
}

#[tokio::test]
async fn many_short_execs_lose_nothing_and_leave_nothing() {
    let host = Arc::new(Host::start().await);
    host.run("box", Run { args: &["sleep", "1000"], ..Run::default() }).await.unwrap();
    let before = host.descriptors("berth-worker");
    for round in 0..5 {
        let mut execs = JoinSet::new();
        for n in 0..40 {
            let host = Arc::clone(&host);
            execs.spawn(async move {
                let (id, word) = (format!("e{round}-{n}"), format!("{n}").repeat(n * 100 + 1));
                let command = format!("echo {word}; exit {n}");
                host.exec("box", &id, sh(&["sh", "-c", &command])).await.unwrap();
                let (text, error, status) = tokio::join!(
                    host.read_all("box", &id, Out::Stdout),
                    host.read_all("box", &id, Out::Stderr),
                    host.wait("box", &id)
                );
                assert_eq!(text.unwrap(), format!("{word}\n"));
                assert_eq!(error.unwrap(), "");
                assert_eq!(status.unwrap(), n as i32);
                assert!(host.wait("box", &id).await.is_err(), "it is forgotten");
            });
        }
        execs.join_all().await;
    }
    assert_eq!(host.descriptors("berth-worker"), before);
}
