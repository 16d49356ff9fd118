//! Virtual machines around an agent.
//!
//! [`Vmm`] is what a virtual machine monitor must do for us; [`qemu`] is the one there is. A guest counts as booted
//! when its agent dials out to the host (kernel argument `berth.ready_port`), never by trying to connect to it:
//! a CONNECT that comes before the guest listens can wedge a hybrid vsock device for good.
//!
//! ```text
//!   boot --ready--> Running --DestroySandbox, power off--> ended
//!     |                '--panic, crash, triple fault--> Ending, with the console's last lines
//!     '--silence, panic--> Error
//! ```

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use tokio::time::timeout;

use crate::address::Address;

pub mod image;
mod listening;
pub mod process;
pub mod qemu;
mod qmp;
mod vsock;
pub mod workdir;

pub use listening::listens;

use process::Process;
use qmp::Qmp;
use workdir::WorkDir;

/// How the guest's CPUs are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Accel {
    /// By the hardware when that works, else by emulation.
    Auto,
    /// By the hardware.
    Kvm,
    /// By emulation.
    Tcg,
}

/// What to boot.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The kernel, best an uncompressed ELF image.
    pub kernel: PathBuf,
    /// The initial filesystem.
    pub initrd: PathBuf,
    /// Memory in MiB.
    pub memory: u32,
    /// Number of CPUs.
    pub cpus: u32,
    /// How they are run.
    pub accel: Accel,
    /// What can be plugged in while it runs.
    pub room: Room,
    /// Network interfaces that are there from the start.
    pub network: Vec<Nic>,
    /// Further kernel arguments.
    pub append: Vec<String>,
    /// How long the guest may take until its agent is ready.
    pub patience: Duration,
    /// The `berthctl` program, by which children are tied to our life; see [`process`].
    pub tether: Option<PathBuf>,
}

/// A virtio network interface, behind which the VMM itself is the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// Its MAC address.
    pub mac: String,
    /// Its network, "10.0.2.0/24"; the VMM is its second address.
    pub network: String,
}

/// What a machine has sockets, slots and ports for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Room {
    /// CPUs in all; 0 is no more than it boots with.
    pub cpus: u32,
    /// Memory in all, in MiB; 0 is no more than it boots with.
    pub memory: u32,
    /// PCI Express ports, called `port0` and on, in the slots from 10 (hexadecimal) on.
    pub ports: u8,
    /// Further arguments of the VMM, for devices that are there from the start.
    pub arguments: Vec<String>,
}

/// Why the VMM did not do what it was told while the machine runs.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// It does not want to.
    #[error("the VMM refuses {command}: {reason}")]
    Refused {
        /// What it was told.
        command: String,
        /// Its words.
        reason: String,
    },
    /// It cannot be told any more.
    #[error("the VMM does not hear {command}: {source}")]
    Lost {
        /// What it was told.
        command: String,
        /// How the connection failed.
        source: io::Error,
    },
}

/// Something a user should hear while the machine boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Emulation it is, because of this.
    Emulation {
        /// Why not KVM.
        reason: String,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Emulation { reason } = self;
        // Measured with QEMU 7.2 on two cores: boot 1.5 s idle, 5 s loaded; CPU-bound work 7 times the host's time.
        write!(
            f,
            "no hardware virtualization ({reason}); emulating: the boot takes 2 to 5 s, computing about 7 times as long"
        )
    }
}

/// Why there is no running machine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel or the initial filesystem is missing.
    #[error(
        "there is no {what} at {path}; build one with `make image`, or name another directory in BERTH_IMAGE_DIR"
    )]
    NoImage {
        /// "kernel", "initrd" or "bundle".
        what: &'static str,
        /// Where it should be.
        path: PathBuf,
    },
    /// A program is not installed.
    #[error("{program} is not installed; {install}")]
    NoProgram {
        /// Which.
        program: &'static str,
        /// How to get it.
        install: &'static str,
    },
    /// KVM was asked for and is not to be had.
    #[error("KVM cannot be used: {reason}; use --accel auto or tcg")]
    NoKvm {
        /// Why not.
        reason: String,
    },
    /// A step of the preparation failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was being done, with the path.
        action: String,
        /// How it failed.
        source: io::Error,
    },
    /// The initial filesystem could not be put together.
    #[error(transparent)]
    Archive(#[from] crate::cpio::Error),
    /// A helper ended when it should have gone on.
    #[error("{program} ended with {status} while the VM was being started{output}")]
    Helper {
        /// Which.
        program: &'static str,
        /// How.
        status: ExitStatus,
        /// What it said.
        output: Tail,
    },
    /// The machine ended before its agent was ready.
    #[error("the VM {ending} before its agent was ready{console}{output}")]
    Ended {
        /// How.
        ending: Ending,
        /// The console's last lines.
        console: Tail,
        /// The VMM's last lines.
        output: Tail,
    },
    /// The machine runs, its agent does not answer.
    #[error("the guest gave no sign of its agent for {} s{console}{output}", .patience.as_secs_f32())]
    Silent {
        /// How long was waited.
        patience: Duration,
        /// The console's last lines.
        console: Tail,
        /// The VMM's last lines.
        output: Tail,
    },
}

