//! The log as its readers get it: at the socket beside the agent's, several of them, slow ones and vanishing ones.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    collections::HashSet,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    process::Command,
    time::{Duration, Instant},
};

use berth::{Agent, Role, ctl_binary, deadline};
use nix::sys::signal::Signal;
use serde_json::Value;

const LOGGED: &str = "log_vport = 1025\n";
const FIELDS: [&str; 7] = ["msg", "level", "ts", "pid", "version", "name", "source"];
const LEVELS: [&str; 6] = ["TRCE", "DEBG", "INFO", "WARN", "ERRO", "CRIT"];

struct Reader(BufReader<UnixStream>);

impl Reader {
    fn of(agent: &Agent) -> Self {
        let stream = UnixStream::connect(agent.socket().with_extension("sock.log")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&self, line: &str) {
        self.0.get_ref().write_all(line.as_bytes()).unwrap();
    }

    /// The next record; each is an object on one line, with every field text and no key twice.
    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let record: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
        let fields = record.as_object().unwrap();
        assert!(line.bytes().all(|byte| byte == b'\n' || byte >= 0x20), "{line:?}");
        assert!(FIELDS.iter().all(|key| fields[*key].is_string()), "{line}");
        assert!(fields.values().all(Value::is_string), "{line}");
        assert_eq!(
            fields.keys().map(|key| line.matches(&format!("\"{key}\":\"")).count()).max(),
            Some(1),
            "{line}"
        );
        assert!(LEVELS.contains(&fields["level"].as_str().unwrap()), "{line}");
        record
    }

    fn until(&mut self, found: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut records = Vec::new();
        let start = Instant::now();
        while records.last().is_none_or(|last| !found(last)) {
            assert!(start.elapsed() < Duration::from_secs(30), "not logged: {records:#?}");
            records.push(self.next());
        }
        records
    }
}

fn says(record: &Value, text: &str) -> bool {
    record["msg"].as_str().unwrap().contains(text)
}

#[tokio::test]
async fn every_reader_gets_the_boot_and_what_comes_with_the_ids_in_every_line() {
    let agent = Agent::configured(LOGGED).await;
    let guest = agent.client().await;
    let mut first = Reader::of(&agent);
    let told = first.until(|record| says(record, "serving"));
    let stages: Vec<&str> =
        told.iter().filter(|it| it["source"] == "init").filter_map(|it| it["msg"].as_str()).collect();
    assert_eq!(stages, ["start", "image", "listening"]);
    assert!(told.iter().any(|it| it["source"] == "init" && it["boottime_ns"].as_str().is_some()));

    guest.create_sandbox("box").await.unwrap();
    deadline(guest.run(&agent.shell("c1", "exit 3"))).await;
    for mut reader in [first, Reader::of(&agent), Reader::of(&agent)] {
        let records = reader.until(|record| says(record, "container removed"));
        let since = records.iter().position(|it| says(it, "sandbox created")).unwrap();
        for record in &records[since..] {
            assert_eq!(record["sandbox"], "test", "{record}");
            let about_container = record.get("container").is_some();
            assert_eq!(
                about_container,
                ["container", "process"].iter().any(|it| says(record, it)),
                "{record}"
            );
        }
        let exit = records.iter().find(|it| says(it, "process exited")).unwrap();
        assert_eq!((&exit["container"], &exit["status"]), (&"c1".into(), &"3".into()));
        assert_ne!(exit["pid"], exit["process_pid"]);
    }
}

#[tokio::test]
async fn a_reader_that_does_not_read_and_one_that_vanishes_stop_nobody() {
    let agent = Agent::configured(LOGGED).await;
    let guest = agent.client().await;
    let mut stuck = Reader::of(&agent);
    for _ in 0..40 {
        // Connects, and is gone with its first line half read.
        let mut byte = [0];
        Reader::of(&agent).0.read_exact(&mut byte).unwrap();
    }
    // Far more than a socket's buffers and the ring hold: each refused call is logged with its id.
    let name = "n".repeat(200);
    for number in 0..4_000 {
        let id = format!("{name}{number}");
        assert!(deadline(guest.start(&id)).await.is_err());
    }
    let marker = agent.shell("after", "exit 0");
    deadline(guest.run(&marker)).await;
    Reader::of(&agent).until(|record| record.get("container").is_some_and(|id| id == "after"));
    let records = stuck.until(|record| record.get("container").is_some_and(|id| id == "after"));
    assert!(records.len() > 2, "the reader that came back is served on");
    assert_eq!(agent.log().lines().filter(|line| line.contains("panicked")).count(), 0);
}

