//! Groups that are made in two steps: what is there after the first, and what is left when there is no second.

use std::{fs, path::PathBuf, process::Command};

use rustjail::cgroup::{Cgroup, CgroupError, CgroupPath, Hierarchies};

use super::{
    ONLY_V1, ONLY_V2,
    group::{has_v1, unique},
    in_view,
};

/// The directories named `path`, wherever a hierarchy is mounted.
fn directories(path: &CgroupPath) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let points = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (point, kind) = (words.next()?, words.next()?);
        kind.starts_with("cgroup").then(|| PathBuf::from(point).join(path.as_path()))
    });
    points.filter(|directory| directory.is_dir()).collect()
}

/// Puts a process into every one of `directories`, as one that is born there would be.
fn inhabit(directories: &[PathBuf]) -> std::process::Child {
    let process = Command::new("sleep").arg("1000").spawn().unwrap();
    for directory in directories {
        fs::write(directory.join("cgroup.procs"), process.id().to_string()).unwrap();
    }
    process
}

fn two_steps() {
    let hierarchies = Hierarchies::detect().unwrap();
    let path = unique();
    let begun = Cgroup::begin(&hierarchies, &path).unwrap();
    let unified = directories(&path);
    assert_eq!(unified.len(), usize::from(begun.birthplace().unwrap().is_some()));
    let mut born = inhabit(&unified);
    let group = begun.finish(None).unwrap();
    assert_eq!(group.populated().unwrap(), !unified.is_empty());
    assert_eq!(group.placement().unwrap().tasks.len(), directories(&path).len() - unified.len());
    group.kill().unwrap();
    born.kill().unwrap();
    born.wait().unwrap();
    group.delete().unwrap();
    assert_eq!(directories(&path), Vec::<PathBuf>::new());
}

fn nothing_is_left_of_one_step() {
    let hierarchies = Hierarchies::detect().unwrap();
    let path = unique();
    drop(Cgroup::begin(&hierarchies, &path).unwrap());
    assert_eq!(directories(&path), Vec::<PathBuf>::new());

    let begun = Cgroup::begin(&hierarchies, &path).unwrap();
    let unified = directories(&path);
    let mut born = inhabit(&unified);
    let impossible = serde_json::from_str(r#"{"unified": {"no.such_file": "1"}}"#).unwrap();
    let error = begun.finish(Some(&impossible)).unwrap_err();
    assert!(!matches!(error, CgroupError::Busy { .. }), "{error}");
    assert_eq!(directories(&path), Vec::<PathBuf>::new());
    if unified.is_empty() {
        born.kill().unwrap();
    }
    // Where it was born into the group, it was killed with that.
    let ended = born.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9));
}

fn nothing_is_left_without_limits() {
    let hierarchies = Hierarchies::detect().unwrap();
    let path = unique();
    let filled = Cgroup::begin(&hierarchies, &path).unwrap().fill().unwrap();
    let mut entered = inhabit(&directories(&path));
    let impossible = serde_json::from_str(r#"{"unified": {"no.such_file": "1"}}"#).unwrap();
    filled.limit(Some(&impossible)).unwrap_err();
    assert_eq!(directories(&path), Vec::<PathBuf>::new());
    let ended = entered.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9));
}

fn what_was_there_before_stays() {
    let hierarchies = Hierarchies::detect().unwrap();
    let path = unique();
    let before = Cgroup::create(&hierarchies, &path, None).unwrap();
    let there = directories(&path);
    drop(Cgroup::begin(&hierarchies, &path).unwrap().fill().unwrap());
    assert_eq!(directories(&path), there);
    before.delete().unwrap();
}

fn both() {
    two_steps();
    nothing_is_left_of_one_step();
    nothing_is_left_without_limits();
    what_was_there_before_stays();
}

#[test]
fn in_this_machines_layout() {
    both();
}

#[test]
fn with_v1_alone() {
    if has_v1("pids") {
        in_view(ONLY_V1, "begun::view_both");
    }
}

#[test]
fn with_v2_alone() {
    in_view(ONLY_V2, "begun::view_both");
}

#[test]
#[ignore = "run in a view by other tests"]
fn view_both() {
    both();
}
