//! From a bundle to an init that waits for its start, and the way back.
//!
//! The process is made as soon as it can begin to mount, and what it does not need for that is made meanwhile: the
//! record, the rest of its groups. It waits for its groups, and so cannot outlive a command that dies before they are
//! there. The record names them before they are made, so that `delete --force` finds what a command that died later
//! has left; before it there is at most an empty group, which the next creation takes over. A creation that fails
//! undoes itself.
//!
//! ```text
//!   prepare --clone3--> furnish: config, record, groups --PLACE--> follow --READY--> complete
//!                  |    process: mounts ...................... enters them, goes on
//! ```

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Instant,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::PollFlags,
};
use oci_spec::runtime::{ContainerState, Process, Spec};
use rustjail::{
    cgroup::{Cgroup, CgroupError, Placement},
    compile::{self, ContainerRequest, Stdio},
    hooks::Kind,
    launch::{Launch, Parent, Spawned, spawn},
    plan::{Gate, slot},
    resctrl::Group,
    sync::{self, Report},
    sys::pidfd,
};

use crate::{
    arguments::{Arguments, Flag, switch, value},
    bundle::Bundle,
    cgroups, console,
    context::Context,
    error::Error,
    foreground, hooks,
    init::Init,
    listener::{self, Waiting},
    rdt, rootless,
    seal::{self, Sealed},
    store::{Container, Record},
    systemd, time,
};

/// The flags of `create`, which `run` has too.
pub const FLAGS: &[Flag] = &[
    value(&["bundle", "b"], "directory of config.json (default: the working directory)"),
    value(&["console-socket"], "socket that the master of the container's terminal is sent to"),
    value(&["pidfd-socket"], "socket that a pidfd of the init is sent to"),
    value(&["pid-file"], "file that the init's process id is written to"),
    value(&["preserve-fds"], "how many descriptors from 3 on the container gets too"),
    switch(&["no-pivot"], "hide the host's root instead of leaving it, where / is the initial ramfs"),
    switch(&["no-new-keyring"], "share the caller's session keyring"),
];

/// What the container's init waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starter {
    /// This command.
    Here,
    /// A later `start`.
    Later,
}

/// A created container, which nobody else can change yet.
#[derive(Debug)]
pub struct Created {
    /// Locked.
    pub container: Container,
    /// As it was written.
    pub record: Record,
    /// Its group, if it has one.
    pub cgroup: Option<Cgroup>,
    /// Its init.
    pub process: Made,
    /// What this process runs from, to be let go when there is time.
    pub sealed: Sealed,
}

impl Created {
    /// Ends and removes everything of it.
    pub fn remove(self, context: &Context) -> Result<(), Error> {
        destroy(context, self.container, &self.record, self.cgroup)
    }
}

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

/// Creates the container of `arguments`.
pub fn create(context: &Context, arguments: &Arguments, starter: Starter) -> Result<Created, Error> {
    let preserved = preserved_fds(arguments)?;
    let sealed = seal::ensure(preserved)?;
    create_sealed(context, arguments, starter, preserved, sealed)
}

/// Apart, because the first execution would touch four pages of stack for it, which are the second's to use.
#[inline(never)]
fn create_sealed(
    context: &Context,
    arguments: &Arguments,
    starter: Starter,
    preserved: u32,
    sealed: Sealed,
) -> Result<Created, Error> {
    let mut bundle = Bundle::load(arguments.get("bundle"))?;
    check_terminal(&bundle.spec, arguments, starter == Starter::Here && !arguments.has("detach"))?;
    pass_listen_fds(&mut bundle.spec);
    let inside = rootless::enter_new(&mut bundle.spec)?;
    let mut creation = Creation {
        container: Container::create(&context.root, arguments.id())?,
        record: new_record(&bundle),
        cgroup: None,
    };
    let made = creation.prepare(context, &bundle, starter).and_then(|(mut new, mut prepared)| {
        inside.adapt(&mut prepared.0.plan);
        let made = make(prepared, preserved, arguments)?;
        let furnished = creation.furnish(&made, &bundle, &mut new);
        let made = if_well(made, furnished)?;
        let made = follow(made, false, |process, wants| creation.serve(&bundle.spec, process, wants))?;
        creation.complete(made, arguments)
    });
    let Creation { container, record, cgroup } = creation;
    match made {
        Ok(process) => Ok(Created { container, record, cgroup, process, sealed }),
        Err(error) => {
            // The first error is the one to report; what is left now is left to `delete --force`.
            let _ = destroy(context, container, &record, cgroup);
            Err(error)
        }
    }
}

