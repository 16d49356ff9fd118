//! Setting the sandbox up: kernel modules, shared namespaces, name servers.
//!
//! Containers do not need it: without a sandbox each has the namespaces its own configuration names. A set-up
//! that fails leaves no sandbox, so it can be tried again.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
    process::Command,
    rc::Rc,
};

use super::{
    Core, Error, Phase, Result, SandboxRequest, blocking, dns,
    error::failed_to,
    guest_hooks,
    journal::{SandboxRecord, VERSION},
    namespaces::Shared,
};
use crate::{init::modules, storage::SANDBOX, supervisor::Key};

/// In Berth's image it is the agent itself; a guest with a userland may have its own configuration for it.
const MODPROBE: &str = "/sbin/modprobe";
/// What the kernel takes for a hostname.
const MAX_HOSTNAME: usize = 64;

impl Core {
    pub(super) async fn create_sandbox(self: &Rc<Self>, request: SandboxRequest) -> Result<()> {
        match self.phase.get() {
            Phase::Absent => {}
            Phase::Present => {
                return Err(Error::Exists { kind: "sandbox", id: request.id });
            }
            Phase::Destroying => return Err(Error::Sandbox("being destroyed")),
        }
        validate_hostname(&request.hostname)?;
        let dns = dns::contents(&request.dns)?;
        self.phase.set(Phase::Present);
        let outcome = self.set_up(request, dns).await;
        if outcome.is_err() {
            if let Err(error) = self.storages.release(SANDBOX).await {
                slog::error!(self.log, "the sandbox's storages are not undone"; "error" => %error);
            }
            self.phase.set(Phase::Absent);
        }
        outcome
    }

    async fn set_up(self: &Rc<Self>, request: SandboxRequest, dns: String) -> Result<()> {
        let SandboxRequest { hostname, id, dns: lines, kernel_modules, storages, guest_hooks: path } =
            request;
        blocking(move || kernel_modules.iter().try_for_each(|(name, parameters)| load(name, parameters)))
            .await?;
        self.storages.acquire(SANDBOX, storages).await?;
        // After the storages: the hooks may be on one.
        let guest_hooks = match path.as_os_str().is_empty() {
            true => Vec::new(),
            false => blocking(move || guest_hooks::find(&path)).await?,
        };
        let shared = Shared::make(hostname)
            .await
            .map_err(failed_to(|| "make the IPC and UTS namespaces of the sandbox".to_owned()))?;
        let base = self.next_keys().0;
        let (ipc, uts) = (Key(base), Key(base + 1));
        let mut record = SandboxRecord { version: VERSION, id, ipc, uts, dns: false, guest_hooks };
        let outcome = self.keep(&mut record, &shared, (!lines.is_empty()).then_some(dns)).await;
        if outcome.is_err() {
            self.let_go(&record).await?;
            return outcome;
        }
        self.named.set_sandbox(&record.id);
        slog::info!(self.log, "sandbox created";
            "sandbox" => &record.id, "guest_hooks" => record.guest_hooks.len());
        *self.shared.borrow_mut() = Some(shared);
        *self.sandbox.borrow_mut() = Some(record);
        Ok(())
    }

    async fn keep(&self, record: &mut SandboxRecord, shared: &Shared, dns: Option<String>) -> Result<()> {
        let store = |key, fd: &OwnedFd| {
            let stored = self.supervisor.store(key, fd.as_fd());
            stored.map_err(failed_to(|| "give init the sandbox's namespaces to hold".to_owned()))
        };
        store(record.ipc, &shared.ipc)?;
        store(record.uts, &shared.uts)?;
        if let Some(dns) = dns {
            let file = self.journal.resolv_conf();
            record.dns = blocking(move || dns::cover(&file, &dns)).await?;
        }
        self.journal.write_sandbox(record).map_err(failed_to(|| "write the sandbox's journal".to_owned()))
    }

    /// Gives up what a sandbox had beside its containers.
    pub(super) async fn let_go(&self, record: &SandboxRecord) -> Result<()> {
        if record.dns {
            blocking(dns::uncover).await?;
        }
        self.journal.remove_sandbox().map_err(failed_to(|| "remove the sandbox's journal".to_owned()))?;
        for key in [record.ipc, record.uts] {
            self.supervisor.forget(key).map_err(failed_to(|| "have init close a namespace".to_owned()))?;
        }
        Ok(())
    }
}

fn validate_hostname(hostname: &str) -> Result<()> {
    if hostname.len() > MAX_HOSTNAME || hostname.contains(|c: char| c.is_control() || c.is_whitespace()) {
        let text = format!("the hostname {hostname:?} is over {MAX_HOSTNAME} bytes or not a single word");
        return Err(Error::Invalid(text));
    }
    Ok(())
}

fn load(name: &str, parameters: &[String]) -> Result<()> {
    if name.is_empty() || name.starts_with('-') || name.contains('/') {
        return Err(Error::Invalid(format!("{name:?} is not the name of a kernel module")));
    }
    if !Path::new(MODPROBE).exists() {
        let found = modules::request(name, &parameters.join(" "))
            .map_err(|error| Error::Invalid(error.to_string()))?;
        return match found || modules::is_there(name) {
            true => Ok(()),
            false => Err(Error::Invalid(format!("there is no kernel module {name}"))),
        };
    }
    let mut command = Command::new(MODPROBE);
    command.args(["-v", "--", name]).args(parameters);
    let output = command.output().map_err(failed_to(|| format!("run {MODPROBE} {name}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said: String = said.trim().chars().take(1024).collect();
    Err(Error::Invalid(format!("cannot load the kernel module {name:?}: {}: {said}", output.status)))
}

#[cfg(test)]
mod tests {
    use super::{load, validate_hostname};

    #[test]
    fn names_that_are_no_names_are_refused() {
        for hostname in ["a b", "a\nb", "a\0", &"h".repeat(65)] {
            assert!(validate_hostname(hostname).is_err(), "{hostname:?}");
        }
        assert!(validate_hostname("").is_ok() && validate_hostname("box-1.local").is_ok());
        assert!(load("--remove", &[]).is_err() && load("../x", &[]).is_err());
    }
}
