//! podman, with rustjail in the place of runc.

use std::process::{Command, Stdio};

use crate::jail::{Jail, Outcome, RUSTJAIL, installed, run};

/// podman with storage of its own; its containers are removed with it.
struct Podman {
    jail: Jail,
}

impl Podman {
    fn new() -> Option<Self> {
        (installed("podman") && installed("conmon")).then(|| Self { jail: Jail::new("") })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command.args(["--root", &self.jail.path("storage"), "--runroot", &self.jail.path("run")]);
        command.args(["--tmpdir", &self.jail.path("tmp"), "--storage-driver", "vfs"]);
        command.args(["--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", RUSTJAIL]);
        command.args(words).stdin(Stdio::null());
        command
    }

    fn call(&self, words: &[&str]) -> Outcome {
        run(self.command(words), &self.jail.bundle.path)
    }

    #[track_caller]
    fn ok(&self, words: &[&str]) -> String {
        let outcome = self.call(words);
        assert_eq!(outcome.code, 0, "podman {words:?}: {outcome:?}");
        outcome.stdout
    }

    /// `run` with `flags` and a command; hard limits are kept, which a root without CAP_SYS_RESOURCE must.
    fn run(&self, flags: &[&str], words: &[&str]) -> Outcome {
        let rootfs = self.jail.bundle.rootfs();
        let limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"];
        let fixed = ["run", "--network", "none", "--env", "PATH=/bin"];
        let rootfs = ["--rootfs", rootfs.to_str().unwrap()];
        self.call(&[&fixed[..], &limits, flags, &rootfs, words].concat())
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = self.call(&["rm", "--all", "--force", "--time", "0"]);
    }
}

#[test]
fn podman_runs_and_passes_the_exit_status_on() {
    let Some(podman) = Podman::new() else { return };
    let outcome = podman.run(&["--rm"], &["sh", "-c", "echo out; exit 7"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (7, "out"), "{outcome:?}");
    let outcome = podman.run(&["--rm", "--tty"], &["tty"]);
    assert_eq!(outcome.text(), "/dev/pts/0");
    // The statuses podman gives when it recognises the runtime's words.
    assert_eq!(podman.run(&["--rm"], &["nosuch"]).code, 127);
    assert_eq!(podman.run(&["--rm"], &["/etc/passwd"]).code, 126);
}

#[test]
fn podman_drives_a_container_through_its_life() {
    let Some(podman) = Podman::new() else { return };
    let script = "trap 'exit 3' TERM; while :; do sleep 0.05; done";
    let health = ["--health-cmd", "test -s /tmp/healthy", "--health-interval", "disable"];
    let started = podman.run(&[&["--detach", "--name", "c"], &health[..]].concat(), &["sh", "-c", script]);
    started.text();
    let status = || podman.ok(&["inspect", "--format", "{{.State.Status}}", "c"]);
    assert_eq!(status(), "running");
    assert_eq!(podman.ok(&["exec", "c", "sh", "-c", "id -u; echo 1 >/tmp/healthy"]), "0");
    assert_eq!(podman.call(&["exec", "c", "sh", "-c", "exit 9"]).code, 9);
    assert_eq!(podman.call(&["exec", "c", "nosuch"]).code, 127);
    podman.ok(&["healthcheck", "run", "c"]);
    podman.ok(&["exec", "c", "sh", "-c", ": >/tmp/healthy"]);
    assert_eq!(podman.call(&["healthcheck", "run", "c"]).code, 1);
    let stats = podman.ok(&["stats", "--no-stream", "--format", "{{.PIDS}} {{.MemUsage}}", "c"]);
    assert!(stats.split(' ').next().unwrap().parse::<u32>().unwrap() >= 1, "{stats}");
    assert!(podman.ok(&["top", "c"]).contains("sleep"));
    podman.ok(&["pause", "c"]);
    assert_eq!(status(), "paused");
    podman.ok(&["unpause", "c"]);
    podman.ok(&["stop", "--time", "20", "c"]);
    assert_eq!(podman.ok(&["inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", "c"]), "exited 3");
    podman.ok(&["rm", "c"]);
}