#[tokio::test]
async fn the_level_changes_while_it_runs_and_the_story_goes_on_after_a_killed_worker() {
    let agent = Agent::configured(LOGGED).await;
    let mut reader = Reader::of(&agent);
    reader.send("level error\nlevel nonsense\n");
    reader.send("level info\n");
    reader.until(|record| says(record, "has set the level") && record["to"] == "INFO");

    agent.replace(Role::Worker, Signal::SIGKILL).await;
    let mut next = Reader::of(&agent);
    let records = next.until(|record| says(record, "serving"));
    assert!(records.iter().any(|it| it["source"] == "init" && says(it, "the worker ended")), "{records:#?}");

    let address = format!("unix://{}", agent.socket().display());
    let printed = Command::new(ctl_binary())
        .args(["--address", &address, "logs", "--level", "debug", "-n", "3"])
        .output()
        .unwrap();
    assert!(printed.status.success(), "{printed:?}");
    let lines: Vec<Value> = String::from_utf8(printed.stdout)
        .unwrap()
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    next.until(|record| says(record, "has set the level") && record["to"] == "DEBUG");
}

#[tokio::test]
async fn the_level_that_a_reader_set_is_the_next_workers_too() {
    let agent = Agent::configured(LOGGED).await;
    let mut reader = Reader::of(&agent);
    reader.send("level warn\nfirst\n");
    reader.until(|record| says(record, "what is no command") && record["line"] == "first");
    agent.replace(Role::Worker, Signal::SIGKILL).await;
    agent.client().await.create_sandbox("box").await.unwrap();
    let mut next = Reader::of(&agent);
    next.send("second\n");
    let records = next.until(|record| says(record, "what is no command") && record["line"] == "second");
    let worker = &records.last().unwrap()["pid"];
    let levels: HashSet<&str> =
        records.iter().filter(|it| it["pid"] == *worker).filter_map(|it| it["level"].as_str()).collect();
    assert_eq!(levels, HashSet::from(["WARN"]), "{records:#?}");
}

/// What a host or a workload gives into the agent's hands is not for the log, even at its most talkative.
#[tokio::test]
async fn secrets_are_not_in_the_log() {
    let agent = Agent::configured(LOGGED).await;
    let guest = agent.client().await;
    let mut reader = Reader::of(&agent);
    reader.send("level trace\n");
    reader.until(|record| says(record, "has set the level"));
    guest.create_sandbox("box").await.unwrap();

    let secret = |place: &str| format!("s3cret-{place}");
    let mut container = agent.shell("visible", "cat; exit 0");
    container.process().Env.push(format!("TOKEN={}", secret("env")));
    container.process().Args.push(secret("argument"));
    container.spec().Annotations.insert("io.example/key".into(), secret("annotation"));
    guest.create(&container).await.unwrap();
    guest.start("visible").await.unwrap();
    guest.write("visible", "", secret("stdin").as_bytes()).await.unwrap();
    let echoed = secret("exec");
    let ran = guest.run_in("visible", "e1", &["sh", "-c", &format!("echo {echoed}; exit 4")]).await;
    assert_eq!((ran.status, ran.stdout), (4, format!("{echoed}\n")));
    let mut broken = agent.container("broken", &["/nonexistent"]);
    broken.process().Env.push(secret("env"));
    broken.process().Args.push(secret("argument"));
    let _ = guest.create(&broken).await;
    let _ = guest.start("broken").await;
    guest.remove("visible").await.unwrap();

    let records = reader.until(|record| says(record, "container removed"));
    let text = serde_json::to_string(&records).unwrap() + &agent.log();
    // The scan would find it: what may be told is found the same way.
    assert!(text.contains("visible") && text.contains("e1"), "{text}");
    let found: HashSet<&str> = text
        .split(|c: char| !c.is_alphanumeric() && c != '-')
        .filter(|word| word.starts_with("s3cret-"))
        .collect();
    assert!(found.is_empty(), "{found:?}");
}
