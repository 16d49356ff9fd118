//! Making a process, and following it until its program runs.
//!
//! The link to it is the library's (see [`rustjail::sync`]): what the process says there is heard in one place, whether it
//! is an init or an exec's, and what it waits for is done by whoever asked for it. The flags that hand something of a new
//! process out, its terminal, its pidfd, its number, are here too, because `create`, `run` and `exec` have them alike.

use std::{
    ffi::OsString,
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use oci_spec::runtime::ContainerState;
use rustjail::{
    compile::Stdio,
    launch::{Launch, Parent, Spawned, spawn},
    sync::{self, Report},
    sys::pidfd,
};

use crate::{
    arguments::Arguments,
    console,
    error::Error,
    foreground, hooks,
    init::Init,
    listener::{self, Waiting},
    signals::Signals,
    store::{Container, Record},
};

/// A new process of a container, and the link to it.
#[derive(Debug)]
pub struct Made {
    /// It.
    pub spawned: Spawned,
    /// Our end.
    pub link: OwnedFd,
    /// The master of its terminal, unless that was sent away.
    pub console: Option<OwnedFd>,
}

/// A compiled launch and our end of the link to what will come of it.
pub type Prepared = (Launch, OwnedFd);

/// A new link. Ours is to block: this process has nothing else to do meanwhile.
pub fn link() -> Result<(OwnedFd, OwnedFd), Error> {
    let (ours, sync) = sync::pair().map_err(Error::io("make", "a socket pair"))?;
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::empty())).map_err(Error::io("make blocking", "a socket pair"))?;
    Ok((ours, sync))
}

/// Our own standard streams, or a terminal.
pub fn stdio(terminal: bool) -> Result<Stdio, Error> {
    if terminal {
        return Ok(Stdio::Terminal);
    }
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(Error::io("copy", "a standard stream"));
    Ok(Stdio::Streams {
        stdin: copy(io::stdin().as_fd())?,
        stdout: copy(io::stdout().as_fd())?,
        stderr: copy(io::stderr().as_fd())?,
    })
}

/// What a process waits for on its way.
#[derive(Debug, Clone, Copy)]
pub enum Wants {
    /// The hooks of the creation.
    Hooks,
    /// An agent that takes the seccomp listener, which is this descriptor of the process's.
    Agent(i32),
}

/// The process whose listener has this `number`.
pub fn waiting(process: &Spawned, number: i32) -> Waiting<'_> {
    Waiting { pid: process.pid, pidfd: process.pidfd.as_fd(), listener: number }
}

/// Makes the process.
pub fn make(prepared: Prepared, preserved: u32, arguments: &Arguments) -> Result<Made, Error> {
    let (mut launch, link) = prepared;
    launch.plan.preserved_fds = preserved;
    launch.plan.keep_keyring = arguments.has("no-new-keyring");
    if let Some(root) = &mut launch.plan.root {
        root.no_pivot = arguments.has("no-pivot");
    }
    let fds: Vec<BorrowedFd<'_>> = launch.fds.iter().map(AsFd::as_fd).collect();
    let spawned = spawn(&launch.plan, &fds, Parent::Caller)?;
    // The child's end of the link is among what is closed here, or its end would never be seen.
    Ok(Made { spawned, link, console: None })
}

/// The process, which does not outlive a failure.
pub fn if_well(made: Made, outcome: Result<(), Error>) -> Result<Made, Error> {
    if outcome.is_err() {
        kill(&made);
    }
    outcome.map(|()| made)
}

/// Follows the process until it is ready, or, when nothing makes it wait (`open`), until it runs. `serve` does what it
/// waits for meanwhile.
pub fn follow(
    mut made: Made,
    open: bool,
    serve: impl Fn(&Spawned, Wants) -> Result<(), Error>,
) -> Result<Made, Error> {
    let followed = hear(&mut made, open, serve);
    if_well(made, followed)
}

/// Waits until the program of an init that nothing holds back runs, or will not. Woken only once: where there is one
/// processor, the process is what is to have it. A signal that would end this command ends the creation.
pub fn await_program(made: Made, signals: Option<&Signals>) -> Result<Made, Error> {
    let interrupts = signals.map(Signals::interrupts).transpose();
    let ended = interrupts.and_then(|interrupts| {
        sync::await_end(made.link.as_fd(), interrupts.as_ref().map(AsFd::as_fd))
            .map_err(Error::io("hear from", "the container's process"))
    });
    let well = match ended {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Died { ended: "a signal ended its creation".into() }),
        Err(error) => Err(error),
    };
    if_well(made, well)
}

