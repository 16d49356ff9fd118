//! `berthctl run`: a VM for one container.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use berth_protocols::agent::{CreateContainerRequest, CreateSandboxRequest};
use protobuf::MessageField;
use serde_json::{Map, json};
use tokio::time::timeout;

use super::{Error, Result, container::warn_of, override_process, starting, stdin_is_ours, ui};
use crate::{
    Agent,
    bundle::Bundle,
    cli::{Global, Run},
    client::{self, ProcessId},
    session::{self, Session},
    stdio::RawStreams,
    vmm::{Ending, Machine, Room, Running, Stage, Vmm, image, qemu::Qemu, workdir::WorkDir},
};

/// A guest powers off in a few milliseconds, under emulation on a busy host in a second.
const POWER_OFF: Duration = Duration::from_secs(10);

pub(super) async fn run(global: &Global, run: Run) -> Result<i32> {
    check_id(&run.id)?;
    let mut timing = Timing::new();
    let mut bundle = match &run.rootfs {
        Some(rootfs) => Bundle::for_rootfs(rootfs)?,
        None => Bundle::load(&image::locate(run.bundle.as_deref(), "bundle/busybox", "bundle")?)?,
    };
    warn_of(&bundle.lost);
    bundle.spec.Root.mut_or_insert_default().Path = image::guest_rootfs(&run.id);
    override_process(bundle.spec.Process.mut_or_insert_default(), &run.process, &run.command);

    let mut vm = interruptible(boot(global, &run, bundle.rootfs.clone(), &mut timing)).await?;
    let address = vm.address().clone();
    let work = in_guest(global, &run, bundle, address, &mut timing);
    let worked = tokio::select! {
        worked = work => worked,
        ending = vm.ended() => Err(Error::GuestEnded { ending, console: vm.console() }),
    };
    let ended = match worked {
        Ok((agent, status)) => {
            let destroyed = destroy(agent.destroy_sandbox(), vm.ended()).await;
            timing.step("destroy sandbox");
            match destroyed {
                Ok(None) => Ok(status),
                Ok(Some(ending)) => Err(Error::GuestEnded { ending, console: vm.console() }),
                Err(error) => Err(error.into()),
            }
        }
        Err(error) => Err(error),
    };
    let ended = match ended {
        Err(error) if error.lost_agent() => Err(lost(error, &mut vm).await),
        ended => ended,
    };
    ui::progress("");
    if ended.is_ok() {
        let clean = vm.gone(POWER_OFF).await;
        timing.step("power off");
        if !clean {
            ui::warning(&"the guest did not power off and was ended by force");
        }
    }
    if run.timing {
        timing.print(global.json);
    }
    ended
}

/// Why the agent does not answer: the connection breaks before the VMM says what happened to its guest.
async fn lost(error: Error, vm: &mut Running) -> Error {
    let known = timeout(Duration::from_secs(1), vm.ended()).await;
    let console = vm.console();
    match known {
        Ok(ending) => Error::GuestEnded { ending, console },
        Err(_) => Error::AgentLost { source: Box::new(error), console },
    }
}

fn check_id(id: &str) -> Result<()> {
    let first = id.starts_with(|letter: char| letter.is_ascii_alphanumeric());
    if id.len() < 2
        || !first
        || !id.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter))
    {
        let reason =
            "it takes two or more letters, digits, dots, dashes or underscores, the first a letter or digit";
        return Err(Error::Id { id: id.to_owned(), reason });
    }
    Ok(())
}

async fn boot(global: &Global, run: &Run, rootfs: PathBuf, timing: &mut Timing) -> Result<Running> {
    let progress = |text: &str| {
        if !global.quiet {
            ui::progress(text)
        }
    };
    let kernel = image::locate(run.kernel.as_deref(), "vmlinux", "kernel")?;
    let initrd = image::locate(run.initrd.as_deref(), "initrd.cpio", "initrd")?;
    let dir =
        WorkDir::new().map_err(|source| Error::Local { action: "make a temporary directory", source })?;
    progress("packing the bundle…");
    // On the blocking pool, so that ^C is heard while a large tree is copied.
    let id = run.id.clone();
    let packed = tokio::task::spawn_blocking(move || {
        image::with_bundle(&initrd, &rootfs, &id, &dir).map(|path| (path, dir))
    });
    let packed =
        packed.await.map_err(|error| Error::Local { action: "pack the bundle", source: error.into() })?;
    // Kept until the guest has taken it.
    let (initrd, _dir) = packed?;
    timing.step("pack");

    let machine = Machine {
        kernel,
        initrd,
        memory: run.memory,
        cpus: run.cpus,
        accel: run.accel,
        network: Vec::new(),
        append: run.append.clone(),
        patience: run.boot_timeout,
        room: Room::default(),
        tether: std::env::current_exe().ok(),
    };
    progress("booting…");
    let notice = |notice| {
        if !global.quiet {
            ui::warning(&notice);
            progress("booting…");
        }
    };
    let vm = Qemu.boot(&machine, &notice).await?;
    timing.step("boot");
    timing.guest = vm.stages().to_vec();
    Ok(vm)
}

