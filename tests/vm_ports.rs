//! The log's port and the debug console of a real VM, over vsock: the first is there when the kernel's command line
//! gives it, and so is the second, in a guest without a shell and in one with.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::time::Duration;

use berth::Vm;
use berth_protocols::oci;
use berthctl::address::{CONSOLE_PORT, LOG_PORT};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    time::timeout,
};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_log_and_the_console_are_served_over_vsock() {
    let (vm, guest) = Vm::with_sandbox(&[
        "agent.log_vport=1025",
        "agent.debug_console",
        "agent.debug_console_vport=1026",
        "agent.log=debug",
        "agent.nosuch=1",
    ])
    .await;
    let address = vm.running.address().clone();

    let log = address.connect_beside("log", LOG_PORT).await.unwrap();
    let mut lines = BufReader::new(log).lines();
    let (mut stages, mut warned) = (Vec::new(), false);
    loop {
        let line =
            timeout(PATIENCE, lines.next_line()).await.expect("a line").unwrap().expect("the log goes on");
        let record: serde_json::Value = serde_json::from_str(&line).unwrap();
        if record["subsystem"] == "boot" {
            stages.push(record["msg"].as_str().unwrap().to_owned());
            assert!(record["boottime_ns"].as_str().unwrap().parse::<u64>().unwrap() > 0);
        }
        warned |= record["msg"].as_str().unwrap().contains("unknown kernel parameter agent.nosuch");
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
    assert!(warned, "an unknown parameter is told in the log");
}
