//! Adding a process to a running container.

use std::{os::fd::AsFd, rc::Rc};

use rustjail::{compile, sys::pidfd};

use super::{
    Core, Error, ExecRequest, Result, StdioPorts, blocking,
    container::{Container, validate_id},
    launch::TheirEnds,
    process::Process,
    resctrl,
    state::State,
};
use crate::device::environment;

impl Core {
    pub(super) async fn exec_process(self: &Rc<Self>, request: ExecRequest) -> Result<()> {
        let ExecRequest { container_id, exec_id, process: mut wanted, ports } = request;
        validate_id("exec", &exec_id)?;
        let container = self.container(&container_id)?;
        if container.state() != State::Running {
            return Err(container.wrong_state("execute a process in"));
        }
        if container.process(&exec_id).is_ok() {
            return Err(Error::Exists { kind: "exec", id: exec_id });
        }
        let Ok(_setup) = container.setups.try_acquire() else {
            return Err(container.wrong_state("execute a process in"));
        };
        if let Some(environment) = wanted.env_mut() {
            environment::rewrite(environment, &container.pci.borrow());
        }
        let terminal = wanted.terminal().unwrap_or(false);
        let process = Rc::new(Process::new(&exec_id, self.next_keys(), terminal, ports.raw()));
        container.execs.borrow_mut().insert(exec_id, Rc::clone(&process));

        let outcome = match self.record(&container) {
            Ok(()) => self.join(&container, &process, wanted, ports).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => {
                process.launched.set(true);
                self.end_sync(&process);
                slog::info!(self.log, "process started"; "container" => &container.id,
                    "exec" => &process.exec_id, "process_pid" => process.pid.get());
                self.record(&container)
            }
            Err(error) => {
                slog::warn!(self.log, "process not started"; "container" => &container.id,
                    "exec" => &process.exec_id, "error" => %error);
                self.undo_exec(&container, &process).await;
                // The container went away under it: say that, not what it broke.
                match container.state() {
                    State::Stopped | State::Removing => Err(container.wrong_state("execute a process in")),
                    _ => Err(error),
                }
            }
        }
    }

    async fn join(
        self: &Rc<Self>,
        container: &Rc<Container>,
        process: &Rc<Process>,
        wanted: oci_spec::runtime::Process,
        ports: StdioPorts,
    ) -> Result<()> {
        let sockets = self.claim(ports).await?;
        let init = container.init.pidfd.borrow().clone();
        let (Some(init), Some(cgroup)) = (init, container.cgroup()) else {
            return Err(container.wrong_state("execute a process in"));
        };
        let TheirEnds { stdio, sync, mut sockets } = self.outfit(container, process, sockets)?;
        let spec = std::sync::Arc::clone(&container.spec);
        let bundle = self.journal.bundle(&container.id);
        let launch = blocking(move || {
            let placement = Some(cgroup.placement()?);
            let resctrl = resctrl::of(&spec, &bundle)?;
            let resctrl = resctrl.as_ref();
            let init = init.as_fd();
            let (process, spec) = (&wanted, &*spec);
            let request = compile::ExecRequest { process, spec, init, stdio, placement, resctrl, sync };
            compile::exec(request).map_err(Error::from)
        })
        .await?;
        if container.state() != State::Running {
            return Err(container.wrong_state("execute a process in"));
        }
        self.launch(container, process, launch).await?;
        self.await_report(container, process, &mut sockets).await.map(|_execve_succeeded| ())
    }

    /// Leaves nothing of an exec that did not come about.
    pub(super) async fn undo_exec(self: &Rc<Self>, container: &Rc<Container>, process: &Rc<Process>) {
        if process.maybe_made.get() {
            self.settle(container, process).await;
            self.kill_strangers(container).await;
        }
        let pidfd = process.pidfd.borrow().clone();
        if let Some(pidfd) = pidfd
            && let Err(error) = pidfd::signal(pidfd.as_fd(), nix::libc::SIGKILL)
            && error.raw_os_error() != Some(nix::libc::ESRCH)
        {
            slog::error!(self.log, "a process that was to be undone cannot be killed";
                "container" => &container.id, "exec" => &process.exec_id, "error" => %error);
        }
        if process.pid.get() != 0 {
            process.exit.wait().await;
        }
        self.forget_exec(container, process);
    }
}
