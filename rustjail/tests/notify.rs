//! Calls that an agent outside of the container decides: the agent is a program of its own, which speaks to
//! the kernel directly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use support::{Bundle, process};

/// Takes listeners at a socket, prints what came with each, and answers `mkdir` with the errno 93, `mkdirat` of
/// a name it knows by letting it happen, and every other call in the same way.
const AGENT: &str = r#"
import array, fcntl, json, os, socket, struct, sys, threading
RECV, SEND = 0xc0502100, 0xc0182101
server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
server.bind(sys.argv[1]); server.listen(); print("ready", flush=True)
def serve(listener):
    while True:
        request = bytearray(80)
        try: fcntl.ioctl(listener, RECV, request)
        except OSError: return
        identity, pid, flags, number = struct.unpack_from("=QIIi", request)
        answer = (-93, 0) if number in (83, 258) else (0, 1)
        try: fcntl.ioctl(listener, SEND, struct.pack("=QqiI", identity, 0, *answer))
        except OSError: pass
while True:
    peer, _ = server.accept()
    data, fds, _, _ = socket.recv_fds(peer, 65536, 4)
    while chunk := peer.recv(65536): data += chunk
    print(json.dumps({"state": json.loads(data), "fds": len(fds)}), flush=True)
    threading.Thread(target=serve, args=(fds[0],), daemon=True).start()
"#;

struct Agent {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    path: PathBuf,
}

impl Agent {
    fn new(bundle: &Bundle) -> Self {
        let path = bundle.path.join("agent.sock");
        let mut child = Command::new("python3")
            .args(["-c", AGENT])
            .arg(&path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is installed");
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut agent = Self { child, output, path };
        assert_eq!(agent.line(), "ready");
        agent
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn state(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn profile(agent: &Agent, names: &[&str], flags: &[&str]) -> Value {
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "listenerPath": agent.path,
        "listenerMetadata": "told to the agent",
        "flags": flags,
        "syscalls": [{"names": names, "action": "SCMP_ACT_NOTIFY"}],
    })
}

#[test]
fn the_agent_is_told_who_asks_and_decides() {
    let mut bundle = Bundle::new("mkdir /tmp/x; ls /tmp; grep Seccomp: /proc/self/status");
    let mut agent = Agent::new(&bundle);
    bundle.set("/linux/seccomp", profile(&agent, &["mkdir", "mkdirat"], &[]));
    let outcome = bundle.run();
    assert!(outcome.stderr.contains("Protocol not supported"), "{outcome:?}");
    assert_eq!(outcome.text(), "Seccomp:\t2");
    let told = agent.state();
    assert_eq!((&told["fds"], &told["state"]["fds"]), (&json!(1), &json!(["seccompFd"])));
    assert_eq!(told["state"]["metadata"], "told to the agent");
    assert_eq!(told["state"]["state"]["id"], "test");
    assert!(told["state"]["pid"].as_i64().unwrap() > 1);
}

/// What the runtime itself calls between the filter and the program waits for the agent like anything else.
#[test]
fn every_other_call_of_the_runtime_may_be_asked_about() {
    for privileged in [true, false] {
        let mut bundle = Bundle::new("echo done");
        let mut agent = Agent::new(&bundle);
        let names = ["read", "execve", "close", "capset", "capget", "prctl", "openat", "sendmsg", "ioctl"];
        let flags = ["SECCOMP_FILTER_FLAG_TSYNC", "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"];
        bundle.set("/linux/seccomp", profile(&agent, &names, &flags));
        bundle.set("/process/noNewPrivileges", json!(!privileged));
        assert_eq!(bundle.run().text(), "done");
        agent.state();
    }
}

#[test]
fn an_exec_has_a_listener_of_its_own() {
    let mut bundle = Bundle::new("");
    let mut agent = Agent::new(&bundle);
    bundle.set("/linux/seccomp", profile(&agent, &["mkdir", "mkdirat"], &[]));
    let outcome = bundle.exec(process("mkdir /tmp/x || echo refused"));
    assert_eq!(outcome.text(), "refused");
    let (init, exec) = (agent.state(), agent.state());
    assert_ne!(init["state"]["pid"], exec["state"]["pid"]);
}

#[test]
fn an_agent_that_is_not_there_is_named() {
    let mut bundle = Bundle::new("true");
    let mut agent = Agent::new(&bundle);
    agent.path = bundle.path.join("nobody.sock");
    bundle.set("/linux/seccomp", profile(&agent, &["mkdir"], &[]));
    let outcome = bundle.run();
    assert!(
        outcome.refusal().contains("nobody.sock") && outcome.refusal().contains("connect"),
        "{outcome:?}"
    );
}
