//! The worker dies, again and again: nothing of the containers may be lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use nix::sys::signal::Signal;

use crate::{
    host::{Host, Out, Run, read, sh, wait},
    support::eventually,
};

#[tokio::test]
async fn a_created_container_starts_under_the_next_worker() {
    let mut host = Host::start().await;
    host.create("box", sh(&["sh", "-c", "echo up; read line; exit 9"])).await.unwrap();
    host.kill_worker(Signal::SIGKILL);
    host.client = host.connect().await;
    let taken = host.create("box", sh(&["sh", "-c", "exit 0"])).await.unwrap_err();
    assert!(taken.to_string().contains("already exists"), "{taken}");
    host.start_container("box").await.unwrap();
    assert_eq!(host.read("box", "", Out::Stdout).await.unwrap(), b"up\n");
    host.exec("box", "ex", sh(&["sh", "-c", "read line; echo exec $line; exit 4"])).await.unwrap();
    host.kill_worker(Signal::SIGSEGV);
    host.client = host.connect().await;
    host.write("box", "ex", b"lives\n").await.unwrap();
    assert_eq!(host.read_all("box", "ex", Out::Stdout).await.unwrap(), "exec lives\n");
    assert_eq!(host.wait("box", "ex").await.unwrap(), 4);
    host.write("box", "", b"\n").await.unwrap();
    assert_eq!(host.wait("box", "").await.unwrap(), 9);
    host.kill_worker(Signal::SIGKILL);
    host.client = host.connect().await;
    assert_eq!(host.wait("box", "").await.unwrap(), 9);
    host.remove("box").await.unwrap();
    assert!(host.cgroups().is_empty());
}

#[tokio::test]
async fn a_terminal_survives_the_worker() {
    let mut host = Host::start().await;
    let shell = Run { terminal: true, ..sh(&["sh", "-c", "read a; echo got $a; read b; echo then $b"]) };
    host.run("box", shell).await.unwrap();
    host.kill_worker(Signal::SIGKILL);
    host.client = host.connect().await;
    host.write("box", "", b"one\ntwo\n").await.unwrap();
    let seen = host.read_all("box", "", Out::Stdout).await.unwrap();
    assert!(seen.contains("got one") && seen.contains("then two"), "{seen:?}");
    assert_eq!(host.wait("box", "").await.unwrap(), 0);
}

/// The worker dies at every stage of what it does. Whatever it was, it is undone or goes on, and nothing stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dying_worker_was_at_is_finished_or_undone() {
    const ROUNDS: u64 = 40;
    let mut host = Arc::new(Host::start().await);
    for round in 0..ROUNDS {
        let id = format!("box{round}");
        let busy = tokio::spawn({
            let (host, id) = (Arc::clone(&host), id.clone());
            async move {
                let sleep = Run { args: &["sleep", "1000"], ..Run::default() };
                host.run(&id, sleep).await?;
                host.exec(&id, "ex1", sleep).await?;
                host.exec(&id, "ex2", Run { terminal: true, ..sleep }).await?;
                host.remove(&id).await
            }
        });
        // At another instant of the work each time.
        tokio::time::sleep(Duration::from_micros(round * 997 % 31_000)).await;
        tokio::task::block_in_place(|| host.kill_worker(Signal::SIGKILL));
        let _cut_off = busy.await.unwrap();
        let next = Arc::get_mut(&mut host).unwrap();
        next.client = next.connect().await;
        // Undoing may be under way; then the removal waits for it, or finds nothing.
        let _nothing = host.remove(&id).await;
        host.run(&id, sh(&["sh", "-c", "exit 6"])).await.unwrap();
        assert_eq!(host.wait(&id, "").await.unwrap(), 6);
        host.remove(&id).await.unwrap();
    }
    assert_eq!(host.cgroups(), Vec::<std::path::PathBuf>::new());
    let state = host.dir.join("agent.sock.state");
    for dir in ["journal", "containers", "quarantine"] {
        assert_eq!(std::fs::read_dir(state.join(dir)).unwrap().count(), 0, "{dir}");
    }
    let left: Vec<_> = host.processes().into_iter().filter(|(_, comm)| comm == "sleep").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Fifty containers count aloud while the worker dies twenty times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_status_no_container_and_no_byte_is_lost_in_twenty_deaths() {
    const CONTAINERS: usize = 50;
    const LINES: usize = 400;
    const DEATHS: usize = 20;
    let mut host = Host::start().await;
    for n in 0..CONTAINERS {
        let script = format!(
            "n=0; while [ $n -lt {LINES} ]; do echo line $n; n=$((n+1)); [ $((n % 40)) = 0 ] && sleep 0.3; done; exit {n}"
        );
        host.run(&format!("c{n}"), sh(&["sh", "-c", &script])).await.unwrap();
    }
    let socket = host.dir.clone();
    let heard = Arc::<AtomicUsize>::default();
    let readers: Vec<_> = (0..CONTAINERS)
        .map(|n| tokio::spawn(follow(socket.clone(), format!("c{n}"), Arc::clone(&heard))))
        .collect();
    for death in 0..DEATHS {
        // Each time another share of what is to be said has been heard.
        let share = (death + 1) * CONTAINERS * LINES / (DEATHS + 1);
        eventually("lines to be read", || heard.load(Ordering::Relaxed) >= share).await;
        let signal = if death % 2 == 0 { Signal::SIGKILL } else { Signal::SIGSEGV };
        let agent = &host;
        tokio::task::block_in_place(|| agent.kill_worker(signal));
    }
    host.client = host.connect().await;
    for (n, reader) in readers.into_iter().enumerate() {
        let (text, status) = reader.await.unwrap();
        assert_eq!(status, n as i32, "c{n}");
        let repeated = without_repeats(&text);
        let expected: String = (0..LINES).map(|line| format!("line {line}\n")).collect();
        assert!(repeated == expected, "c{n}: output differs\n{text:?}");
    }
    for n in 0..CONTAINERS {
        host.remove(&format!("c{n}")).await.unwrap();
    }
    assert!(host.cgroups().is_empty(), "{:?}", host.cgroups());
}

