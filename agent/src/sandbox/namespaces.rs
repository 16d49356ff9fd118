//! The namespaces that containers of one sandbox share.
//!
//! IPC and UTS are made once, by a short-lived thread that unshares them for itself; descriptors keep them
//! alive, here and in init's store, so no process and no mount has to. The PID namespace is that of the first
//! container's init and lives exactly as long as that: it is joined by its pidfd.

use std::{fs::File, io, os::fd::OwnedFd, rc::Rc};

use nix::sched::{CloneFlags, unshare};
use oci_spec::runtime::{LinuxNamespace, LinuxNamespaceType, Spec};
use rustjail::compile::NamespaceKind;
use tokio::sync::oneshot;

use super::{Core, Error, Result, container::Container, error::failed_to, state::State};

/// What every container of the sandbox joins.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) ipc: OwnedFd,
    pub(super) uts: OwnedFd,
}

impl Shared {
    /// Makes the namespaces; an empty hostname keeps the guest's.
    pub(super) async fn make(hostname: String) -> io::Result<Self> {
        on_own_thread(move || unshare_here(&hostname)).await
    }
}

/// Runs `work` on a new thread: one that has changed its namespaces must not be used for anything else afterwards.
pub(super) async fn on_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, receiver) = oneshot::channel();
    std::thread::Builder::new().name("namespaces".to_owned()).stack_size(64 << 10).spawn(move || {
        let _receiver_gone = done.send(work());
    })?;
    receiver.await.map_err(io::Error::other)?
}

fn unshare_here(hostname: &str) -> io::Result<Shared> {
    unshare(CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS)?;
    if !hostname.is_empty() {
        nix::unistd::sethostname(hostname)?;
    }
    let open = |kind| File::open(format!("/proc/thread-self/ns/{kind}")).map(OwnedFd::from);
    Ok(Shared { ipc: open("ipc")?, uts: open("uts")? })
}

/// Makes the PID namespace of `spec` a new one: every container has its own, or the sandbox's, whatever path
/// the request names.
pub(super) fn own_pid_namespace(spec: &mut Spec) {
    let mut linux = spec.linux().clone().unwrap_or_default();
    let mut namespaces = linux.namespaces().clone().unwrap_or_default();
    namespaces.retain(|namespace| namespace.typ() != LinuxNamespaceType::Pid);
    let mut pid = LinuxNamespace::default();
    pid.set_typ(LinuxNamespaceType::Pid);
    namespaces.push(pid);
    linux.set_namespaces(Some(namespaces));
    spec.set_linux(Some(linux));
}

fn asks_for(spec: &Spec, kind: LinuxNamespaceType) -> bool {
    let namespaces = spec.linux().as_ref().and_then(|linux| linux.namespaces().as_ref());
    namespaces.is_some_and(|namespaces| namespaces.iter().any(|namespace| namespace.typ() == kind))
}

impl Core {
    /// What `spec` joins: the sandbox's IPC and UTS where it asks for one of its own, and a PID namespace.
    pub(super) fn joins(&self, spec: &Spec, pid: Option<OwnedFd>) -> Result<Vec<(NamespaceKind, OwnedFd)>> {
        let mut joins = Vec::new();
        if let Some(shared) = &*self.shared.borrow() {
            for (kind, wanted, fd) in [
                (NamespaceKind::Ipc, LinuxNamespaceType::Ipc, &shared.ipc),
                (NamespaceKind::Uts, LinuxNamespaceType::Uts, &shared.uts),
            ] {
                if asks_for(spec, wanted) {
                    let fd =
                        fd.try_clone().map_err(failed_to(|| "copy a namespace descriptor".to_owned()))?;
                    joins.push((kind, fd));
                }
            }
        }
        joins.extend(pid.map(|fd| (NamespaceKind::Pid, fd)));
        Ok(joins)
    }

    /// The container whose PID namespace a new one joins, where it asks to.
    pub(super) fn pid_namespace_of(&self, sandbox_pidns: bool) -> Result<Option<Rc<Container>>> {
        let table = self.table.borrow();
        if !sandbox_pidns || table.is_empty() {
            return Ok(None);
        }
        table
            .values()
            .find(|container| container.defines_pidns)
            .cloned()
            .map(Some)
            .ok_or(Error::NoSandboxPidns)
    }

    /// The pidfd by which the PID namespace of `definer` is joined; it may still be on its way.
    pub(super) async fn pid_namespace(&self, definer: &Container) -> Result<OwnedFd> {
        let created = definer.created.wait().await;
        if !created || matches!(definer.state(), State::Stopped | State::Removing) {
            return Err(Error::NoSandboxPidns);
        }
        let pidfd = definer.init.pidfd.borrow().clone().ok_or(Error::NoSandboxPidns)?;
        pidfd.try_clone().map_err(failed_to(|| "copy a pidfd".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::stat::fstat;
    use oci_spec::runtime::{LinuxNamespaceType, Spec};

    use super::{Shared, own_pid_namespace};

    #[test]
    fn the_pid_namespace_of_a_spec_becomes_one_new_entry() {
        for namespaces in [r#"null"#, r#"[]"#, r#"[{"type":"mount"},{"type":"pid","path":"/proc/1/ns/pid"}]"#]
        {
            let text = format!(r#"{{"ociVersion":"1.2.0","linux":{{"namespaces":{namespaces}}}}}"#);
            let mut spec: Spec = serde_json::from_str(&text).unwrap();
            own_pid_namespace(&mut spec);
            let namespaces = spec.linux().clone().unwrap().namespaces().clone().unwrap();
            let pids: Vec<_> = namespaces.iter().filter(|n| n.typ() == LinuxNamespaceType::Pid).collect();
            assert_eq!(pids.len(), 1);
            assert!(pids[0].path().is_none());
        }
    }

    #[test]
    fn shared_namespaces_are_new_and_the_caller_stays_in_its_own() {
        let here = || std::fs::read_link("/proc/thread-self/ns/uts").unwrap();
        let before = here();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let shared = runtime.block_on(Shared::make("box".to_owned())).unwrap();
        assert_eq!(before, here());
        let inode = format!("uts:[{}]", fstat(shared.uts.as_fd()).unwrap().st_ino);
        assert_ne!(before.to_str().unwrap(), inode);
    }
}
