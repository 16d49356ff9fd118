//! Device rules as a program attached to the cgroup2 directory.

use std::io;

use super::{
    super::{CgroupError, dir::Dir},
    Policy,
    program::compile,
};
use crate::sys::bpf;

/// Attaches first and then detaches what was there: in between both must agree, so nothing is allowed that
/// neither allows.
pub(super) fn enforce(dir: &Dir, policy: &Policy) -> Result<(), CgroupError> {
    let failed =
        |action| move |source| CgroupError::DeviceFilter { action, path: dir.path().to_owned(), source };
    let former = bpf::device_programs(dir).map_err(failed("list"))?;
    // A group without a program is as open as those above it, and does not pay for one at each open.
    if *policy != Policy::all(true) {
        let program = bpf::load_device_program(&compile(policy)).map_err(failed("load"))?;
        bpf::attach_device_program(dir, &program).map_err(failed("attach"))?;
    }
    for id in former {
        let detached = bpf::program_by_id(id).and_then(|program| bpf::detach_device_program(dir, program));
        match detached {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => done.map_err(failed("replace"))?,
        }
    }
    Ok(())
}
