//! The command line of `berthctl`.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::{
    address::{Address, CONSOLE_PORT, LOG_PORT},
    vmm::Accel,
};

mod network;

pub use network::{Cp, Interface, Iptables, Neighbour, Route};

/// Drive Berth, the agent inside a sandbox VM: boot a VM and run a container in it, or talk to an agent that runs.
#[derive(Debug, Parser)]
#[command(name = "berthctl", version, max_term_width = 110)]
pub struct Cli {
    /// What all commands have in common.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What all commands have in common.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// The agent: unix://PATH, unix://@NAME, vsock://CID:PORT or hvsock://PATH:PORT
    #[arg(short, long, env = "BERTH_ADDRESS", value_name = "ADDR", global = true)]
    pub address: Option<Address>,
    /// What a call to the agent may take, in seconds. The ones that wait for a process have no limit.
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds, global = true)]
    pub timeout: Duration,
    /// Print results as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Print nothing but results and errors.
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Boot a VM, run one container in it, and leave with its exit code
    Run(Run),
    /// Ask whether the agent serves
    Check,
    /// Show the agent's version and berthctl's own
    Version,
    /// Show what the guest and its agent can do
    GuestDetails,
    /// Create or destroy the sandbox
    #[command(subcommand)]
    Sandbox(Sandbox),
    /// Create a container from a bundle whose root filesystem is in the guest already
    Create(Create),
    /// Start a created container's program
    Start(Container),
    /// Run another program in a container, attached to this terminal
    Exec(Exec),
    /// Send a signal to a process
    #[command(alias = "signal")]
    Kill(Kill),
    /// Wait for a process and leave with its exit code
    Wait(Process),
    /// Remove a container; what runs in it is killed
    Remove(Container),
    /// Attach to a process until it ends, and leave with its exit code
    Attach(Attach),
    /// Copy standard input to a process, then close the process's
    Stdin(Process),
    /// Copy a process's output until it ends
    Read(Read),
    /// Close a process's standard input
    CloseStdin(Process),
    /// Set the size of a process's terminal
    Resize(Resize),
    /// Show what a container has used
    Stats(Container),
    /// Freeze a container
    Pause(Container),
    /// Let a frozen container go on
    Resume(Container),
    /// Change a container's limits
    Update(Update),
    /// Wait for OOM kills and print each as it happens
    #[command(alias = "oom")]
    Events(Events),
    /// Show what the agent and its guest count, in Prometheus's format
    Metrics,
    /// Show a container's termination message
    Diagnostics(Container),
    /// Set the guest's clock
    Date(Date),
    /// Give the guest entropy of ours
    Reseed,
    /// Print the agent's log, what it still has of the past first
    Logs(Logs),
    /// Open the guest's debug console on this terminal; ^] leaves it
    Console {
        /// The port it is served at
        #[arg(long, default_value_t = CONSOLE_PORT, value_name = "PORT")]
        port: u32,
    },
    /// Say what calls the agent may serve
    #[command(subcommand)]
    Policy(Policy),
    /// Copy files into the guest
    Cp(Cp),
    /// List the guest's network interfaces
    Interfaces,
    /// Set up a network interface
    Interface(Interface),
    /// List the guest's routes
    Routes,
    /// Add a route, or replace the one to the same destination
    Route(Route),
    /// Make a neighbour known, so that it need not be asked for
    Neighbour(Neighbour),
    /// Print or set the guest's packet filter
    #[command(subcommand)]
    Iptables(Iptables),
    /// Have the guest swap to a disk of its own
    Swap {
        /// The block device, in the guest
        path: String,
    },
    /// Make any call of the agent, request and reply as JSON
    Call(Call),
    /// Print the config.json that `run --rootfs` uses
    Spec,
    /// Print a completion script
    Completions {
        /// For which shell
        shell: Shell,
    },
    /// Become a program that is killed when its parent dies
    #[command(hide = true)]
    Tether {
        /// The parent's process id
        parent: u32,
        /// The program
        program: PathBuf,
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// What to boot and what to run in it.
#[derive(Debug, Args)]
pub struct Run {
    /// The kernel [default: vmlinux in $BERTH_IMAGE_DIR or build/image]
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// The initial filesystem [default: initrd.cpio in $BERTH_IMAGE_DIR or build/image]
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// An OCI bundle [default: bundle/busybox in $BERTH_IMAGE_DIR or build/image]
    #[arg(long, value_name = "DIR")]
    pub bundle: Option<PathBuf>,
    /// A root filesystem, run with a default configuration
    #[arg(long, value_name = "DIR", conflicts_with = "bundle")]
    pub rootfs: Option<PathBuf>,
    /// The container's id
    #[arg(long, default_value = "main", value_name = "ID")]
    pub id: String,
    /// What the process is to be.
    #[command(flatten)]
    pub process: ProcessOptions,
    /// The guest's memory in MiB
    #[arg(long, default_value_t = 512, value_name = "MIB")]
    pub memory: u32,
    /// The guest's number of CPUs
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub cpus: u32,
    /// How the guest's CPUs are run
    #[arg(long, value_enum, default_value_t = Accel::Auto)]
    pub accel: Accel,
    /// A further kernel argument; may be repeated
    #[arg(long, value_name = "ARGUMENT")]
    pub append: Vec<String>,
    /// How long the guest may take until its agent is ready, in seconds
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = seconds)]
    pub boot_timeout: Duration,
    /// Print how long each step took
    #[arg(long)]
    pub timing: bool,
    /// The program and its arguments, instead of the bundle's
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// How a process differs from what the bundle or the container says.
#[derive(Debug, Clone, Default, Args)]
pub struct ProcessOptions {
    /// Give the process a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// Connect our standard input to it
    #[arg(short, long)]
    pub interactive: bool,
    /// Set an environment variable; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = variable)]
    pub env: Vec<String>,
    /// Its working directory
    #[arg(short = 'w', long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// Its user and group, as numbers
    #[arg(short, long, value_name = "UID[:GID]", value_parser = user)]
    pub user: Option<(u32, Option<u32>)>,
    /// Move standard streams over connections of their own, not by calls
    #[arg(long)]
    pub raw_stdio: bool,
}

