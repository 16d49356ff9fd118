//! What the sub-commands do, and the exit codes they end with.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    time::Duration,
};

use berth_protocols::oci::Process as WireProcess;
use clap::CommandFactory;

use crate::{
    Agent,
    address::ConnectError,
    bundle, call,
    cli::{Cli, Command, Global, ProcessOptions},
    client, session, stdio, vmm,
};

mod console;
mod container;
mod control;
mod files;
mod guest;
mod logs;
mod network;
mod run;
mod ui;

/// `berthctl` itself failed.
const FAILED: u8 = 125;
/// The program is there and cannot be run.
const NOT_EXECUTABLE: u8 = 126;
/// The program is not there.
const NOT_FOUND: u8 = 127;

/// Why a command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no agent to talk to.
    #[error("which agent? give --address or set BERTH_ADDRESS")]
    NoAddress,
    /// The program could not be started in the guest.
    #[error("{source}")]
    Program {
        /// The agent's word for it.
        source: client::Error,
        /// [`NOT_EXECUTABLE`] or [`NOT_FOUND`].
        code: u8,
    },
    /// The guest ended while it was needed.
    #[error("the VM {ending}{console}")]
    GuestEnded {
        /// How.
        ending: vmm::Ending,
        /// The console's last lines.
        console: vmm::Tail,
    },
    /// The guest runs and its agent does not answer.
    #[error("{source}{console}")]
    AgentLost {
        /// What failed.
        source: Box<Error>,
        /// The console's last lines.
        console: vmm::Tail,
    },
    /// An id nobody can use.
    #[error("{id:?} cannot be a container's id: {reason}")]
    Id {
        /// As given.
        id: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A call failed.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// A call by name failed.
    #[error(transparent)]
    Call(#[from] call::Error),
    /// There is no bundle.
    #[error(transparent)]
    Bundle(#[from] bundle::Error),
    /// A VM could not be booted.
    #[error(transparent)]
    Vmm(#[from] vmm::Error),
    /// A stream failed.
    #[error(transparent)]
    Stdio(#[from] stdio::Error),
    /// An attached process was left.
    #[error(transparent)]
    Session(#[from] session::Error),
    /// Something on this side failed.
    #[error("cannot {action}: {source}")]
    Local {
        /// What was being done.
        action: &'static str,
        /// How it failed.
        source: io::Error,
    },
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        Self::Client(error.into())
    }
}

impl Error {
    fn code(&self) -> u8 {
        match self {
            Self::Program { code, .. } => *code,
            // As a shell reports a program that died of the signal.
            Self::Session(session::Error::Signal(signal)) => 128 + *signal as u8,
            Self::Session(session::Error::Stdio(error)) | Self::Stdio(error) if error.is_broken_pipe() => {
                128 + libc::SIGPIPE as u8
            }
            _ => FAILED,
        }
    }

    fn lost_agent(&self) -> bool {
        let client = match self {
            Self::Client(error) | Self::Session(session::Error::Client(error)) => error,
            Self::Session(session::Error::Stdio(stdio::Error::Agent(error))) => error,
            _ => return false,
        };
        match client {
            client::Error::Rpc { .. } | client::Error::Connect(ConnectError::PortUntold { .. }) => false,
            client::Error::Connect(_) | client::Error::NoReply { .. } => true,
        }
    }

    fn is_quiet(&self) -> bool {
        match self {
            Self::Session(session::Error::Signal(_)) => true,
            Self::Session(session::Error::Stdio(error)) | Self::Stdio(error) => error.is_broken_pipe(),
            _ => false,
        }
    }
}

type Result<T> = std::result::Result<T, Error>;

/// Does what the command line says and gives the exit code.
pub fn main(cli: Cli) -> ExitCode {
    let ended = match cli.command {
        Command::Tether { parent, program, arguments } => Err(Error::Local {
            action: "start a helper",
            source: vmm::process::tether(parent, &program, &arguments),
        }),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "berthctl", &mut io::stdout());
            Ok(0)
        }
        command => with_runtime(dispatch(cli.global, command)),
    };
    ended.map_or_else(report, |status| ExitCode::from(u8::try_from(status & 0xff).unwrap_or(FAILED)))
}

/// Prints what clap has to say. A wrong command line is a failure of ours: 2 could be the container's exit code.
pub fn usage(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    if error.use_stderr() || printed.is_err() { ExitCode::from(FAILED) } else { ExitCode::SUCCESS }
}

fn report(error: Error) -> ExitCode {
    if !error.is_quiet() {
        ui::error(&error);
    }
    ExitCode::from(error.code())
}

fn with_runtime(work: impl Future<Output = Result<i32>>) -> Result<i32> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::Local { action: "start", source })?;
    let ended = runtime.block_on(work);
    // A thread may sit in read(2) on our standard input for ever; the process ends without it.
    runtime.shutdown_timeout(Duration::ZERO);
    ended
}

