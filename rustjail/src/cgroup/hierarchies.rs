//! Which cgroup hierarchies this machine has mounted, found once and shared by every group.
//!
//! The three layouts differ only in what is mounted: v2 alone (one cgroup2 tree with all controllers), v1
//! (a tree for each controller or set of controllers), and hybrid (v1 plus a cgroup2 tree with few or no
//! controllers). A controller is in one tree at a time, so which version serves a limit is asked for each
//! controller, never for the machine. No tree at all is a layout too: groups are then names without effect.

use std::{
    collections::HashSet,
    ffi::OsString,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::sys::{
    stat::{fstat, major, minor},
    statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, TMPFS_MAGIC, fstatfs},
};

use super::{CgroupError, dir::Dir};
use crate::procfs;

/// The controllers a v1 hierarchy can have; the other words among its mount options are options.
const V1_CONTROLLERS: [&str; 16] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "debug",
    "devices",
    "dmem",
    "freezer",
    "hugetlb",
    "memory",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
    "rdma",
];

/// Where the trees are by convention.
const CONVENTION: &str = "/sys/fs/cgroup";

/// One mounted tree.
#[derive(Debug)]
pub(super) struct Hierarchy {
    /// Those it offers at its root; a v1 tree's are fixed, a cgroup2 tree's may change with v1 mounts.
    pub(super) controllers: Vec<String>,
    pub(super) root: Dir,
}

/// Every mounted tree. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Hierarchies {
    pub(super) v1: Vec<Arc<Hierarchy>>,
    pub(super) v2: Option<Arc<Hierarchy>>,
}

impl Hierarchies {
    /// Finds them: where everybody mounts them, else among the caller's mounts.
    pub fn detect() -> Result<Self, CgroupError> {
        match Self::conventional() {
            Some(found) => Ok(found),
            None => Self::mounted(),
        }
    }

    /// Those of a machine with cgroup2 at /sys/fs/cgroup, or with a directory for each tree there, named by its
    /// controllers. `None` as soon as anything is not so, or the tree is not there without which a container would be
    /// given every device. Having the kernel write down all mounts takes several times as long, and a command does it for
    /// each container.
    fn conventional() -> Option<Self> {
        let top = Dir::open(Path::new(CONVENTION)).ok()?;
        let mut found = Self::default();
        match fstatfs(&top).ok()?.filesystem_type() {
            CGROUP2_SUPER_MAGIC => found.v2 = Some(Arc::new(Hierarchy::unified(top).ok()?)),
            TMPFS_MAGIC => {
                for name in top.subgroups().ok()? {
                    found.add(top.child(&name).ok()?, name.to_str()?)?;
                }
                found.v1.iter().find(|tree| tree.controllers.iter().any(|name| name == "devices"))?;
            }
            _ => return None,
        }
        Some(found)
    }

    fn add(&mut self, root: Dir, name: &str) -> Option<()> {
        match fstatfs(&root).ok()?.filesystem_type() {
            CGROUP2_SUPER_MAGIC if self.v2.is_none() => {
                self.v2 = Some(Arc::new(Hierarchy::unified(root).ok()?));
            }
            CGROUP_SUPER_MAGIC => {
                let controllers = controllers_in(name)?;
                self.v1.push(Arc::new(Hierarchy { controllers, root }));
            }
            // Nothing is mounted there.
            TMPFS_MAGIC => {}
            _ => return None,
        }
        Some(())
    }

    fn mounted() -> Result<Self, CgroupError> {
        const MOUNTS: &str = "/proc/self/mountinfo";
        let mounts = procfs::read(MOUNTS).map_err(|source| CgroupError::io("read", MOUNTS, source))?;
        let mut found = Self::default();
        let mut seen = HashSet::new();
        for mount in mounts.split(|byte| *byte == b'\n').filter_map(Mount::parse) {
            // Whatever is mounted over it hides it: the directory found there is then of another device.
            let Ok(root) = Dir::open(&mount.point) else {
                continue;
            };
            if !is_device(&root, mount.device) || !seen.insert(mount.device) {
                continue;
            }
            if mount.unified {
                found.v2 = Some(Arc::new(Hierarchy::unified(root)?));
            } else {
                found.v1.push(Arc::new(Hierarchy { controllers: mount.controllers, root }));
            }
        }
        Ok(found)
    }

    /// Whether nothing is mounted: groups then limit and track nothing.
    pub fn is_empty(&self) -> bool {
        self.v1.is_empty() && self.v2.is_none()
    }

