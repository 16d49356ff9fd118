//! Runs one container from a bundle, for the tests: `rustjail-test-launcher BUNDLE [PROCESS.json ...]`.
//!
//! Creates the container with this process's standard streams (or, with `process.terminal`, copies the
//! terminal to standard output), starts it, runs each further process in it, and exits as the last of them
//! did; a container that was given further processes is killed after them. Whatever keeps a process from
//! running is one line on standard error and exit status 125.
//!
//! `--tries N --each M` before the bundle does it until N tries were made, or a program that was run does not exit
//! with 0, and tells how many programs were run and how many were refused. A program that is run counts for M tries,
//! because its configuration has so many places in which the race may be lost; a refusal counts for one. With further
//! processes there is one container, and in it the last of them is run N times.

use std::{
    error::Error,
    fs::{self, File},
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    process::ExitCode,
};

use oci_spec::runtime::{ContainerState, Process, Spec, State};
use rustjail::{
    compile::{self, ContainerRequest, ExecRequest, Stdio},
    hooks::{self, Kind},
    launch::{Launch, Parent, Spawned, spawn},
    seccomp::notify,
    sync::{self, Report},
    sys::pidfd::{self, Exit},
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(125)
        }
    }
}

fn run(arguments: &[String]) -> Result<u8> {
    match arguments {
        [tries, count, each, places, rest @ ..] if tries == "--tries" && each == "--each" => match rest {
            [_] => try_often(count.parse()?, places.parse()?, rest),
            _ => run_once(rest, count.parse()?),
        },
        arguments => run_once(arguments, 1),
    }
}

fn try_often(tries: u32, each: u32, arguments: &[String]) -> Result<u8> {
    let (mut ran, mut refused) = (0_u32, 0_u32);
    while ran * each + refused < tries {
        match run_once(arguments, 1) {
            Ok(0) => ran += 1,
            Ok(code) => return Ok(code),
            Err(_) => refused += 1,
        }
    }
    println!("{ran} {refused}");
    Ok(0)
}

/// `last` is how often the last process is run, with any.
fn run_once(arguments: &[String], last: usize) -> Result<u8> {
    let (bundle, processes) = arguments.split_first().ok_or("usage: BUNDLE [PROCESS.json ...]")?;
    let bundle = Path::new(bundle);
    let spec = Spec::load(bundle.join("config.json"))?;
    let process = spec.process().as_ref();
    let terminal = process.and_then(Process::terminal).unwrap_or(false);
    let (maker, child) = sync::pair()?;
    let launch = compile::container(ContainerRequest {
        spec: &spec,
        bundle,
        stdio: stdio(terminal)?,
        confined: &[],
        id: "test",
        join: Vec::new(),
        placement: None,
        resctrl: None,
        sync: child,
    })?;
    let life = Life { spec: &spec, bundle };
    let outcome = run_container(launch, maker, &life, processes, last);
    for error in hooks::run_poststop(&spec, &life.state(ContainerState::Stopped, None)) {
        eprintln!("{error}");
    }
    outcome
}

/// What hooks are told.
struct Life<'a> {
    spec: &'a Spec,
    bundle: &'a Path,
}

impl Life<'_> {
    fn state(&self, status: ContainerState, pid: Option<i32>) -> State {
        hooks::state(self.spec, "test", self.bundle, status, pid)
    }

    fn run(&self, kind: Kind, status: ContainerState, pid: i32) -> Result<()> {
        Ok(hooks::run(self.spec, kind, &self.state(status, Some(pid)))?)
    }
}

fn run_container(
    launch: Launch,
    maker: OwnedFd,
    life: &Life<'_>,
    processes: &[String],
    last: usize,
) -> Result<u8> {
    let spec = life.spec;
    let init = Running::new(spec, launch, maker, Some(life))?;
    if processes.is_empty() {
        return init.wait();
    }
    let mut code = 0;
    let repeated = processes.last().into_iter().cycle().take(last - 1);
    for process in processes.iter().chain(repeated) {
        let process: Process = serde_json::from_str(&fs::read_to_string(process)?)?;
        let (maker, child) = sync::pair()?;
        let launch = compile::exec(ExecRequest {
            process: &process,
            spec,
            init: init.spawned.pidfd.as_fd(),
            stdio: stdio(process.terminal().unwrap_or(false))?,
            placement: None,
            resctrl: None,
            sync: child,
        });
        code = launch
            .map_err(Into::into)
            .and_then(|launch| Running::new(spec, launch, maker, None)?.wait())
            .inspect_err(|_| init.kill())?;
    }
    init.kill();
    init.wait()?;
    Ok(code)
}

