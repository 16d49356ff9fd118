//! Control groups of both versions behind one type.
//!
//! A [`Cgroup`] is one container's group: the same path in every tree that [`Hierarchies`] found, held by
//! directory descriptors. Each limit goes to whichever version has its controller. Where controllers are on
//! v1 and a cgroup2 tree is mounted too, the group exists there as well, because only that tree has
//! `cgroup.kill`, a freezer that can be waited for and from which SIGKILL still works, and an event for the
//! last exit; the v1 freezer serves only where there is no cgroup2 at all. Without any tree every method
//! succeeds and does nothing, except that a requested limit is an error.
//!
//! ```text
//!            create                placement, update, stats ...            kill
//!  (nothing) ------> unpopulated <------------------------> populated ------------> unpopulated
//!      ^                  |                                  |     ^                     |
//!      |                  | delete                     freeze|     |thaw                 | delete
//!      +------------------+                                  frozen                      |
//!      +---------------------------------------------------------------------------------+
//! ```
//!
//! Everything here is blocking and short, but `freeze` waits for the processes: keep it off a reactor.

mod begin;
mod delete;
mod devices;
mod dir;
mod error;
mod freezer;
mod hierarchies;
mod kill;
mod limits;
mod oom;
mod parents;
mod parse;
mod path;
mod placement;
mod pressure;
mod reclaim;
mod stats;
pub mod systemd;
mod wait;
mod walk;

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use nix::{
    fcntl::OFlag,
    unistd::{Gid, Uid, fchownat},
};
use oci_spec::runtime::LinuxResources;

pub use self::{
    begin::{Begun, Filled},
    error::CgroupError,
    hierarchies::Hierarchies,
    oom::OomEvents,
    path::CgroupPath,
    placement::Placement,
    pressure::{MemoryPeak, PressureTrigger, Resource, Share},
    stats::{
        BlockIoEntry, BlockIoStats, CpuStats, HugetlbStats, MemoryStats, MemoryUsage, PidsStats, Pressure,
        RdmaStats, RdmaUsage, Stall, Stats,
    },
};
use self::{
    dir::Dir,
    hierarchies::{Hierarchy, words},
};

/// One container's control group, in every hierarchy the machine has.
#[derive(Debug)]
pub struct Cgroup {
    path: CgroupPath,
    v1: Vec<Member>,
    unified: Option<Unified>,
}

/// The group in one tree.
#[derive(Debug)]
struct Member {
    hierarchy: Arc<Hierarchy>,
    dir: Dir,
}

/// The group in the cgroup2 tree.
#[derive(Debug)]
struct Unified {
    member: Member,
    /// The controllers this group has, which may be fewer than the root's.
    controllers: Vec<String>,
    /// `cgroup.events`, which polls as POLLPRI after a change.
    events: OwnedFd,
}

/// The directory that has a controller's files, by the version that names them.
#[derive(Clone, Copy, Debug)]
enum Controller<'a> {
    V1(&'a Dir),
    V2(&'a Dir),
}

impl<'a> Controller<'a> {
    fn dir(self) -> &'a Dir {
        match self {
            Self::V1(dir) | Self::V2(dir) => dir,
        }
    }
}

impl Cgroup {
    /// Makes the group `path` in every hierarchy and writes its limits and device rules, without `resources`
    /// only the default device rules where they can be enforced.
    ///
    /// A group that exists already is taken over if it holds no process. When anything fails, what was made
    /// is removed again.
    pub fn create(
        hierarchies: &Hierarchies,
        path: &CgroupPath,
        resources: Option<&LinuxResources>,
    ) -> Result<Self, CgroupError> {
        Self::begin(hierarchies, path)?.finish(resources)
    }

    /// The group `path`, which systemd made for a unit: makes it in the hierarchies systemd does not
    /// manage, and writes the limits and device rules systemd has no properties for along with the others.
    pub fn adopt(
        hierarchies: &Hierarchies,
        path: &CgroupPath,
        resources: Option<&LinuxResources>,
    ) -> Result<Self, CgroupError> {
        for hierarchy in hierarchies.all() {
            parents::make(&hierarchy.root, path.as_path())?;
        }
        let group = Self::open(hierarchies, path)?;
        limits::admit(&group)?;
        limits::create(&group, resources)?;
        Ok(group)
    }

