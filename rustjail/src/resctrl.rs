//! Intel RDT: a container's share of caches and memory bandwidth, by the kernel's resctrl file system.
//!
//! A group is a directory with a `schemata` file; a process writes itself into its `tasks`, and what it forks
//! stays in it. A group that was found is left as it was found; one that was made for a container is the
//! container's and goes with it. Like a cgroup it belongs to whoever drives the container, who makes it before
//! the process and deletes it after the last one.

use std::{
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use oci_spec::runtime::LinuxIntelRdt;

/// Where the kernel's documentation has it mounted.
pub const ROOT: &str = "/sys/fs/resctrl";

/// A group of resctrl, for one container.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    /// It was not there before.
    made: bool,
    /// The group that only counts, within it.
    monitoring: Option<PathBuf>,
}

/// Why a container cannot have what `linux.intelRdt` asks for.
#[derive(Debug, thiserror::Error)]
pub enum ResctrlError {
    /// The name of a group that is not the name of a directory.
    #[error("linux.intelRdt.closID {0:?} is not the name of a directory")]
    Name(String),
    /// A schema that spans lines, or is none.
    #[error("{field} {line:?} is not one line of a schemata file")]
    Schema {
        /// Where it is set.
        field: &'static str,
        /// As it is set.
        line: String,
    },
    /// A group that is to be shared does not have the schemata that are asked for.
    #[error("the resctrl group {} exists and its schemata lack the line {line:?}", path.display())]
    Different {
        /// The group.
        path: PathBuf,
        /// What is asked for.
        line: String,
    },
    /// A system call failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
}

impl Group {
    /// The group of the container `id` beneath `root`, made if it is not there.
    pub fn create(root: &Path, id: &str, wanted: &LinuxIntelRdt) -> Result<Self, ResctrlError> {
        let named = wanted.clos_id().as_deref().filter(|name| !name.is_empty());
        let lines = lines(wanted)?;
        // Without any demand the container stays in the default group, and only counts by itself.
        let path = match (named, lines.is_empty()) {
            (None, true) => root.to_owned(),
            (None, false) => root.join(component(id)?),
            (Some("/"), _) => root.to_owned(),
            (Some(name), _) => root.join(component(name)?),
        };
        let made = path != root && make(&path)?;
        let mut group = Self { path, made, monitoring: None };
        let prepared = group.prepare(&lines).and_then(|()| group.monitor(wanted, id));
        match prepared {
            Ok(()) => Ok(group),
            Err(error) => {
                let _ = group.delete();
                Err(error)
            }
        }
    }

    /// The group that [`Group::create`] made or found for the container `id`, of a former runtime's making;
    /// `made` is what [`Group::was_made`] told then.
    pub fn open(root: &Path, id: &str, wanted: &LinuxIntelRdt, made: bool) -> Result<Self, ResctrlError> {
        let named = wanted.clos_id().as_deref().filter(|name| !name.is_empty());
        let path = match named {
            Some("/") => root.to_owned(),
            None if lines(wanted)?.is_empty() => root.to_owned(),
            name => root.join(component(name.unwrap_or(id))?),
        };
        let monitoring = monitors(wanted).then(|| path.join("mon_groups").join(id));
        Ok(Self { path, made, monitoring })
    }

    /// Whether the group was made for this container.
    pub fn was_made(&self) -> bool {
        self.made
    }

    /// The file to which a process that is to be in the group writes "0".
    pub fn tasks(&self) -> Result<OwnedFd, ResctrlError> {
        let path = self.monitoring.as_ref().unwrap_or(&self.path).join("tasks");
        let file = File::options().write(true).open(&path).map_err(failed("open", &path))?;
        Ok(file.into())
    }

