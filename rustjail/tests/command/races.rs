//! Commands at the same time, and commands that die.

use std::{
    fs,
    os::{fd::AsRawFd, unix::net::UnixStream},
    process::Stdio,
};

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};

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
    let record = jail.root.join("c/state.json");
    assert!(eventually(|| fs::read_to_string(&record).is_ok_and(|text| text.contains("\"complete\":true"))));
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
fn two_containers_do_not_share_a_group() {
    let jail = Jail::sleeping();
    jail.ok(&["create", "a"]);
    jail.refused(&["create", "b"], 1, "already holds processes");
    assert_eq!(jail.ok(&["list", "-q"]), "a");
    assert_eq!(jail.status("a"), "created");
}
