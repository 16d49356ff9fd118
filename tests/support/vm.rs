//! A real VM whose PID 1 is the agent under test, reached over vsock.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use berthctl::{
    Agent,
    vmm::{Accel, Ending, Machine, Nic, Room, Running, Vmm, image, qemu::Qemu, workdir::WorkDir},
};

use crate::{Container, Guest, Rootfs};

/// The `berthctl` under test: what `BERTH_CTL` names, else the release build.
pub fn ctl_binary() -> PathBuf {
    crate::rootfs::release("BERTH_CTL", "berthctl")
}

/// A booted VM with a busybox root file system inside.
#[derive(Debug)]
pub struct Vm {
    /// The machine itself.
    pub running: Running,
    // Holds the initrd the machine was booted from.
    _dir: WorkDir,
}

impl Vm {
    /// Boots the image of `make image` with further kernel arguments and waits until its agent is ready.
    pub async fn boot(append: &[&str]) -> Self {
        Self::boot_with(append, &Rootfs::busybox(), &[]).await
    }

    /// The same with a root file system of the caller's, and with network interfaces.
    pub async fn boot_with(append: &[&str], rootfs: &Rootfs, network: &[Nic]) -> Self {
        Self::boot_machine(append, rootfs, network, Room::default()).await
    }

    /// The same with room for devices that are plugged in later.
    pub async fn boot_roomy(append: &[&str], rootfs: &Rootfs, room: Room) -> Self {
        Self::boot_machine(append, rootfs, &[], room).await
    }

    /// The same of Debian's general kernel, which has drivers that the one for VMs lacks. `BERTH_GENERIC_IMAGE_DIR`
    /// names its image, or it is where `make test` puts it.
    pub async fn boot_generic(append: &[&str], rootfs: &Rootfs, room: Room) -> Self {
        let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("build/image-generic");
        let image = std::env::var_os("BERTH_GENERIC_IMAGE_DIR").map_or_else(default, PathBuf::from);
        Self::boot_image(&image, append, rootfs, &[], room).await
    }

    async fn boot_machine(append: &[&str], rootfs: &Rootfs, network: &[Nic], room: Room) -> Self {
        Self::boot_image(&image::directory(), append, rootfs, network, room).await
    }

    async fn boot_image(image: &Path, append: &[&str], rootfs: &Rootfs, network: &[Nic], room: Room) -> Self {
        let dir = WorkDir::new().expect("a directory for the VM");
        let part = |name: &str, what| image::locate(Some(&image.join(name)), name, what);
        let initrd = part("initrd.cpio", "initrd").expect("an initrd");
        let machine = Machine {
            kernel: part("vmlinux", "kernel").expect("a kernel"),
            initrd: image::with_bundle(&initrd, rootfs.path(), "test", &dir).expect("pack the rootfs"),
            memory: 512,
            cpus: 2,
            accel: Accel::Auto,
            network: network.to_vec(),
            room,
            append: append.iter().map(|argument| (*argument).to_owned()).collect(),
            patience: Duration::from_secs(180),
            tether: Some(ctl_binary()),
        };
        let running = Qemu.boot(&machine, &|_| {}).await.unwrap_or_else(|error| panic!("{error}"));
        Self { running, _dir: dir }
    }

    /// Booted, and with a sandbox.
    pub async fn with_sandbox(append: &[&str]) -> (Self, Guest) {
        let vm = Self::boot(append).await;
        let guest = vm.client().await;
        guest.create_sandbox("berth-vm").await.expect("CreateSandbox");
        (vm, guest)
    }

    /// A new connection.
    pub async fn client(&self) -> Guest {
        let agent = Agent::connect(self.running.address(), Duration::from_secs(60)).await;
        Guest::new(agent.unwrap_or_else(|error| panic!("{error}{}", self.running.console())).ttrpc().clone())
    }

    /// A container in the guest.
    pub fn container(&self, id: &str, args: &[&str]) -> Container {
        Container::new(id, &image::guest_rootfs("test"), args)
    }

    /// `sh -c script`.
    pub fn shell(&self, id: &str, script: &str) -> Container {
        self.container(id, &["sh", "-c", script])
    }

    /// Waits for the machine's end.
    pub async fn ended(&mut self) -> Ending {
        crate::deadline(self.running.ended()).await
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.running.console());
        }
    }
}
