//! From a bundle to an init that waits for its start, and the way back.
//!
//! The process is made as soon as it can begin to mount, and what it does not need for that is made meanwhile: the
//! record, the rest of its groups. It waits for its groups, and so cannot outlive a command that dies before they are
//! there. The record names them before they are made, so that `delete --force` finds what a command that died later
//! has left; before it there is at most an empty group, which the next creation takes over. A creation that fails
//! undoes itself. Where a `run` has nothing to do before the program, the process is not held once it is ready: each
//! turn of the two that is saved is time on a machine with few processors.
//!
//! ```text
//!   prepare --clone3--> furnish: record, groups --ENTER--> limits --PLACE--> follow --READY--> complete
//!                  |    process: mounts .................. enters them ..... goes on
//! ```

use std::{io, os::fd::AsFd, time::Instant};

use nix::poll::PollFlags;
use oci_spec::runtime::{ContainerState, Process, Spec};
use rustjail::{
    cgroup::{Cgroup, CgroupError, Placement},
    compile::{self, ContainerRequest},
    hooks::Kind,
    launch::{Spawned, leave_processor_to},
    plan::{Gate, slot},
    procfs::Stat,
    resctrl::Group,
    sync,
    sys::pidfd,
};

use crate::{
    arguments::{Arguments, Flag, switch, value},
    bundle::Bundle,
    cgroups,
    context::Context,
    error::Error,
    filters, hooks, inherited,
    init::Init,
    launch::{self, Made, Prepared, Wants, announce, follow, if_well, link, make, stdio, waiting},
    listener, rdt, rootless,
    seal::{self, Sealed},
    signals::Signals,
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

/// Who has the container's init run its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starter {
    /// This command, which need not be waited for where it has nothing to do before.
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
    /// What keeps its init from our binary.
    pub sealed: Option<Sealed>,
    /// Those that came since its program could run, if it did not wait and this command stays.
    pub signals: Option<Signals>,
    /// The init waits for its start.
    waits: bool,
}

impl Created {
    /// Returns when its program runs.
    pub fn start(&self) -> Result<(), Error> {
        let link = self.process.link.as_fd();
        if self.waits {
            return launch::start(link, &self.container, &self.record);
        }
        launch::see_started(link, &self.container, &self.record)
    }

    /// Ends and removes everything of it.
    pub fn remove(self, context: &Context) -> Result<(), Error> {
        destroy(context, self.container, &self.record, self.cgroup)
    }
}

/// Creates the container of `arguments`.
pub fn create(context: &Context, arguments: &Arguments, starter: Starter) -> Result<Created, Error> {
    let preserved = inherited::preserved_fds(arguments)?;
    let mut bundle = Bundle::load(arguments.get("bundle"), &context.root)?;
    check_terminal(&bundle.spec, arguments, starter == Starter::Here && !arguments.has("detach"))?;
    let mut sealed = seal::for_container(&bundle.spec, preserved)?;
    inherited::pass_listen_fds(&mut bundle.spec);
    let inside = rootless::enter_new(&mut bundle.spec)?;
    let mut creation = Creation {
        container: Container::create(&context.root, arguments.id())?,
        record: new_record(&bundle),
        cgroup: None,
    };
    let open = starter == Starter::Here && !has_prelude(&bundle.spec, arguments);
    // Where it waits for others, they are this command's own until then, which ends by them.
    let signals = if open && !arguments.has("detach") { Some(Signals::take()?) } else { None };
    let made = creation.prepare(context, &bundle, starter).and_then(|(mut new, mut prepared)| {
        inside.adapt(&mut prepared.0.plan);
        if open {
            prepared.0.plan.gate = Gate::Open;
        }
        if let Some(binary) = sealed.binary.take() {
            prepared.0.plan.binary = Some(slot(&mut prepared.0.fds, binary));
        }
        let made = make(prepared, preserved, arguments)?;
        let furnished = creation.furnish(&made, &bundle, &mut new);
        let made = if_well(made, furnished)?;
        let made = if open { launch::await_program(made, signals.as_ref())? } else { made };
        let made = follow(made, false, |process, wants| creation.serve(&bundle.spec, process, wants))?;
        creation.complete(made, arguments)
    });
    let Creation { container, record, cgroup } = creation;
    match made {
        Ok(process) => {
            Ok(Created { container, record, cgroup, process, sealed: Some(sealed), signals, waits: !open })
        }
        Err(error) => {
            // The first error is the one to report; what is left now is left to `delete --force`.
            let _ = destroy(context, container, &record, cgroup);
            Err(error)
        }
    }
}