    /// Every tree, cgroup2 last.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Hierarchy>> {
        self.v1.iter().chain(&self.v2)
    }
}

impl Hierarchy {
    fn unified(root: Dir) -> Result<Self, CgroupError> {
        let controllers = words(&root.read("cgroup.controllers")?);
        Ok(Self { controllers, root })
    }
}

/// Those of a v1 tree in a directory of this name, if that tells: systemd's own has none, and goes by its name.
fn controllers_in(name: &str) -> Option<Vec<String>> {
    if name == "systemd" {
        return Some(vec!["name=systemd".to_owned()]);
    }
    let controllers = name.split(',');
    controllers.map(|name| V1_CONTROLLERS.contains(&name).then(|| name.to_owned())).collect()
}

pub(super) fn words(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

fn is_device(root: &Dir, device: (u64, u64)) -> bool {
    fstat(root).is_ok_and(|stat| (major(stat.st_dev), minor(stat.st_dev)) == device)
}

/// A line of mountinfo(5) that is about a cgroup tree.
#[derive(Debug, PartialEq)]
struct Mount {
    device: (u64, u64),
    point: PathBuf,
    unified: bool,
    controllers: Vec<String>,
}

impl Mount {
    /// `31 23 0:28 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu`, where the number of
    /// words before the lone dash varies.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let (device, point) = (fields.nth(2)?, fields.nth(1)?);
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        let unified = match fields.next()? {
            b"cgroup" => false,
            b"cgroup2" => true,
            _ => return None,
        };
        let options = str::from_utf8(fields.nth(1)?).ok()?;
        let controllers = options
            .split(',')
            .filter(|option| V1_CONTROLLERS.contains(option) || option.starts_with("name="))
            .map(str::to_owned)
            .collect();
        let (major, minor) = str::from_utf8(device).ok()?.split_once(':')?;
        Some(Self {
            device: (major.parse().ok()?, minor.parse().ok()?),
            point: unescape(point),
            unified,
            controllers: if unified { Vec::new() } else { controllers },
        })
    }
}

/// mountinfo writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    Path::new(&OsString::from_vec(plain)).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines() {
        let line = b"32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:7 master:1 - cgroup cgroup rw,xattr,cpu,cpuacct";
        let mount = Mount::parse(line).unwrap();
        assert_eq!(mount.device, (0, 29));
        assert_eq!(mount.point, Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(mount.controllers, ["cpu", "cpuacct"]);
        let named =
            Mount::parse(b"40 31 0:37 / /a\\040b\\134c rw - cgroup none rw,xattr,name=systemd").unwrap();
        assert_eq!(named.point, Path::new("/a b\\c"));
        assert_eq!(named.controllers, ["name=systemd"]);
        let unified =
            Mount::parse(b"41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate,cpu").unwrap();
        assert!(unified.unified && unified.controllers.is_empty());
    }

    #[test]
    fn the_convention_and_the_mounts_tell_the_same() {
        let Some(found) = Hierarchies::conventional() else { return };
        let tell = |found: &Hierarchies| {
            let mut trees: Vec<_> = found
                .all()
                .map(|tree| {
                    (tree.root.path().to_owned(), tree.controllers.clone(), fstat(&tree.root).unwrap().st_dev)
                })
                .collect();
            trees.sort();
            trees
        };
        assert_eq!(tell(&found), tell(&Hierarchies::mounted().unwrap()));
    }

    #[test]
    fn names_of_directories_tell_controllers_or_nothing() {
        assert_eq!(controllers_in("cpu,cpuacct").unwrap(), ["cpu", "cpuacct"]);
        assert_eq!(controllers_in("systemd").unwrap(), ["name=systemd"]);
        for name in ["", "cpu,", "elogind", "unified", "cpu,else"] {
            assert_eq!(controllers_in(name), None, "{name:?}");
        }
    }

    #[test]
    fn other_lines_and_broken_ones_are_passed_over() {
        for line in [
            &b"23 1 8:1 / / rw - ext4 /dev/root rw"[..],
            b"",
            b"-",
            b"1 2 3",
            b"40 31 0:x / /p rw - cgroup none rw",
            b"40 31 0:1 / /p rw - cgroup",
            b"40 31 0:1 / /p rw - cgroup none \xff\xfe",
        ] {
            assert_eq!(Mount::parse(line), None);
        }
        assert_eq!(unescape(b"\\04"), Path::new("\\04"));
        assert_eq!(unescape(b"\\999x"), Path::new("\\999x"));
    }
}
