//! Creating a container, up to but not including its program.
//!
//! The id is taken first and given back only when nothing of the container is left: whatever step fails, the
//! same teardown that removes a container undoes it.

use std::{
    io::{self, ErrorKind},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    thread,
};

use oci_spec::runtime::{ContainerState, Spec};
use rustjail::{
    cgroup::{Cgroup, CgroupPath, Hierarchies, OomEvents, Placement},
    compile::{self, ContainerRequest, NamespaceKind, Stdio},
    hooks::Kind,
    launch::Launch,
    sync,
};
use tokio::sync::oneshot;

use super::{
    Core, CreateRequest, Error, Result, StdioPorts, blocking,
    container::{Container, validate_id},
    error::failed_to,
    guest_hooks,
    launch::{TheirEnds, Waits},
    namespaces::own_pid_namespace,
    oom::Look,
    process::Process,
    resctrl, shared_mounts,
    state::{Event, State},
    streams::Sockets,
};
use crate::{
    copy,
    device::{self, Device, PciAddresses, environment},
    storage::Storage,
};

impl Core {
    pub(super) async fn create_container(self: &Rc<Self>, request: CreateRequest) -> Result<()> {
        validate_id("container", &request.id)?;
        self.refuse_while_destroying()?;
        if self.table.borrow().contains_key(&request.id) {
            return Err(Error::Exists { kind: "container", id: request.id });
        }
        let CreateRequest { id, mut spec, sandbox_pidns, ports, storages, devices, shared_mounts } = request;
        let joins = self.pid_namespace_of(sandbox_pidns)?;
        own_pid_namespace(&mut spec);
        if let Some(sandbox) = &*self.sandbox.borrow() {
            guest_hooks::add(&sandbox.guest_hooks, &mut spec);
        }
        let cgroup_path = self.cgroup_path(&id, &spec)?;
        let terminal = spec.process().as_ref().and_then(|process| process.terminal()).unwrap_or(false);
        let init = Rc::new(Process::new(&id, self.next_keys(), terminal, ports.raw()));
        let defines_pidns = self.table.borrow().is_empty();
        let kept = Arc::new(needed_later(&spec));
        let container = Container::new(id.clone(), State::Creating, kept, cgroup_path, defines_pidns, init);
        self.table.borrow_mut().insert(id, Rc::clone(&container));

        let outcome = match self.record(&container) {
            Ok(()) => match self.furnish(&container, &mut spec, storages, &devices).await {
                Ok(environment) => self.build(&container, spec, environment, joins, ports).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        let outcome = match outcome {
            Ok(()) => self.share_mounts(&container, shared_mounts).await,
            refused => refused,
        };
        let outcome = outcome.and_then(|()| {
            container.apply(Event::Ready, "create")?;
            self.record(&container)
        });
        container.created.set(outcome.is_ok());
        match &outcome {
            Ok(()) => slog::info!(self.log, "container created";
                "container" => &container.id, "process_pid" => container.init.pid.get()),
            Err(error) => {
                slog::warn!(self.log, "container not created";
                    "container" => &container.id, "error" => %error);
                self.undo(&container).await;
            }
        }
        outcome
    }

    /// What the container needs of the host: its devices under this guest's numbers, and its storages. Answers its
    /// environment if there are secrets in it, which are in no file.
    async fn furnish(
        &self,
        container: &Container,
        spec: &mut Spec,
        storages: Vec<Storage>,
        devices: &[Device],
    ) -> Result<Option<Vec<String>>> {
        let found = device::find(devices, &self.hotplug).await?;
        device::spec::apply(spec, &found)?;
        self.cdi.inject(spec).await?;
        let addresses: PciAddresses = found.into_iter().flat_map(|device| device.pci).collect();
        if let Some(process) = spec.process_mut()
            && let Some(environment) = process.env_mut()
        {
            environment::rewrite(environment, &addresses);
        }
        if !addresses.is_empty() {
            *container.pci.borrow_mut() = addresses;
            self.record(container)?;
        }
        #[cfg(feature = "cdh")]
        let storages = {
            self.mount_trusted_store(spec).await?;
            self.pull_images(container, storages).await?
        };
        self.storages.acquire(&container.id, storages).await?;
        #[cfg(feature = "image-pull")]
        self.storages.complete(spec);
        #[cfg(feature = "cdh")]
        return self.unseal(container, spec).await;
        #[cfg(not(feature = "cdh"))]
        Ok(None)
    }

    async fn build(
        self: &Rc<Self>,
        container: &Rc<Container>,
        spec: Spec,
        environment: Option<Vec<String>>,
        joins: Option<Rc<Container>>,
        ports: StdioPorts,
    ) -> Result<()> {
        let sockets = self.claim(ports).await?;
        let pid_namespace = match joins {
            Some(definer) => Some(self.pid_namespace(&definer).await?),
            None => None,
        };
        let join = self.joins(&spec, pid_namespace)?;
        let TheirEnds { stdio, sync, sockets } = self.outfit(container, &container.init, sockets)?;
        let link = container.init.sync.borrow().as_ref().map(|link| link.get_ref().try_clone()).transpose();
        let link = link.map_err(failed_to(|| format!("copy the link to container {:?}", container.id)))?;
        let (compiled, launch) = oneshot::channel();
        let mut confined = self.storages.mount_points();
        confined.push(PathBuf::from(copy::ROOT));
        let ends = Ends { stdio, link, sync, join, confined, compiled };
        let bundle = self.journal.bundle(&container.id);
        let (hierarchies, path) = (self.hierarchies.clone(), container.cgroup_path.clone());
        let id = container.id.clone();
        let groups = crate::task::spawn(blocking(move || {
            prepare(&id, &bundle, spec, environment, &hierarchies, &path, ends)
        }));
        let launched = match launch.await {
            Ok(launch) if container.state() == State::Creating => {
                self.launch(container, &container.init, launch).await
            }
            Ok(_unwanted) => Err(container.wrong_state("create")),
            // What could not be compiled is told below.
            Err(_) => Ok(()),
        };
        let groups = groups.await.map_err(io::Error::other);
        let made =
            groups.map_err(failed_to(|| format!("make the cgroup of container {:?}", container.id)))??;
        *container.cgroup.borrow_mut() = Some(made.cgroup);
        self.follow_oom(container, made.oom, Look::Later);
        launched.and(made.placed)?;
        if container.state() != State::Creating {
            return Err(container.wrong_state("create"));
        }
        self.follow_creation(container, sockets).await
    }

    async fn follow_creation(self: &Rc<Self>, container: &Rc<Container>, mut sockets: Sockets) -> Result<()> {
        let init = &container.init;
        loop {
            match self.await_report(container, init, &mut sockets).await? {
                Some(Waits::ForStart) => {
                    init.launched.set(true);
                    return Ok(());
                }
                Some(Waits::ForHooks) => {
                    let kinds = &[Kind::Prestart, Kind::CreateRuntime];
                    self.run_hooks(container, kinds, ContainerState::Creating).await?;
                    let Some(link) = init.sync.borrow().clone() else {
                        return Err(self.died(init).await);
                    };
                    // Killed meanwhile, it says so by its end.
                    let _gone = sync::hooks_done(link.get_ref().as_fd());
                }
                None => return Err(self.died(init).await),
            }
        }
    }

    /// The process went away without a word: it was killed, and its exit says how.
    pub(super) async fn died(&self, process: &Process) -> Error {
        Error::Died { exec_id: process.exec_id.clone(), status: process.exit.wait().await }
    }

    /// Where the container's group is: as the request has it, but never one that contains another
    /// container's, or is contained in one, because killing one would kill both.
    fn cgroup_path(&self, id: &str, spec: &Spec) -> Result<CgroupPath> {
        let asked = spec.linux().as_ref().and_then(|linux| linux.cgroups_path().as_deref());
        let path = CgroupPath::parse(asked, id)?;
        let table = self.table.borrow();
        let other = table.values().find(|other| {
            let (one, other) = (path.as_path(), other.cgroup_path.as_path());
            other.starts_with(one) || one.starts_with(other)
        });
        match other {
            None => Ok(path),
            Some(other) => Err(Error::Invalid(format!(
                "the cgroup {path} of container {id:?} overlaps {} of container {:?}; give each container its own",
                other.cgroup_path, other.id,
            ))),
        }
    }
}

/// What execs, hooks and other containers look at; the rest of a configuration can be large and is on disk.
pub(super) fn needed_later(spec: &Spec) -> Spec {
    let mut kept = spec.clone();
    kept.set_mounts(None);
    if kept.hooks().is_none() {
        let names = kept.annotations_mut().take().map(|mut annotations| {
            annotations.retain(|key, _| shared_mounts::NAMES.contains(&key.as_str()));
            annotations
        });
        kept.set_annotations(names);
    }
    kept
}

/// What of the new process is there before its cgroup.
struct Ends {
    stdio: Stdio,
    /// Our end of its sync socket.
    link: Option<OwnedFd>,
    sync: OwnedFd,
    join: Vec<(NamespaceKind, OwnedFd)>,
    /// What containers may have written to: a link in there leads nowhere else (kata-containers issue 7030).
    confined: Vec<PathBuf>,
    /// Where its launch goes, as soon as there is one.
    compiled: oneshot::Sender<Launch>,
}

/// A cgroup that was made has to be known, and be undone, even if what came after it failed.
struct Furnished {
    cgroup: Arc<Cgroup>,
    placed: Result<()>,
    oom: Result<Option<OomEvents>>,
}

/// A process that is gone says so by its end.
fn told(sent: io::Result<()>) -> Result<()> {
    match sent {
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(()),
        sent => sent.map_err(failed_to(|| "tell the container's process of its cgroup".to_owned())),
    }
}

/// Everything that may block, in one go: the look at the root file system, the cgroup, the bundle. As soon as the
/// process can be launched it is, and mounts while the rest is made.
fn prepare(
    id: &str,
    bundle: &Path,
    spec: Spec,
    environment: Option<Vec<String>>,
    hierarchies: &Hierarchies,
    path: &CgroupPath,
    Ends { stdio, link, sync, join, confined, compiled }: Ends,
) -> Result<Furnished> {
    let secret = environment.map(|environment| {
        let mut secret = spec.clone();
        if let Some(process) = secret.process_mut() {
            process.set_env(Some(environment));
        }
        secret
    });
    let group = Cgroup::begin(hierarchies, path)?;
    let placement = Some(Placement { into: group.birthplace()?, tasks: Vec::new() });
    let resctrl = resctrl::create(&spec, id, bundle)?;
    let (whole, resctrl, confined) = (secret.as_ref().unwrap_or(&spec), resctrl.as_ref(), &confined);
    let request =
        ContainerRequest { id, spec: whole, bundle, confined, stdio, join, placement, resctrl, sync };
    let mut launch = compile::container(request)?;
    launch.plan.placement.more = true;
    // Nobody takes it any more if the container was given up; then the process is not made.
    let _unwanted = compiled.send(launch);
    // Where the kernel packs virtual processors its taker was just woken on this thread's, though another idles.
    thread::yield_now();

    let written = super::bundle::write(bundle, &spec)
        .map_err(failed_to(|| format!("write the bundle {}", bundle.display())));
    let resources = spec.linux().as_ref().and_then(|linux| linux.resources().as_ref());
    let group = group.fill()?;
    let tasks = group.tasks()?;
    // It enters them while their limits are written.
    let entered = link.as_ref().map_or(Ok(()), |link| sync::enter(link.as_fd(), &tasks));
    let cgroup = Arc::new(group.limit(resources)?);
    // One that could not be told which groups to enter must not go on without them.
    let placed = written.and_then(|()| {
        told(entered.and_then(|()| link.map_or(Ok(()), |link| sync::place(link.as_fd(), &[]))))
    });
    let oom = cgroup.oom_events(0).map_err(Error::from);
    Ok(Furnished { cgroup, placed, oom })
}
