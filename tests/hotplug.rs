//! Real virtual hardware, plugged into a running guest while containers use it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use berth::{Container, Guest, Rootfs, Vm, deadline, scratch_dir};
use berth_protocols::{
    agent::{
        AddSwapRequest, CreateSandboxRequest, KernelModule, OnlineCPUMemRequest, ResizeVolumeRequest,
        Storage, UpdateInterfaceRequest,
    },
    oci,
    types::{IPAddress, Interface},
};
use berthctl::vmm::Room;
use serde_json::{Value, json};

/// An emulated guest on a loaded machine takes its time.
const PATIENCE: &str = "agent.hotplug_timeout=15";
/// QEMU 7.2 emulating two CPUs has locked both up in the guest's kernel while drivers were loaded for a new disk.
const ONE_CPU: &str = "maxcpus=1";
const CYCLES: usize = 100;
const VOLUME: &str = "/run/kata-containers/sandbox/volume";

/// What lives on the host: disk images and a shared directory.
struct Host {
    dir: PathBuf,
    daemon: Option<Child>,
}

impl Host {
    fn new() -> Self {
        Self { dir: scratch_dir("hotplug"), daemon: None }
    }

    fn disk(&self, name: &str, mib: u64) -> String {
        let path = self.dir.join(name);
        fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
        let status = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&path).status();
        assert!(status.expect("mkfs.ext4 (package e2fsprogs)").success());
        path.display().to_string()
    }

    fn swap(&self, name: &str) -> String {
        let path = self.dir.join(name);
        fs::File::create(&path).unwrap().set_len(4 << 20).unwrap();
        let made = Command::new("mkswap").arg(&path).output().expect("mkswap (package util-linux)");
        assert!(made.status.success(), "{made:?}");
        path.display().to_string()
    }

    /// Serves a directory by virtio-fs; answers the daemon's socket.
    fn share(&mut self, directory: &Path) -> String {
        let socket = self.dir.join("virtiofs.sock").display().to_string();
        let daemon = Command::new("/usr/lib/qemu/virtiofsd")
            .args([
                &format!("--socket-path={socket}"),
                "-o",
                &format!("source={},sandbox=chroot", directory.display()),
            ])
            .args(["-o", "cache=none"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("virtiofsd (package qemu-system-common)");
        self.daemon = Some(daemon);
        let begun = std::time::Instant::now();
        while !Path::new(&socket).exists() {
            assert!(begun.elapsed().as_secs() < 20, "virtiofsd does not listen");
            std::thread::yield_now();
        }
        socket
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn room() -> Room {
    Room {
        cpus: 4,
        memory: 2048,
        ports: 6,
        arguments: ["-device", "virtio-scsi-pci,id=scsi0"].map(String::from).to_vec(),
    }
}

async fn control(vm: &mut Vm, command: &str, arguments: Value) -> Value {
    let answer = deadline(vm.running.control(command, &arguments)).await;
    answer.unwrap_or_else(|error| panic!("{error}: {arguments}"))
}

async fn plug(vm: &mut Vm, device: Value) {
    control(vm, "device_add", device).await;
}

async fn add_image(vm: &mut Vm, node: &str, file: &str) {
    let image = json!({ "driver": "file", "node-name": node, "filename": file });
    control(vm, "blockdev-add", image).await;
}

fn storage(driver: &str, source: &str, fstype: &str) -> Storage {
    Storage {
        driver: driver.into(),
        source: source.into(),
        fstype: fstype.into(),
        mount_point: VOLUME.into(),
        ..Default::default()
    }
}

/// A container that has the storage's mount point as /data.
fn with_volume(vm: &Vm, id: &str, script: &str, storage: Storage) -> Container {
    let mut container = vm.shell(id, script);
    container.spec().Mounts.push(oci::Mount {
        destination: "/data".into(),
        source: storage.mount_point.clone(),
        type_: "bind".into(),
        options: vec!["rbind".into(), "rw".into()],
        ..Default::default()
    });
    container.request.storages.push(storage);
    container
}

async fn writes_and_reads(vm: &Vm, guest: &Guest, id: &str, storage: Storage) {
    let script = format!("echo {id} >/data/{id} && cat /data/{id}");
    let output = guest.run(&with_volume(vm, id, &script, storage)).await;
    assert_eq!((output.status, output.stdout.as_str()), (0, format!("{id}\n").as_str()), "{output:?}");
}

async fn guest_says(vm: &Vm, guest: &Guest, id: &str, script: &str) -> String {
    let output = guest.run(&vm.shell(id, script)).await;
    assert_eq!(output.status, 0, "{output:?}");
    output.stdout.trim().to_owned()
}

#[tokio::test]
async fn disks_come_and_go_while_containers_use_them() {
    let mut host = Host::new();
    let (mut vm, guest) = {
        let vm = Vm::boot_roomy(&[PATIENCE, ONE_CPU], &Rootfs::busybox(), room()).await;
        let guest = vm.client().await;
        guest.create_sandbox("berth-vm").await.unwrap();
        (vm, guest)
    };
    let image = host.disk("blk.img", 16);

    // Asked for before it comes: the call waits for it.
    let late =
        with_volume(&vm, "late", "echo late >/data/late; cat /data/late", storage("blk", "10/00", "ext4"));
    let created = tokio::spawn({
        let guest = guest.clone();
        let late = late.clone();
        async move { guest.create(&late).await }
    });
    add_image(&mut vm, "disk", &image).await;
    let disk = json!({ "driver": "virtio-blk-pci", "id": "blk0", "bus": "port0", "drive": "disk" });
    plug(&mut vm, disk.clone()).await;
    created.await.unwrap().unwrap();
    guest.start("late").await.unwrap();
    assert_eq!(guest.collect("late", "").await.stdout, "late\n");
    guest.remove("late").await.unwrap();

    // Grown while it is mounted.
    let sleeper = with_volume(&vm, "grows", "read x; df -m /data | tail -1", storage("blk", "10/00", "ext4"));
    guest.create(&sleeper).await.unwrap();
    guest.start("grows").await.unwrap();
    control(&mut vm, "block_resize", json!({ "node-name": "disk", "size": 64 << 20 })).await;
    let resize =
        ResizeVolumeRequest { volume_guest_path: VOLUME.into(), size: 48 << 20, ..Default::default() };
    let context = || ttrpc::context::with_timeout(30_000_000_000);
    // The guest's driver hears of the new size by an interrupt of its own.
    let mut grown = guest.agent.resize_volume(context(), &resize).await;
    for _ in 0..100 {
        if grown.is_ok() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        grown = guest.agent.resize_volume(context(), &resize).await;
    }
    grown.unwrap();
    guest.write("grows", "", b"\n").await.unwrap();
    let shown = guest.collect("grows", "").await.stdout;
    let size: u64 = shown.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!((30..48).contains(&size), "{shown}");
    guest.remove("grows").await.unwrap();
    deadline(vm.running.unplug("blk0")).await.unwrap();

    let missing = guest.create(&with_volume(&vm, "none", "true", storage("blk", "10/00", "ext4"))).await;
    let text = missing.unwrap_err().to_string();
    assert!(text.contains("the disk at PCI path 10/00 did not appear within 15 s"), "{text}");

    for cycle in 0..CYCLES {
        plug(&mut vm, disk.clone()).await;
        let id = format!("cycle{cycle}");
        guest.create(&with_volume(&vm, &id, "true", storage("blk", "10/00", "ext4"))).await.unwrap();
        guest.remove(&id).await.unwrap();
        deadline(vm.running.unplug("blk0")).await.unwrap();
    }
    let left =
        guest_says(&vm, &guest, "left", "grep -c kata-containers/sandbox /proc/1/mountinfo || true").await;
    assert_eq!(left, "0");

    let image = host.disk("scsi.img", 16);
    add_image(&mut vm, "unit", &image).await;
    plug(&mut vm, json!({ "driver": "scsi-hd", "id": "scsi1", "bus": "scsi0.0", "scsi-id": 1, "lun": 0, "drive": "unit" }))
        .await;
    writes_and_reads(&vm, &guest, "scsi", storage("scsi", "1:0", "ext4")).await;
    deadline(vm.running.unplug("scsi1")).await.unwrap();

    let swap = host.swap("swap.img");
    add_image(&mut vm, "swap", &swap).await;
    plug(&mut vm, json!({ "driver": "virtio-blk-pci", "id": "swap0", "bus": "port3", "drive": "swap" }))
        .await;
    let slots = AddSwapRequest { PCIPath: vec![0x13, 0], ..Default::default() };
    guest.agent.add_swap(context(), &slots).await.unwrap();
    let swaps = guest_says(&vm, &guest, "swaps", "cat /proc/swaps").await;
    assert!(swaps.lines().nth(1).is_some_and(|line| line.contains("partition")), "{swaps}");

    let shared = host.dir.join("shared");
    fs::create_dir(&shared).unwrap();
    let socket = host.share(&shared);
    let backend = json!({ "type": "socket", "data": { "addr": { "type": "unix", "data": { "path": socket } }, "server": false } });
    control(&mut vm, "chardev-add", json!({ "id": "fs", "backend": backend })).await;
    plug(&mut vm, json!({ "driver": "vhost-user-fs-pci", "id": "fs0", "bus": "port1", "chardev": "fs", "tag": "kataShared" }))
        .await;
    // The host has nothing to wait for here: it plugs the share before the guest boots.
    let mounted = async {
        while guest_says(
            &vm,
            &guest,
            "tag",
            "ls -d /sys/bus/virtio/drivers/virtiofs/virtio* 2>/dev/null || true",
        )
        .await
        .is_empty()
        {}
    };
    deadline(mounted).await;
    writes_and_reads(&vm, &guest, "virtiofs", storage("virtio-fs", "kataShared", "virtiofs")).await;
    assert_eq!(fs::read_to_string(shared.join("virtiofs")).unwrap(), "virtiofs\n");

    let image = host.disk("pmem.img", 64);
    let memory = json!({ "qom-type": "memory-backend-file", "id": "pmem", "mem-path": image, "share": true, "size": 64 << 20 });
    control(&mut vm, "object-add", memory).await;
    plug(&mut vm, json!({ "driver": "nvdimm", "id": "nvdimm0", "memdev": "pmem" })).await;
    writes_and_reads(&vm, &guest, "nvdimm", storage("nvdimm", "/dev/pmem0", "ext4")).await;
    drop((guest, vm));

    // What was written is there for another guest.
    let vm = {
        let mut vm = Vm::boot_roomy(&[PATIENCE, ONE_CPU], &Rootfs::busybox(), room()).await;
        add_image(&mut vm, "disk", &host.dir.join("blk.img").display().to_string()).await;
        plug(&mut vm, disk).await;
        vm
    };
    let guest = vm.client().await;
    let output =
        guest.run(&with_volume(&vm, "again", "cat /data/late", storage("blk", "10/00", "ext4"))).await;
    assert_eq!(output.stdout, "late\n", "{output:?}");
}

#[tokio::test]
async fn cpus_memory_and_interfaces_are_put_to_use() {
    let mut vm = Vm::boot_roomy(&[PATIENCE], &Rootfs::busybox(), room()).await;
    let guest = vm.client().await;
    let context = || ttrpc::context::with_timeout(30_000_000_000);
    // With a module, which no program but the agent itself can load here.
    let module = |name: &str| CreateSandboxRequest {
        sandbox_id: "test".into(),
        kernel_modules: vec![KernelModule { name: name.into(), ..Default::default() }],
        ..Default::default()
    };
    let unknown = guest.agent.create_sandbox(context(), &module("berth_none")).await.unwrap_err().to_string();
    assert!(unknown.contains("there is no kernel module berth_none"), "{unknown}");
    guest.agent.create_sandbox(context(), &module("veth")).await.unwrap();
    assert_eq!(guest_says(&vm, &guest, "modules", "grep -c '^veth ' /proc/modules").await, "1");
    let online = |cpus, wait| OnlineCPUMemRequest { wait, nb_cpus: cpus, ..Default::default() };

    let free = control(&mut vm, "query-hotpluggable-cpus", Value::Null).await;
    let free: Vec<Value> =
        free.as_array().unwrap().iter().filter(|cpu| cpu.get("qom-path").is_none()).cloned().collect();
    let waiting = tokio::spawn({
        let (agent, request) = (guest.agent.clone(), online(3, true));
        async move { agent.online_cpu_mem(context(), &request).await }
    });
    let cpu = free.last().unwrap();
    let mut device = cpu["props"].clone();
    device["driver"] = cpu["type"].clone();
    device["id"] = "cpu2".into();
    plug(&mut vm, device).await;
    waiting.await.unwrap().unwrap();
    assert_eq!(guest_says(&vm, &guest, "cpus", "grep -c ^processor /proc/cpuinfo").await, "3");
    let short = guest.agent.online_cpu_mem(context(), &online(9, true)).await.unwrap_err().to_string();
    assert!(short.contains("a total of 9 CPUs did not appear"), "{short}");
    guest.agent.online_cpu_mem(context(), &online(9, false)).await.unwrap();

    let total = "awk '/MemTotal/ { print $2 }' /proc/meminfo";
    let before: u64 = guest_says(&vm, &guest, "before", total).await.parse().unwrap();
    // Shared: the vsock daemon has to reach buffers in it.
    control(
        &mut vm,
        "object-add",
        json!({ "qom-type": "memory-backend-memfd", "id": "more", "share": true, "size": 256 << 20 }),
    )
    .await;
    plug(&mut vm, json!({ "driver": "pc-dimm", "id": "dimm0", "memdev": "more" })).await;
    let mut round = 0;
    let grows = async {
        loop {
            round += 1;
            let now: u64 = guest_says(&vm, &guest, &format!("mem{round}"), total).await.parse().unwrap();
            if now >= before + 200_000 {
                return;
            }
        }
    };
    deadline(grows).await;
    guest.agent.online_cpu_mem(context(), &online(0, true)).await.unwrap();

    // Asked for before it comes, by its place alone.
    let interface = Interface {
        name: "backend".into(),
        devicePath: "12/00".into(),
        mtu: 1300,
        IPAddresses: vec![IPAddress { address: "10.7.0.2".into(), mask: "24".into(), ..Default::default() }],
        ..Default::default()
    };
    let request = UpdateInterfaceRequest { interface: Some(interface).into(), ..Default::default() };
    let waiting = tokio::spawn({
        let (agent, request) = (guest.agent.clone(), request.clone());
        async move { agent.update_interface(context(), &request).await }
    });
    let card =
        json!({ "driver": "virtio-net-pci", "id": "net0", "bus": "port2", "mac": "02:00:00:00:00:07" });
    plug(&mut vm, card.clone()).await;
    waiting.await.unwrap().unwrap();
    let shown = "cd /sys/class/net/backend && cat address mtu";
    assert_eq!(guest_says(&vm, &guest, "net", shown).await, "02:00:00:00:00:07\n1300");

    // Gone, it is told of by its place; back again, it is another interface.
    deadline(vm.running.unplug("net0")).await.unwrap();
    let absent = guest.agent.update_interface(context(), &request).await.unwrap_err().to_string();
    assert!(
        absent.contains("the network interface at PCI path 12/00 did not appear within 15 s"),
        "{absent}"
    );
    plug(&mut vm, card).await;
    guest.agent.update_interface(context(), &request).await.unwrap();
    assert_eq!(guest_says(&vm, &guest, "again", shown).await, "02:00:00:00:00:07\n1300");
}
