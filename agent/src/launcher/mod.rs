//! The launcher: a process that does nothing but make processes.
//!
//! It exists because what follows clone3 in the child is ordinary Rust, which is sound only in a copy of a process
//! with a single thread; and because a small, fresh address space is copied in no time. Its children are its
//! siblings (CLONE_PARENT), so init reaps them. It keeps nothing from one request to the next and may be killed at
//! any time: a request stays in the socket until the instant before its process is made, so that the kernel tells
//! the worker of a launcher that died without having begun, and the next one can begin.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
    process::ExitCode,
};

use nix::sys::{
    prctl,
    signal::SigSet,
    socket::{MsgFlags, recv},
};
use rustjail::{
    launch::{Parent, SpawnError, Spawned, spawn},
    plan::Plan,
    sys::scm,
};

use crate::link::{self, LaunchReply, LaunchRequest};

/// A plan is some tens of kilobytes; its largest part is the environment, for which execve has a limit of 6 MiB.
const MAX_PLAN: u64 = 16 << 20;

/// Why there is no process.
#[derive(Debug, thiserror::Error)]
enum LaunchError {
    #[error("cannot read the plan of the new process: {0}")]
    Plan(io::Error),
    #[error(transparent)]
    Spawn(#[from] SpawnError),
}

/// Serves the worker until it closes the link.
pub fn run() -> ExitCode {
    // Init blocks the signals it reads, and a mask is inherited.
    let _ = SigSet::empty().thread_set_mask();
    let _ = prctl::set_name(c"berth-launcher");
    match link::inherited().and_then(|link| serve(link.as_fd())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("berth-agent launcher: cannot go on and is replaced: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut packet = [0; 16];
    loop {
        let received = match scm::peek(link, &mut packet) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        };
        if received.length == 0 {
            return Ok(());
        }
        let Some(LaunchRequest { id }) = packet.get(..received.length).and_then(LaunchRequest::decode) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let plan = if received.truncated { Err(too_many_files()) } else { read_plan(received.fds) };
        recv(link.as_raw_fd(), &mut packet, MsgFlags::empty())?;
        let result = plan.and_then(|(plan, fds)| launch(&plan, &fds));
        let sent = match &result {
            Ok(Spawned { pid, pidfd }) => {
                scm::send(link, &LaunchReply::Made { id, pid: *pid }.encode(), &[pidfd.as_fd()])
            }
            Err(error) => {
                let reply = LaunchReply::Failed { id, errno: errno(error), text: error.to_string() };
                scm::send(link, &reply.encode(), &[])
            }
        };
        match sent {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            sent => sent?,
        };
        if let Err(LaunchError::Spawn(SpawnError::Stranded(source))) = result {
            return Err(source);
        }
    }
}

/// The plan comes first, then what its slots name.
fn read_plan(fds: Vec<OwnedFd>) -> Result<(Plan, Vec<OwnedFd>), LaunchError> {
    let mut fds = fds.into_iter();
    let plan = fds.next().ok_or_else(|| LaunchError::Plan(io::ErrorKind::UnexpectedEof.into()))?;
    let plan = read(plan).map_err(LaunchError::Plan)?;
    Ok((plan, fds.collect()))
}

fn launch(plan: &Plan, fds: &[OwnedFd]) -> Result<Spawned, LaunchError> {
    let slots: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    Ok(spawn(plan, &slots, Parent::Sibling)?)
}

/// Read at a position of its own: a request that is repeated comes with the same open file.
fn read(plan: OwnedFd) -> io::Result<Plan> {
    let file = File::from(plan);
    let size = file.metadata()?.len();
    if size > MAX_PLAN {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; usize::try_from(size).unwrap_or_default()];
    file.read_exact_at(&mut bytes, 0)?;
    Plan::from_bytes(&bytes)
}

fn too_many_files() -> LaunchError {
    LaunchError::Plan(io::Error::from_raw_os_error(libc::EMFILE))
}

fn errno(error: &LaunchError) -> i32 {
    match error {
        LaunchError::Spawn(SpawnError::Slot { .. }) => libc::EBADF,
        LaunchError::Spawn(SpawnError::Stage(step)) => step.errno,
        LaunchError::Plan(source)
        | LaunchError::Spawn(
            SpawnError::PidNamespaceGone(source)
            | SpawnError::PidNamespace(source)
            | SpawnError::Clone(source)
            | SpawnError::Setting { source, .. }
            | SpawnError::Limit { source, .. }
            | SpawnError::IdMap { source, .. }
            | SpawnError::NetDevice { source, .. }
            | SpawnError::Stranded(source),
        ) => source.raw_os_error().unwrap_or_default(),
    }
}