async fn dispatch(global: Global, command: Command) -> Result<i32> {
    match command {
        Command::Run(run) => run::run(&global, run).await,
        Command::Check => guest::check(&global).await,
        Command::Version => guest::version(&global).await,
        Command::GuestDetails => guest::details(&global).await,
        Command::Sandbox(sandbox) => guest::sandbox(&global, sandbox).await,
        Command::Logs(logs) => logs::logs(&global, logs).await,
        Command::Console { port } => console::console(&global, port).await,
        Command::Policy(policy) => guest::policy(&global, policy).await,
        Command::Call(call) => guest::call(&global, call).await,
        Command::Cp(cp) => files::cp(&global, cp).await,
        Command::Swap { path } => files::swap(&global, &path).await,
        Command::Interfaces => network::interfaces(&global).await,
        Command::Interface(interface) => network::interface(&global, interface).await,
        Command::Routes => network::routes(&global).await,
        Command::Route(route) => network::route(&global, route).await,
        Command::Neighbour(neighbour) => network::neighbour(&global, neighbour).await,
        Command::Iptables(iptables) => network::iptables(&global, iptables).await,
        Command::Spec => Ok(ui::print(&format!("{:#}", bundle::default::spec()))?),
        Command::Create(create) => container::create(&global, create).await,
        Command::Start(container) => container::start(&global, &container.id).await,
        Command::Exec(exec) => container::exec(&global, exec).await,
        Command::Kill(kill) => container::kill(&global, kill).await,
        Command::Wait(process) => container::wait(&global, process).await,
        Command::Remove(container) => container::remove(&global, &container.id).await,
        Command::Attach(attach) => container::attach(&global, attach).await,
        Command::Stdin(process) => container::stdin(&global, process).await,
        Command::Read(read) => container::read(&global, read).await,
        Command::CloseStdin(process) => container::close_stdin(&global, process).await,
        Command::Resize(resize) => container::resize(&global, resize).await,
        Command::Stats(container) => control::stats(&global, &container.id).await,
        Command::Pause(container) => control::pause(&global, &container.id).await,
        Command::Resume(container) => control::resume(&global, &container.id).await,
        Command::Update(update) => control::update(&global, update).await,
        Command::Events(events) => control::events(&global, events).await,
        Command::Metrics => control::metrics(&global).await,
        Command::Diagnostics(container) => control::diagnostics(&global, &container.id).await,
        Command::Date(date) => control::date(&global, date).await,
        Command::Reseed => control::reseed(&global).await,
        // `main` has these: they need no runtime.
        Command::Completions { .. } | Command::Tether { .. } => Ok(0),
    }
}

async fn connect(global: &Global) -> Result<Agent> {
    let address = global.address.as_ref().ok_or(Error::NoAddress)?;
    Ok(Agent::connect(address, global.timeout).await?)
}

/// What the options say, over what the configuration says.
fn override_process(process: &mut WireProcess, options: &ProcessOptions, command: &[String]) {
    if !command.is_empty() {
        process.Args = command.to_vec();
    }
    for variable in &options.env {
        let name = variable.split_inclusive('=').next().unwrap_or(variable);
        process.Env.retain(|other| !other.starts_with(name));
        process.Env.push(variable.clone());
    }
    if let Some(workdir) = &options.workdir {
        process.Cwd.clone_from(workdir);
    }
    if let Some((uid, gid)) = options.user {
        let user = process.User.mut_or_insert_default();
        user.UID = uid;
        user.GID = gid.unwrap_or(uid);
    }
    process.Terminal = options.tty;
    if options.tty {
        if !process.Env.iter().any(|variable| variable.starts_with("TERM=")) {
            process.Env.push("TERM=xterm".to_owned());
        }
        if let Some((rows, columns)) = crate::terminal::size() {
            let size = process.ConsoleSize.mut_or_insert_default();
            (size.Height, size.Width) = (rows.into(), columns.into());
        }
    }
}

/// A process that cannot start because its program cannot be run has exit codes of its own, as under any shell.
/// The wire has no field for that, so the errno in the agent's text decides, beside the program's name while other
/// files could be meant.
fn starting(error: client::Error, program: Option<&str>) -> Error {
    let text = error.to_string();
    let about_program = program.is_none_or(|program| text.contains(program));
    let has = |marks: &[&str]| marks.iter().any(|mark| text.contains(mark));
    if error.code().is_none() || !about_program {
        error.into()
    } else if has(&["(os error 2)", "No such file", "not found", "ENOENT"]) {
        Error::Program { source: error, code: NOT_FOUND }
    } else if has(&[
        "(os error 13)",
        "(os error 8)",
        "(os error 21)",
        "Permission denied",
        "Exec format error",
        "EACCES",
        "ENOEXEC",
    ]) {
        Error::Program { source: error, code: NOT_EXECUTABLE }
    } else {
        error.into()
    }
}

fn stdin_is_ours(options: &ProcessOptions) -> bool {
    options.interactive || (options.tty && io::stdin().is_terminal())
}
