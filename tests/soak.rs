//! Many containers and execs, after which everything is where it began: memory, descriptors, mounts, cgroups, tasks
//! and zombies. `make soak` runs ten thousand containers and fifty thousand execs; `make test` a fiftieth of it.
//!
//! The log's ring and the pool's threads come with the first containers, so the last quarter of the run is compared with
//! the second, by the median of what each batch left. glibc is told to have one arena: with one for each
//! thread of the pool, what is free in them goes up and down by half a MiB, more on a busy machine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{fs, path::Path, time::Duration};

use berth::{Agent, Guest, Role, deadline, until};

/// Containers that exist at once, as in a busy sandbox.
const AT_ONCE: usize = 20;
/// Execs in each container.
const EXECS: usize = 5;
/// By how much the quarters may differ, in KiB. Without a leak they do by less than 50; one of 25 bytes for each process
/// is 732 in a full run, where 30,000 processes lie between the quarters' middles.
const SLACK: u64 = 256;

fn containers() -> usize {
    std::env::var("SOAK_CONTAINERS").map_or(200, |count| count.parse().expect("SOAK_CONTAINERS is a number"))
}

/// What must not grow.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: Vec<usize>,
    mounts: usize,
    cgroups: usize,
    tasks: usize,
    files: usize,
}

const ROLES: [Role; 3] = [Role::Init, Role::Worker, Role::Launcher];

fn held(agent: &Agent) -> Held {
    let pids = ROLES.map(|role| agent.role(role).as_raw());
    let list = |path: String| fs::read_dir(path).map_or(0, |entries| entries.count());
    Held {
        descriptors: pids.iter().map(|pid| list(format!("/proc/{pid}/fd"))).collect(),
        mounts: fs::read_to_string(format!("/proc/{}/mountinfo", pids[0])).unwrap().lines().count(),
        cgroups: agent.cgroups().len(),
        // Zombies are among the children of init, and so are orphans.
        tasks: agent.container_pids().len(),
        files: files(&agent.dir().join("state")),
    }
}

/// The same in two looks: the last messages between the roles have come by then, which close descriptors.
async fn settled(agent: &Agent) -> Held {
    let mut last = held(agent);
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = held(agent);
        if now == last {
            return now;
        }
        last = now;
    }
}

fn files(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| 1 + if entry.path().is_dir() { files(&entry.path()) } else { 0 }).sum()
}

/// Memory of all roles that is no file's, in KiB: code that is used for the first time is no growth.
fn anonymous(agent: &Agent) -> u64 {
    let of = |role| {
        let status = fs::read_to_string(format!("/proc/{}/status", agent.role(role))).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("RssAnon");
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    ROLES.into_iter().map(of).sum()
}

fn median(samples: &[u64]) -> u64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

/// A container's whole life, with execs in it.
async fn live(guest: Guest, container: berth::Container) {
    let id = container.request.container_id.clone();
    guest.create(&container).await.unwrap();
    guest.start(&id).await.unwrap();
    for exec in 0..EXECS {
        let said = guest.run_in(&id, &format!("e{exec}"), &["echo", "x"]).await;
        assert_eq!((said.status, said.stdout.as_str()), (0, "x\n"));
    }
    guest.remove(&id).await.unwrap();
}

async fn batch(agent: &Agent, guest: &Guest, numbers: std::ops::Range<usize>) {
    let lives: Vec<_> = numbers
        .map(|number| {
            let container = agent.container(&format!("c{number}"), &["sleep", "100000"]);
            tokio::spawn(live(guest.clone(), container))
        })
        .collect();
    for life in lives {
        life.await.unwrap();
    }
}

#[tokio::test]
async fn everything_is_where_it_began() {
    let agent = Agent::frugal().await;
    let guest = agent.client().await;
    guest.create_sandbox("soak").await.unwrap();
    // Caches, pools and high-water marks come with the first ones.
    batch(&agent, &guest, 0..2 * AT_ONCE).await;
    let before = deadline(settled(&agent)).await;

    let (count, mut memory) = (containers(), Vec::new());
    for first in (0..count).step_by(AT_ONCE) {
        batch(&agent, &guest, first..(first + AT_ONCE).min(count)).await;
        memory.push(anonymous(&agent));
    }
    // The pool's threads and the last messages between the roles take a moment to settle.
    until(&format!("all to be as before {count} containers: {before:?}"), async || held(&agent) == before)
        .await;
    let quarter = memory.len() / 4;
    assert!(quarter > 0, "{count} containers are too few to be compared with each other");
    let (second, last) = (median(&memory[quarter..2 * quarter]), median(&memory[3 * quarter..]));
    println!(
        "{count} containers: {} KiB after the first, {second} in the second quarter, {last} in the last",
        memory[0]
    );
    assert!(last <= second + SLACK, "memory grew by {} KiB in half a run: {memory:?}", last - second);
}