/// A process that has failed by now says so itself.
fn said(sent: io::Result<()>) -> Result<(), Error> {
    match sent {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::io("go on with", "the container's process")(error))
        }
        _ => Ok(()),
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
        let (mut launch, link) = compiled(container, bundle, new.placement()?, resctrl.as_ref())?;
        match (&bundle.filter, &launch.plan.process.seccomp) {
            (Some(known), _) => launch.plan.process.seccomp = Some(known.clone()),
            (None, Some(compiled)) => filters::keep(&context.root, &bundle.text, compiled),
            (None, None) => {}
        }
        launch.plan.placement.more = true;
        if starter == Starter::Later {
            launch.plan.gate = Gate::Connection(slot(&mut launch.fds, container.listen()?));
        }
        Ok((new, (launch, link)))
    }

    /// What the process need not find before it is in its groups: it mounts meanwhile.
    fn furnish(&mut self, made: &Made, bundle: &Bundle, new: &mut cgroups::New) -> Result<(), Error> {
        let pid = made.spawned.pid;
        // One that is gone by now says so itself.
        if let Ok(stat) = Stat::of(pid) {
            leave_processor_to(&stat).map_err(Error::io("return to", "the processors of this process"))?;
            self.record.init = Init::new(pid, &stat);
        }
        // It names the groups before they are made.
        self.container.write(&self.record, &bundle.text)?;
        // It enters its groups while their limits are written.
        said(sync::enter(made.link.as_fd(), &new.fill()?))?;
        self.cgroup = new.limit(&bundle.spec)?;
        said(sync::place(made.link.as_fd(), &[]))
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
        let told = self.container.complete().and_then(|()| announce(&mut made, arguments));
        self.record.complete = told.is_ok();
        if_well(made, told)
    }
}

/// Whether this command has something to do while the process is on its way, or before its program runs.
fn has_prelude(spec: &Spec, arguments: &Arguments) -> bool {
    let terminal = spec.process().as_ref().and_then(Process::terminal).unwrap_or(false);
    let seccomp = spec.linux().as_ref().and_then(|linux| linux.seccomp().as_ref());
    let listener = seccomp.is_some_and(|seccomp| seccomp.listener_path().is_some());
    let announces = launch::ANNOUNCEMENTS.iter().any(|flag| arguments.get(flag).is_some());
    terminal || listener || announces || spec.hooks().is_some()
}

fn has_sequel(spec: &Spec) -> bool {
    let resctrl = spec.linux().as_ref().is_some_and(|linux| linux.intel_rdt().is_some());
    resctrl || spec.hooks().is_some()
}

fn compiled(
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

/// Ends and removes everything of a container.
pub fn destroy(
    context: &Context,
    container: Container,
    record: &Record,
    cgroup: Option<Cgroup>,
) -> Result<(), Error> {
    let what = format!("container {:?}", container.id);
    end_init(record, &what)?;
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

/// Kills a container's init, and waits until it has ended.
pub fn end_init(record: &Record, what: &str) -> Result<(), Error> {
    let Some(pidfd) = record.init.as_ref().and_then(Init::pidfd) else { return Ok(()) };
    // One that is gone meanwhile needs none.
    let _ = pidfd::signal(pidfd.as_fd(), libc::SIGKILL);
    if cgroups::wait(pidfd.as_fd(), PollFlags::POLLIN, Instant::now() + cgroups::KILL_WAIT)? {
        return Ok(());
    }
    Err(Error::Unkillable { what: what.to_owned(), seconds: cgroups::KILL_WAIT.as_secs() })
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
