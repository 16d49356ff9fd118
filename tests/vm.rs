//! The agent as PID 1 of a real VM, over vsock. One VM per test; each boots in a few seconds under emulation.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use berth::{Vm, ctl_binary};
use berth_protocols::oci;
use berthctl::vmm::Ending;
use nix::sys::signal::Signal;

/// A container in the agent's own PID namespace, from which the roles can be seen and signalled.
fn among_the_roles(vm: &Vm, id: &str, script: &str) -> berth::Container {
    let mut container = vm.shell(id, script);
    for namespace in &mut container.linux().Namespaces {
        if namespace.Type == "pid" {
            namespace.Path = "/proc/1/ns/pid".into();
        }
    }
    container
}

#[tokio::test]
async fn the_agent_is_pid_1_and_runs_a_container() {
    let (mut vm, guest) = Vm::with_sandbox(&[]).await;
    let details =
        guest.agent.get_guest_details(ttrpc::context::with_timeout(0), &Default::default()).await.unwrap();
    assert!(details.agent_details.init_daemon);
    let output = guest.run(&vm.shell("c1", "echo out; echo err >&2; hostname; exit 7")).await;
    assert_eq!(
        (output.status, output.stdout.as_str(), output.stderr.as_str()),
        (7, "out\nberth-vm\n", "err\n")
    );

    guest.create(&vm.container("c2", &["cat"])).await.unwrap();
    guest.start("c2").await.unwrap();
    guest.write("c2", "", b"over vsock\n").await.unwrap();
    assert_eq!(guest.read_until("c2", "", "\n").await, "over vsock\n");
    let joined = guest.run_in("c2", "e1", &["sh", "-c", "cat /proc/1/comm; exit 3"]).await;
    assert_eq!((joined.status, joined.stdout.as_str()), (3, "cat\n"));

    guest.agent.destroy_sandbox(ttrpc::context::with_timeout(0), &Default::default()).await.unwrap();
    let ending = vm.ended().await;
    assert!(matches!(ending, Ending::Shutdown(_) | Ending::Exited(_)), "{ending}");
}

#[tokio::test]
async fn containers_outlive_a_killed_worker_in_the_vm() {
    let (vm, guest) = Vm::with_sandbox(&[]).await;
    guest
        .create(
            &vm.shell("c1", "i=0; while [ $i -lt 100 ]; do echo $i; i=$((i+1)); usleep 20000; done; exit 9"),
        )
        .await
        .unwrap();
    guest.start("c1").await.unwrap();
    for (round, signal) in ["KILL", "SEGV", "KILL"].iter().enumerate() {
        let guest = vm.client().await;
        let id = format!("killer{round}");
        let script = format!(
            "for p in /proc/[0-9]*; do grep -q worker $p/cmdline && kill -{signal} ${{p#/proc/}}; done"
        );
        guest.create(&among_the_roles(&vm, &id, &script)).await.unwrap();
        // The reply to this call may die with the worker.
        let _ = guest.start(&id).await;
        let guest = vm.client().await;
        guest.wait(&id, "").await.unwrap();
        guest.remove(&id).await.unwrap();
    }
    let guest = vm.client().await;
    let output = guest.collect("c1", "").await;
    let expected: String = (0..100).map(|n| format!("{n}\n")).collect();
    assert_eq!((output.status, output.stdout), (9, expected));
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn limits_hold_on_cgroup_v2() {
    let (vm, guest) = Vm::with_sandbox(&[]).await;
    let mut container =
        vm.shell("c1", "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max");
    container.linux().Namespaces.push(oci::LinuxNamespace { Type: "cgroup".into(), ..Default::default() });
    container.spec().Mounts.push(oci::Mount {
        destination: "/sys/fs/cgroup".into(),
        source: "cgroup".into(),
        type_: "cgroup".into(),
        options: vec!["ro".into()],
        ..Default::default()
    });
    let resources = container.linux().Resources.mut_or_insert_default();
    resources.Pids.mut_or_insert_default().Limit = 17;
    resources.Memory.mut_or_insert_default().Limit = 64 << 20;
    resources.CPU.mut_or_insert_default().Quota = 50_000;
    resources.CPU.mut_or_insert_default().Period = 100_000;
    let output = guest.run(&container).await;
    assert_eq!(output.stdout, "17\n67108864\n50000 100000\n", "{output:?}");

    container.request.container_id = "c2".into();
    container.process().Args = ["sh", "-c", "x=a; while :; do x=$x$x; done"].map(String::from).to_vec();
    let killed = guest.run(&container).await;
    assert_eq!(killed.status, 128 + Signal::SIGKILL as i32, "{killed:?}");
}

#[tokio::test]
async fn berthctl_runs_a_command_in_a_vm_of_its_own() {
    let rootfs = berth::Rootfs::busybox();
    let mut child = Command::new(ctl_binary())
        .args(["run", "--boot-timeout", "180", "-i", "--rootfs"])
        .arg(rootfs.path())
        .args(["--", "sh", "-c", "cat; uname -r; echo oops >&2; exit 42"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"from the host\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(42), "{stderr}");
    assert!(stdout.starts_with("from the host\n"), "{stdout:?}");
    assert!(stderr.contains("oops"), "{stderr:?}");
    assert_ne!(stdout.lines().nth(1), Some(uname().as_str()), "the guest runs a kernel of its own");
}

/// Some hosts have a KVM that promises what it does not do, and QEMU aborts as soon as it is used.
#[tokio::test]
async fn a_kvm_that_kills_qemu_is_not_used() {
    let rootfs = berth::Rootfs::busybox();
    let programs = berth::scratch_dir("qemu");
    let path = std::env::var("PATH").unwrap();
    let script = format!(
        "#!/bin/sh\ncase $* in *'-accel kvm'*) echo failed to set MSR >&2; kill -ABRT $$;; esac\n\
        PATH='{path}' exec qemu-system-x86_64 \"$@\"\n"
    );
    fs::write(programs.join("qemu-system-x86_64"), script).unwrap();
    fs::set_permissions(programs.join("qemu-system-x86_64"), fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(ctl_binary())
        .args(["run", "--boot-timeout", "180", "--rootfs"])
        .arg(rootfs.path())
        .args(["--", "echo", "emulated"])
        .env("PATH", format!("{}:{path}", programs.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    fs::remove_dir_all(programs).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "emulated\n", "{stderr}");
    let why = if Path::new("/dev/kvm").exists() { "failed to set MSR" } else { "there is no /dev/kvm" };
    assert!(stderr.contains(why), "{stderr}");
}

fn uname() -> String {
    let output = Command::new("uname").arg("-r").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
