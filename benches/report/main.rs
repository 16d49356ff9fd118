//! `make bench`: Berth beside crun, runc, bare-kernel floors and, when `PEER_AGENT` names another agent with
//! the same API, beside that agent; everything in one run on one machine, as ratios.
//!
//! The whole program runs in a mount namespace of its own without the empty cgroup2 tree of a hybrid machine,
//! because crun refuses such a setup, and with everybody's state and root file system on a tmpfs, as in a guest.
//! Container launches are measured twice: back to back, and with 60 ms of idleness before each, since a tight
//! loop hides what an isolated create pays for cgroup moves.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::exit)]

mod command;
mod floor;
mod launch;
mod network;
mod observe;
#[path = "../../rustjail/tests/seccomp/profiles.rs"]
mod profiles;
mod rpc;
mod sample;
mod seccomp;
mod server;
mod size;
mod stdio;
mod table;
mod vm;

use std::{env, os::unix::process::CommandExt, process::Command};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};

/// Where guests keep state.
const STATE: &str = "/run";

fn main() {
    let mut arguments = env::args().skip(1);
    match arguments.next().as_deref() {
        Some("echo") => rpc::echo_server(&arguments.next().expect("a socket path")),
        Some("measure") => measure(),
        _ => {
            isolate();
            let myself = env::current_exe().expect("the path of this program");
            let error = Command::new(myself).arg("measure").env("TMPDIR", STATE).exec();
            panic!("cannot run in the new mount namespace: {error}");
        }
    }
}

fn measure() {
    let mut table = table::Table::default();
    let mut agent = server::Server::start(&berth::agent_binary());
    let mut peer = env::var_os("PEER_AGENT").map(|path| server::Server::start(path.as_ref()));
    if wanted("size") {
        size::measure(&mut table, &agent);
    }
    if wanted("rpc") {
        rpc::measure(&mut table, &agent, peer.as_ref());
    }
    if wanted("launch") {
        launch::measure(&mut table, &mut agent, peer.as_mut());
    }
    if wanted("seccomp") {
        seccomp::measure(&mut table);
    }
    if wanted("command") {
        command::measure(&mut table, agent.rootfs.path());
    }
    if wanted("stdio") {
        stdio::measure(&mut table, &mut agent);
    }
    if wanted("observe") {
        observe::measure(&mut table, &mut agent);
    }
    if wanted("network") {
        network::measure(&mut table);
    }
    if wanted("vm") {
        vm::measure(&mut table);
    }
    let met = table.print();
    drop((agent, peer));
    if !met && env::var_os("BENCH_STRICT").is_some() {
        std::process::exit(1);
    }
}

/// `BENCH_ONLY=launch,stdio` leaves out what it does not name.
fn wanted(section: &str) -> bool {
    env::var("BENCH_ONLY").map_or(true, |only| only.split(',').any(|name| name == section))
}

fn isolate() {
    unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace (run as root)");
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .expect("make mounts private");
    let _ = umount2("/sys/fs/cgroup/unified", MntFlags::MNT_DETACH);
    mount(Some("berth-bench"), STATE, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))
        .expect("a tmpfs for what is measured");
}
