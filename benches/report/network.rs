//! The network calls beside iproute2 in the same namespace, and CopyFile beside cp on the same file system.
//!
//! `ip` is a process each time, as in a guest that shells out; `ip -batch` is one for all routes, and close to what
//! the kernel itself takes.

use std::{fs, process::Command, time::Instant};

use berth::{Agent, Guest, RawClient, Role};
use berth_protocols::{
    agent::{CopyFileRequest, Routes, UpdateInterfaceRequest, UpdateRoutesRequest},
    types::{IPAddress, Interface, Route},
};
use protobuf::MessageField;
use ttrpc::context::with_timeout;

use crate::{sample::Samples, table::Table};

const MAC: &str = "02:00:00:00:00:01";
const UPDATES: usize = 100;
const ROUTES: u32 = 4096;
const UPDATES_OF_ROUTES: usize = 5;
const COPIES: usize = 5;
const MIB: usize = 256;

pub fn measure(table: &mut Table) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let agent = Agent::start().await;
        let guest = agent.client().await;
        agent.ip(&format!("link add eth0 address {MAC} type veth peer name peer0"));
        agent.ip("link set peer0 up");
        interfaces(table, &agent, &guest).await;
        routes(table, &agent, &guest).await;
        copies(table, &agent);
    });
}

/// Two addresses that change places, so that each update has something to do.
async fn interfaces(table: &mut Table, agent: &Agent, guest: &Guest) {
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for n in 0..UPDATES {
        let address = format!("10.1.0.{}", 2 + n % 2);
        let request = update(&address);
        let start = Instant::now();
        guest.agent.update_interface(with_timeout(0), &request).await.expect("UpdateInterface");
        ours.push(start.elapsed());
        theirs.time(|| agent.ip("address replace 10.9.0.1/24 dev peer0"));
        agent.ip("address flush dev peer0");
    }
    table.time(
        "UpdateInterface, another address",
        ours.median(),
        "ip address replace",
        theirs.median(),
        None,
    );
}

fn update(address: &str) -> UpdateInterfaceRequest {
    let address = IPAddress { address: address.into(), mask: "24".into(), ..Default::default() };
    let interface = Interface {
        name: "eth0".into(),
        hwAddr: MAC.into(),
        IPAddresses: vec![address],
        ..Default::default()
    };
    UpdateInterfaceRequest { interface: MessageField::some(interface), ..Default::default() }
}

async fn routes(table: &mut Table, agent: &Agent, guest: &Guest) {
    guest.agent.update_interface(with_timeout(0), &update("10.1.0.2")).await.expect("UpdateInterface");
    let destination = |n: u32| format!("172.{}.{}.0/28", 16 + n / 256, n % 256);
    let route = |n| Route {
        dest: destination(n),
        gateway: "10.1.0.1".into(),
        device: "eth0".into(),
        ..Default::default()
    };
    let routes = Routes { Routes: (0..ROUTES).map(route).collect(), ..Default::default() };
    let request = UpdateRoutesRequest { routes: MessageField::some(routes), ..Default::default() };
    let batch = agent.dir().join("routes");
    let lines: String =
        (0..ROUTES).map(|n| format!("route replace {} via 10.1.0.1 dev eth0\n", destination(n))).collect();
    fs::write(&batch, lines).expect("write the batch");
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for _ in 0..UPDATES_OF_ROUTES {
        let start = Instant::now();
        guest.agent.update_routes(with_timeout(0), &request).await.expect("UpdateRoutes");
        ours.push(start.elapsed());
        agent.ip("route flush root 172.16.0.0/12");
        theirs.time(|| agent.ip(&format!("-batch {}", batch.display())));
        agent.ip("route flush root 172.16.0.0/12");
    }
    table.time("UpdateRoutes, 4,096 routes", ours.median(), "ip -batch", theirs.median(), Some(1.0));
}

/// The frames are made beforehand, so that only the agent's work is measured.
fn copies(table: &mut Table, agent: &Agent) {
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    let data = vec![0x5a; 1 << 20];
    // Both read and write the agent's tmpfs.
    let tree = format!("/proc/{}/root/run/kata-containers", agent.role(Role::Init));
    let source = format!("{tree}/source");
    fs::write(&source, data.repeat(MIB)).expect("write the source");
    let mut client = RawClient::connect(&agent.socket()).expect("connect to the agent");
    for _ in 0..COPIES {
        let piece = |n: usize| CopyFileRequest {
            path: "/run/kata-containers/shared/containers/c1/file".into(),
            file_size: (MIB << 20) as i64,
            file_mode: 0o100_644,
            dir_mode: 0o755,
            offset: (n << 20) as i64,
            data: data.clone(),
            ..Default::default()
        };
        let frame = |n| client.frame("grpc.AgentService", "CopyFile", &piece(n)).expect("a frame");
        let frames: Vec<Vec<u8>> = (0..MIB).map(frame).collect();
        ours.time(|| frames.iter().for_each(|frame| client.exchange(frame).expect("CopyFile")));
        let target = format!("{tree}/target");
        theirs.time(|| Command::new("cp").args([&source, &target]).status().expect("run cp"));
        fs::remove_file(&target).expect("remove the copy");
        fs::remove_file(format!("{tree}/shared/containers/c1/file")).expect("remove the copy");
    }
    let rate = |samples: &Samples| MIB as f64 / (samples.median() / 1e3);
    table.rate("CopyFile in pieces of 1 MiB", rate(&ours), "cp", rate(&theirs), Some(0.3));
}