/// How a machine came to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Its kernel panicked.
    Panicked,
    /// It was switched off or reset; the VMM's word for why.
    Shutdown(String),
    /// Its CPUs were stopped by the VMM, as after an error of the accelerator.
    Stopped,
    /// The VMM itself ended.
    Exited(ExitStatus),
    /// The VMM's process could not be waited for.
    Unknown,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked => f.write_str("panicked (the guest's kernel gave up)"),
            Self::Shutdown(reason) => write!(f, "shut down ({reason})"),
            Self::Stopped => f.write_str("was stopped by the VMM"),
            Self::Exited(status) => write!(f, "is gone: the VMM ended with {status}"),
            Self::Unknown => f.write_str("is gone"),
        }
    }
}

/// The last lines of a log, for an error's text; empty when there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tail {
    name: &'static str,
    lines: Vec<String>,
}

impl Tail {
    /// Lines of a log that say why a machine ended.
    const LINES: usize = 40;
    /// A panic's trace can be longer than that, but not than this.
    const TRACE: usize = 120;
    /// What came before a panic often tells more than its trace.
    const BEFORE: usize = 10;

    fn of(name: &'static str, path: &Path) -> Self {
        let bytes = fs::read(path).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let mut lines: Vec<_> = text.lines().map(printable).filter(|line| !line.is_empty()).collect();
        lines.drain(..Self::first(&lines));
        Self { name, lines }
    }

    fn first(lines: &[String]) -> usize {
        let back = |count| lines.len().saturating_sub(count);
        let panic = lines.iter().rposition(|line| line.contains("Kernel panic"));
        let panic = panic.filter(|at| *at >= back(Self::TRACE));
        panic.map_or(usize::MAX, |at| at.saturating_sub(Self::BEFORE)).min(back(Self::LINES))
    }

    fn last(&self) -> Option<&str> {
        self.lines.last().map(String::as_str)
    }
}

/// A guest's console must not be able to play tricks on the user's terminal.
fn printable(line: &str) -> String {
    line.chars()
        .filter(|letter| !letter.is_control() || *letter == '\t')
        .collect::<String>()
        .trim_end()
        .to_owned()
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lines.is_empty() {
            return Ok(());
        }
        write!(f, "\nlast lines of {}:", self.name)?;
        self.lines.iter().try_for_each(|line| write!(f, "\n  | {line}"))
    }
}

/// A point of the guest's boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// What was over then.
    pub name: String,
    /// On the guest's clock, which starts with its kernel.
    pub since_boot: Duration,
}

/// A virtual machine monitor.
pub trait Vmm {
    /// Boots a machine and returns when its agent is ready. Dropping the future ends what was started.
    fn boot(
        &self,
        machine: &Machine,
        notice: &dyn Fn(Notice),
    ) -> impl Future<Output = Result<Running, Error>>;
}

/// A machine whose agent is ready. Dropping it kills the machine and removes its files.
#[derive(Debug)]
pub struct Running {
    address: Address,
    accel: Accel,
    stages: Vec<Stage>,
    vmm: Process,
    /// Declared after the VMM: its device must outlive it.
    _vsock: Option<Process>,
    qmp: Qmp,
    dir: WorkDir,
}

impl Running {
    /// How to reach its agent.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// How its CPUs are run.
    pub fn accel(&self) -> Accel {
        self.accel
    }

    /// What the guest told about its boot.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The console's last lines.
    pub fn console(&self) -> Tail {
        Tail::of("the guest's console", &self.dir.join(qemu::SERIAL))
    }

    fn output(&self) -> Tail {
        Tail::of("the VMM's output", self.vmm.log())
    }

    /// Waits for the machine's end, however it comes.
    pub async fn ended(&mut self) -> Ending {
        tokio::select! {
            // First the event, which says more than the exit that follows it.
            biased;
            ending = self.qmp.ended() => ending,
            status = self.vmm.exited() => status.map_or(Ending::Unknown, Ending::Exited),
        }
    }

    /// Has the VMM do something in its own words, such as QEMU's `device_add`.
    pub async fn control(
        &mut self,
        command: &str,
        arguments: &serde_json::Value,
    ) -> Result<serde_json::Value, ControlError> {
        self.qmp.execute(command, arguments).await
    }

    /// Unplugs a device and waits until the guest has let go of it.
    pub async fn unplug(&mut self, id: &str) -> Result<(), ControlError> {
        self.control("device_del", &serde_json::json!({ "id": id })).await?;
        let gone = self.qmp.unplugged(id).await;
        gone.map_err(|source| ControlError::Lost { command: format!("device_del {id}"), source })
    }

    /// Presses the power button.
    pub async fn power_down(&mut self) {
        self.qmp.send("system_powerdown").await;
    }

    /// Waits `patience` for a machine that is shutting down, then ends it by force. True when no force was needed.
    pub async fn gone(mut self, patience: Duration) -> bool {
        if timeout(patience, self.vmm.exited()).await.is_ok() {
            return true;
        }
        self.qmp.send("quit").await;
        let _ = timeout(Duration::from_secs(1), self.vmm.exited()).await;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_before_a_panic_is_shown_however_long_its_trace() {
        let first = |before: usize, trace: usize| {
            let mut lines = vec!["word".to_owned(); before];
            lines.push("Kernel panic - not syncing".to_owned());
            lines.resize(before + 1 + trace, "  ? trace".to_owned());
            (lines.len(), Tail::first(&lines))
        };
        assert_eq!(first(100, 5), (106, 66));
        assert_eq!(first(100, 39), (140, 90));
        assert_eq!(first(3, 60), (64, 0));
        // So long ago that it is not what ended it.
        assert_eq!(first(100, 500), (601, 561));
        assert_eq!(Tail::first(&vec!["word".to_owned(); 50]), 10);
        assert_eq!(Tail::first(&[]), 0);
    }
}
