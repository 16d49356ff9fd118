//! `unified`: cgroup2 files by name, including ones this code has never heard of.

use std::{collections::HashMap, ffi::OsStr};

use super::super::{
    Cgroup, CgroupError, Controller,
    dir::{Dir, is_component},
};

/// The core's own files that limit something. Its others move, kill, freeze or restructure.
const CORE: [&str; 3] = ["cgroup.max.depth", "cgroup.max.descendants", "cgroup.pressure"];

pub(super) fn apply(group: &Cgroup, files: &HashMap<String, String>) -> Result<(), CgroupError> {
    for (file, value) in files {
        let controller = controller_of(file)?;
        let dir = if controller == "cgroup" {
            group.unified.as_ref().map(|unified| unified.dir())
        } else {
            group.find(controller).and_then(|controller| match controller {
                Controller::V1(_) => None,
                Controller::V2(dir) => Some(dir),
            })
        };
        let missing = || CgroupError::NoController {
            controller: format!("cgroup2 {controller}"),
            path: group.path().to_owned(),
        };
        write(dir.ok_or_else(missing)?, file, value)?;
    }
    Ok(())
}

/// A file's controller is the first part of its name.
fn controller_of(file: &str) -> Result<&str, CgroupError> {
    let invalid = |reason| CgroupError::invalid("unified", file, reason);
    if !is_component(OsStr::new(file)) {
        return Err(invalid("it is the name of one file"));
    }
    match file.split_once('.') {
        Some(("cgroup", _)) if !CORE.contains(&file) => Err(invalid("this file is the runtime's to write")),
        Some((controller, rest)) if !controller.is_empty() && !rest.is_empty() => Ok(controller),
        _ => Err(invalid("its name is a controller, a dot and a setting")),
    }
}

/// Files that take a line for each device take one line for each write.
fn write(dir: &Dir, file: &str, value: &str) -> Result<(), CgroupError> {
    if value.trim().is_empty() {
        return dir.write(file, value);
    }
    value.lines().filter(|line| !line.trim().is_empty()).try_for_each(|line| dir.write(file, line))
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::Fixture, *};

    #[test]
    fn names_of_files() {
        assert_eq!(controller_of("memory.high").unwrap(), "memory");
        assert_eq!(controller_of("hugetlb.1GB.max").unwrap(), "hugetlb");
        assert_eq!(controller_of("cgroup.max.depth").unwrap(), "cgroup");
        for file in [
            "",
            ".",
            "..",
            "memory",
            ".max",
            "memory.",
            "../memory.max",
            "a/memory.max",
            "memory.max\0",
            "cgroup.procs",
            "cgroup.threads",
            "cgroup.kill",
            "cgroup.freeze",
            "cgroup.subtree_control",
            "cgroup.type",
        ] {
            assert!(controller_of(file).is_err(), "{file:?}");
        }
    }

    #[test]
    fn values_are_written_line_by_line() {
        let files = Fixture::new(&[("io.max", "")]);
        write(&files.dir, "io.max", "8:0 rbps=1\n\n8:1 rbps=2\n").unwrap();
        assert_eq!(files.text("io.max"), "8:1 rbps=2");
        assert!(matches!(write(&files.dir, "io.none", "1"), Err(CgroupError::NoFile { .. })));
    }
}
