//! Groups above a container's own: removed with the last container if they were made for one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustjail::cgroup::{Cgroup, CgroupPath, Hierarchies};

use crate::group::unique;

/// Wherever a hierarchy is mounted, the group `path` there.
fn everywhere(path: &Path) -> Vec<PathBuf> {
    let trees = fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
    trees.filter(|tree| tree.join("cgroup.procs").exists()).map(|tree| tree.join(path)).collect()
}

fn path(text: &Path) -> CgroupPath {
    CgroupPath::parse(Some(text), "unused").unwrap()
}

#[test]
fn they_go_with_the_last_container() {
    let hierarchies = Hierarchies::detect().unwrap();
    let top = unique();
    let (one, other) = (top.as_path().join("pod/one"), top.as_path().join("other"));
    let first = Cgroup::create(&hierarchies, &path(&one), None).unwrap();
    let second = Cgroup::create(&hierarchies, &path(&other), None).unwrap();
    first.delete().unwrap();
    assert!(everywhere(&top.as_path().join("pod")).iter().all(|pod| !pod.exists()));
    assert!(everywhere(top.as_path()).iter().all(|top| top.is_dir()), "the other container's");
    // Whoever removes the last one need not be who made it.
    drop(second);
    Cgroup::open(&hierarchies, &path(&other)).unwrap().delete().unwrap();
    assert!(everywhere(top.as_path()).iter().all(|top| !top.exists()));
}

#[test]
fn those_of_others_stay() {
    let hierarchies = Hierarchies::detect().unwrap();
    let top = unique();
    everywhere(top.as_path()).iter().for_each(|top| fs::create_dir(top).unwrap());
    let group = Cgroup::create(&hierarchies, &path(&top.as_path().join("pod/one")), None).unwrap();
    // A process of somebody else's moved into a group that was made for the container.
    let mut guest = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let used = everywhere(&top.as_path().join("pod"));
    let used: Vec<_> = used
        .iter()
        .filter(|pod| fs::write(pod.join("cgroup.procs"), guest.id().to_string()).is_ok())
        .collect();
    assert!(!used.is_empty());
    group.delete().unwrap();
    let stayed = used.iter().all(|pod| pod.is_dir());
    let tops = everywhere(top.as_path()).iter().all(|top| top.is_dir());
    guest.kill().unwrap();
    guest.wait().unwrap();
    used.iter().for_each(|pod| fs::remove_dir(pod).unwrap());
    everywhere(top.as_path()).iter().for_each(|top| fs::remove_dir(top).unwrap());
    assert!(stayed && tops);
}

#[test]
fn a_failed_create_removes_them_too() {
    let hierarchies = Hierarchies::detect().unwrap();
    let top = unique();
    let resources = serde_json::from_str(r#"{"unified": {"memory.nonsense": "1"}}"#).unwrap();
    let one = path(&top.as_path().join("pod/one"));
    assert!(Cgroup::create(&hierarchies, &one, Some(&resources)).is_err());
    assert!(everywhere(top.as_path()).iter().all(|top| !top.exists()));
}

/// Creations and removals below one parent do not get into each other's way.
#[test]
fn neighbours_come_and_go() {
    let hierarchies = Hierarchies::detect().unwrap();
    let top = unique();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (hierarchies, top) = (&hierarchies, &top);
            scope.spawn(move || {
                for _ in 0..20 {
                    let one = path(&top.as_path().join(format!("pod/{number}")));
                    Cgroup::create(hierarchies, &one, None).unwrap().delete().unwrap();
                }
            });
        }
    });
    assert!(everywhere(top.as_path()).iter().all(|top| !top.exists()));
}