fn new_record(bundle: &Bundle) -> Record {
    Record {
        oci_version: bundle.spec.version().clone(),
        rootfs: bundle.rootfs(),
        bundle: bundle.path.clone(),
        created: time::now(true),
        annotations: bundle.spec.annotations().clone().unwrap_or_default(),
        cgroup: None,
        unit: None,
        has_sequel: has_sequel(&bundle.spec),
        made_resctrl: false,
        init: None,
        complete: false,
    }
}

/// A container that is being created.
struct Creation {
    container: Container,
    record: Record,
    cgroup: Option<Cgroup>,
}

impl Creation {
    /// Everything that the process has to find.
    fn prepare(
        &mut self,
        context: &Context,
        bundle: &Bundle,
        starter: Starter,
    ) -> Result<(cgroups::New, Prepared), Error> {
        let (container, record) = (&self.container, &mut self.record);
        let mut new = cgroups::begin(context, &bundle.spec, &container.id)?;
        (record.cgroup, record.unit) = (new.path.take(), new.unit.take());
        let resctrl = rdt::create(&bundle.spec, &container.id)?;
        record.made_resctrl = resctrl.as_ref().is_some_and(Group::was_made);
        let (mut launch, link) = launch(container, bundle, new.placement()?, resctrl.as_ref())?;
        launch.plan.placement.more = true;
        if starter == Starter::Later {
            launch.plan.gate = Gate::Connection(slot(&mut launch.fds, container.listen()?));
        }
        Ok((new, (launch, link)))
    }

    /// What the process need not find before it is in its groups: it mounts meanwhile.
    fn furnish(&mut self, made: &Made, bundle: &Bundle, new: &mut cgroups::New) -> Result<(), Error> {
        self.container.write_config(&bundle.text)?;
        // It names the groups before they are made.
        self.container.write_record(&self.record)?;
        let (group, tasks) = new.finish(&bundle.spec)?;
        self.cgroup = group;
        match sync::place(made.link.as_fd(), &tasks) {
            // One that has failed by now says so itself.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                return Err(Error::io("go on with", "the container's process")(error));
            }
            _ => {}
        }
        self.record.init = Init::new(made.spawned.pid);
        self.container.draft_record(&Record { complete: true, ..self.record.clone() })
    }

    fn serve(&self, spec: &Spec, process: &Spawned, wants: Wants) -> Result<(), Error> {
        let (container, record) = (&self.container, &self.record);
        match wants {
            Wants::Hooks => {
                let kinds = &[Kind::Prestart, Kind::CreateRuntime];
                hooks::run(container, spec, record, kinds, ContainerState::Creating, process.pid)
            }
            Wants::Agent(number) => listener::hand_over(
                container,
                spec,
                record,
                ContainerState::Creating,
                waiting(process, number),
            ),
        }
    }

    /// Tells everybody that it waits for its start.
    fn complete(&mut self, mut made: Made, arguments: &Arguments) -> Result<Made, Error> {
        let told = self.container.publish_record().and_then(|()| announce(&mut made, arguments));
        self.record.complete = told.is_ok();
        if_well(made, told)
    }
}

fn has_sequel(spec: &Spec) -> bool {
    let resctrl = spec.linux().as_ref().is_some_and(|linux| linux.intel_rdt().is_some());
    resctrl || spec.hooks().is_some()
}

/// A compiled launch and our end of the link to what will come of it.
pub type Prepared = (Launch, OwnedFd);