/// The sandbox as a whole.
#[derive(Debug, Subcommand)]
pub enum Sandbox {
    /// Set it up; done once in a VM's life
    Create {
        /// Its id
        #[arg(default_value = "")]
        id: String,
        /// Its hostname
        #[arg(long, default_value = "")]
        hostname: String,
        /// A line for /etc/resolv.conf; may be repeated
        #[arg(long, value_name = "LINE")]
        dns: Vec<String>,
    },
    /// Remove every container and power the VM off
    Destroy,
}

/// Which of the agent's log to print.
#[derive(Debug, Args)]
pub struct Logs {
    /// Have the agent log from this level on, before printing: trace, debug, info, warn, error or critical
    #[arg(long, value_name = "LEVEL", value_parser = ["trace", "debug", "info", "warn", "error", "critical"])]
    pub level: Option<String>,
    /// Print this many lines, then leave
    #[arg(short = 'n', long, value_name = "LINES")]
    pub lines: Option<u64>,
    /// The port it is served at
    #[arg(long, default_value_t = LOG_PORT, value_name = "PORT")]
    pub port: u32,
}

/// Who decides over calls.
#[derive(Debug, Subcommand)]
pub enum Policy {
    /// Replace the policy, if the present one permits that
    Set {
        /// A Rego document of the package agent_policy
        file: PathBuf,
    },
}

