//! containerd's runc shim, with rustjail in the place of runc.

use std::{
    fs,
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
};

use crate::jail::{Jail, Outcome, RUSTJAIL, eventually, installed, run};

/// A containerd of its own, ended with it.
struct Containerd {
    jail: Jail,
    daemon: Child,
}

impl Containerd {
    fn start() -> Option<Self> {
        if !installed("containerd") || !installed("ctr") {
            return None;
        }
        let jail = Jail::new("");
        let [socket, root, state] = ["c.sock", "root", "run"].map(|name| jail.path(name));
        // The CRI plugin wants a network configuration and an image service.
        let config = format!(
            "version = 2\nroot = {root:?}\nstate = {state:?}\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\n  address = {socket:?}\n"
        );
        fs::write(jail.path("containerd.toml"), config).unwrap();
        let log = fs::File::create(jail.path("containerd.log")).unwrap();
        let daemon = Command::new("containerd")
            .args(["--config", &jail.path("containerd.toml")])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let started = eventually(|| UnixStream::connect(&socket).is_ok());
        assert!(started, "{}", fs::read_to_string(jail.path("containerd.log")).unwrap());
        Some(Self { jail, daemon })
    }

    fn call(&self, words: &[&str]) -> Outcome {
        let mut command = Command::new("ctr");
        command.args(["--address", &self.jail.path("c.sock")]).args(words).stdin(Stdio::null());
        run(command, &self.jail.bundle.path)
    }

    #[track_caller]
    fn ok(&self, words: &[&str]) -> String {
        let outcome = self.call(words);
        assert_eq!(outcome.code, 0, "ctr {words:?}: {outcome:?}");
        outcome.stdout
    }

    fn run(&self, flags: &[&str], id: &str, words: &[&str]) -> Outcome {
        let rootfs = self.jail.bundle.rootfs();
        let fixed = ["run", "--runc-binary", RUSTJAIL, "--env", "PATH=/bin"];
        let container = ["--rootfs", rootfs.to_str().unwrap(), id];
        self.call(&[&fixed[..], flags, &container, words].concat())
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        for id in self.call(&["container", "ls", "--quiet"]).stdout.lines() {
            self.call(&["task", "rm", "--force", id]);
            self.call(&["container", "rm", id]);
        }
        let pid = nix::unistd::Pid::from_raw(self.daemon.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.daemon.wait();
    }
}

#[test]
fn containerd_drives_a_container_through_its_life() {
    let Some(containerd) = Containerd::start() else { return };
    let id = |name| containerd.jail.name(name);
    let outcome = containerd.run(&["--rm"], &id("echo"), &["sh", "-c", "echo out; exit 7"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (7, "out"), "{outcome:?}");
    let outcome = containerd.run(&["--rm"], &id("missing"), &["nosuch"]);
    assert!(outcome.code != 0 && outcome.stderr.contains("No such file or directory"), "{outcome:?}");

    let c = &id("long");
    containerd.run(&["--detach"], c, &["sleep", "1000"]).text();
    let status = || {
        let list = containerd.ok(&["task", "ls"]);
        let line = list.lines().find(|line| line.starts_with(c)).expect("a task").to_owned();
        line.split_whitespace().last().unwrap().to_owned()
    };
    assert_eq!(status(), "RUNNING");
    assert_eq!(containerd.ok(&["task", "exec", "--exec-id", "a", c, "id", "-u"]), "0");
    assert_eq!(containerd.call(&["task", "exec", "--exec-id", "b", c, "sh", "-c", "exit 9"]).code, 9);
    let missing = containerd.call(&["task", "exec", "--exec-id", "d", c, "nosuch"]);
    assert!(missing.code != 0 && missing.stderr.contains("No such file or directory"), "{missing:?}");
    assert!(containerd.ok(&["task", "metrics", c]).contains("memory"));
    assert_eq!(containerd.ok(&["task", "ps", c]).lines().count(), 2);
    containerd.ok(&["task", "pause", c]);
    assert_eq!(status(), "PAUSED");
    containerd.ok(&["task", "resume", c]);
    containerd.ok(&["task", "kill", "--signal", "SIGKILL", c]);
    assert!(eventually(|| status() == "STOPPED"));
    containerd.call(&["task", "rm", c]);
    containerd.ok(&["container", "rm", c]);
}