fn launch(
    container: &Container,
    bundle: &Bundle,
    placement: Option<Placement>,
    resctrl: Option<&Group>,
) -> Result<Prepared, Error> {
    let (link, sync) = link()?;
    let terminal = bundle.spec.process().as_ref().and_then(Process::terminal).unwrap_or(false);
    let launch = compile::container(ContainerRequest {
        id: &container.id,
        spec: &bundle.spec,
        bundle: &bundle.path,
        stdio: stdio(terminal)?,
        confined: &[],
        join: Vec::new(),
        placement,
        resctrl,
        sync,
    })?;
    Ok((launch, link))
}

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
fn if_well(made: Made, outcome: Result<(), Error>) -> Result<Made, Error> {
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
    let mut name = std::ffi::OsString::from(".");
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

/// Ends and removes everything of a container.
pub fn destroy(
    context: &Context,
    container: Container,
    record: &Record,
    cgroup: Option<Cgroup>,
) -> Result<(), Error> {
    let what = format!("container {:?}", container.id);
    if let Some(pidfd) = record.init.as_ref().and_then(Init::pidfd) {
        let _ = pidfd::signal(pidfd.as_fd(), libc::SIGKILL);
        if !cgroups::wait(pidfd.as_fd(), PollFlags::POLLIN, Instant::now() + cgroups::KILL_WAIT)? {
            return Err(Error::Unkillable { what, seconds: cgroups::KILL_WAIT.as_secs() });
        }
    }
    match (&record.unit, &cgroup) {
        (Some(unit), group) => {
            if let Some(group) = group {
                cgroups::empty(group, &what)?;
            }
            systemd::remove(unit)?;
        }
        (None, Some(group)) => remove_group(group, &what)?,
        (None, None) => {}
    }
    // A creation that did not come as far as writing the configuration has made nothing more.
    if record.has_sequel
        && let Ok(spec) = container.config()
    {
        if let Some(group) = rdt::open(&spec, &container.id, record)? {
            group.delete()?;
        }
        hooks::poststop(&context.log, &container, &spec, record);
    }
    container.remove()
}

/// Nearly always nothing is left in it, and the kernel knows that best.
fn remove_group(group: &Cgroup, what: &str) -> Result<(), Error> {
    match group.delete() {
        Err(CgroupError::Busy { .. }) => {
            cgroups::empty(group, what)?;
            Ok(group.delete()?)
        }
        done => Ok(done?),
    }
}

fn check_terminal(spec: &Spec, arguments: &Arguments, attached: bool) -> Result<(), Error> {
    let terminal = spec.process().as_ref().and_then(Process::terminal).unwrap_or(false);
    check_console_socket(terminal, arguments.get("console-socket").is_some(), attached)
}

/// A terminal needs somebody who drives it, and a socket something to be sent.
pub fn check_console_socket(terminal: bool, socket: bool, attached: bool) -> Result<(), Error> {
    match (terminal, socket) {
        (true, false) if !attached => Err(Error::Usage(
            "cannot allocate a terminal without --console-socket when nobody stays to drive it".into(),
        )),
        (false, true) => {
            Err(Error::Usage("--console-socket was given, but process.terminal is not set".into()))
        }
        (true, true) if attached => {
            Err(Error::Usage("--console-socket is of no use unless --detach is given too".into()))
        }
        _ => Ok(()),
    }
}

/// How many descriptors the container gets, those of socket activation included. To be called before anything
/// is opened: what is open then was the caller's.
pub fn preserved_fds(arguments: &Arguments) -> Result<u32, Error> {
    let asked: u32 = arguments.number("preserve-fds")?.unwrap_or(0);
    let count = asked.saturating_add(listen_fds().unwrap_or(0));
    for number in 3..3_u32.saturating_add(count) {
        let link = format!("/proc/self/fd/{number}");
        fs::symlink_metadata(&link).map_err(Error::io("pass on the descriptor", &link))?;
    }
    Ok(count)
}

fn listen_fds() -> Option<u32> {
    std::env::var("LISTEN_FDS").ok()?.parse().ok().filter(|count| *count > 0)
}

/// Socket activation goes through: the descriptors keep their numbers, and the init is process 1.
fn pass_listen_fds(spec: &mut Spec) {
    if let (Some(count), Some(process)) = (listen_fds(), spec.process_mut()) {
        let mut env = process.env().clone().unwrap_or_default();
        env.extend([format!("LISTEN_FDS={count}"), "LISTEN_PID=1".to_owned()]);
        process.set_env(Some(env));
    }
}