/// A container to be created.
#[derive(Debug, Args)]
pub struct Create {
    /// Its id
    pub id: String,
    /// The bundle, of which config.json is read here
    #[arg(long, value_name = "DIR")]
    pub bundle: Option<PathBuf>,
    /// The root filesystem, as a path in the guest [default: as config.json says, if absolute, else /bundles/ID/rootfs]
    #[arg(long, value_name = "PATH")]
    pub rootfs: Option<String>,
    /// Share the PID namespace of the sandbox's first container
    #[arg(long)]
    pub sandbox_pidns: bool,
    /// What the process is to be.
    #[command(flatten)]
    pub process: ProcessOptions,
    /// The program and its arguments, instead of the bundle's
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// A container that exists.
#[derive(Debug, Args)]
pub struct Container {
    /// Its id
    pub id: String,
}

/// A process that exists.
#[derive(Debug, Args)]
pub struct Process {
    /// The container
    pub id: String,
    /// The process within it [default: the container's init]
    #[arg(long, default_value = "", value_name = "EXEC_ID")]
    pub exec: String,
}

/// A process to be added to a container.
#[derive(Debug, Args)]
pub struct Exec {
    /// The container
    pub id: String,
    /// The new process's id [default: made up]
    #[arg(long, value_name = "EXEC_ID")]
    pub exec: Option<String>,
    /// What the process is to be.
    #[command(flatten)]
    pub process: ProcessOptions,
    /// Leave it running and do not attach
    #[arg(short, long)]
    pub detach: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// A signal and its receiver.
#[derive(Debug, Args)]
pub struct Kill {
    /// The process.
    #[command(flatten)]
    pub process: Process,
    /// The signal, by name or number
    #[arg(default_value = "TERM", value_parser = signal_number)]
    pub signal: u32,
}

/// A process to attach to.
#[derive(Debug, Args)]
pub struct Attach {
    /// The process.
    #[command(flatten)]
    pub process: Process,
    /// The process has a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// Connect our standard input to it
    #[arg(short, long)]
    pub interactive: bool,
}

/// A stream to read.
#[derive(Debug, Args)]
pub struct Read {
    /// The process.
    #[command(flatten)]
    pub process: Process,
    /// Its standard error instead of its standard output
    #[arg(long)]
    pub stderr: bool,
}

/// A terminal's new size.
#[derive(Debug, Args)]
pub struct Resize {
    /// The process.
    #[command(flatten)]
    pub process: Process,
    /// Number of rows
    pub rows: u16,
    /// Number of columns
    pub columns: u16,
}

/// A container's new limits; -1 is unlimited, and what is not given stays as it is.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct Update {
    /// The container
    pub id: String,
    /// Memory in bytes
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<i64>,
    /// Memory and swap together, in bytes
    #[arg(long, value_name = "BYTES")]
    pub memory_swap: Option<i64>,
    /// Number of tasks
    #[arg(long, value_name = "N")]
    pub pids: Option<i64>,
    /// Weight among other containers, 2 to 262144
    #[arg(long, value_name = "WEIGHT")]
    pub cpu_shares: Option<u64>,
    /// Microseconds of CPU time in each period
    #[arg(long, value_name = "MICROSECONDS")]
    pub cpu_quota: Option<i64>,
    /// Length of a period
    #[arg(long, value_name = "MICROSECONDS")]
    pub cpu_period: Option<u64>,
    /// CPUs to run on, like 0-1,3
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Memory nodes to allocate from
    #[arg(long, value_name = "LIST")]
    pub mems: Option<String>,
}

/// How long to wait for events.
#[derive(Debug, Args)]
pub struct Events {
    /// End after so many
    #[arg(short = 'n', long, value_name = "N")]
    pub count: Option<u64>,
}

/// A time of day.
#[derive(Debug, Args)]
pub struct Date {
    /// Seconds since 1970 [default: this machine's time]
    #[arg(value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<Duration>,
}

/// A call by name.
#[derive(Debug, Args)]
pub struct Call {
    /// The call, like GetMetrics or Health/Check
    #[arg(required_unless_present = "list")]
    pub method: Option<String>,
    /// The request as protobuf JSON; `-` reads it from standard input
    #[arg(default_value = "{}", value_name = "JSON")]
    pub request: String,
    /// Show every call, what it takes and what it gives
    #[arg(long)]
    pub list: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|duration| !duration.is_zero()).ok_or_else(|| "not a number of seconds above 0".to_owned())
}

fn variable(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some(("", _)) => Err("the name is missing".to_owned()),
        Some(_) => Ok(text.to_owned()),
        None => std::env::var(text)
            .map(|value| format!("{text}={value}"))
            .map_err(|_| "it has no value here either".to_owned()),
    }
}

fn user(text: &str) -> Result<(u32, Option<u32>), String> {
    let (uid, gid) = text.split_once(':').map_or((text, None), |(uid, gid)| (uid, Some(gid)));
    let number = |text: &str| {
        text.parse()
            .map_err(|_| format!("{text:?} is not a number; names are known only inside the container"))
    };
    Ok((number(uid)?, gid.map(number).transpose()?))
}

fn signal_number(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let name = text.to_ascii_uppercase();
    let name = if name.starts_with("SIG") { name } else { format!("SIG{name}") };
    name.parse::<nix::sys::signal::Signal>()
        .map(|signal| signal as u32)
        .map_err(|_| format!("there is no signal {text}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{Cli, signal_number, user};

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn values() {
        assert_eq!(signal_number("kill"), Ok(9));
        assert_eq!(signal_number("SIGTERM"), Ok(15));
        assert_eq!(signal_number("34"), Ok(34));
        assert!(signal_number("NOPE").is_err());
        assert_eq!(user("1:2"), Ok((1, Some(2))));
        assert_eq!(user("7"), Ok((7, None)));
        assert!(user("root").is_err());
    }
}
