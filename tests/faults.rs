//! Killed roles and vanished clients lose nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{cell::Cell, collections::HashMap, time::Duration};

use berth::{Agent, Guest, Role, process, until};
use nix::sys::signal::Signal;

const CONTAINERS: usize = 50;
const LINES: usize = 300;
const KILLS: usize = 20;

/// Reads numbered lines until the end of the stream, over as many connections as it takes. Lines may come
/// twice right after a reset, because their reply may have arrived before the worker died; none may be missing.
async fn numbered_lines(agent: &Agent, id: &str, heard: &Cell<usize>) -> usize {
    let mut guest = agent.client().await;
    let mut next = 0;
    let mut after_reset = false;
    loop {
        match guest.read_stdout(id, "", 4096).await {
            Ok(data) if data.is_empty() => return next,
            Ok(data) => {
                let text = String::from_utf8(data).expect("digits");
                for line in text.lines() {
                    let number: usize = line.parse().expect("a number");
                    if after_reset && number < next {
                        continue;
                    }
                    assert_eq!(number, next, "{id}: a line was lost or repeated");
                    next += 1;
                    heard.update(|lines| lines + 1);
                }
                after_reset = false;
            }
            Err(_) => {
                guest = agent.client().await;
                after_reset = true;
            }
        }
    }
}

async fn survive(signal: Signal) {
    let (agent, guest) = Agent::with_sandbox().await;
    for n in 0..CONTAINERS {
        let script = format!(
            "i=0; while [ $i -lt {LINES} ]; do echo $i; i=$((i+1)); usleep 10000; done; exit {}",
            n % 200
        );
        guest.create(&agent.shell(&format!("c{n}"), &script)).await.unwrap();
    }
    for n in 0..CONTAINERS {
        guest.start(&format!("c{n}")).await.unwrap();
    }
    // Each time another share of what is to be said has been heard.
    let heard = Cell::new(0);
    let killer = async {
        for kill in 1..=KILLS {
            let share = kill * CONTAINERS * LINES / (KILLS + 1);
            until("lines to be read", async || heard.get() >= share).await;
            agent.replace(Role::Worker, signal).await;
        }
    };
    let mut readers = HashMap::new();
    let (agent_ref, heard) = (&agent, &heard);
    let read_all = async {
        let all = (0..CONTAINERS)
            .map(|n| async move { (n, numbered_lines(agent_ref, &format!("c{n}"), heard).await) });
        for (n, lines) in join_all(all).await {
            readers.insert(n, lines);
        }
    };
    tokio::join!(killer, read_all);
    let guest = agent.client().await;
    for n in 0..CONTAINERS {
        assert_eq!(readers[&n], LINES, "c{n}");
        assert_eq!(guest.wait(&format!("c{n}"), "").await.unwrap(), n as i32 % 200);
        guest.remove(&format!("c{n}")).await.unwrap();
    }
    assert_eq!(agent.container_pids(), [] as [i32; 0]);
}

async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pinned: Vec<_> = futures.map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = pinned.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut pending = false;
        for (future, slot) in pinned.iter_mut().zip(&mut done) {
            if slot.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *slot = Some(value),
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        if pending { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[tokio::test]
async fn fifty_containers_outlive_twenty_kills_of_the_worker() {
    survive(Signal::SIGKILL).await;
}

#[tokio::test]
async fn fifty_containers_outlive_twenty_crashes_of_the_worker() {
    survive(Signal::SIGSEGV).await;
}

#[tokio::test]
async fn exits_while_no_worker_lives_are_told_to_the_next() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.create(&agent.shell("c1", "read x; exit 33")).await.unwrap();
    guest.start("c1").await.unwrap();
    guest.exec("c1", "e1", process(&["sh", "-c", "read x; exit 44"])).await.unwrap();
    guest.write("c1", "e1", b"go\n").await.unwrap();
    guest.write("c1", "", b"go\n").await.unwrap();
    agent.kill(Role::Worker, Signal::SIGKILL);
    let guest = agent.client().await;
    assert_eq!(guest.wait("c1", "").await.unwrap(), 33);
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn a_created_container_starts_after_a_crash() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.create(&agent.shell("c1", "echo late; exit 6")).await.unwrap();
    agent.kill(Role::Worker, Signal::SIGKILL);
    let guest = agent.client().await;
    guest.start("c1").await.unwrap();
    let output = guest.collect("c1", "").await;
    assert_eq!((output.status, output.stdout.as_str()), (6, "late\n"));
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn a_new_launcher_takes_over() {
    let (agent, guest) = Agent::with_sandbox().await;
    for round in 0..10 {
        let killed = agent.kill(Role::Launcher, Signal::SIGKILL);
        let output = guest.run(&agent.shell("c1", "echo ok")).await;
        assert_eq!(output.stdout, "ok\n", "round {round}");
        assert_ne!(agent.role(Role::Launcher), killed);
    }
}

#[tokio::test]
async fn a_client_that_vanishes_while_reading_takes_no_output_with_it() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.create(&agent.shell("c1", "read x; echo precious; read x")).await.unwrap();
    guest.start("c1").await.unwrap();
    for _ in 0..20 {
        let doomed = agent.client().await;
        let reader = tokio::spawn(async move { doomed.read_stdout("c1", "", 100).await });
        tokio::task::yield_now().await;
        reader.abort();
    }
    guest.write("c1", "", b"go\n").await.unwrap();
    assert_eq!(guest.read_stdout("c1", "", 100).await.unwrap(), b"precious\n");
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn a_client_that_vanishes_inside_create_leaves_a_whole_container_or_none() {
    let (agent, guest) = Agent::with_sandbox().await;
    for round in 0..30 {
        let id = format!("c{round}");
        let doomed: Guest = agent.client().await;
        let container = agent.container(&id, &["true"]);
        let call = tokio::spawn(async move { doomed.create(&container).await });
        // At another instant of the creation each time.
        tokio::time::sleep(Duration::from_micros(100 * round)).await;
        call.abort();
        // The detached call is joined by its repetition, or has ended, or never came.
        match guest.create(&agent.container(&id, &["true"])).await {
            Ok(()) => {}
            Err(error) => assert!(error.to_string().contains("already exists"), "{error}"),
        }
        guest.start(&id).await.unwrap();
        assert_eq!(guest.wait(&id, "").await.unwrap(), 0);
        guest.remove(&id).await.unwrap();
    }
    assert_eq!(agent.container_pids(), [] as [i32; 0]);
}
