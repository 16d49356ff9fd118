//! `make bench`: Berth beside crun, runc, bare-kernel floors and, when `PEER_AGENT` names another agent with
//! the same API, beside that agent; everything in one run on one machine, as ratios.
//!
//! The whole program runs in a mount namespace of its own without the empty cgroup2 tree of a hybrid machine,
//! because crun refuses such a setup. Container launches are measured twice: back to back, and with 60 ms of
//! idleness before each, since a tight loop hides what an isolated create pays for cgroup moves.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::exit)]

mod launch;
mod rpc;
mod sample;
mod server;
mod size;
mod stdio;
mod table;
mod vm;

use std::env;

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};

fn main() {
    let mut arguments = env::args().skip(1);
    if arguments.next().as_deref() == Some("echo") {
        rpc::echo_server(&arguments.next().expect("a socket path"));
        return;
    }
    isolate();

    let mut table = table::Table::default();
    let mut agent = server::Server::start(&berth::agent_binary());
    let mut peer = env::var_os("PEER_AGENT").map(|path| server::Server::start(path.as_ref()));
    size::measure(&mut table, &agent);
    rpc::measure(&mut table, &agent, peer.as_ref());
    launch::measure(&mut table, &mut agent, peer.as_mut());
    stdio::measure(&mut table, &mut agent);
    vm::measure(&mut table);
    let met = table.print();
    drop((agent, peer));
    if !met && env::var_os("BENCH_STRICT").is_some() {
        std::process::exit(1);
    }
}

fn isolate() {
    unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace (run as root)");
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .expect("make mounts private");
    let _ = umount2("/sys/fs/cgroup/unified", MntFlags::MNT_DETACH);
}