fn stdio(terminal: bool) -> Result<Stdio> {
    if terminal {
        return Ok(Stdio::Terminal);
    }
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
    Ok(Stdio::Streams {
        stdin: copy(io::stdin().as_fd())?,
        stdout: copy(io::stdout().as_fd())?,
        stderr: copy(io::stderr().as_fd())?,
    })
}

struct Running<'a> {
    spec: &'a Spec,
    spawned: Spawned,
    master: Option<OwnedFd>,
}

impl<'a> Running<'a> {
    /// Spawns the process and brings it to its program.
    fn new(spec: &'a Spec, launch: Launch, maker: OwnedFd, life: Option<&Life<'_>>) -> Result<Self> {
        let gated = life.is_some();
        let fds: Vec<BorrowedFd<'_>> = launch.fds.iter().map(AsFd::as_fd).collect();
        let spawned = spawn(&launch.plan, &fds, Parent::Caller)?;
        drop(launch);
        let mut running = Self { spec, spawned, master: None };
        // These tests have nothing else to do meanwhile.
        nix::fcntl::fcntl(&maker, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty()))?;
        let mut ready = false;
        loop {
            match sync::receive(maker.as_fd())? {
                Some(Report::Console(master)) => running.master = Some(master),
                Some(Report::Hooks) => {
                    for kind in [Kind::Prestart, Kind::CreateRuntime] {
                        let pid = running.spawned.pid;
                        life.map_or(Ok(()), |life| life.run(kind, ContainerState::Creating, pid))
                            .inspect_err(|_| running.end())?;
                    }
                    sync::hooks_done(maker.as_fd())?;
                }
                Some(Report::Ready) => {
                    ready = true;
                    sync::start(maker.as_fd())?;
                }
                Some(Report::Listener(number)) => {
                    running.hand_over(number)?;
                    sync::listener_taken(maker.as_fd())?;
                }
                Some(Report::Failed(error)) => {
                    let _ = running.wait();
                    return Err(
                        format!("{}: {error}", if ready || !gated { "start" } else { "create" }).into()
                    );
                }
                None if ready || !gated => {
                    let pid = running.spawned.pid;
                    life.map_or(Ok(()), |life| life.run(Kind::Poststart, ContainerState::Running, pid))
                        .inspect_err(|_| running.end())?;
                    return Ok(running);
                }
                None => return Err("the child died before it was ready".into()),
            }
        }
    }

    /// Gives the process's listener to the agent that the configuration names.
    fn hand_over(&self, number: i32) -> Result<()> {
        let listener = pidfd::take_fd(self.spawned.pidfd.as_fd(), number)?;
        let seccomp = self.spec.linux().as_ref().and_then(|linux| linux.seccomp().as_ref());
        let seccomp = seccomp.ok_or("a listener without a profile")?;
        let path = seccomp.listener_path().as_deref().ok_or("a listener without a path")?;
        let (bundle, pid) = (Path::new("/"), Some(self.spawned.pid));
        let state = hooks::state(self.spec, "test", bundle, ContainerState::Creating, pid);
        let metadata = seccomp.listener_metadata().as_deref();
        Ok(notify::hand_over(path, metadata, self.spawned.pid, state, listener.as_fd())?)
    }

    fn end(&self) {
        self.kill();
        let _ = self.wait();
    }

    fn kill(&self) {
        let _ = pidfd::signal(self.spawned.pidfd.as_fd(), libc::SIGKILL);
    }

    fn wait(&self) -> Result<u8> {
        if let Some(master) = &self.master {
            let mut master = File::from(master.try_clone()?);
            let mut buffer = [0; 4096];
            // The master's end of file is EIO.
            while let Ok(count @ 1..) = master.read(&mut buffer) {
                io::stdout().write_all(buffer.get(..count).unwrap_or_default())?;
            }
        }
        Ok(match pidfd::wait(self.spawned.pidfd.as_fd())? {
            Exit::Code(code) => code as u8,
            Exit::Signal(signal) => 128 + signal as u8,
        })
    }
}
