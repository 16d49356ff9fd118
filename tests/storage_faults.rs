//! A worker killed while it holds mounts, or makes them: the next one has all of them, and leaves none.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{fs, process::Command, time::Duration};

use berth::{Agent, Container, Role};
use berth_protocols::{agent::Storage, oci};
use nix::sys::signal::Signal;

const PLACE: &str = "/run/kata-containers/sandbox/storage";
/// Kills spread over the creation of a container.
const KILLS: u64 = 12;

/// A loop device with ext4 on it.
struct Disk {
    node: String,
}

impl Disk {
    fn new(agent: &Agent) -> Self {
        let image = agent.dir().join("disk.img");
        fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let image = image.display().to_string();
        output("mkfs.ext4", &["-q", "-F", &image]);
        Self { node: output("losetup", &["--find", "--show", &image]) }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.node]).status();
    }
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// What is mounted where the agent is, without the ids, which differ from mount to mount.
fn mounts(agent: &Agent) -> Vec<String> {
    let table = fs::read_to_string(format!("/proc/{}/mountinfo", agent.role(Role::Init))).unwrap();
    table.lines().map(|line| line.splitn(3, ' ').nth(2).unwrap().to_owned()).collect()
}

/// A disk, a directory inside it, a copy that follows its source, and an overlay over the disk.
fn furnished(agent: &Agent, disk: &Disk, id: &str, script: &str) -> Container {
    let at = |name: &str| format!("{PLACE}/{name}");
    let storage = |driver: &str, source: &str, fstype: &str, name: &str| Storage {
        driver: driver.into(),
        source: source.into(),
        fstype: fstype.into(),
        mount_point: at(name),
        ..Default::default()
    };
    let source = agent.dir().join("source");
    fs::create_dir_all(&source).unwrap();
    fs::write(source.join("file"), "copied\n").unwrap();
    let source = source.display().to_string();
    let mut overlay = storage("overlayfs", "overlay", "overlay", "merged");
    overlay.options = vec![format!("lowerdir={source}:{}", at("disk"))];
    let mut container = agent.shell(id, script);
    container.request.storages = vec![
        storage("blk", &disk.node, "ext4", "disk"),
        storage("bind", &source, "bind", "disk/inside"),
        storage("watchable-bind", &source, "bind", "copy"),
        overlay,
    ];
    container.spec().Mounts.push(oci::Mount {
        destination: "/data".into(),
        source: at("disk"),
        type_: "bind".into(),
        options: vec!["rbind".into(), "rw".into()],
        ..Default::default()
    });
    container
}

#[tokio::test]
async fn a_worker_killed_while_it_holds_mounts_leaves_them_to_the_next() {
    let (agent, _guest) = Agent::with_sandbox().await;
    let disk = Disk::new(&agent);
    let before = mounts(&agent);
    for signal in [Signal::SIGKILL, Signal::SIGSEGV] {
        let guest = agent.client().await;
        let script = "read x; cat /data/inside/file; echo kept >/data/kept";
        guest.create(&furnished(&agent, &disk, "c1", script)).await.unwrap();
        assert_eq!(mounts(&agent).len(), before.len() + 4);
        agent.replace(Role::Worker, signal).await;
        let guest = agent.client().await;
        assert_eq!(mounts(&agent).len(), before.len() + 4, "the next worker keeps them");
        guest.start("c1").await.unwrap();
        guest.write("c1", "", b"go\n").await.unwrap();
        assert_eq!(guest.collect("c1", "").await.stdout, "copied\n");
        // One more user of the same storages keeps them beyond the first.
        guest.create(&furnished(&agent, &disk, "c2", "cat /data/kept")).await.unwrap();
        guest.remove("c1").await.unwrap();
        agent.replace(Role::Worker, signal).await;
        let guest = agent.client().await;
        guest.start("c2").await.unwrap();
        assert_eq!(guest.collect("c2", "").await.stdout, "kept\n");
        guest.remove("c2").await.unwrap();
        assert_eq!(mounts(&agent), before);
    }
}

#[tokio::test]
async fn a_worker_killed_while_it_mounts_leaves_nothing_half_done() {
    let (agent, _guest) = Agent::with_sandbox().await;
    let disk = Disk::new(&agent);
    let before = mounts(&agent);
    for round in 0..KILLS {
        let doomed = agent.client().await;
        let container = furnished(&agent, &disk, "c1", "true");
        let call = tokio::spawn(async move { doomed.create(&container).await });
        // At another instant of the creation each time.
        tokio::time::sleep(Duration::from_millis(2 * round)).await;
        agent.replace(Role::Worker, Signal::SIGKILL).await;
        let whole = call.await.unwrap().is_ok();
        let guest = agent.client().await;
        // Created just before, it is there; else it may have been undone already, and then it is unknown.
        let removed = guest.remove("c1").await;
        assert!(removed.is_ok() || !whole, "round {round}: {removed:?}");
        assert_eq!(mounts(&agent), before, "round {round}");
    }
    // Nothing is in the way of the next.
    let guest = agent.client().await;
    assert_eq!(guest.run(&furnished(&agent, &disk, "c1", "cat /data/inside/file")).await.stdout, "copied\n");
    assert_eq!(mounts(&agent), before);
}
