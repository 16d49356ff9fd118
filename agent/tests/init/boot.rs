//! The real binary, as process 1 of an empty root and beside others.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixListener, process::ExitStatusExt},
    process::{Command, Stdio},
    time::Instant,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::guest::{children, kilobytes, scratch, unshare, until};

const BINARY: &str = env!("CARGO_BIN_EXE_berth-agent");

pub fn an_empty_root_is_booted() {
    let root = scratch("boot");
    fs::create_dir(root.join("etc")).unwrap();
    fs::write(root.join("etc/hostname"), "quay\n").unwrap();
    fs::copy(BINARY, root.join("init")).unwrap();
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
    let log = root.join("log");

    let start = Instant::now();
    let mut command = unshare(&["--net", "--ipc", &format!("--root={}", root.display())]);
    command.args(["/init", "--listen", "unix:///run/agent.sock"]).stdin(Stdio::null());
    let mut outer = command.stdout(fs::File::create(&log).unwrap()).spawn().unwrap();
    let init = until("process 1", || children(outer.id().cast_signed()).first().copied());
    let inside = |path: &str| format!("/proc/{init}/root{path}");
    until("the socket", || fs::exists(inside("/run/agent.sock")).unwrap().then_some(()));
    let listening = start.elapsed();
    until("the roles", || (children(init).len() == 2).then_some(()));

    let mounts = fs::read_to_string(format!("/proc/{init}/mounts")).unwrap();
    for (kind, place) in [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("devpts", "/dev/pts"),
        ("tmpfs", "/dev/shm"),
        ("tmpfs", "/run"),
        ("cgroup2", "/sys/fs/cgroup"),
    ] {
        assert!(mounts.contains(&format!("{kind} {place} {kind} ")), "{place} is missing:\n{mounts}");
    }
    assert_eq!(fs::metadata(inside("/tmp")).unwrap().permissions().mode() & 0o7777, 0o1777);
    assert_eq!(fs::read_link(inside("/dev/fd")).unwrap().to_str(), Some("/proc/self/fd"));
    let within = |program: &str, arguments: &[&str]| {
        let output = Command::new("nsenter")
            .args(["-t", &init.to_string(), "--net", "--uts", program])
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(within("uname", &["-n"]).trim(), "quay");
    assert_eq!(within("cat", &["/proc/self/net/if_inet6"]).split_whitespace().last(), Some("lo"));

    println!(
        "     exec -> listening {listening:.2?}; init PSS {} KiB",
        kilobytes(init, "smaps_rollup", "Pss:")
    );
    let story = fs::read_to_string(&log).unwrap();
    for stage in ["mounts", "environment", "modules", "listening", "image"] {
        assert!(story.contains(&format!("{{\"msg\":\"{stage}\"")), "{story}");
    }
    assert!(!story.contains("WARN"), "{story}");
    kill(Pid::from_raw(init), Signal::SIGPWR).unwrap();
    let status = outer.wait().unwrap();
    assert_eq!(status.signal(), Some(2), "{status}");
    fs::remove_dir_all(root).unwrap();
}

pub fn a_socket_in_use_is_left_alone() {
    let directory = scratch("taken");
    let path = directory.join("agent.sock");
    let agent = || {
        let mut command = Command::new(BINARY);
        command.arg("--listen").arg(format!("unix://{}", path.display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    };
    let taken = UnixListener::bind(&path).unwrap();
    let output = agent().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("another process does"), "{said}");
    assert!(path.exists());

    // Left by a process that ended.
    drop(taken);
    let mut child = agent().spawn().unwrap();
    until("the roles", || (children(child.id().cast_signed()).len() == 2).then_some(()));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));

    // A file that is no socket is somebody's data.
    fs::write(&path, "data").unwrap();
    assert_eq!(agent().output().unwrap().status.code(), Some(1));
    assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    fs::remove_dir_all(directory).unwrap();
}
