//! The flags that are not about one command alone.

use std::{
    fs,
    io::Read,
    os::{fd::AsFd, unix::net::UnixListener},
    process::Command,
};

use rustjail::sys::{pidfd, scm};
use serde_json::Value;

use crate::jail::{Jail, RUSTJAIL, run};

#[test]
fn flags_stand_before_and_after_the_id() {
    let jail = Jail::new("true");
    let bundle = jail.bundle.path.to_str().unwrap().to_owned();
    let equals = format!("-b={bundle}");
    for line in [
        &["run", "--bundle", &bundle, "c"][..],
        &["run", "c", "--bundle", &bundle],
        &["run", "c", "-bundle", &bundle],
        &["run", &equals, "--keep=false", "c"],
        &["run", "--", "c"],
    ] {
        let mut command = jail.command(line);
        if line.len() > 3 {
            command.current_dir("/");
        }
        let outcome = run(command, &jail.bundle.path);
        assert_eq!(outcome.code, 0, "{line:?}: {outcome:?}");
    }
    jail.refused(&["run", "--nosuch", "c"], 1, "nosuch");
    jail.refused(&["nosuch"], 3, "nosuch");
}

#[test]
fn the_log_has_lines_that_shims_parse() {
    let jail = Jail::sleeping();
    let log = jail.path("log");
    jail.refused(&["--log", &log, "--log-format", "json", "start", "c"], 1, "does not exist");
    jail.refused(&["--log-format=json", "--log", &log, "start", "c"], 1, "does not exist");
    let lines: Vec<Value> =
        fs::read_to_string(&log).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["level"], "error");
    assert!(lines[0]["msg"].as_str().unwrap().contains("does not exist"));
    assert!(lines[0]["time"].as_str().unwrap().ends_with('Z'));
    jail.refused(&["--log-format", "xml", "list"], 1, "xml");
    fs::remove_file(&log).unwrap();
    jail.ok(&["--log", &log, "list"]);
    assert!(!fs::exists(&log).unwrap());
}

#[test]
fn the_pid_file_names_the_init() {
    let jail = Jail::sleeping();
    let pid_file = jail.path("pid");
    jail.ok(&["create", "--pid-file", &pid_file, "c"]);
    assert_eq!(fs::read_to_string(&pid_file).unwrap(), jail.pid("c").to_string());
    jail.ok(&["delete", "--force", "c"]);
    jail.refused(&["create", "--pid-file", "/nonexistent/pid", "d"], 1, "/nonexistent/pid");
}

#[test]
fn the_pidfd_socket_gets_the_init() {
    let jail = Jail::sleeping();
    let path = jail.path("pidfd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    jail.ok(&["create", "--pidfd-socket", &path, "c"]);
    let (stream, _) = listener.accept().unwrap();
    let received = scm::receive(stream.as_fd(), &mut [0; 64]).unwrap();
    pidfd::signal(received.fds[0].as_fd(), 9).unwrap();
    assert!(crate::jail::eventually(|| jail.status("c") == "stopped"));
}

#[test]
fn descriptors_are_passed_on_when_asked_for() {
    let jail = Jail::new("ls /proc/self/fd; cat <&3");
    let shell = |flags: &str| {
        jail.write_config();
        let mut command = Command::new("sh");
        let root = jail.root.display();
        command.args([
            "-c",
            &format!("exec 3</etc/hostname 5</dev/null; {RUSTJAIL} --root {root} run {flags} c"),
        ]);
        command.current_dir(&jail.bundle.path);
        run(command, &jail.bundle.path)
    };
    let passed = shell("--preserve-fds 1");
    let hostname = fs::read_to_string("/etc/hostname").unwrap();
    // 4 is that of ls itself.
    assert_eq!(passed.stdout, format!("0\n1\n2\n3\n4\n{}", hostname.trim_end()), "{passed:?}");
    let kept = shell("");
    assert!(kept.stdout.starts_with("0\n1\n2\n3") && !kept.stdout.contains(hostname.trim_end()), "{kept:?}");
    let missing = shell("--preserve-fds 2");
    assert!(missing.code == 1 && missing.stderr.contains("/proc/self/fd/4"), "{missing:?}");
}

#[test]
fn sockets_of_activation_are_passed_on() {
    let jail = Jail::new("echo $LISTEN_FDS $LISTEN_PID; cat <&3");
    jail.write_config();
    let mut command = Command::new("sh");
    let root = jail.root.display();
    command.args(["-c", &format!("exec 3</etc/hostname; LISTEN_FDS=1 {RUSTJAIL} --root {root} run c")]);
    command.current_dir(&jail.bundle.path);
    let outcome = run(command, &jail.bundle.path);
    assert!(outcome.text().starts_with("1 1\n"), "{outcome:?}");
}

#[test]
fn without_pivot_the_host_is_out_of_sight_as_well() {
    let jail = Jail::new("ls /; ls /proc/1/root/; cat /proc/mounts");
    let outcome = jail.call(&["run", "--no-pivot", "c"]);
    let text = outcome.text();
    assert!(text.contains("bin") && !text.contains("boot") && !text.contains("usr"), "{text}");
}

#[test]
fn stdin_reaches_the_program() {
    let jail = Jail::new("cat");
    let mut command = jail.command(&["run", "c"]);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"through\n").unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!((crate::jail::wait(&mut child), text.as_str()), (0, "through\n"));
}

#[test]
fn spec_writes_a_bundle_that_runs() {
    let jail = Jail::new("");
    let dir = jail.path("fresh");
    fs::create_dir(&dir).unwrap();
    jail.ok(&["spec", "--bundle", &dir]);
    jail.refused(&["spec", "-b", &dir], 1, "File exists");
    let path = format!("{dir}/config.json");
    let mut spec: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    spec["process"]["terminal"] = false.into();
    spec["process"]["args"] = serde_json::json!(["sh", "-c", "echo hello"]);
    spec["root"]["path"] = jail.bundle.rootfs().to_str().unwrap().into();
    spec["linux"]["cgroupsPath"] = format!("/rustjail-test/{}", jail.name("spec")).into();
    fs::write(&path, spec.to_string()).unwrap();
    assert_eq!(jail.ok(&["run", "--bundle", &dir, "c"]), "hello");
}

#[test]
fn help_and_version_say_what_there_is() {
    let jail = Jail::new("");
    let help = jail.ok(&["--help"]);
    for verb in [
        "create", "start", "state", "kill", "delete", "exec", "run", "list", "ps", "pause", "resume",
        "update", "events", "stats", "features", "spec",
    ] {
        assert!(help.contains(&format!("  {verb} ")), "{verb}");
        assert!(jail.ok(&[verb, "--help"]).contains(verb));
    }
    assert!(jail.ok(&["--version"]).starts_with("rustjail version "));
}
