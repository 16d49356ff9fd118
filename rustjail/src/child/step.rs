//! How a failed call becomes the report the maker gets.

use std::{io, path::Path};

use nix::sched::CloneFlags;

use crate::sync::StepError;

/// Names the step whose call failed, and what it was done to.
pub(super) trait At<T> {
    /// `step` completes the sentence "cannot ...".
    fn at(self, step: &str, path: impl AsRef<Path>) -> Result<T, StepError>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, step: &str, path: impl AsRef<Path>) -> Result<T, StepError> {
        self.map_err(|error| StepError {
            step: step.to_owned(),
            path: path.as_ref().to_string_lossy().into_owned(),
            // What has no errno was refused by the standard library, for its form.
            errno: error.into().raw_os_error().unwrap_or(libc::EINVAL),
        })
    }
}

/// The kinds of namespace in `flags`, for people.
pub(crate) fn names(flags: CloneFlags) -> String {
    const NAMES: [(i32, &str); 8] = [
        (libc::CLONE_NEWNS, "mount"),
        (libc::CLONE_NEWPID, "pid"),
        (libc::CLONE_NEWNET, "network"),
        (libc::CLONE_NEWIPC, "ipc"),
        (libc::CLONE_NEWUTS, "uts"),
        (libc::CLONE_NEWUSER, "user"),
        (libc::CLONE_NEWCGROUP, "cgroup"),
        (libc::CLONE_NEWTIME, "time"),
    ];
    let named: Vec<&str> =
        NAMES.iter().filter(|(flag, _)| flags.bits() & flag != 0).map(|(_, name)| *name).collect();
    named.join(" ")
}
