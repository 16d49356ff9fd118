//! The debug console of an agent on a Unix socket: a shell on a terminal for each connection, or no socket at all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    process::{Command, Stdio},
    time::Duration,
};

use berth::{Agent, Role, ctl_binary};

const CONSOLE: &str = "debug_console = true\ndebug_console_vport = 1026\n";

/// The end of root's, in any shell.
const PROMPT: &str = "# ";

fn connect(agent: &Agent) -> UnixStream {
    let stream = UnixStream::connect(agent.socket().with_extension("sock.console")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn until(stream: &mut UnixStream, wanted: &str) -> String {
    let mut text = String::new();
    let mut bytes = [0; 4096];
    while !text.contains(wanted) {
        let length = match stream.read(&mut bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read.unwrap_or_else(|error| panic!("{error}: {text:?}")),
        };
        assert!(length > 0, "the console ended: {text:?}");
        text.push_str(&String::from_utf8_lossy(&bytes[..length]));
    }
    text
}

/// Types a line at the prompt and waits for what it says and for the next prompt: a shell that is switching its
/// terminal's modes may lose what is typed meanwhile.
fn ask(stream: &mut UnixStream, line: &str, wanted: &str) -> String {
    stream.write_all(line.as_bytes()).unwrap();
    let mut text = until(stream, wanted);
    if !text.rsplit(wanted).next().unwrap().contains(PROMPT) {
        text += &until(stream, PROMPT);
    }
    text
}

#[tokio::test]
async fn each_connection_has_a_shell_on_a_terminal_of_its_own() {
    let agent = Agent::configured(CONSOLE).await;
    let (mut one, mut two) = (connect(&agent), connect(&agent));
    for (number, stream) in [&mut one, &mut two].into_iter().enumerate() {
        until(stream, PROMPT);
        let text = ask(stream, &format!("tty; stty size; echo $((number{number} + 40 + 2))\n"), "42\r");
        assert!(text.contains("/dev/pts/") && text.contains("24 80"), "{text}");
    }
    // ^C reaches what runs there, so the terminal is the session's own. The one to be reached tells itself that it is
    // there: before that, the signal may find the shell between two steps.
    one.write_all(b"sh -c 'echo go $((0 + 1)); exec sleep 1000'\n").unwrap();
    until(&mut one, "go 1\r");
    one.write_all(b"\x03").unwrap();
    until(&mut one, PROMPT);
    ask(&mut one, "echo still $((1 + 1))\n", "still 2\r");
    // The shell ends, and so does the connection.
    one.write_all(b"exit 5\n").unwrap();
    let mut rest = String::new();
    one.read_to_string(&mut rest).unwrap_or_else(|error| panic!("{error}: {rest:?}"));
    // The connection ends, and so does the shell.
    assert!(shells(&agent) >= 1);
    drop(two);
    let start = std::time::Instant::now();
    while shells(&agent) > 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "a shell outlives its connection");
        tokio::task::yield_now().await;
    }
}

/// Processes below the worker, of whichever of its threads.
fn shells(agent: &Agent) -> usize {
    let worker = agent.role(berth::Role::Worker);
    let threads = std::fs::read_dir(format!("/proc/{worker}/task")).into_iter().flatten().flatten();
    let children = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")));
    children.map(|text| text.unwrap_or_default().split_whitespace().count()).sum()
}

#[tokio::test]
async fn without_the_setting_there_is_no_console() {
    for config in ["", "debug_console_vport = 1026\n"] {
        let agent = Agent::configured(config).await;
        assert!(!agent.socket().with_extension("sock.console").exists());
    }
}

#[tokio::test]
async fn berthctl_opens_it() {
    let agent = Agent::configured(CONSOLE).await;
    let mut ctl = Command::new(ctl_binary())
        .args(["--address", &format!("unix://{}", agent.socket().display()), "console"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    ctl.stdin.take().unwrap().write_all(b"echo $((6 * 7)); exit\n").unwrap();
    let output = ctl.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("42\r\n"), "{output:?}");
}

/// Row A6 of the reliability tests (CVE-2020-27151, GHSA-rr59-xxvx-96qr): whatever a request carries, it turns no
/// console on, chooses no program and changes no setting.
#[tokio::test]
async fn no_request_turns_it_on() {
    let (agent, guest) = Agent::with_sandbox().await;
    let state = || {
        let of = |role| {
            let dir = format!("/proc/{}", agent.role(role));
            let program = std::fs::read_link(format!("{dir}/exe")).unwrap();
            (agent.role(role), program, std::fs::read(format!("{dir}/cmdline")).unwrap())
        };
        let log = agent.log().matches("\"level\":\"TRCE\"").count();
        ([Role::Init, Role::Worker, Role::Launcher].map(of), log)
    };
    let before = state();
    let mut container = agent.shell("c1", "echo ran");
    for prefix in ["", "agent.", "io.katacontainers.config.agent.", "io.katacontainers.config.runtime."] {
        for (key, value) in [
            ("debug_console", "true"),
            ("debug_console_vport", "1026"),
            ("log", "trace"),
            ("server_addr", "unix:///tmp/berth-must-not-exist"),
            ("config_file", "/etc/passwd"),
            ("kernel_params", "agent.debug_console agent.debug_console_vport=1026 init=/bin/sh"),
            ("path", "/bin/busybox"),
        ] {
            container.spec().Annotations.insert(format!("{prefix}{key}"), value.into());
            container.process().Env.push(format!("KATA_AGENT_{}={value}", key.to_uppercase()));
        }
    }
    assert_eq!(guest.run(&container).await.stdout, "ran\n");
    assert_eq!(state(), before);
    assert!(!agent.socket().with_extension("sock.console").exists());
    assert!(!std::path::Path::new("/tmp/berth-must-not-exist").exists());
}