    /// Takes away what was made for the container.
    pub fn delete(&self) -> Result<(), ResctrlError> {
        for path in [self.monitoring.as_ref(), self.made.then_some(&self.path)].into_iter().flatten() {
            match fs::remove_dir(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("remove the resctrl group", path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the schemata of a group that is new, and compares those of one that is not.
    fn prepare(&self, lines: &[String]) -> Result<(), ResctrlError> {
        let path = self.path.join("schemata");
        if self.made {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            return match text.is_empty() {
                true => Ok(()),
                false => fs::write(&path, text).map_err(failed("write the schemata to", &path)),
            };
        }
        if lines.is_empty() {
            return Ok(());
        }
        let found = fs::read_to_string(&path).map_err(failed("read", &path))?;
        match lines.iter().find(|line| !has(&found, line)) {
            None => Ok(()),
            Some(line) => Err(ResctrlError::Different { path: self.path.clone(), line: line.clone() }),
        }
    }

    fn monitor(&mut self, wanted: &LinuxIntelRdt, id: &str) -> Result<(), ResctrlError> {
        if monitors(wanted) {
            let path = self.path.join("mon_groups").join(component(id)?);
            make(&path)?;
            self.monitoring = Some(path);
        }
        Ok(())
    }
}

#[allow(deprecated, reason = "older configurations ask for monitoring by these")]
fn monitors(wanted: &LinuxIntelRdt) -> bool {
    [wanted.enable_monitoring(), wanted.enable_cmt(), wanted.enable_mbm()].contains(&&Some(true))
}

/// The lines for `schemata`: the older two settings, then the list, as the specification orders them.
fn lines(wanted: &LinuxIntelRdt) -> Result<Vec<String>, ResctrlError> {
    let mut lines = Vec::new();
    let split = |text: &Option<String>| -> Vec<String> {
        let lines = text.iter().flat_map(|text| text.lines()).filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    };
    // Bandwidth among the lines for caches counts only where it has no setting of its own.
    let takes_its_place = |line: &&String| wanted.mem_bw_schema().is_none() || !line.starts_with("MB:");
    for line in split(wanted.l3_cache_schema()).iter().filter(takes_its_place) {
        lines.push(one_line("linux.intelRdt.l3CacheSchema", line)?);
    }
    for line in &split(wanted.mem_bw_schema()) {
        lines.push(one_line("linux.intelRdt.memBwSchema", line)?);
    }
    for line in wanted.schemata().iter().flatten() {
        lines.push(one_line("linux.intelRdt.schemata", line)?);
    }
    Ok(lines)
}

fn one_line(field: &'static str, line: &str) -> Result<String, ResctrlError> {
    let plain = line.contains(':') && !line.chars().any(char::is_control);
    if plain { Ok(line.to_owned()) } else { Err(ResctrlError::Schema { field, line: line.to_owned() }) }
}

/// Whether a schemata file says of a resource what `line` says; the kernel pads and orders in its own way.
fn has(schemata: &str, line: &str) -> bool {
    let parts = |line: &str| {
        let (resource, domains) = line.trim().split_once(':')?;
        let domain = |text: &str| {
            let (id, value) = text.split_once('=')?;
            Some((id.trim().parse::<u32>().ok()?, value.trim().trim_start_matches('0').to_owned()))
        };
        Some((resource.to_owned(), domains.split(';').map(domain).collect::<Option<Vec<_>>>()?))
    };
    let Some((resource, wanted)) = parts(line) else { return false };
    schemata
        .lines()
        .filter_map(parts)
        .any(|(found, domains)| found == resource && wanted.iter().all(|domain| domains.contains(domain)))
}

fn component(name: &str) -> Result<&str, ResctrlError> {
    let plain = !matches!(name, "" | "." | ".." | "info" | "mon_data" | "mon_groups")
        && !name.contains(['/', '\0', '\n']);
    if plain { Ok(name) } else { Err(ResctrlError::Name(name.to_owned())) }
}

/// Whether the directory is new.
fn make(path: &Path) -> Result<bool, ResctrlError> {
    match fs::create_dir(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(failed("make the resctrl group", path)(error)),
    }
}

fn failed<'path>(
    action: &'static str,
    path: &'path Path,
) -> impl FnOnce(io::Error) -> ResctrlError + use<'path> {
    move |source| ResctrlError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A directory with the files the kernel has in one; it does not make those of a new group.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("rustjail-resctrl-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(path.join("mon_groups")).unwrap();
            fs::write(path.join("schemata"), "    L3:0=fffff;1=fffff\n    MB:0=100;1=100\n").unwrap();
            fs::write(path.join("tasks"), "").unwrap();
            Self(path)
        }

        fn create(&self, wanted: Value) -> Result<Group, ResctrlError> {
            Group::create(&self.0, "box", &serde_json::from_value(wanted).unwrap())
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_group_is_named_by_its_closid_or_by_the_container() {
        let tree = Tree::new("names");
        for (wanted, directory, made) in [
            (json!({}), "", false),
            (json!({"closID": "/"}), "", false),
            (json!({"closID": "gold"}), "gold", true),
            (json!({"closID": "gold"}), "gold", false),
            (json!({"l3CacheSchema": "L3:0=f"}), "box", true),
        ] {
            let group = tree.create(wanted.clone()).unwrap();
            assert_eq!((group.path.clone(), group.made), (tree.0.join(directory), made), "{wanted}");
        }
        for name in ["..", "a/b", "info", "."] {
            assert!(matches!(tree.create(json!({"closID": name})), Err(ResctrlError::Name(_))), "{name}");
        }
    }

    #[test]
    fn schemata_are_written_in_the_specifications_order() {
        let tree = Tree::new("order");
        let wanted =
            json!({"l3CacheSchema": "L3:0=f\nMB:0=10", "memBwSchema": "MB:0=20", "schemata": ["L2:0=3"]});
        let group = tree.create(wanted).unwrap();
        assert_eq!(fs::read_to_string(group.path.join("schemata")).unwrap(), "L3:0=f\nMB:0=20\nL2:0=3\n");
        for line in ["L3:0=f\nL3:1=f", "none", ""] {
            assert!(tree.create(json!({"schemata": [line]})).is_err(), "{line:?}");
        }
    }

    #[test]
    fn a_group_that_exists_has_to_have_what_is_asked_for() {
        let tree = Tree::new("exists");
        assert!(tree.create(json!({"closID": "/", "schemata": ["L3:1=0fffff"]})).is_ok());
        let error = tree.create(json!({"closID": "/", "schemata": ["L3:1=1"]})).unwrap_err().to_string();
        assert!(error.contains("its schemata lack the line \"L3:1=1\""), "{error}");
    }

    #[test]
    fn monitoring_is_a_group_within_and_what_was_made_goes() {
        let tree = Tree::new("monitoring");
        let group = tree.create(json!({"enableMonitoring": true})).unwrap();
        assert_eq!(group.monitoring, Some(tree.0.join("mon_groups/box")));
        fs::write(tree.0.join("mon_groups/box/tasks"), "").unwrap();
        group.tasks().unwrap();
        fs::remove_file(tree.0.join("mon_groups/box/tasks")).unwrap();
        group.delete().unwrap();
        group.delete().unwrap();
        assert!(tree.0.exists() && !tree.0.join("mon_groups/box").exists());
    }
}
