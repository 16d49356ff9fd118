//! A runtime with a state directory and a bundle of its own; what it left is deleted with it.

use std::{
    fs,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustjail::sys::pidfd;
use serde_json::Value;

pub use crate::support::{Bundle, Outcome};

/// The command under test.
pub const RUSTJAIL: &str = env!("CARGO_BIN_EXE_rustjail");

/// How long anything may take on a machine that is busy with other tests.
const DEADLINE: Duration = Duration::from_secs(30);

/// A runtime and one bundle.
pub struct Jail {
    pub program: PathBuf,
    pub root: PathBuf,
    pub bundle: Bundle,
    number: u32,
}

impl Jail {
    /// `program` over a bundle that runs `script`.
    pub fn of(program: &str, script: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let bundle = Bundle::new(script);
        let root = bundle.path.join("state");
        let mut jail = Self { program: program.into(), root, bundle, number };
        let path = format!("/rustjail-test/{}-{number}", std::process::id());
        jail.bundle.set("/linux/cgroupsPath", path.into());
        jail
    }

    pub fn new(script: &str) -> Self {
        Self::of(RUSTJAIL, script)
    }

    /// A container that stays until it is killed.
    pub fn sleeping() -> Self {
        let mut jail = Self::new("");
        jail.bundle.set("/process/args", serde_json::json!(["sleep", "1000"]));
        jail
    }

    pub fn path(&self, name: &str) -> String {
        self.bundle.path.join(name).to_str().unwrap().to_owned()
    }

    pub fn write_config(&self) {
        fs::write(self.bundle.path.join("config.json"), self.bundle.spec.to_string()).unwrap();
    }

    /// The command line, in the bundle. Output goes to files: a container keeps a pipe open for ever.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.write_config();
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(&self.root).args(arguments).current_dir(&self.bundle.path);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command line to its end.
    pub fn call(&self, arguments: &[&str]) -> Outcome {
        run(self.command(arguments), &self.bundle.path)
    }

    /// The same, which has to succeed in silence.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        let outcome = self.call(arguments);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{arguments:?}: {outcome:?}");
        outcome.stdout
    }

    /// The same, which has to fail and say so.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str], code: i32, words: &str) {
        let outcome = self.call(arguments);
        assert_eq!(outcome.code, code, "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(words), "{arguments:?}: {outcome:?}");
    }

    pub fn state(&self, id: &str) -> Value {
        serde_json::from_str(&self.ok(&["state", id])).unwrap()
    }

    pub fn status(&self, id: &str) -> String {
        self.state(id)["status"].as_str().unwrap().to_owned()
    }

    pub fn pid(&self, id: &str) -> i32 {
        self.state(id)["pid"].as_i64().unwrap() as i32
    }

    /// A name that no other test has.
    pub fn name(&self, name: &str) -> String {
        format!("{name}-{}-{}", std::process::id(), self.number)
    }
}

impl Drop for Jail {
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let id = entry.file_name();
            let _ = Command::new(&self.program)
                .arg("--root")
                .arg(&self.root)
                .args(["delete", "--force"])
                .arg(id)
                .stderr(Stdio::null())
                .status();
        }
    }
}

/// Runs `command` to its end, within the deadline.
pub fn run(mut command: Command, scratch: &Path) -> Outcome {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let file = |stream: &str| scratch.join(format!("{stream}-{number}"));
    command.stdout(fs::File::create(file("out")).unwrap()).stderr(fs::File::create(file("err")).unwrap());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let code = wait(&mut child);
    let read = |stream| String::from_utf8_lossy(&fs::read(file(stream)).unwrap()).trim_end().to_owned();
    Outcome { code, stdout: read("out"), stderr: read("err") }
}

/// Its exit code, 128 and more for a signal.
pub fn wait(child: &mut Child) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    if !ends(child.id() as i32) {
        let _ = child.kill();
        let _ = child.wait();
        panic!("process {} did not end in time", child.id());
    }
    let status = child.wait().unwrap();
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

/// Whether the process `pid` ends within the deadline.
pub fn ends(pid: i32) -> bool {
    pidfd::open(pid).map_or(true, |process| readable(process.as_fd()))
}

/// Whether there is something to be read within the deadline.
pub fn readable(fd: BorrowedFd<'_>) -> bool {
    let timeout = PollTimeout::try_from(DEADLINE).unwrap();
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout).unwrap() == 1
}

/// Whether `holds` comes true within the deadline.
pub fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Whether `program` is installed; a machine that must run everything fails without it.
pub fn installed(program: &str) -> bool {
    let found = std::env::var("PATH")
        .unwrap_or_default()
        .split(':')
        .any(|directory| Path::new(directory).join(program).exists());
    if !found {
        assert!(std::env::var("CI").is_err(), "{program} is not installed: run `make test`");
        eprintln!("skipped: {program} is not installed (`make test` does that)");
    }
    found
}
