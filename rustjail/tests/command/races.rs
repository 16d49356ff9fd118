//! Commands at the same time, and commands that die.

use std::{
    fs,
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use nix::{
    sys::{
        signal::{Signal, kill},
        socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket},
    },
    unistd::Pid,
};

use crate::jail::{Jail, ends, eventually, wait};

#[test]
fn of_many_that_create_one_container_one_succeeds() {
    let jail = Jail::sleeping();
    let mut all: Vec<_> = (0..8)
        .map(|_| {
            let mut command = jail.command(&["create", "c"]);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    let succeeded = all.iter_mut().map(wait).filter(|code| *code == 0).count();
    assert_eq!(succeeded, 1);
    assert_eq!(jail.status("c"), "created");
}

#[test]
fn of_many_that_start_one_container_one_succeeds() {
    let jail = Jail::sleeping();
    jail.ok(&["create", "c"]);
    let mut all: Vec<_> = (0..8)
        .map(|_| {
            let mut command = jail.command(&["start", "c"]);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    let succeeded = all.iter_mut().map(wait).filter(|code| *code == 0).count();
    assert_eq!(succeeded, 1);
    assert_eq!(jail.status("c"), "running");
}

#[test]
fn looking_at_a_created_container_does_not_start_it() {
    let jail = Jail::sleeping();
    jail.ok(&["create", "c"]);
    for _ in 0..20 {
        assert_eq!(jail.status("c"), "created");
    }
    // Whoever connects and goes away has not started it either.
    drop(UnixStream::connect(jail.root.join("c/start")));
    assert_eq!(jail.status("c"), "created");
    jail.ok(&["start", "c"]);
    assert_eq!(jail.status("c"), "running");
}

#[test]
fn a_creation_that_died_is_cleaned_up() {
    let mut jail = Jail::sleeping();
    jail.bundle.set("/process/terminal", true.into());
    // A listener whose queue is full: the creation waits for it with everything else done.
    let path = jail.path("console.sock");
    let listener = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(path.as_str()).unwrap()).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let _queued = UnixStream::connect(&path).unwrap();
    let mut command = jail.command(&["create", "--console-socket", &path, "c"]);
    let mut creating = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    assert!(eventually(|| jail.root.join("c/state").exists()));
    let pid = jail.pid("c");
    assert!(jail.root.join("c").exists());
    creating.kill().unwrap();
    wait(&mut creating);

    jail.ok(&["delete", "--force", "c"]);
    assert!(ends(pid));
    assert_eq!(jail.ok(&["list", "-q"]), "");
}

#[test]
fn a_creation_that_died_early_is_a_stopped_container() {
    let jail = Jail::sleeping();
    fs::create_dir_all(jail.root.join("c")).unwrap();
    jail.refused(&["create", "c"], 1, "already exists");
    jail.refused(&["start", "c"], 1, "has stopped");
    jail.refused(&["kill", "c"], 1, "container not running");
    jail.refused(&["state", "c"], 1, "is stopped");
    jail.ok(&["delete", "c"]);
    jail.ok(&["create", "c"]);
}

#[test]
fn a_creation_that_died_while_it_wrote_is_a_stopped_container() {
    let jail = Jail::sleeping();
    fs::create_dir_all(jail.root.join("c")).unwrap();
    fs::write(jail.root.join("c/state.new"), "{\"oci_version\":").unwrap();
    jail.refused(&["kill", "c"], 1, "container not running");
    jail.ok(&["delete", "c"]);
    jail.ok(&["create", "c"]);
}

/// A `run` whose process, born into a group that is frozen, gets nowhere.
struct Stuck {
    command: Child,
    jail: Jail,
    group: Frozen,
}

/// The group, removed once nothing of the jail is left in it.
struct Frozen(PathBuf);

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

impl Stuck {
    fn new() -> Self {
        let mut jail = Jail::sleeping();
        let tops = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let top =
            tops.into_iter().find(|top| top.join("cgroup.controllers").exists()).expect("a cgroup2 tree");
        let name = jail.name("rustjail-test-frozen");
        let group = top.join(&name);
        fs::create_dir(&group).unwrap();
        fs::write(group.join("cgroup.freeze"), "1").unwrap();
        jail.bundle.set("/linux/cgroupsPath", format!("/{name}/c").into());
        let mut command = jail.command(&["run", "c"]);
        let errors = fs::File::create(jail.path("errors")).unwrap();
        let command = command.stdout(Stdio::null()).stderr(errors).spawn().unwrap();
        let draft = jail.root.join("c/state.new");
        assert!(eventually(|| draft.exists()));
        Self { command, jail, group: Frozen(group) }
    }

    fn signal(&mut self, signal: Signal) -> i32 {
        kill(Pid::from_raw(self.command.id() as i32), signal).unwrap();
        wait(&mut self.command)
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        let _ = fs::write(self.group.0.join("cgroup.kill"), "1");
    }
}

#[test]
fn a_run_whose_process_gets_stuck_is_ended_by_a_signal() {
    let mut stuck = Stuck::new();
    assert_eq!(stuck.signal(Signal::SIGINT), 1);
    let errors = fs::read_to_string(stuck.jail.path("errors")).unwrap();
    assert!(errors.contains("a signal ended its creation"), "{errors}");
    assert_eq!(stuck.jail.ok(&["list", "-q"]), "");
}

/// The process keeps the descriptor by which its maker had locked the container.
#[test]
fn what_a_killed_run_left_stuck_is_removed_by_force() {
    let mut stuck = Stuck::new();
    assert_eq!(stuck.signal(Signal::SIGKILL), 128 + Signal::SIGKILL as i32);
    let mut delete = stuck.jail.command(&["delete", "--force", "c"]).spawn().unwrap();
    assert_eq!(wait(&mut delete), 0);
    assert_eq!(stuck.jail.ok(&["list", "-q"]), "");
}

/// As when the command is killed between letting the program run and telling that it does.
#[test]
fn a_run_that_died_before_it_could_tell_is_ended_by_force_only() {
    let jail = Jail::sleeping();
    jail.ok(&["run", "--detach", "c"]);
    let pid = jail.pid("c");
    fs::rename(jail.root.join("c/state"), jail.root.join("c/state.new")).unwrap();
    assert_eq!(jail.status("c"), "creating");
    jail.refused(&["exec", "c", "true"], 255, "cannot exec");
    jail.refused(&["delete", "c"], 1, "not stopped");
    assert_eq!(jail.status("c"), "creating");
    jail.ok(&["delete", "--force", "c"]);
    assert!(ends(pid));
    assert_eq!(jail.ok(&["list", "-q"]), "");
}

#[test]
fn two_containers_do_not_share_a_group() {
    let jail = Jail::sleeping();
    jail.ok(&["create", "a"]);
    jail.refused(&["create", "b"], 1, "already holds processes");
    assert_eq!(jail.ok(&["list", "-q"]), "a");
    assert_eq!(jail.status("a"), "created");
}
