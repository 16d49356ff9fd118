//! Layers, checked and encrypted disks in a real guest, whose kernel has the device mapper: what a container reads
//! through it, what the host finds on its disk, and that nothing is left of what fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    fs,
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use berth::{Container, Guest, Rootfs, Vm, scratch_dir};
use berth_protocols::{agent::Storage, oci};
use berthctl::vmm::Room;

const PATIENCE: &str = "agent.hotplug_timeout=15";
const MIB: u64 = 1 << 20;
/// Where the images' one large file has a byte to be changed, and what is there.
const MARKER: &[u8] = b"the host changes this";
/// What a container writes and the host must not find.
const SECRET: &str = "nobody but the container reads this";
const MULTI: &str = "X-kata.multi-layer=true";
/// How the names of mappings begin.
const MAPPINGS: [&str; 3] = ["berth-part-", "berth-verity-", "berth-crypt-"];

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("run {program} (make setup installs it): {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Disk images, and what the guest calls their ports.
struct Host {
    dir: PathBuf,
    disks: Vec<String>,
}

impl Host {
    fn new() -> Self {
        Self { dir: scratch_dir("layers"), disks: Vec::new() }
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// An image of a directory that `fill` fills; answers its length.
    fn image(&self, name: &str, fill: impl Fn(&Path)) -> u64 {
        let tree = self.dir.join(format!("{name}.tree"));
        fs::create_dir(&tree).unwrap();
        fill(&tree);
        let image = self.path(name);
        run("mkfs.erofs", &["-d0", "--all-root", &image, &tree.display().to_string()]);
        fs::metadata(image).unwrap().len()
    }

    /// Appends a hash tree to an image; answers the options that a host sends for it.
    fn verity(&self, name: &str, length: u64, superblock: bool) -> Vec<String> {
        let image = self.path(name);
        let (offset, blocks) =
            (format!("--hash-offset={length}"), format!("--data-blocks={}", length / 4096));
        let mut arguments = vec!["format", &image, &image, &offset, &blocks, "--salt=a1b2"];
        if !superblock {
            arguments.push("--no-superblock");
        }
        let said = run("veritysetup", &arguments);
        let hash = said.lines().find_map(|line| line.strip_prefix("Root hash:")).unwrap().trim();
        let mut options = vec![
            "X-kata.dmverity-enabled=true".to_owned(),
            format!("X-kata.dmverity.roothash={hash}"),
            format!("X-kata.dmverity.hashoffset={length}"),
            "X-kata.dmverity.salt=a1b2".to_owned(),
        ];
        if !superblock {
            options.push("X-kata.dmverity.no-superblock=true".to_owned());
        }
        options
    }

    /// One disk of partitions, each with one image.
    fn disk(&self, name: &str, images: &[&str]) {
        let disk = self.path(name);
        let length = |image: &&str| fs::metadata(self.path(image)).unwrap().len().next_multiple_of(MIB);
        let total: u64 = images.iter().map(length).sum::<u64>() + 2 * MIB;
        fs::File::create(&disk).unwrap().set_len(total).unwrap();
        let (mut at, mut script) = (MIB, "label: gpt\n".to_owned());
        for image in images {
            script.push_str(&format!("start={}, size={}\n", at / 512, length(image) / 512));
            let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
            file.write_all_at(&fs::read(self.path(image)).unwrap(), at).unwrap();
            at += length(image);
        }
        let table = self.path("table");
        fs::write(&table, script).unwrap();
        run("sh", &["-c", &format!("sfdisk --quiet {disk} <{table}")]);
    }

    fn blank(&self, name: &str) {
        fs::File::create(self.path(name)).unwrap().set_len(16 * MIB).unwrap();
    }

    /// Puts a disk into the next port; answers its PCI path.
    fn plug(&mut self, name: &str, read_only: bool) -> String {
        let port = self.disks.len() / 4;
        let flag = if read_only { "on" } else { "off" };
        let node = format!("driver=file,node-name=disk{port},filename={},read-only={flag}", self.path(name));
        let device = format!("virtio-blk-pci,drive=disk{port},bus=port{port}");
        self.disks.extend(["-blockdev".into(), node, "-device".into(), device]);
        format!("{:x}/00", 0x10 + port)
    }

    /// Changes a byte of the one place in an image that has `what`.
    fn change(&self, name: &str, what: &[u8]) {
        let content = fs::read(self.path(name)).unwrap();
        let places: Vec<_> =
            content.windows(what.len()).enumerate().filter(|(_, part)| *part == what).collect();
        assert_eq!(places.len(), 1, "the marker's places in {name}");
        self.flip(name, places[0].0 as u64);
    }

    fn flip(&self, name: &str, at: u64) {
        let file = fs::OpenOptions::new().read(true).write(true).open(self.path(name)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        file.sync_all().unwrap();
    }

    fn has(&self, name: &str, what: &[u8]) -> bool {
        fs::read(self.path(name)).unwrap().windows(what.len()).any(|part| part == what)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A large file with a marker in its middle, and a small one.
fn fill_data(tree: &Path) {
    fs::create_dir(tree.join("data")).unwrap();
    let mut large: Vec<u8> = (0..2 * MIB as u32).map(|index| ((index * 7) >> 5) as u8).collect();
    large[MIB as usize..][..MARKER.len()].copy_from_slice(MARKER);
    fs::write(tree.join("data/large"), large).unwrap();
    fs::write(tree.join("data/small"), "small\n").unwrap();
}

fn fill_root(rootfs: &Rootfs) -> impl Fn(&Path) {
    let rootfs = rootfs.path().to_owned();
    move |tree| {
        run("cp", &["-a", &format!("{}/.", rootfs.display()), &tree.display().to_string()]);
        fill_data(tree);
        fs::write(tree.join("etc/who"), "base\n").unwrap();
        fs::write(tree.join("etc/below"), "base\n").unwrap();
    }
}

fn storage(driver: &str, source: &str, fstype: &str, mount_point: &str, options: &[&str]) -> Storage {
    Storage {
        driver: driver.into(),
        source: source.into(),
        fstype: fstype.into(),
        mount_point: mount_point.into(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
        ..Default::default()
    }
}

fn lower(source: &str, mount_point: &str, partition: u32, verity: &[String]) -> Storage {
    let number = format!("X-kata.partition-number={partition}");
    let options = ["ro", "X-kata.overlay-lower", MULTI, "X-kata.gpt-partitioned=true", &number];
    let mut layer = storage("blk", source, "erofs", mount_point, &options);
    layer.options.extend_from_slice(verity);
    layer
}

fn root_of(id: &str) -> String {
    format!("/run/kata-containers/{id}/rootfs")
}

/// With the directory `place` of the guest at `/data` of the container.
fn volume(mut container: Container, place: &str) -> Container {
    container.spec().Mounts.push(oci::Mount {
        destination: "/data".into(),
        source: place.into(),
        type_: "bind".into(),
        options: vec!["rbind".into(), "rw".into()],
        ..Default::default()
    });
    container
}

/// The guest under test and what it has mounted and mapped when nothing is in use.
struct Bench {
    vm: Vm,
    guest: Guest,
    before: String,
    looks: u32,
}

impl Bench {
    async fn boot(disks: Vec<String>, rootfs: &Rootfs) -> Self {
        let room = Room { ports: 8, arguments: disks, ..Room::default() };
        let vm = Vm::boot_roomy(&[PATIENCE, "maxcpus=1"], rootfs, room).await;
        let guest = vm.client().await;
        guest.create_sandbox("berth-vm").await.unwrap();
        let mut bench = Self { vm, guest, before: String::new(), looks: 0 };
        bench.before = bench.look().await;
        bench
    }

    /// The guest's mount table without its numbers, its mappings, and the places of storages.
    async fn look(&mut self) -> String {
        self.looks += 1;
        let script = "cut -d' ' -f4- /data/proc/1/mountinfo | grep -v /bundles/; \
                      for dm in /sys/block/dm-*; do [ -e $dm ] && cat $dm/dm/name; done; \
                      ls /data/run/berth/storages; ls /data/run/kata-containers | grep -v look";
        let container = volume(self.vm.shell(&format!("look{}", self.looks), script), "/");
        let output = self.guest.run(&container).await;
        assert!(output.stdout.contains(" /proc "), "{output:?}");
        output.stdout
    }

    /// Waits until the kernel has let go of what a container had open; nothing else may be left.
    async fn clean(&mut self, what: &str) {
        let mut now = self.look().await;
        for _ in 0..100 {
            if !MAPPINGS.iter().any(|name| now.contains(name)) {
                break;
            }
            now = self.look().await;
        }
        assert_eq!(now, self.before, "{what}");
    }

    async fn refused(&mut self, id: &str, storages: Vec<Storage>) -> String {
        let mut container = self.vm.shell(id, "true");
        container.request.storages = storages;
        let error = self.guest.create(&container).await.expect_err(id).to_string();
        self.clean(&error).await;
        error
    }
}

/// A container whose root is put together from `storages`.
fn rooted(vm: &Vm, id: &str, script: &str, storages: Vec<Storage>) -> Container {
    let mut container = vm.shell(id, script);
    container.spec().Root.mut_or_insert_default().Path = root_of(id);
    container.request.storages = storages;
    container
}

#[tokio::test]
async fn layers_are_put_together_and_what_is_changed_is_not_read() {
    let (mut host, rootfs) = (Host::new(), Rootfs::busybox());
    let base = host.image("base", fill_root(&rootfs));
    let base = host.verity("base", base, false);
    let top = host.image("top", |tree| {
        fs::create_dir(tree.join("etc")).unwrap();
        fs::write(tree.join("etc/who"), "top\n").unwrap();
    });
    let top = host.verity("top", top, true);
    host.disk("layers", &["top", "base"]);
    let single = host.image("single", fill_data);
    let single = host.verity("single", single, true);
    host.blank("upper");
    run("mkfs.ext4", &["-q", "-F", &host.path("upper")]);
    host.blank("none");
    let layers = host.plug("layers", true);
    let (single_at, upper, none) =
        (host.plug("single", true), host.plug("upper", false), host.plug("none", false));
    let mut bench = Bench::boot(host.disks.clone(), &rootfs).await;

    // A root of two checked partitions under a disk that is written to.
    let top_of = |id: &str| {
        storage(
            "blk",
            &upper,
            "ext4",
            &root_of(id),
            &["X-kata.overlay-upper", MULTI, "X-kata.mkdir.path={{ mount 0 }}/upper:0711"],
        )
    };
    let root = |id: &str| {
        vec![top_of(id), lower(&layers, &root_of(id), 1, &top), lower(&layers, &root_of(id), 2, &base)]
    };
    let script = "cat /etc/who /etc/below; stat -c %a /; echo written >/etc/new; cat /etc/new; \
                  while read line; do eval \"$line\"; echo status $?; done";
    bench.guest.create(&rooted(&bench.vm, "root", script, root("root"))).await.unwrap();
    bench.guest.start("root").await.unwrap();
    let said = bench.guest.read_until("root", "", "written\n").await;
    assert_eq!(said, "top\nbase\n711\nwritten\n");
    let mapped = bench.look().await;
    assert_eq!(MAPPINGS.map(|name| mapped.matches(name).count()), [2, 2, 0], "{mapped}");

    // Changed on the host while it is in use: that file fails where it was changed, and nothing else does.
    host.change("layers", MARKER);
    bench.guest.write("root", "", b"cat /data/large >/dev/null\n").await.unwrap();
    let said = bench.guest.read_until("root", "", "status").await;
    assert!(said.contains("status 1"), "{said}");
    bench
        .guest
        .write("root", "", b"head -c 1000000 /data/large | wc -c; cat /data/small /etc/new\n")
        .await
        .unwrap();
    let said = bench.guest.read_until("root", "", "status").await;
    assert!(said.contains("1000000\nsmall\nwritten\nstatus 0"), "{said}");
    bench.guest.write("root", "", b"").await.unwrap();
    let output = bench.guest.collect("root", "").await;
    assert_eq!(output.stderr, "cat: read error: Input/output error\n");
    bench.guest.remove("root").await.unwrap();
    bench.clean("a root of layers").await;
    host.change("layers", &[&[MARKER[0] ^ 1], &MARKER[1..]].concat());

    // What was written is in the upper layer, and another container goes on with it; the primary table is broken by now.
    host.flip("layers", 512 + 60);
    let output = bench.guest.run(&rooted(&bench.vm, "again", "cat /etc/new /etc/who", root("again"))).await;
    assert_eq!(output.stdout, "written\ntop\n", "{output:?}");
    bench.clean("the backup table").await;

    // Without an upper layer nothing is written; memory takes it where that is the upper layer.
    let lowers = |id: &str| root(id).split_off(1);
    let script = "cat /etc/who; echo x >/etc/x; echo $?";
    let output = bench.guest.run(&rooted(&bench.vm, "lowers", script, lowers("lowers"))).await;
    assert_eq!(
        (output.stdout.as_str(), output.stderr.contains("Read-only")),
        ("top\n1\n", true),
        "{output:?}"
    );
    let mut memory = lowers("memory");
    memory.push(storage("ephemeral", "tmpfs", "tmpfs", &root_of("memory"), &[MULTI]));
    let output = bench.guest.run(&rooted(&bench.vm, "memory", script, memory)).await;
    assert_eq!(output.stdout, "top\n0\n", "{output:?}");
    bench.clean("read-only, and memory on top").await;

    // One checked disk, as a volume, by each driver that may carry it.
    let place = "/run/kata-containers/sandbox/single";
    let one = |driver: &str, verity: &[String]| {
        let mut storage = storage(driver, &single_at, "erofs", place, &["ro"]);
        storage.options.extend_from_slice(verity);
        vec![storage]
    };
    for driver in ["blk", "erofs", "erofs.multi-layer"] {
        let mut container = volume(bench.vm.shell(&driver.replace('.', "-"), "cat /data/data/small"), place);
        container.request.storages = one(driver, &single);
        let output = bench.guest.run(&container).await;
        assert_eq!(output.stdout, "small\n", "{driver}: {output:?}");
    }
    bench.clean("one disk").await;

    // Another root hash: at sight, and for a place where the right one is in use.
    let hash = single.iter().find_map(|option| option.strip_prefix("X-kata.dmverity.roothash=")).unwrap();
    let wrong = |options: &[String]| -> Vec<String> {
        options
            .iter()
            .map(|option| match option.strip_prefix("X-kata.dmverity.roothash=") {
                Some(hash) => format!("X-kata.dmverity.roothash={}{}", &hash[2..], &hash[..2]),
                None => option.clone(),
            })
            .collect()
    };
    let error = bench.refused("wrong", one("blk", &wrong(&single))).await;
    assert!(error.contains("is not what the root hash") && error.contains(&hash[2..]), "{error}");
    let mut container = volume(bench.vm.shell("right", "true"), place);
    container.request.storages = one("blk", &single);
    bench.guest.create(&container).await.unwrap();
    container.request.container_id = "other".into();
    container.request.storages = one("blk", &wrong(&single));
    let error = bench.guest.create(&container).await.unwrap_err().to_string();
    assert!(error.contains("is taken by blk"), "{error}");
    bench.guest.remove("right").await.unwrap();
    bench.clean("a place that is taken").await;

    // A failure at each step of the way, with the layers before it mounted by then.
    let with_last = |last: Storage| {
        let mut layers = root("fails");
        layers[2] = last;
        layers
    };
    let at = root_of("fails");
    let mut wrong_type = lower(&layers, &at, 2, &base);
    wrong_type.fstype = "ext4".into();
    let mut cut = base.clone();
    cut[2] = "X-kata.dmverity.hashoffset=1073741824".into();
    let absent = storage("blk", "16/00", "erofs", &at, &[MULTI, "X-kata.overlay-lower"]);
    for (last, problem) in [
        (lower(&layers, &at, 2, &wrong(&base)), "is not what the root hash"),
        (lower(&layers, &at, 2, &cut), "dm-verity"),
        (lower(&layers, &at, 9, &base), "has no partition 9; there are [1, 2]"),
        (lower(&none, &at, 1, &base), "has no partition table"),
        (wrong_type, "superblock"),
        (storage("blk", &none, "erofs", &at, &[MULTI]), "superblock"),
        (absent, "the disk at PCI path 16/00 did not appear within 15 s"),
        (storage("blk", &upper, "ext4", &at, &[MULTI, "X-kata.overlay-lower"]), "twice"),
    ] {
        let error = bench.refused("fails", with_last(last)).await;
        assert!(error.contains(problem), "{error}");
    }
    // Nothing is in the way of the next, after all of that.
    let output = bench.guest.run(&rooted(&bench.vm, "last", "cat /etc/new", root("last"))).await;
    assert_eq!(output.stdout, "written\n", "{output:?}");
    bench.clean("the end").await;
}

/// mkfs.ext4 and what it is linked with, in a directory of the guest's root file system.
fn pack_mkfs(rootfs: &Rootfs) {
    let program = run("sh", &["-c", "PATH=$PATH:/usr/sbin:/sbin command -v mke2fs"]);
    let program = program.trim();
    let linked = run("ldd", &[program]);
    let libraries = linked.split_whitespace().filter(|word| word.starts_with('/'));
    for file in libraries.chain([program]) {
        let target = rootfs.path().join("mkfs").join(file.trim_start_matches('/'));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(file, &target).unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let link = rootfs.path().join("mkfs/sbin/mkfs.ext4");
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(program, link).unwrap();
}

#[tokio::test]
async fn the_host_finds_nothing_of_an_encrypted_volume_on_its_disk() {
    let (mut host, rootfs) = (Host::new(), Rootfs::busybox());
    pack_mkfs(&rootfs);
    host.blank("plain");
    host.blank("secret");
    let (plain, secret) = (host.plug("plain", false), host.plug("secret", false));
    let mut bench = Bench::boot(host.disks.clone(), &rootfs).await;
    let place = "/run/kata-containers/sandbox/volume";
    let new = |source: &str, options: &[&str], driver_options: &[&str]| {
        let mut storage = storage("blk", source, "ext4", place, options);
        storage.driver_options = driver_options.iter().map(|option| (*option).to_owned()).collect();
        vec![storage]
    };
    let both = ["create_filesystem", "encryption_key=ephemeral"];

    // The guest has no program yet that makes a file system: the mapping was made by then, and goes again.
    let error = bench.refused("early", new(&secret, &[], &both)).await;
    assert!(error.contains("mkfs.ext4"), "{error}");
    let unpack = volume(bench.vm.shell("unpack", "cp -a /mkfs/. /data/"), "/");
    assert_eq!(bench.guest.run(&unpack).await.status, 0);
    bench.before = bench.look().await;

    // Made and mapped, and the mount does not take its option.
    let error = bench.refused("mount", new(&secret, &["berth=no"], &both)).await;
    assert!(error.contains("berth=no"), "{error}");
    let error = bench.refused("type", {
        let mut storages = new(&secret, &[], &both);
        storages[0].fstype = "xfs".into();
        storages
    });
    let error = error.await;
    assert!(error.contains("only ext4"), "{error}");

    let script = format!(
        "for i in $(seq 2000); do echo '{SECRET}'; done >/data/file && sync && grep -c '{SECRET}' /data/file; \
         read line; grep -c '{SECRET}' /data/file"
    );
    for (id, source, driver_options) in [("plain", &plain, &both[..1]), ("secret", &secret, &both[..])] {
        let mut container = volume(bench.vm.shell(id, &script), place);
        container.request.storages = new(source, &[], driver_options);
        bench.guest.create(&container).await.unwrap();
        bench.guest.start(id).await.unwrap();
        assert_eq!(bench.guest.read_until(id, "", "\n").await, "2000\n");
        let mapped = bench.look().await.matches("berth-crypt-").count();
        assert_eq!(mapped, usize::from(id == "secret"));
        if id == "secret" {
            // A disk has one key at a time; who is there keeps it.
            let mut second = volume(bench.vm.shell("second", "true"), place);
            second.request.storages = new(source, &[], driver_options);
            second.request.storages[0].mount_point = format!("{place}2");
            let error = bench.guest.create(&second).await.unwrap_err().to_string();
            assert!(error.contains("berth-crypt-") && error.contains("os error 16"), "{error}");
        }
        bench.guest.write(id, "", b"\n").await.unwrap();
        assert_eq!(bench.guest.collect(id, "").await.stdout, "2000\n");
        bench.guest.remove(id).await.unwrap();
        bench.clean(id).await;
    }
    assert!(host.has("plain", SECRET.as_bytes()), "what is not encrypted is there to be found");
    assert!(!host.has("secret", SECRET.as_bytes()));
    let magic = |name| fs::read(host.path(name)).unwrap()[1024 + 56..][..2].to_vec();
    assert_eq!((magic("plain"), magic("secret") == [0x53, 0xef]), (vec![0x53, 0xef], false));
    assert!(fs::read(host.path("secret")).unwrap().iter().any(|byte| *byte != 0), "it was written");

    // The key is gone: what was written cannot be read again.
    let error = bench.refused("gone", new(&secret, &[], &[])).await;
    assert!(error.contains("superblock"), "{error}");
}
