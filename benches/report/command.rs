//! The command `rustjail` beside crun and runc: time, memory, system calls.
//!
//! The floor is a tiny program that does the kernel's part of the same alone. Once it is started anew for each, like any
//! command, which is what the targets are for; and once it stays, to show what starting a program takes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use berth::{rustjail_binary, scratch_dir};
use serde_json::{Value, json};

use crate::{
    floor::{self, Floor},
    profiles,
    sample::{Samples, interleave},
    table::Table,
};

const GAPS: [(&str, Duration, usize); 2] =
    [("tight", Duration::ZERO, 60), ("60 ms apart", Duration::from_millis(60), 40)];

const ARCHITECTURES: [&str; 3] = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"];

pub fn measure(table: &mut Table, rootfs: &Path) {
    let typical = serde_json::to_value(profiles::typical(&ARCHITECTURES)).expect("a profile as JSON");
    for (profile, seccomp) in [("no seccomp", None), ("default profile", Some(typical))] {
        let all = ["rustjail", "crun", "runc"].map(|name| Runtime::new(name, rootfs, seccomp.as_ref()));
        for (gap_name, gap, rounds) in GAPS {
            times(table, &all, rootfs, &format!("{profile}, {gap_name}"), gap, rounds);
        }
        if seccomp.is_none() {
            resources(table, &all);
        }
    }
}

fn times(table: &mut Table, all: &[Runtime; 3], rootfs: &Path, how: &str, gap: Duration, rounds: usize) {
    let [rustjail, crun, runc] = all;
    let tight = gap.is_zero();
    let group = "/berth-bench/floor";
    let mut floor = Floor::start(rootfs, group, None);
    let run = interleave(
        rounds,
        gap,
        &mut [
            &mut || rustjail.run(),
            &mut || crun.run(),
            &mut || runc.run(),
            &mut || floor::started(rootfs, group, None),
            &mut || floor.once(),
        ],
    );
    rows(table, &format!("rustjail run, {how}"), run, tight.then_some(0.6), (!tight).then_some(1.3));

    let sleepers = all.each_ref().map(Sleeper::start);
    let (group, init) = ("/berth-bench/oci-sleep-rustjail", Some(sleepers[0].pid()));
    let mut floor = Floor::start(rootfs, group, init);
    let exec = interleave(
        rounds,
        gap,
        &mut [
            &mut || sleepers[0].exec(),
            &mut || sleepers[1].exec(),
            &mut || sleepers[2].exec(),
            &mut || floor::started(rootfs, group, init),
            &mut || floor.once(),
        ],
    );
    rows(table, &format!("rustjail exec, {how}"), exec, tight.then_some(0.5), (!tight).then_some(2.0));
}

fn rows(table: &mut Table, what: &str, samples: Vec<Samples>, of_crun: Option<f64>, of_floor: Option<f64>) {
    let [ours, crun, runc, started, staying]: [Samples; 5] = samples.try_into().expect("five sets");
    table.time(what, ours.median(), "crun", crun.median(), of_crun);
    table.time(what, ours.median(), "runc", runc.median(), None);
    table.time(what, ours.median(), "kernel floor", started.median(), of_floor);
    table.time(what, ours.median(), "floor that stays", staying.median(), None);
}

fn resources(table: &mut Table, all: &[Runtime; 3]) {
    let [ours, crun, runc] = all.each_ref().map(Runtime::peak);
    table.count("peak memory of run", ours, "crun", crun, "KiB", Some(1.0));
    table.count("peak memory of run", ours, "runc", runc, "KiB", None);
    let [ours, crun, runc] = all.each_ref().map(Runtime::system_calls);
    table.count("system calls of run", ours, "crun", crun, "", None);
    table.count("system calls of run", ours, "runc", runc, "", None);
}

/// One runtime with bundles and state of its own.
struct Runtime {
    program: PathBuf,
    dir: PathBuf,
}

impl Runtime {
    fn new(name: &str, rootfs: &Path, seccomp: Option<&Value>) -> Self {
        let program = if name == "rustjail" { rustjail_binary() } else { name.into() };
        let runtime = Self { program, dir: scratch_dir(name) };
        for (bundle, args) in [("true", &["true"][..]), ("sleep", &["sleep", "1000"])] {
            let dir = runtime.dir.join(bundle);
            fs::create_dir(&dir).expect("create a bundle");
            let text = include_str!("config.json")
                .replace("@ROOTFS@", &rootfs.to_string_lossy())
                .replace("\"@ARGS@\"", &json!(args).to_string())
                .replace("@CGROUP@", &format!("/berth-bench/oci-{bundle}-{name}"));
            let mut config: Value = serde_json::from_str(&text).expect("a configuration");
            if let Some(seccomp) = seccomp {
                config["linux"]["seccomp"] = seccomp.clone();
            }
            fs::write(dir.join("config.json"), config.to_string()).expect("write config.json");
        }
        runtime
    }

    fn through(&self, wrapper: Option<&[&str]>, bundle: &str) -> Command {
        let mut command = match wrapper {
            Some([program, arguments @ ..]) => {
                let mut command = Command::new(program);
                command.args(arguments).arg(&self.program);
                command
            }
            _ => Command::new(&self.program),
        };
        command.arg("--root").arg(self.dir.join("state")).current_dir(self.dir.join(bundle));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn call(&self, bundle: &str, arguments: &[&str]) {
        let status = self.through(None, bundle).args(arguments).status().expect("run the runtime");
        assert!(status.success(), "{} {arguments:?}: {status}", self.program.display());
    }

    fn run(&self) {
        self.call("true", &["run", "cycle"]);
    }

    /// The most memory any of its processes had, in KiB.
    fn peak(&self) -> f64 {
        let mut command = self.through(Some(&[env!("CARGO_BIN_EXE_berth-peak")]), "true");
        let output = command.args(["run", "cycle"]).stdout(Stdio::piped()).output().expect("berth-peak");
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number of KiB")
    }

    /// How many all of its processes made.
    fn system_calls(&self) -> f64 {
        let report = self.dir.join("strace");
        let wrapper = ["strace", "-f", "-c", "-o", &report.to_string_lossy()];
        let status = self.through(Some(&wrapper), "true").args(["run", "cycle"]).status().expect("strace");
        assert!(status.success(), "strace: {status}");
        let text = fs::read_to_string(&report).expect("strace's report");
        let total = text.lines().rfind(|line| line.ends_with("total")).expect("a total");
        total.split_whitespace().nth(3).and_then(|calls| calls.parse().ok()).expect("a number of calls")
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A container that waits to be exec'ed into.
struct Sleeper<'a>(&'a Runtime);

impl<'a> Sleeper<'a> {
    fn start(runtime: &'a Runtime) -> Self {
        runtime.call("sleep", &["run", "--detach", "sleeper"]);
        Self(runtime)
    }

    fn exec(&self) {
        self.0.call("sleep", &["exec", "sleeper", "true"]);
    }

    fn pid(&self) -> u64 {
        let output = self
            .0
            .through(None, "sleep")
            .args(["state", "sleeper"])
            .stdout(Stdio::piped())
            .output()
            .expect("state");
        let state: Value = serde_json::from_slice(&output.stdout).expect("a state");
        state["pid"].as_u64().expect("a pid")
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        let _ = self.0.through(None, "sleep").args(["delete", "--force", "sleeper"]).status();
    }
}
