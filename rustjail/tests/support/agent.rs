//! The agent that decides about calls.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

use super::Bundle;

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

pub struct Agent {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    pub path: PathBuf,
}

impl Agent {
    pub fn new(bundle: &Bundle) -> Self {
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

    pub fn state(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A profile that has it decide about the calls `names`.
pub fn profile(agent: &Agent, names: &[&str], flags: &[&str]) -> Value {
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "listenerPath": agent.path,
        "listenerMetadata": "told to the agent",
        "flags": flags,
        "syscalls": [{"names": names, "action": "SCMP_ACT_NOTIFY"}],
    })
}
