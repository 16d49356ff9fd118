//! A procfs of our own.
//!
//! Writes that take effect on this process or its namespaces must not go through the `/proc` of an image,
//! where a link or a mount can lead them elsewhere (CVE-2019-19921, CVE-2025-52881). This one is made by the
//! process itself and attached nowhere, so nobody can put anything into it; and every lookup refuses to
//! leave it.

use std::{io::Write, os::fd::OwnedFd, path::Path};

use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2},
    sys::{
        stat::Mode,
        statfs::{PROC_SUPER_MAGIC, fstatfs},
    },
};

use super::step::At;
use crate::{
    launch,
    plan::{Labels, Plan},
    sync::StepError,
    sys::mount::FileSystem,
};

/// The root of a detached procfs of this process's PID namespace.
#[derive(Debug)]
pub(super) struct Proc(OwnedFd);

impl Proc {
    /// `None` when nothing in the plan goes through procfs: making one takes a good part of a launch.
    pub(super) fn open_if_needed(plan: &Plan) -> Result<Option<Self>, StepError> {
        let makes_cgroup_binds = plan.root.as_ref().is_some_and(super::cgroupfs::needs_own_path);
        let has_sysctls = plan.root.as_ref().is_some_and(|root| !root.sysctls.is_empty());
        let adjusts = plan.process.oom_score_adj.is_some()
            && plan.namespaces.create & libc::CLONE_NEWUSER as u64 == 0
            && !launch::maker_adjusts(plan);
        let has_clocks = !plan.namespaces.time_offsets.is_empty();
        let has_labels = plan.process.labels != Labels::default();
        let needed = makes_cgroup_binds || has_sysctls || adjusts || has_clocks || has_labels;
        needed.then(Self::open).transpose()
    }

    fn open() -> Result<Self, StepError> {
        let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
        let root =
            FileSystem::open("proc").and_then(|fs| fs.mount(attributes)).at("make a private", "procfs")?;
        Ok(Self(root))
    }

    /// Replaces the value of the file `path`.
    pub(super) fn write(&self, path: impl AsRef<Path>, value: &str) -> Result<(), StepError> {
        let shown = Path::new("/proc").join(&path);
        self.file(path.as_ref(), OFlag::O_WRONLY)
            .and_then(|mut file| file.write_all(value.as_bytes()))
            .at(&format!("write {value:?} to"), shown)
    }

    /// The text of the file `path`.
    pub(super) fn read(&self, path: &str) -> Result<String, StepError> {
        self.file(Path::new(path), OFlag::O_RDONLY)
            .and_then(std::io::read_to_string)
            .at("read", Path::new("/proc").join(path))
    }

    /// The time namespace that children of this process are born into. Its link is one of those that lead out
    /// of procfs, so it alone is followed without the usual care, from a directory opened with it.
    pub(super) fn time_for_children(&self) -> Result<OwnedFd, StepError> {
        let name = "time_for_children";
        self.file(Path::new("self/ns"), OFlag::O_PATH | OFlag::O_DIRECTORY)
            .and_then(|directory| Ok(openat(&directory, name, OFlag::O_CLOEXEC, Mode::empty())?))
            .at("open", "/proc/self/ns/time_for_children")
    }

    fn file(&self, path: &Path, flags: OFlag) -> std::io::Result<std::fs::File> {
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(
            ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_MAGICLINKS,
        );
        let fd = openat2(&self.0, path, how)?;
        if fstatfs(&fd)?.filesystem_type() != PROC_SUPER_MAGIC {
            return Err(std::io::Error::from_raw_os_error(libc::EXDEV));
        }
        Ok(fd.into())
    }
}
