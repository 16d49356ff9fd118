//! What lives on the host, and how it gets into the guest.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use berth::{Container, Guest, Vm, deadline, scratch_dir};
use berth_protocols::{agent::Storage, oci};
use berthctl::vmm::{Room, listens};
use serde_json::{Value, json};

/// An emulated guest on a loaded machine takes its time.
pub const PATIENCE: &str = "agent.hotplug_timeout=15";
pub const VOLUME: &str = "/run/kata-containers/sandbox/volume";

/// What lives on the host: disk images and a shared directory.
pub struct Host {
    pub dir: PathBuf,
    daemon: Option<Child>,
}

impl Host {
    pub fn new() -> Self {
        Self { dir: scratch_dir("hotplug"), daemon: None }
    }

    pub fn disk(&self, name: &str, mib: u64) -> String {
        let path = self.dir.join(name);
        fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
        let status = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&path).status();
        assert!(status.expect("mkfs.ext4 (package e2fsprogs)").success());
        path.display().to_string()
    }

    pub fn swap(&self, name: &str) -> String {
        let path = self.dir.join(name);
        fs::File::create(&path).unwrap().set_len(4 << 20).unwrap();
        let made = Command::new("mkswap").arg(&path).output().expect("mkswap (package util-linux)");
        assert!(made.status.success(), "{made:?}");
        path.display().to_string()
    }

    /// Serves a directory by virtio-fs; answers the daemon's socket.
    pub fn share(&mut self, directory: &Path, name: &str) -> String {
        let socket = self.dir.join(format!("{name}.sock")).display().to_string();
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
        while !listens(Path::new(&socket)).unwrap() {
            assert!(begun.elapsed().as_secs() < 60, "virtiofsd does not listen");
            std::thread::yield_now();
        }
        socket
    }

    /// Ends the daemon, if there is one.
    pub fn end_share(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end_share();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

pub fn room() -> Room {
    Room {
        cpus: 4,
        memory: 2048,
        ports: 6,
        arguments: ["-device", "virtio-scsi-pci,id=scsi0"].map(String::from).to_vec(),
    }
}

pub async fn control(vm: &mut Vm, command: &str, arguments: Value) -> Value {
    let answer = deadline(vm.running.control(command, &arguments)).await;
    answer.unwrap_or_else(|error| panic!("{error}: {arguments}"))
}

pub async fn plug(vm: &mut Vm, device: Value) {
    control(vm, "device_add", device).await;
}

pub async fn add_image(vm: &mut Vm, node: &str, file: &str) {
    let image = json!({ "driver": "file", "node-name": node, "filename": file });
    control(vm, "blockdev-add", image).await;
}

pub fn storage(driver: &str, source: &str, fstype: &str) -> Storage {
    Storage {
        driver: driver.into(),
        source: source.into(),
        fstype: fstype.into(),
        mount_point: VOLUME.into(),
        ..Default::default()
    }
}

/// A container that has the storage's mount point as /data.
pub fn with_volume(vm: &Vm, id: &str, script: &str, storage: Storage) -> Container {
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

pub async fn writes_and_reads(vm: &Vm, guest: &Guest, id: &str, storage: Storage) {
    let script = format!("echo {id} >/data/{id} && cat /data/{id}");
    let output = guest.run(&with_volume(vm, id, &script, storage)).await;
    assert_eq!((output.status, output.stdout.as_str()), (0, format!("{id}\n").as_str()), "{output:?}");
}

pub async fn guest_says(vm: &Vm, guest: &Guest, id: &str, script: &str) -> String {
    let output = guest.run(&vm.shell(id, script)).await;
    assert_eq!(output.status, 0, "{output:?}");
    output.stdout.trim().to_owned()
}

pub fn virtio_disk(id: &str, port: u8, node: &str) -> Value {
    json!({ "driver": "virtio-blk-pci", "id": id, "bus": format!("port{port}"), "drive": node })
}

pub fn scsi_disk() -> Value {
    json!({ "driver": "scsi-hd", "id": "scsi1", "bus": "scsi0.0", "scsi-id": 1, "lun": 0, "drive": "unit" })
}

/// Plugs what a daemon serves at `socket`, and waits until the guest's driver has it: real hosts plug a share before
/// the guest boots, and have nothing to wait for.
pub async fn plug_share(vm: &mut Vm, guest: &Guest, socket: &str, chardev: &str) {
    let address = json!({ "type": "unix", "data": { "path": socket } });
    let backend = json!({ "type": "socket", "data": { "addr": address, "server": false } });
    control(vm, "chardev-add", json!({ "id": chardev, "backend": backend })).await;
    let device = json!({ "driver": "vhost-user-fs-pci", "id": "fs0", "bus": "port1", "chardev": chardev, "tag": "kataShared" });
    plug(vm, device).await;
    let bound = "ls -d /sys/bus/virtio/drivers/virtiofs/virtio* 2>/dev/null || true";
    deadline(async { while guest_says(vm, guest, "tag", bound).await.is_empty() {} }).await;
}

pub async fn plug_pmem(vm: &mut Vm, image: &str, mib: u64) {
    let memory = json!({ "qom-type": "memory-backend-file", "id": "pmem", "mem-path": image, "share": true, "size": mib << 20 });
    control(vm, "object-add", memory).await;
    plug(vm, json!({ "driver": "nvdimm", "id": "nvdimm0", "memdev": "pmem" })).await;
}

/// What `script` says in a container that has the guest's own /proc as /guest, and the right to look.
pub async fn seen_from_within(vm: &Vm, guest: &Guest, id: &str, script: &str) -> String {
    let mut container = vm.shell(id, script);
    container.spec().Mounts.push(oci::Mount {
        destination: "/guest".into(),
        source: "/proc".into(),
        type_: "bind".into(),
        options: vec!["rbind".into(), "ro".into()],
        ..Default::default()
    });
    let capabilities = container.process().Capabilities.mut_or_insert_default();
    for set in [&mut capabilities.Bounding, &mut capabilities.Permitted, &mut capabilities.Effective] {
        set.push("CAP_SYS_PTRACE".into());
    }
    let output = guest.run(&container).await;
    assert_eq!(output.status, 0, "{output:?}");
    output.stdout.trim().to_owned()
}