/// Thirty processes end in one instant, and the worker a little later: between hearing of an end and writing it
/// down, between writing and acknowledging.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_status_is_lost_by_a_worker_that_dies_while_it_hears_it() {
    const PROCESSES: i32 = 30;
    let mut host = Host::start().await;
    let gate = "busybox mkfifo /dev/gate; exec 3<> /dev/gate; echo made; read line";
    host.run("box", sh(&["sh", "-c", gate])).await.unwrap();
    host.read("box", "", Out::Stdout).await.unwrap();
    for round in 0..10 {
        let name = |n: i32| format!("r{round}n{n}");
        for n in 0..PROCESSES {
            let script = format!("read line <> /dev/gate; exit {n}");
            host.exec("box", &name(n), sh(&["sh", "-c", &script])).await.unwrap();
        }
        let open = format!("yes '' | head -n {PROCESSES} > /dev/gate");
        host.exec("box", &name(-1), sh(&["sh", "-c", &open])).await.unwrap();
        // At another instant of the hearing each time.
        tokio::time::sleep(Duration::from_micros(round * 997 % 6_000)).await;
        let agent = &host;
        tokio::task::block_in_place(|| agent.kill_worker(Signal::SIGKILL));
        host.client = host.connect().await;
        for n in 0..PROCESSES {
            assert_eq!(host.wait("box", &name(n)).await.unwrap(), n, "round {round}");
        }
    }
    host.remove("box").await.unwrap();
}

/// Reads a container's output and status across resets: the chunks, each marked if a reset came before it.
async fn follow(dir: std::path::PathBuf, id: String, heard: Arc<AtomicUsize>) -> (Vec<(bool, String)>, i32) {
    let mut chunks = Vec::new();
    let mut reset = false;
    'connect: loop {
        let client = crate::host::connect_at(&dir).await;
        loop {
            match read(&client, &id, "", Out::Stdout).await {
                Ok(data) if data.is_empty() => break,
                Ok(data) => {
                    let lines = data.iter().filter(|byte| **byte == b'\n').count();
                    heard.fetch_add(lines, Ordering::Relaxed);
                    chunks.push((std::mem::take(&mut reset), String::from_utf8(data).unwrap()));
                }
                Err(ttrpc::Error::RpcStatus(status)) => panic!("{id}: {status:?}"),
                Err(_reset) => {
                    reset = true;
                    continue 'connect;
                }
            }
        }
        match wait(&client, &id, "").await {
            Ok(status) => return (chunks, status),
            Err(ttrpc::Error::RpcStatus(status)) => panic!("{id}: {status:?}"),
            Err(_reset) => reset = true,
        }
    }
}

/// The one repetition that is allowed: what was sent last before a reset may come again, whole, right after it.
fn without_repeats(chunks: &[(bool, String)]) -> String {
    let mut text = String::new();
    for (after_reset, chunk) in chunks {
        let start = if *after_reset { overlap(&text, chunk) } else { 0 };
        text.push_str(&chunk[start..]);
    }
    text
}

/// How much of the front of `chunk` the end of `text` already has.
fn overlap(text: &str, chunk: &str) -> usize {
    (0..=chunk.len()).rev().find(|&n| text.ends_with(&chunk[..n])).unwrap_or(0)
}

#[tokio::test]
async fn the_launcher_may_die_too() {
    let host = Host::start().await;
    for round in 0..5 {
        let id = format!("box{round}");
        host.run(&id, sh(&["sh", "-c", "read line; exit 2"])).await.unwrap();
        let launcher = host.role("berth-launcher").unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(launcher), Signal::SIGKILL).unwrap();
        host.exec(&id, "ex", sh(&["sh", "-c", "echo $$"])).await.unwrap();
        host.write(&id, "", b"\n").await.unwrap();
        assert_eq!(host.wait(&id, "").await.unwrap(), 2);
        host.remove(&id).await.unwrap();
    }
    assert!(host.cgroups().is_empty());
}
