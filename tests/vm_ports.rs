//! A real VM under the command line of a Kata runtime: it boots, and the log's port and the debug console that the line
//! gives are there, over vsock, in a guest without a shell and in one with. Only the host reaches any of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{fs, os::fd::AsRawFd, process::Command, time::Duration};

use berth::{Rootfs, Vm};
use berth_protocols::oci;
use berthctl::address::{CONSOLE_PORT, LOG_PORT};
use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, SockFlag, SockType, VsockAddr, connect, setsockopt, socket,
            sockopt::ReceiveTimeout,
        },
        time::TimeVal,
    },
    unistd::{read, write},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    time::timeout,
};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_log_and_the_console_are_served_over_vsock() {
    let rootfs = Rootfs::busybox();
    let program = rootfs.path().join("bin/vm_ports");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    // Line tables are most of it, and the guest's memory is small.
    assert!(Command::new("strip").arg(&program).status().expect("strip (package binutils)").success());
    let append = [
        // What runtimes say to the kernel and to the systemd of their own image.
        "tsc=reliable",
        "no_timer_check",
        "rcupdate.rcu_expedited=1",
        "cryptomgr.notests",
        "net.ifnames=0",
        "systemd.show_status=false",
        "systemd.unit=kata-containers.target",
        "systemd.mask=systemd-networkd.service",
        "systemd.mask=systemd-networkd.socket",
        "scsi_mod.scan=none",
        "cgroup_no_v1=all",
        "systemd.unified_cgroup_hierarchy=1",
        // What they say to the agent, and one thing that is no setting.
        "agent.hotplug_timeout=3",
        "agent.cdh_api_timeout=50",
        "agent.image_pull_timeout=1200",
        "agent.container_pipe_size=65536",
        "agent.guest_components_procs=none",
        "agent.mem_agent_enable=0",
        "agent.log_vport=1025",
        "agent.debug_console",
        "agent.debug_console_vport=1026",
        "agent.log=debug",
        "agent.nosuch=1",
        "berth.modules=vsock_loopback",
    ];
    let vm = Vm::boot_with(&append, &rootfs, &[]).await;
    let guest = vm.client().await;
    guest.create_sandbox("berth-vm").await.unwrap();
    let address = vm.running.address().clone();

    let log = address.connect_beside("log", LOG_PORT).await.unwrap();
    let mut lines = BufReader::new(log).lines();
    let (mut stages, mut warnings) = (Vec::new(), Vec::new());
    loop {
        let line =
            timeout(PATIENCE, lines.next_line()).await.expect("a line").unwrap().expect("the log goes on");
        let record: serde_json::Value = serde_json::from_str(&line).unwrap();
        if record["subsystem"] == "boot" {
            stages.push(record["msg"].as_str().unwrap().to_owned());
            assert!(record["boottime_ns"].as_str().unwrap().parse::<u64>().unwrap() > 0);
        }
        if record["level"] == "WARN" {
            warnings.push(record["msg"].as_str().unwrap().to_owned());
        }
        if record["msg"] == "sandbox created" {
            break;
        }
    }
    assert_eq!(stages, ["mounts", "environment", "modules", "image", "listening"]);

    let mut text = String::new();
    let mut console = address.connect_beside("console", CONSOLE_PORT).await.unwrap();
    timeout(PATIENCE, console.read_to_string(&mut text)).await.expect("an end").unwrap();
    assert!(text.contains("this guest has no shell") && text.contains("/bin/sh"), "{text}");

    // A container gives the guest one.
    let mut giver = vm.shell("giver", "mkdir -p /guest/bin && cp /bin/busybox /guest/bin/sh");
    giver.spec().Mounts.push(oci::Mount {
        destination: "/guest".into(),
        source: "/".into(),
        type_: "bind".into(),
        options: vec!["bind".into(), "rw".into()],
        ..Default::default()
    });
    assert_eq!(guest.run(&giver).await.status, 0);
    let mut console = address.connect_beside("console", CONSOLE_PORT).await.unwrap();
    console.write_all(b"echo $$ is not $((6 * 7)); exit\n").await.unwrap();
    let mut text = String::new();
    timeout(PATIENCE, console.read_to_string(&mut text)).await.expect("an end").unwrap();
    assert!(text.contains("is not 42\r\n"), "{text}");
    warnings.retain(|text| text.contains("agent."));
    assert!(
        matches!(&warnings[..], [one] if one.contains("unknown kernel parameter agent.nosuch")),
        "everything else is understood: {warnings:?}"
    );

    // A process of the guest, which could reach the agent through the loopback, is not served at any of the ports.
    let test = "exec vm_ports guests_are_not_served --ignored --test-threads=1 --nocapture 2>&1";
    let intruder = guest.run(&vm.shell("intruder", test)).await;
    assert!(intruder.status == 0 && intruder.stdout.contains("1 passed"), "{intruder:?}");
    // That of raw streams says nothing of strangers.
    let mut refused = 0;
    while refused < PORTS.len() - 1 {
        let line =
            timeout(PATIENCE, lines.next_line()).await.expect("a line").unwrap().expect("the log goes on");
        refused += usize::from(line.contains("refused a connection that is not from the host"));
    }
}

/// ttrpc, the log, the console, raw streams.
const PORTS: [u32; 4] = [1024, 1025, 1026, 1027];
/// `grpc.Health`'s `Check`, on stream 1.
const CHECK: &[u8] = b"\0\0\0\x14\0\0\0\x01\x01\0\x0a\x0bgrpc.Health\x12\x05Check";

#[test]
#[ignore = "runs in the guest"]
fn guests_are_not_served() {
    for port in PORTS {
        let socket =
            socket(AddressFamily::Vsock, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(30, 0)).unwrap();
        connect(socket.as_raw_fd(), &VsockAddr::new(nix::libc::VMADDR_CID_LOCAL, port)).expect("a way there");
        // It may be closed before this.
        let _ = write(&socket, CHECK);
        let answer = read(&socket, &mut [0; 64]);
        assert!(matches!(answer, Ok(0) | Err(Errno::ECONNRESET)), "port {port}: {answer:?}");
    }
}
