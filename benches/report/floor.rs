//! The bare-kernel floor (`benches/floor.rs`): for an agent a program that stays and repeats its work when told to,
//! for a command one that is started for it.

use std::{
    env,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// A running one.
pub struct Floor(Child);

impl Floor {
    /// With `exec_into` its work is an exec beside that process, else a container.
    pub fn start(rootfs: &Path, cgroup: &str, exec_into: Option<u64>) -> Self {
        let mut command = command(rootfs, cgroup, exec_into);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Self(process.expect("start the floor program"))
    }

    pub fn once(&mut self) {
        let order = self.0.stdin.as_mut().expect("a pipe").write_all(b"x");
        order.expect("tell the floor program");
        let answer = self.0.stdout.as_mut().expect("a pipe").read_exact(&mut [0]);
        answer.expect("hear from the floor program");
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The same work once, from the start of the program to its end.
pub fn started(rootfs: &Path, cgroup: &str, exec_into: Option<u64>) {
    let mut command = command(rootfs, cgroup, exec_into);
    let status = command.arg("once").stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.expect("start the floor program");
    assert!(status.success(), "the floor program: {status}");
}

fn command(rootfs: &Path, cgroup: &str, exec_into: Option<u64>) -> Command {
    let program = env::var_os("BERTH_FLOOR").map_or(env!("CARGO_BIN_EXE_berth-floor").into(), PathBuf::from);
    let mut command = Command::new(program);
    command.arg(rootfs).arg(cgroup).args(exec_into.map(|pid| pid.to_string()));
    command
}
