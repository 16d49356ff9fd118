//! Writing `linux.resources`. Each file here is one controller with both versions' names side by side; its
//! functions take a directory, so what they write can be seen in any directory.
//!
//! Limits are numbers of which Go's zero means "not given": engines send it for limits nobody set. -1 is
//! "unlimited", and every other negative number is refused. What a version cannot express is an error,
//! never passed over, with the one exception of kernel memory limits, which no kernel since 5.4 has.

mod block_io;
mod cpu;
mod cpuset;
mod enable;
mod hugetlb;
mod memory;
mod network;
mod pids;
mod rdma;
mod restore;
mod unified;

use oci_spec::runtime::LinuxResources;

pub(super) use self::{cpu::shares_to_weight, enable::enable_controllers};
use super::{Cgroup, CgroupError, Controller, devices, dir::Dir};

/// Has a new group take processes: a v1 cpuset starts without CPUs, and then it takes none.
pub(super) fn admit(group: &Cgroup) -> Result<(), CgroupError> {
    match group.find("cpuset") {
        Some(Controller::V1(dir)) => cpuset::inherit(dir, group.path().components().count()),
        _ => Ok(()),
    }
}

/// Writes the limits of a new group, and the device rules it is born with.
pub(super) fn create(group: &Cgroup, resources: Option<&LinuxResources>) -> Result<(), CgroupError> {
    match resources.and_then(|resources| resources.devices().as_deref()) {
        Some(rules) => devices::enforce(group, rules)?,
        None => devices::enforce_defaults(group)?,
    }
    resources.map_or(Ok(()), |resources| limits(group, resources))
}

/// Writes what is given, and leaves everything else. When the kernel refuses one of the limits, those written
/// before it are put back.
pub(super) fn update(group: &Cgroup, resources: &LinuxResources) -> Result<(), CgroupError> {
    let before = restore::Snapshot::take(group, resources);
    if let Err(refused) = limits(group, resources) {
        return Err(match before.restore() {
            Ok(()) => refused,
            Err(left) => CgroupError::HalfUpdated { refused: Box::new(refused), left: Box::new(left) },
        });
    }
    // They replace one another in steps that each are safe, and have no limit after them that could fail.
    match resources.devices() {
        Some(rules) => devices::enforce(group, rules),
        None => Ok(()),
    }
}

fn limits(group: &Cgroup, resources: &LinuxResources) -> Result<(), CgroupError> {
    if let Some(cpu) = resources.cpu() {
        cpu::apply(group, cpu)?;
        cpuset::apply(group, cpu)?;
    }
    if let Some(memory) = resources.memory() {
        memory::apply(group, memory)?;
    }
    if let Some(pids) = resources.pids() {
        pids::apply(group, pids)?;
    }
    if let Some(block_io) = resources.block_io() {
        block_io::apply(group, block_io)?;
    }
    if let Some(limits) = resources.hugepage_limits() {
        hugetlb::apply(group, limits)?;
    }
    if let Some(network) = resources.network() {
        network::apply(group, network)?;
    }
    if let Some(rdma) = resources.rdma() {
        rdma::apply(group, rdma)?;
    }
    // Last, because they are the more specific request.
    if let Some(files) = resources.unified() {
        unified::apply(group, files)?;
    }
    Ok(())
}

/// A limit that was given.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Limit {
    To(u64),
    Unlimited,
}

impl Limit {
    fn given(setting: &'static str, value: Option<i64>) -> Result<Option<Self>, CgroupError> {
        match value {
            None | Some(0) => Ok(None),
            Some(-1) => Ok(Some(Self::Unlimited)),
            Some(value) => u64::try_from(value)
                .map(|value| Some(Self::To(value)))
                .map_err(|_| CgroupError::invalid(setting, value, "only -1 (unlimited) may be negative")),
        }
    }

    fn v1(self) -> String {
        match self {
            Self::To(value) => value.to_string(),
            Self::Unlimited => "-1".to_owned(),
        }
    }

    fn v2(self) -> String {
        match self {
            Self::To(value) => value.to_string(),
            Self::Unlimited => "max".to_owned(),
        }
    }
}

/// Makes several writes of which the kernel checks each against the others' present values, so that the
/// right order depends on what is there: those it refuses are tried again after the others.
fn write_in_any_order(dir: &Dir, mut writes: Vec<(&str, String)>) -> Result<(), CgroupError> {
    loop {
        let mut refused = Ok(());
        let before = writes.len();
        writes.retain(|(file, value)| match dir.write(file, value) {
            Ok(()) => false,
            Err(error) => {
                refused = Err(error);
                true
            }
        });
        if writes.is_empty() || writes.len() == before {
            return refused;
        }
    }
}

#[cfg(test)]
mod fixture {
    use std::{fs, path::PathBuf, sync::atomic::AtomicU32, sync::atomic::Ordering};

    use super::Dir;

    /// A directory that stands for a group's, with the files a kernel would offer.
    pub(super) struct Fixture {
        path: PathBuf,
        pub(super) dir: Dir,
    }

    impl Fixture {
        pub(super) fn new(files: &[(&str, &str)]) -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("berth-limits-{}-{number}", std::process::id()));
            fs::create_dir(&path).unwrap();
            for (file, text) in files {
                fs::write(path.join(file), text).unwrap();
            }
            let dir = Dir::open(&path).unwrap();
            Self { path, dir }
        }

        pub(super) fn text(&self, file: &str) -> String {
            fs::read_to_string(self.path.join(file)).unwrap()
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_not_given_and_minus_one_is_unlimited() {
        let given = |value| Limit::given("x", value).unwrap();
        assert_eq!(given(None), None);
        assert_eq!(given(Some(0)), None);
        assert_eq!(given(Some(-1)), Some(Limit::Unlimited));
        assert_eq!(given(Some(i64::MAX)), Some(Limit::To(i64::MAX as u64)));
        assert!(Limit::given("x", Some(-2)).is_err());
    }
}
