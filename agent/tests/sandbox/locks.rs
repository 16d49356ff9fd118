//! A workload that holds the lock of its own pipe, by splicing between it and a socket that does not move, holds
//! up nobody else: neither the worker nor init ever waits for that lock where it would matter.

use std::{
    fs,
    fs::File,
    io::{self, ErrorKind, Write},
    os::{fd::AsFd, unix::net::UnixStream},
};

use berth_protocols::{agent::GuestDetailsRequest, oci};
use nix::{libc::SYS_splice, sys::signal::Signal};
use tokio::io::AsyncReadExt;

use crate::{
    host::{Host, Out, Run, read, sh, soon},
    raw,
    streams::{close_stdin, until_running},
    support::eventually,
};

/// Runs one of the two below as a container, until it sits in its splice(2).
async fn holder(host: &Host, which: &str, ports: [u32; 3]) {
    let args = ["/probe", "--ignored", "--exact", which, "--nocapture", "--test-threads=1"];
    let probe = oci::Mount {
        destination: "/probe".into(),
        source: std::env::current_exe().unwrap().to_str().unwrap().into(),
        type_: "bind".into(),
        options: vec!["bind".into(), "ro".into()],
        ..Default::default()
    };
    let run = Run { args: &args, ports, ..Run::default() };
    host.create_with("holder", run, |spec| spec.Mounts.push(probe)).await.unwrap();
    host.start_container("holder").await.unwrap();
}

async fn until_it_holds(host: &Host) {
    eventually("a process in splice(2)", || {
        let processes = host.processes().into_iter().filter(|(_, comm)| comm == "probe");
        let threads = processes.flat_map(|(pid, _)| fs::read_dir(format!("/proc/{pid}/task")));
        threads.flatten().flatten().any(|thread| {
            let call = fs::read_to_string(thread.path().join("syscall")).unwrap_or_default();
            call.starts_with(&format!("{SYS_splice} "))
        })
    })
    .await;
}

/// A whole life beside it, for which worker, launcher and init are needed.
async fn others_live(host: &Host, id: &str) {
    host.run(id, sh(&["sh", "-c", "read line; echo \"$line\"; exit 7"])).await.unwrap();
    host.write(id, "", b"of another\n").await.unwrap();
    assert_eq!(host.read_all(id, "", Out::Stdout).await.unwrap(), "of another\n");
    assert_eq!(host.wait(id, "").await.unwrap(), 7);
    host.remove(id).await.unwrap();
}

async fn end(host: &Host) {
    host.signal("holder", "", Signal::SIGKILL as i32).await.unwrap();
    assert_eq!(host.wait("holder", "").await.unwrap(), 137);
}

#[test]
#[ignore = "runs in a container"]
fn holds_its_output() {
    let (mut silent, _open) = UnixStream::pair().unwrap();
    let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned().unwrap());
    stdout.write_all(b"held\n").unwrap();
    // From a socket to a pipe the standard library splices.
    io::copy(&mut silent, &mut stdout).unwrap();
}

#[test]
#[ignore = "runs in a container"]
fn holds_its_input() {
    let (mut full, _open) = UnixStream::pair().unwrap();
    full.set_nonblocking(true).unwrap();
    while !matches!(full.write(&[0; 4096]), Err(error) if error.kind() == ErrorKind::WouldBlock) {}
    full.set_nonblocking(false).unwrap();
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
    io::copy(&mut stdin, &mut full).unwrap();
}

#[tokio::test]
async fn output_that_is_held_waits_alone() {
    let host = Host::start().await;
    holder(&host, "locks::holds_its_output", [0; 3]).await;
    until_it_holds(&host).await;
    let client = host.client.clone();
    let reading = tokio::spawn(async move { read(&client, "holder", "", Out::Stdout).await });
    until_running(&host, "ReadStdout", 1).await;
    others_live(&host, "other").await;
    // Whoever gives up and asks again waits for the same turn.
    for _ in 0..3 {
        let client = host.connect().await;
        let parked = tokio::spawn(async move { read(&client, "holder", "", Out::Stdout).await });
        until_running(&host, "ReadStdout", 2).await;
        parked.abort();
        until_running(&host, "ReadStdout", 1).await;
    }
    others_live(&host, "other").await;
    end(&host).await;
    let mut all = String::from_utf8(reading.await.unwrap().unwrap()).unwrap();
    all.push_str(&host.read_all("holder", "", Out::Stdout).await.unwrap());
    assert!(all.ends_with("held\n"), "{all}");
    host.remove("holder").await.unwrap();
}

#[tokio::test]
async fn raw_output_that_is_held_waits_alone() {
    let host = Host::start().await;
    let (port, mut output) = raw::connect(&host).await;
    holder(&host, "locks::holds_its_output", [0, port, 0]).await;
    until_it_holds(&host).await;
    others_live(&host, "other").await;
    end(&host).await;
    let mut all = String::new();
    output.read_to_string(&mut all).await.unwrap();
    assert!(all.ends_with("held\n"), "{all}");
    host.remove("holder").await.unwrap();
}

#[tokio::test]
async fn input_that_is_held_is_written_and_closed_alone() {
    let host = Host::start().await;
    holder(&host, "locks::holds_its_input", [0; 3]).await;
    host.write("holder", "", b"some").await.unwrap();
    until_it_holds(&host).await;
    let client = host.connect().await;
    let request = berth_protocols::agent::WriteStreamRequest {
        container_id: "holder".into(),
        data: vec![0; 1 << 20],
        ..Default::default()
    };
    let writing = tokio::spawn(async move { client.write_stdin(soon(), &request).await });
    until_running(&host, "WriteStdin", 1).await;
    others_live(&host, "other").await;
    // What the worker closes init closes for good.
    close_stdin(&host, "holder", "").await;
    others_live(&host, "other").await;
    end(&host).await;
    let error = writing.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("closed"), "{error}");
    host.remove("holder").await.unwrap();
}

#[tokio::test]
async fn a_worker_that_cannot_die_is_left_behind() {
    let mut host = Host::start().await;
    holder(&host, "locks::holds_its_output", [0; 3]).await;
    until_it_holds(&host).await;
    let client = host.client.clone();
    let reading = tokio::spawn(async move { read(&client, "holder", "", Out::Stdout).await });
    until_running(&host, "ReadStdout", 1).await;
    let stuck = host.worker().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(stuck), Signal::SIGKILL).unwrap();
    let status = format!("/proc/{stuck}/status");
    eventually("its death", || fs::read_to_string(&status).unwrap().contains("zombie")).await;
    reading.abort();
    host.client = host.connect().await;
    host.client.get_guest_details(soon(), &GuestDetailsRequest::new()).await.unwrap();
    assert!(fs::exists(&status).unwrap(), "it was stuck");
    others_live(&host, "other").await;
    end(&host).await;
    assert!(host.read_all("holder", "", Out::Stdout).await.unwrap().ends_with("held\n"));
    eventually("the end of the one left behind", || !fs::exists(format!("/proc/{stuck}")).unwrap()).await;
}