async fn in_guest(
    global: &Global,
    run: &Run,
    bundle: Bundle,
    address: crate::Address,
    timing: &mut Timing,
) -> Result<(Agent, i32)> {
    let agent = Agent::connect(&address, global.timeout).await?;
    timing.step("connect");
    let hostname = bundle.spec.Hostname.clone();
    let sandbox = CreateSandboxRequest { sandbox_id: run.id.clone(), hostname, ..Default::default() };
    interruptible(async { Ok(agent.create_sandbox(&sandbox).await?) }).await?;
    timing.step("create sandbox");

    let stdin = stdin_is_ours(&run.process);
    let raw = match run.process.raw_stdio {
        true => RawStreams::open(&address, stdin, run.process.tty).await?,
        false => RawStreams::default(),
    };
    let (stdin_port, stdout_port, stderr_port) = raw.ports();
    let program = bundle.spec.Process.Args.first().cloned();
    let request = CreateContainerRequest {
        container_id: run.id.clone(),
        OCI: MessageField::some(bundle.spec),
        stdin_port,
        stdout_port,
        stderr_port,
        ..Default::default()
    };
    let create =
        async { agent.create_container(&request).await.map_err(|error| starting(error, program.as_deref())) };
    interruptible(create).await?;
    timing.step("create");

    let process = ProcessId::init(&run.id);
    if !stdin && !run.process.tty {
        agent.close_stdin(&process).await?;
    }
    ui::progress("");
    let session = Session { agent: agent.clone(), process, terminal: run.process.tty, stdin, raw };
    let start = async {
        agent.start_container(&run.id).await?;
        timing.step("start");
        Ok(())
    };
    let status = session.run(start).await.map_err(|error| match error {
        session::Error::Client(error @ crate::client::Error::Rpc { .. }) => starting(error, None),
        error => error.into(),
    })?;
    timing.step("run");
    agent.remove_container(&run.id).await?;
    timing.step("remove");
    Ok((agent, status))
}

/// Waits for the guest's reply to DestroySandbox or for what it is asked for, whichever is seen first: it may be gone
/// before its reply is out. Any other end is returned.
async fn destroy(
    destroyed: impl Future<Output = client::Result<()>>,
    ended: impl Future<Output = Ending>,
) -> client::Result<Option<Ending>> {
    tokio::select! {
        destroyed = destroyed => match destroyed {
            Ok(()) | Err(client::Error::NoReply { .. }) => Ok(None),
            Err(error) => Err(error),
        },
        ending = ended => match ending {
            Ending::Shutdown(_) => Ok(None),
            Ending::Exited(status) if status.success() => Ok(None),
            ending => Ok(Some(ending)),
        },
    }
}

/// Before a process is attached, a signal ends the work; what was started goes with it.
async fn interruptible<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        done = work => done,
        signal = session::interrupted() => match signal {
            Ok(signal) => Err(session::Error::Signal(signal).into()),
            Err(source) => Err(Error::Local { action: "listen for signals", source }),
        },
    }
}

struct Timing {
    last: Instant,
    steps: Vec<(&'static str, Duration)>,
    /// The boot as the guest saw it.
    guest: Vec<Stage>,
}

impl Timing {
    fn new() -> Self {
        Self { last: Instant::now(), steps: Vec::new(), guest: Vec::new() }
    }

    fn step(&mut self, name: &'static str) {
        let now = Instant::now();
        self.steps.push((name, now - self.last));
        self.last = now;
    }

    fn print(&self, as_json: bool) {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let guest = self.guest.iter().map(|stage| (stage.name.as_str(), stage.since_boot));
        let steps = self.steps.iter().copied();
        if as_json {
            let steps: Map<_, _> =
                steps.map(|(name, time)| (name.to_owned(), json!(milliseconds(time)))).collect();
            let guest: Map<_, _> =
                guest.map(|(name, time)| (name.to_owned(), json!(milliseconds(time)))).collect();
            return ui::say(&json!({ "milliseconds": steps, "guest_since_boot": guest }).to_string());
        }
        let total = self.steps.iter().map(|(_, time)| *time).sum();
        for (name, time) in steps.chain([("total", total)]) {
            ui::say(&format!("{name:<24}{:>10.1} ms", milliseconds(time)));
        }
        for (name, time) in guest {
            ui::say(&format!("  guest: {name:<15}{:>10.1} ms since its boot", milliseconds(time)));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{future::pending, os::unix::process::ExitStatusExt, process::ExitStatus};

    use super::*;

    #[tokio::test]
    async fn a_guest_that_is_off_before_its_reply_came_has_done_as_told() {
        let exited = |raw| Ending::Exited(ExitStatus::from_raw(raw));
        for ending in [Ending::Shutdown("guest-shutdown".into()), exited(0)] {
            assert_eq!(destroy(pending(), async { ending }).await.unwrap(), None);
        }
        for ending in [Ending::Panicked, Ending::Stopped, exited(6)] {
            assert_eq!(destroy(pending(), async { ending.clone() }).await.unwrap(), Some(ending.clone()));
        }
        assert_eq!(destroy(async { Ok(()) }, pending()).await.unwrap(), None);
    }
}
