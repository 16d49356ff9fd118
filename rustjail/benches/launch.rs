//! How long a container takes from its configuration to the end of `/bin/true`, beside `crun run` of the
//! same bundle when crun is installed.
//!
//! Runs are interleaved, in a tight loop and after an idle of 60 ms each: the kernel's slow paths (an RCU
//! grace period, mostly) show in isolated launches only. crun refuses a hybrid cgroup mount, so on such a
//! machine: `unshare -m sh -c 'umount /sys/fs/cgroup/unified; cargo bench -p rustjail --bench launch'`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    fs,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, Stdio as Redirect},
    thread,
    time::{Duration, Instant},
};

use oci_spec::runtime::{Process, Spec};
use rustjail::{
    cgroup::Placement,
    compile::{self, ContainerRequest, ExecRequest, Stdio},
    launch::{Launch, Parent, Spawned, spawn},
    sync::{self, Report},
    sys::pidfd,
};
use serde_json::json;

#[path = "../tests/support/mod.rs"]
mod support;

const ROUNDS: usize = 60;

fn main() {
    let mut bundle = support::Bundle::new("");
    bundle.set("/process/args", json!(["/bin/true"]));
    fs::write(bundle.path.join("config.json"), bundle.spec.to_string()).unwrap();
    bundle.set("/process/args", json!(["sleep", "600"]));
    let sleeper: Spec = serde_json::from_value(bundle.spec.clone()).unwrap();
    for gap in [0, 60].map(Duration::from_millis) {
        let mut phases: [Vec<Duration>; 3] = Default::default();
        let (mut execs, mut crun) = (Vec::new(), Vec::new());
        let (init, _) = create(&sleeper, &bundle.path, Placement::default());
        for _ in 0..ROUNDS {
            thread::sleep(gap);
            for (samples, sample) in phases.iter_mut().zip(run(&bundle.path)) {
                samples.push(sample);
            }
            thread::sleep(gap);
            execs.push(exec(&sleeper, &init));
            thread::sleep(gap);
            crun.extend(run_crun(&bundle.path));
        }
        pidfd::signal(init.pidfd.as_fd(), libc::SIGKILL).unwrap();
        pidfd::wait(init.pidfd.as_fd()).unwrap();
        println!("gap {gap:?}, {ROUNDS} rounds, median (least)");
        let [compile, created, whole] = phases;
        for (name, samples) in [
            ("compile", compile),
            ("to ready", created),
            ("to exit", whole),
            ("exec", execs),
            ("crun run", crun),
        ] {
            report(name, samples);
        }
    }
}

fn report(name: &str, mut samples: Vec<Duration>) {
    samples.sort_unstable();
    match samples.as_slice() {
        [] => println!("  {name:9} not run"),
        [least, ..] => println!("  {name:9} {:?} ({least:?})", samples[samples.len() / 2]),
    }
}

/// One container: compiled after, ready after, ended after.
fn run(bundle: &Path) -> [Duration; 3] {
    let begin = Instant::now();
    let spec = Spec::load(bundle.join("config.json")).unwrap();
    let groups = Groups::make();
    let (child, [compiled, ready]) = create_timed(&spec, bundle, groups.placement(), begin);
    let exit = pidfd::wait(child.pidfd.as_fd()).unwrap();
    let ended = begin.elapsed();
    assert_eq!(exit, pidfd::Exit::Code(0));
    groups.remove();
    [compiled, ready, ended]
}

fn create(spec: &Spec, bundle: &Path, placement: Placement) -> (Spawned, [Duration; 2]) {
    create_timed(spec, bundle, placement, Instant::now())
}

fn create_timed(
    spec: &Spec,
    bundle: &Path,
    placement: Placement,
    begin: Instant,
) -> (Spawned, [Duration; 2]) {
    let (maker, child) = sync::pair().unwrap();
    let launch = compile::container(ContainerRequest {
        id: "test",
        resctrl: None,
        spec,
        bundle,
        stdio: null(),
        confined: &[],
        join: Vec::new(),
        placement: Some(placement),
        sync: child,
    });
    let compiled = begin.elapsed();
    let spawned = launch_it(launch.unwrap());
    assert!(matches!(next(&maker), Some(Report::Ready)));
    let ready = begin.elapsed();
    sync::start(maker.as_fd()).unwrap();
    assert!(next(&maker).is_none());
    (spawned, [compiled, ready])
}

fn exec(spec: &Spec, init: &Spawned) -> Duration {
    let begin = Instant::now();
    let process: Process = serde_json::from_value(support::process("true")).unwrap();
    let (maker, child) = sync::pair().unwrap();
    let launch = compile::exec(ExecRequest {
        resctrl: None,
        process: &process,
        spec,
        init: init.pidfd.as_fd(),
        stdio: null(),
        placement: None,
        sync: child,
    });
    let spawned = launch_it(launch.unwrap());
    assert!(next(&maker).is_none());
    pidfd::wait(spawned.pidfd.as_fd()).unwrap();
    begin.elapsed()
}

fn launch_it(launch: Launch) -> Spawned {
    let fds: Vec<BorrowedFd<'_>> = launch.fds.iter().map(AsFd::as_fd).collect();
    // Through bytes, as it gets to a launcher.
    let plan = rustjail::plan::Plan::from_bytes(&launch.plan.to_bytes().unwrap()).unwrap();
    spawn(&plan, &fds, Parent::Caller).unwrap()
}

fn next(maker: &OwnedFd) -> Option<Report> {
    nix::fcntl::fcntl(maker, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    match sync::receive(maker.as_fd()).unwrap() {
        Some(Report::Failed(error)) => panic!("{error}"),
        report => report,
    }
}

fn null() -> Stdio {
    let open = || OwnedFd::from(fs::OpenOptions::new().read(true).write(true).open("/dev/null").unwrap());
    Stdio::Streams { stdin: open(), stdout: open(), stderr: open() }
}

fn run_crun(bundle: &Path) -> Option<Duration> {
    let begin = Instant::now();
    let status = Command::new("crun")
        .args(["run", "--bundle"])
        .arg(bundle)
        .arg("rustjail-bench")
        .stdin(Redirect::null())
        .stdout(Redirect::null())
        .stderr(Redirect::null())
        .status()
        .ok()?;
    let took = begin.elapsed();
    status.success().then_some(took)
}

/// A group in every v1 hierarchy, without limits: what `crun run` makes as well.
struct Groups(Vec<PathBuf>);

impl Groups {
    fn make() -> Self {
        let hierarchies = fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
        let groups: Vec<PathBuf> = hierarchies
            .filter(|path| path.join("tasks").exists())
            .map(|path| path.join("rustjail-bench"))
            .collect();
        for group in &groups {
            let _ = fs::create_dir(group);
            for file in ["cpuset.cpus", "cpuset.mems"] {
                // A new cpuset is empty, and nobody may enter an empty one.
                if let Ok(value) = fs::read_to_string(group.parent().unwrap().join(file)) {
                    fs::write(group.join(file), value).unwrap();
                }
            }
        }
        Self(groups)
    }

    fn placement(&self) -> Placement {
        let open =
            |path: &PathBuf| fs::OpenOptions::new().write(true).open(path.join("tasks")).unwrap().into();
        Placement { into: None, tasks: self.0.iter().map(open).collect() }
    }

    fn remove(self) {
        self.0.iter().for_each(|group| fs::remove_dir(group).unwrap());
    }
}
