//! One init under test, and the conversation with its worker.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Long enough for a loaded machine; nothing that works takes a tenth of it.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// What init runs in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum As {
    ProcessOne,
    Subreaper,
}

/// Removed on drop, with every process in it.
pub struct Guest {
    child: Child,
    directory: PathBuf,
    role: As,
}

impl Guest {
    pub fn start(name: &str, role: As) -> Self {
        let directory = scratch(name);
        let own = env::current_exe().unwrap();
        let mut command = match role {
            As::ProcessOne => unshare(&["--mount-proc"]),
            As::Subreaper => Command::new("setsid"),
        };
        command.arg(own).arg("init").arg(&directory).stdin(Stdio::null());
        let log = fs::File::create(directory.join("log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap();
        let guest = Self { child, directory, role };
        until("the socket", || UnixStream::connect(guest.path("rpc.sock")).ok());
        guest
    }

    /// Says one line to the worker that runs, or will run, and returns what it answers.
    pub fn ask(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(self.directory.join("rpc.sock")).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        writeln!(stream, "{request}").unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// Like [`Guest::ask`], again when the worker died over it.
    pub fn ask_again(&self, request: &str) -> String {
        until("an answer", || {
            let mut stream = UnixStream::connect(self.directory.join("rpc.sock")).ok()?;
            stream.set_read_timeout(Some(DEADLINE)).ok()?;
            writeln!(stream, "{request}").ok()?;
            let mut answer = String::new();
            BufReader::new(stream).read_line(&mut answer).ok()?;
            (!answer.is_empty()).then(|| answer.trim_end().to_owned())
        })
    }

    /// The generation of the worker.
    pub fn generation(&self) -> u32 {
        self.ask_again("generation").parse().unwrap()
    }

    /// Has a shell command run as a child of init; its number within init's namespace.
    pub fn launch(&self, command: &str) -> i32 {
        let answer = self.ask(&format!("launch {command}"));
        answer.parse().unwrap_or_else(|_| panic!("{command}: {answer:?}"))
    }

    /// Kills the worker and waits for the next one, which may take a pause; how long it took.
    pub fn crash_worker(&self) -> Duration {
        self.crash_worker_by(|| self.signal("worker", Signal::SIGKILL))
    }

    /// Like [`Guest::crash_worker`], by other means.
    pub fn crash_worker_by(&self, crash: impl FnOnce()) -> Duration {
        let before = self.generation();
        let start = Instant::now();
        crash();
        until("the next worker", || (self.generation() > before).then_some(()));
        start.elapsed()
    }

    /// Init's number outside.
    pub fn init_pid(&self) -> i32 {
        let outer = self.child.id().cast_signed();
        match self.role {
            As::Subreaper => outer,
            As::ProcessOne => until("process 1", || children(outer).first().copied()),
        }
    }

    /// A role's number outside.
    pub fn role_pid(&self, role: &str) -> i32 {
        until(role, || {
            children(self.init_pid()).into_iter().find(|pid| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                line.split(|&byte| byte == 0).nth(1) == Some(role.as_bytes())
            })
        })
    }

    pub fn signal(&self, role: &str, signal: Signal) {
        kill(Pid::from_raw(self.role_pid(role)), signal).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap()
    }

    /// Waits for init to end.
    pub fn ended(&mut self) -> ExitStatus {
        until("the end of init", || self.child.try_wait().unwrap())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of init\n{}", self.log());
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            let init = Pid::from_raw(self.init_pid());
            // A namespace ends with its process 1; a subreaper has to be asked.
            let _ = kill(init, if self.role == As::ProcessOne { Signal::SIGKILL } else { Signal::SIGTERM });
        }
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A command in namespaces of its own that dies with us.
pub fn unshare(more: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount", "--uts"]).args(more).arg("--");
    command
}

/// An empty directory.
pub fn scratch(name: &str) -> PathBuf {
    let directory = env::temp_dir().join(format!("berth-init-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// Tries until there is something. What is waited for has no descriptor to wait on from outside.
pub fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(start.elapsed() < DEADLINE, "no sign of {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

pub fn children(pid: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

/// Kilobytes, from `/proc/PID/NAME`.
pub fn kilobytes(pid: i32, file: &str, field: &str) -> u64 {
    let text = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join(file)).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
