//! Containers and execs, beside crun, runc, and the floor of what the kernel takes for the same.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use berth::{process, scratch_dir};
use berth_protocols::agent::ExecProcessRequest;
use protobuf::{MessageField, well_known_types::empty::Empty};

use crate::{
    floor::Floor,
    sample::{Samples, interleave},
    server::Server,
    table::Table,
};

const GAPS: [(&str, Duration, usize); 2] =
    [("tight", Duration::ZERO, 60), ("60 ms apart", Duration::from_millis(60), 40)];

pub fn measure(table: &mut Table, agent: &mut Server, mut peer: Option<&mut Server>) {
    let bundle = Bundle::new(agent.rootfs.path());
    for (name, gap, rounds) in GAPS {
        let mut floor = Floor::start(&bundle.rootfs, "/berth-bench/floor", None);
        let mut samples = interleave(
            rounds,
            gap,
            &mut [
                &mut || cycle(agent),
                &mut || bundle.run("crun"),
                &mut || bundle.run("runc"),
                &mut || floor.once(),
                &mut || {
                    if let Some(peer) = peer.as_deref_mut() {
                        cycle(peer)
                    }
                },
            ],
        );
        let theirs = samples.pop().filter(|_| peer.is_some());
        let [ours, crun, runc, floor]: [Samples; 4] = samples.try_into().expect("four sets");
        let what = format!("create+start+wait+remove, {name}");
        let tight = gap.is_zero();
        table.time(&what, ours.median(), "crun run", crun.median(), tight.then_some(0.7));
        table.time(&what, ours.median(), "runc run", runc.median(), None);
        table.time(&what, ours.median(), "kernel floor", floor.median(), (!tight).then_some(1.3));
        if let Some(theirs) = theirs {
            table.time(&what, ours.median(), "peer agent", theirs.median(), None);
        }
    }
    execs(table, agent, peer, &bundle);
}

fn cycle(server: &mut Server) {
    let container = server.container("cycle", &["true"]);
    server.begin(&container);
    assert_eq!(server.finish("cycle"), 0);
}

fn execs(table: &mut Table, agent: &mut Server, mut peer: Option<&mut Server>, bundle: &Bundle) {
    let sleeper = agent.container("sleeper", &["sleep", "1000"]);
    agent.begin(&sleeper);
    if let Some(peer) = peer.as_deref_mut() {
        let sleeper = peer.container("sleeper", &["sleep", "1000"]);
        peer.begin(&sleeper);
    }
    let crun = Detached::start("crun", bundle);
    let runc = Detached::start("runc", bundle);
    let mut next = 0;
    let mut next_peer = 0;
    let samples = interleave(
        60,
        Duration::ZERO,
        &mut [&mut || exec(agent, &mut next), &mut || crun.exec(), &mut || runc.exec(), &mut || {
            if let Some(peer) = peer.as_deref_mut() {
                exec(peer, &mut next_peer)
            }
        }],
    );
    table.time("exec, tight", samples[0].median(), "crun exec", samples[1].median(), Some(0.5));
    table.time("exec, tight", samples[0].median(), "runc exec", samples[2].median(), None);
    if peer.is_some() {
        table.time("exec, tight", samples[0].median(), "peer agent", samples[3].median(), None);
    }
}

fn exec(server: &mut Server, next: &mut u32) {
    *next += 1;
    let request = ExecProcessRequest {
        container_id: "sleeper".into(),
        exec_id: format!("e{next}"),
        process: MessageField::some(process(&["true"])),
        ..Default::default()
    };
    server.call::<Empty>("ExecProcess", &request);
    assert_eq!(server.wait("sleeper", &request.exec_id), 0);
}

/// The same container as an OCI bundle for the command-line runtimes.
pub struct Bundle {
    dir: PathBuf,
    rootfs: PathBuf,
}

impl Bundle {
    fn new(rootfs: &Path) -> Self {
        let dir = scratch_dir("bundle");
        let bundle = Self { dir, rootfs: rootfs.to_owned() };
        bundle.write("true", &["true"]);
        // One for each runtime, so that neither finds the other in its control group.
        bundle.write("sleep-crun", &["sleep", "1000"]);
        bundle.write("sleep-runc", &["sleep", "1000"]);
        bundle
    }

    fn write(&self, name: &str, args: &[&str]) {
        let dir = self.dir.join(name);
        fs::create_dir(&dir).expect("create a bundle");
        let config = include_str!("config.json")
            .replace("@ROOTFS@", &self.rootfs.to_string_lossy())
            .replace("\"@ARGS@\"", &serde_json::to_string(args).expect("arguments as JSON"))
            .replace("@CGROUP@", &format!("/berth-bench/oci-{name}"));
        fs::write(dir.join("config.json"), config).expect("write config.json");
    }

    fn command(&self, runtime: &str, bundle: &str) -> Command {
        let mut command = Command::new(runtime);
        command.args(["--root".as_ref(), self.dir.join(runtime).as_os_str()]);
        command.current_dir(self.dir.join(bundle));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn run(&self, runtime: &str) {
        let status = self.command(runtime, "true").args(["run", "cycle"]).status().expect(runtime);
        assert!(status.success(), "{runtime} run: {status}");
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A container of a command-line runtime that waits to be exec'ed into.
struct Detached<'a> {
    runtime: &'a str,
    bundle: &'a Bundle,
}

impl<'a> Detached<'a> {
    fn start(runtime: &'a str, bundle: &'a Bundle) -> Self {
        let mut config = bundle.command(runtime, &format!("sleep-{runtime}"));
        let status =
            config.args(["run", "--detach", "sleeper"]).stderr(Stdio::null()).status().expect(runtime);
        assert!(status.success(), "{runtime} run --detach: {status}");
        Self { runtime, bundle }
    }

    fn exec(&self) {
        let status = self
            .bundle
            .command(self.runtime, &format!("sleep-{}", self.runtime))
            .args(["exec", "sleeper", "true"])
            .status()
            .expect("exec");
        assert!(status.success(), "{} exec: {status}", self.runtime);
    }
}

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        let _ = self
            .bundle
            .command(self.runtime, &format!("sleep-{}", self.runtime))
            .args(["delete", "--force", "sleeper"])
            .status();
    }
}
