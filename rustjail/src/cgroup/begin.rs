//! Making a group step by step, so that a process can go on while the longer ones are taken.
//!
//! A process is born into the cgroup2 directory, so that one has to be there before it. The v1 directories, the
//! limits and the device rules have to be there before its program: making them takes as long as mounting what a
//! container needs, and on cgroup v1 longer, where entering them takes as long as writing limits. What is begun and
//! not finished is undone.
//!
//! ```text
//!  begin --> birthplace: clone3 ... the process mounts
//!    |         fill --> tasks: sync::enter ... the process enters, and waits
//!    |          |          limit ............. sync::place, it goes on
//!    +----------+-- dropped, or a step fails: the process is killed, the directories are removed
//! ```

use std::{mem, os::fd::OwnedFd, sync::Arc, time::Duration};

use oci_spec::runtime::LinuxResources;

use super::{Cgroup, CgroupError, CgroupPath, Hierarchies, Member, limits, parents};

/// How long a process that was born into a group that is undone is given to end.
const UNDO: Duration = Duration::from_secs(10);

/// A group that a process can be born into, but in which it must not run its program yet.
#[derive(Debug)]
pub struct Begun {
    hierarchies: Hierarchies,
    /// With the cgroup2 directory alone.
    group: Cgroup,
    /// That directory did not exist before, and is nobody else's.
    is_made: bool,
}

impl Cgroup {
    /// Makes the group `path` as far as a process needs it to be born.
    ///
    /// A cgroup2 directory that exists already is taken over if it holds no process.
    pub fn begin(hierarchies: &Hierarchies, path: &CgroupPath) -> Result<Begun, CgroupError> {
        let unified = Hierarchies { v1: Vec::new(), v2: hierarchies.v2.clone() };
        let is_made = match &unified.v2 {
            Some(hierarchy) => parents::make(&hierarchy.root, path.as_path())?,
            None => false,
        };
        let opened = match &unified.v2 {
            Some(hierarchy) => limits::enable_controllers(hierarchy, path.as_path()),
            None => Ok(()),
        };
        let group = opened.and_then(|()| Self::open(&unified, path)).inspect_err(|_| {
            if is_made {
                parents::unmake(&unified, path);
            }
        })?;
        let begun = Begun { hierarchies: hierarchies.clone(), group, is_made };
        begun.group.require_domain()?;
        if begun.group.unified.is_some() && !is_made && begun.group.populated()? {
            return Err(CgroupError::Occupied { path: path.as_path().to_owned() });
        }
        Ok(begun)
    }
}

impl Begun {
    /// The cgroup2 directory for CLONE_INTO_CGROUP, where there is one.
    pub fn birthplace(&self) -> Result<Option<OwnedFd>, CgroupError> {
        self.group.unified.as_ref().map(|unified| unified.dir().try_clone_fd()).transpose()
    }

    /// [`Begun::fill`] and [`Filled::limit`] in one.
    pub fn finish(self, resources: Option<&LinuxResources>) -> Result<Cgroup, CgroupError> {
        self.fill()?.limit(resources)
    }

    /// Makes the rest. From here on processes can enter.
    ///
    /// v1 directories that exist already are taken over if they hold no process. When anything fails, what was made
    /// is removed again, and what was born into it is killed.
    pub fn fill(mut self) -> Result<Filled, CgroupError> {
        let path = self.group.path.clone();
        let mut made = Hierarchies::default();
        if let Err(error) = self.make_rest(&mut made).and_then(|()| limits::admit(&self.group)) {
            self.group.v1.clear();
            parents::unmake(&made, &path);
            return Err(error);
        }
        if mem::take(&mut self.is_made) {
            made.v2.clone_from(&self.hierarchies.v2);
        }
        let (v1, unified) = (mem::take(&mut self.group.v1), self.group.unified.take());
        Ok(Filled { group: Cgroup { path, v1, unified }, made })
    }

    fn make_rest(&mut self, made: &mut Hierarchies) -> Result<(), CgroupError> {
        let group = &mut self.group;
        let v1 = &self.hierarchies.v1;
        for hierarchy in v1 {
            if parents::make(&hierarchy.root, group.path.as_path())? {
                made.v1.push(Arc::clone(hierarchy));
            }
        }
        group.v1 =
            v1.iter().map(|hierarchy| Member::open(hierarchy, &group.path)).collect::<Result<_, _>>()?;
        // With a cgroup2 directory that was asked there, before one was born into it.
        if group.unified.is_none() && made.v1.len() < v1.len() && group.populated()? {
            return Err(CgroupError::Occupied { path: group.path.as_path().to_owned() });
        }
        Ok(())
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.is_made {
            // There is an error to report already.
            let _ = self.group.destroy(UNDO);
        }
    }
}

/// A group that processes can enter, without its limits: no program may run in it yet.
#[derive(Debug)]
pub struct Filled {
    group: Cgroup,
    /// Where its directory did not exist before, and is nobody else's.
    made: Hierarchies,
}

impl Filled {
    /// The files by which a process enters what was not there when it was born.
    pub fn tasks(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        self.group.tasks()
    }

    /// Writes limits and device rules, without `resources` only the default device rules where they can be enforced.
    ///
    /// When anything fails, what is in the directories that were made is killed, and they are removed.
    pub fn limit(mut self, resources: Option<&LinuxResources>) -> Result<Cgroup, CgroupError> {
        limits::create(&self.group, resources)?;
        self.made = Hierarchies::default();
        let (v1, unified) = (mem::take(&mut self.group.v1), self.group.unified.take());
        Ok(Cgroup { path: self.group.path.clone(), v1, unified })
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        let made = mem::take(&mut self.made);
        if made.is_empty() {
            return;
        }
        self.group.v1.retain(|member| made.v1.iter().any(|tree| Arc::ptr_eq(tree, &member.hierarchy)));
        self.group.unified.take_if(|_| made.v2.is_none());
        // There is an error to report already.
        let _ = self.group.destroy(UNDO);
    }
}