    /// A process can be born only into a domain. A group is none when one above it is threaded.
    fn require_domain(&self) -> Result<(), CgroupError> {
        let kind = match &self.unified {
            Some(unified) => unified.dir().read_if_any("cgroup.type")?.unwrap_or_default(),
            None => String::new(),
        };
        match kind.trim_end() {
            "" | "domain" | "domain threaded" => Ok(()),
            kind => Err(CgroupError::NotDomain { path: self.path().to_owned(), kind: kind.to_owned() }),
        }
    }

    /// The group `path`, which an earlier `create` made.
    pub fn open(hierarchies: &Hierarchies, path: &CgroupPath) -> Result<Self, CgroupError> {
        let v1 =
            hierarchies.v1.iter().map(|hierarchy| Member::open(hierarchy, path)).collect::<Result<_, _>>()?;
        let unified = match &hierarchies.v2 {
            Some(hierarchy) => Some(Unified::open(Member::open(hierarchy, path)?)?),
            None => None,
        };
        Ok(Self { path: path.clone(), v1, unified })
    }

    /// Relative to the hierarchies' roots.
    pub fn path(&self) -> &Path {
        self.path.as_path()
    }

    /// Changes limits; what `resources` omits stays as it is.
    pub fn update(&self, resources: &LinuxResources) -> Result<(), CgroupError> {
        limits::update(self, resources)
    }

    /// Gives the cgroup2 directory to a container's user namespace: exactly the files the kernel lists as
    /// safe to delegate. v1 has no safe delegation, so nothing changes there.
    pub fn delegate(&self, uid: Uid, gid: Gid) -> Result<(), CgroupError> {
        const DELEGATED: &str = "/sys/kernel/cgroup/delegate";
        let Some(unified) = &self.unified else {
            return Ok(());
        };
        let dir = &unified.member.dir;
        let files = std::fs::read_to_string(DELEGATED)
            .map_err(|source| CgroupError::io("read", DELEGATED, source))?;
        for file in ["."].into_iter().chain(files.lines()).filter(|file| dir.has(file)) {
            fchownat(dir, file, Some(uid), Some(gid), nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW)
                .map_err(|errno| CgroupError::io("change the owner of", dir.path().join(file), errno))?;
        }
        Ok(())
    }

    /// A descriptor that polls as POLLPRI when [`Cgroup::populated`] (which rearms it) may have changed;
    /// `None` where the kernel has no such event, which is without a cgroup2 tree.
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        self.unified.as_ref().map(|unified| unified.events.as_fd())
    }

    /// Where the files of `name` are, if any hierarchy gives it to this group.
    fn find(&self, name: &str) -> Option<Controller<'_>> {
        let has = |controllers: &[String]| controllers.iter().any(|controller| controller == name);
        if let Some(member) = self.v1.iter().find(|member| has(&member.hierarchy.controllers)) {
            return Some(Controller::V1(&member.dir));
        }
        self.unified
            .as_ref()
            .filter(|unified| has(&unified.controllers))
            .map(|unified| Controller::V2(unified.dir()))
    }

    fn controller(&self, name: &str) -> Result<Controller<'_>, CgroupError> {
        self.find(name).ok_or_else(|| CgroupError::NoController {
            controller: name.to_owned(),
            path: self.path().to_owned(),
        })
    }

    /// The group in every tree, cgroup2 last.
    fn members(&self) -> impl Iterator<Item = &Member> {
        self.v1.iter().chain(self.unified.as_ref().map(|unified| &unified.member))
    }
}

impl Member {
    fn open(hierarchy: &Arc<Hierarchy>, path: &CgroupPath) -> Result<Self, CgroupError> {
        let dir = hierarchy.root.child(path.as_path())?;
        Ok(Self { hierarchy: Arc::clone(hierarchy), dir })
    }
}

impl Unified {
    fn open(member: Member) -> Result<Self, CgroupError> {
        let controllers = words(&member.dir.read("cgroup.controllers")?);
        let events = member.dir.open_file("cgroup.events", OFlag::O_RDONLY)?;
        Ok(Self { member, controllers, events })
    }

    fn dir(&self) -> &Dir {
        &self.member.dir
    }
}