fn hear(
    made: &mut Made,
    open: bool,
    serve: impl Fn(&Spawned, Wants) -> Result<(), Error>,
) -> Result<(), Error> {
    let go_on = || Error::io("go on with", "the container's process");
    loop {
        let report = match sync::receive(made.link.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(died(made)?),
            result => result.map_err(Error::io("hear from", "the container's process"))?,
        };
        match report {
            Some(Report::Console(master)) => made.console = Some(master),
            Some(Report::Hooks) => {
                serve(&made.spawned, Wants::Hooks)?;
                sync::hooks_done(made.link.as_fd()).map_err(go_on())?;
            }
            Some(Report::Listener(number)) => {
                serve(&made.spawned, Wants::Agent(number))?;
                sync::listener_taken(made.link.as_fd()).map_err(go_on())?;
            }
            Some(Report::Ready) => return Ok(()),
            Some(Report::Failed(step)) => return Err(step.into()),
            None if open => return Ok(()),
            None => return Err(died(made)?),
        }
    }
}

fn died(made: &Made) -> Result<Error, Error> {
    let status = foreground::exit_status(made.spawned.pidfd.as_fd())?;
    Ok(Error::Died { ended: format!("exit status {status}") })
}

/// Ends a process that is not wanted any more.
pub fn kill(made: &Made) {
    // Either fails only when it is gone already.
    let _ = pidfd::signal(made.spawned.pidfd.as_fd(), libc::SIGKILL);
    let _ = pidfd::wait(made.spawned.pidfd.as_fd());
}

/// The flags that [`announce`] is about.
pub const ANNOUNCEMENTS: [&str; 3] = ["console-socket", "pidfd-socket", "pid-file"];

/// Hands out what the flags ask for: the terminal, the pidfd, the process id.
pub fn announce(made: &mut Made, arguments: &Arguments) -> Result<(), Error> {
    if let Some(socket) = arguments.get("console-socket")
        && let Some(master) = made.console.take()
    {
        console::send(socket, b"/dev/ptmx", master.as_fd())?;
    }
    if let Some(socket) = arguments.get("pidfd-socket") {
        console::send(socket, b"pidfd", made.spawned.pidfd.as_fd())?;
    }
    arguments.get("pid-file").map_or(Ok(()), |path| write_pid(Path::new(path), made.spawned.pid))
}

/// Whoever watches the file must never see half a number.
fn write_pid(path: &Path, pid: i32) -> Result<(), Error> {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    let new = path.with_file_name(name);
    fs::write(&new, pid.to_string())
        .and_then(|()| fs::rename(&new, path))
        .map_err(Error::io("write the process id to", path))
}

/// Has an init that waits at the other end of `link` run its program; returns when it does. An init that gets no
/// further ends with the link.
pub fn start(link: BorrowedFd<'_>, container: &Container, record: &Record) -> Result<(), Error> {
    sync::start(link).map_err(Error::io("start", "the container's process"))?;
    see_started(link, container, record)
}

/// Returns when an init that waits for nothing any more runs its program.
pub fn see_started(link: BorrowedFd<'_>, container: &Container, record: &Record) -> Result<(), Error> {
    loop {
        match sync::receive(link) {
            Ok(Some(Report::Failed(step))) => return Err(step.into()),
            Ok(Some(Report::Listener(number))) => {
                hand_over_of_init(container, record, number)?;
                sync::listener_taken(link).map_err(Error::io("go on with", "the container's process"))?;
            }
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(killed()),
            Err(error) => return Err(Error::io("hear from", "the container's process")(error)),
        }
    }
}

fn hand_over_of_init(container: &Container, record: &Record, listener: i32) -> Result<(), Error> {
    let init = record.init.as_ref().and_then(|init| Some((init.pid, init.pidfd()?)));
    let (pid, pidfd) = init.ok_or_else(killed)?;
    let process = Waiting { pid, pidfd: pidfd.as_fd(), listener };
    listener::hand_over(container, &container.config()?, record, ContainerState::Created, process)
}

fn killed() -> Error {
    Error::Died { ended: "it was killed".into() }
}

/// Runs the hooks that follow a start. One that fails ends the container.
pub fn after_start(container: &Container, record: &Record) -> Result<(), Error> {
    hooks::poststart(container, record).inspect_err(|_| {
        if let Some(pidfd) = record.init.as_ref().and_then(Init::pidfd) {
            // Fails only when it is gone already.
            let _ = pidfd::signal(pidfd.as_fd(), libc::SIGKILL);
        }
        record.init.iter().for_each(Init::outlive);
    })
}
