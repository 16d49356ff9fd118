//! The terminal of a process: a pty of the container's own devpts.
//!
//! The multiplexer is opened beneath the root and checked to be one, and the slave comes from the master
//! itself: a path `/dev/pts/N` could have been exchanged in between (CVE-2025-52565).

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    sys::{
        stat::{fstat, major, minor},
        statfs::{FsType, fstatfs},
    },
    unistd::{Uid, dup2_stderr, dup2_stdin, dup2_stdout, fchown},
};

use super::{
    step::At,
    tree::{Links, Missing, Tree},
};
use crate::{
    plan::{Process, Stdio, WindowSize},
    sync::StepError,
    sys::{mount, pty},
};

/// `DEVPTS_SUPER_MAGIC` of `linux/magic.h`.
const DEVPTS: FsType = FsType(0x1cd1);
const MULTIPLEXER: &str = "/dev/pts/ptmx";

/// Both sides of a pty.
#[derive(Debug)]
pub(super) struct Terminal {
    /// For whoever drives the process.
    pub(super) master: OwnedFd,
    /// For the process.
    slave: OwnedFd,
}

impl Terminal {
    pub(super) fn open(tree: &Tree<'_>, size: Option<WindowSize>) -> Result<Self, StepError> {
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY;
        // Looked at before it is opened for use: opening some other device may act.
        let place = tree
            .open(MULTIPLEXER, OFlag::O_PATH, Links::Refuse)
            .at("open the terminal multiplexer", MULTIPLEXER)?;
        let device = fstat(&place).at("look at", MULTIPLEXER)?.st_rdev;
        let file_system = fstatfs(&place).at("look at", MULTIPLEXER)?.filesystem_type();
        if file_system != DEVPTS || (major(device), minor(device)) != (5, 2) {
            return Err(Errno::ENODEV).at("find a terminal multiplexer at", MULTIPLEXER);
        }
        let master =
            tree.open(MULTIPLEXER, flags, Links::Refuse).at("open the terminal multiplexer", MULTIPLEXER)?;
        pty::unlock(master.as_fd()).at("unlock the terminal", "")?;
        let slave = pty::open_slave(master.as_fd()).at("open the terminal", "")?;
        if fstatfs(&slave).at("look at the terminal", "")?.filesystem_type() != DEVPTS {
            return Err(Errno::ENODEV).at("find a terminal multiplexer at", MULTIPLEXER);
        }
        if let Some(WindowSize { rows, columns }) = size {
            pty::set_size(slave.as_fd(), rows, columns).at("set the size of the terminal", "")?;
        }
        Ok(Self { master, slave })
    }
}

/// Shows the terminal of a container's init as `/dev/console`.
pub(super) fn bind_console(terminal: &Terminal, tree: &Tree<'_>) -> Result<(), StepError> {
    let path = Path::new("/dev/console");
    let target = tree.ensure(path, Missing::File, Links::Refuse)?;
    let copy = mount::clone_tree(terminal.slave.as_fd(), false).at("copy the mount of", "the terminal")?;
    mount::attach(copy.as_fd(), target.as_fd()).at("bind the terminal onto", path)
}

/// Makes descriptors 0 to 2 what the plan says; they belong to the user the process will be, so that it can
/// open them again by `/dev/stdout` and its like.
pub(super) fn connect(
    process: &Process,
    terminal: Option<&Terminal>,
    fds: &[BorrowedFd<'_>],
) -> Result<(), StepError> {
    let streams = match (&process.stdio, terminal) {
        (Stdio::Streams(slots), _) => {
            // Copies, because a slot may itself be one of the numbers that are replaced.
            let copy = |slot: &crate::plan::Slot| slot.of(fds)?.try_clone_to_owned();
            slots.iter().map(copy).collect::<Result<Vec<_>, _>>().at("find the standard streams", "")?
        }
        (Stdio::Terminal(_), Some(terminal)) => {
            pty::set_controlling(terminal.slave.as_fd()).at("control the terminal", "")?;
            let copy = || terminal.slave.try_clone().at("copy the terminal", "");
            vec![copy()?, copy()?, copy()?]
        }
        (Stdio::Terminal(_), None) => return Err(Errno::EBADF).at("find the terminal", ""),
    };
    if let [stdin, stdout, stderr] = streams.as_slice() {
        dup2_stdin(stdin).at("connect", "stdin")?;
        dup2_stdout(stdout).at("connect", "stdout")?;
        dup2_stderr(stderr).at("connect", "stderr")?;
    }
    if process.identity.uid != 0 {
        streams.iter().for_each(|stream| give_to(stream.as_fd(), process.identity.uid));
    }
    Ok(())
}

/// Best effort: what cannot be given (a socket, a file of another user namespace) still works by its number.
/// Shared devices, as the null device, stay root's.
fn give_to(stream: BorrowedFd<'_>, uid: u32) {
    let Ok(found) = fstat(stream) else { return };
    let is_pty = (136..=143).contains(&major(found.st_rdev));
    if found.st_mode & libc::S_IFMT == libc::S_IFIFO || is_pty {
        let _ = fchown(stream, Some(Uid::from_raw(uid)), None);
    }
}
