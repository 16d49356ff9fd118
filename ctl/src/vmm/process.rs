//! Child processes that cannot outlive us.
//!
//! A child is killed when its value is dropped. Against our own death by SIGKILL there is the *tether*: `berthctl`
//! starts the program through itself, and the intermediate sets the parent-death signal and turns into the program,
//! which std's own spawning has no safe way to do. That signal follows the *thread* that spawned, so spawn from a
//! thread that lives as long as the machine. A child is in its own process group: ^C is for us to handle.

use std::{
    fs::File,
    io,
    os::unix::process::{CommandExt, parent_id},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

use nix::sys::{prctl::set_pdeathsig, signal::Signal};
use tokio::process::{Child, Command as AsyncCommand};

/// A running child.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its output going to `log`.
    pub fn spawn(command: &Command, log: PathBuf, tether: Option<&Path>) -> io::Result<Self> {
        let mut spawned = match tether {
            Some(berthctl) => {
                let mut spawned = AsyncCommand::new(berthctl);
                spawned.arg("tether").arg(std::process::id().to_string()).arg(command.get_program());
                spawned
            }
            None => AsyncCommand::new(command.get_program()),
        };
        let output = File::create(&log)?;
        spawned.args(command.get_args()).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = spawned.process_group(0).kill_on_drop(true).spawn()?;
        Ok(Self { child, log })
    }

    /// Waits for its end. May be called again.
    pub async fn exited(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }
}

/// The intermediate's whole life: become `program`, to be killed when `parent` dies. Returns only to fail.
pub fn tether(parent: u32, program: &Path, arguments: &[std::ffi::OsString]) -> io::Error {
    if let Err(errno) = set_pdeathsig(Signal::SIGKILL) {
        return errno.into();
    }
    // The parent may have died before the signal was asked for.
    if parent_id() != parent {
        return io::ErrorKind::BrokenPipe.into();
    }
    Command::new(program).args(arguments).exec()
}

/// The full path of a program, as the shell would find it.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let candidates = std::env::split_paths(&path).map(|directory| directory.join(program));
    candidates.into_iter().find(|path| nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok())
}
