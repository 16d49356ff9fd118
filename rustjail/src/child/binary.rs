//! Keeping the maker's binary from the container: what the process shows as its own before it runs its program.

use std::{io, os::fd::BorrowedFd};

use super::step::At;
use crate::{
    procfs::Stat,
    sync::StepError,
    sys::binary::{Layout, change},
};

/// Shows `binary`, which nobody can write to, in place of the maker's.
pub(super) fn protect(binary: BorrowedFd<'_>) -> Result<(), StepError> {
    let layout = Stat::own().and_then(|stat| layout(&stat).ok_or(io::ErrorKind::InvalidData.into()));
    let layout = layout.at("read", "/proc/self/stat")?;
    change(binary, layout).at("protect the runtime's own binary", "/proc/self/exe")
}

fn layout(stat: &Stat) -> Option<Layout> {
    let range = |first| Some([stat.field(first)?, stat.field(first + 1)?]);
    Some(Layout {
        code: range(26)?,
        stack: stat.field(28)?,
        data: range(45)?,
        heap: stat.field(47)?,
        arguments: range(48)?,
        environment: range(50)?,
    })
}
