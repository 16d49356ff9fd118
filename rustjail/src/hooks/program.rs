//! Running one hook.
//!
//! Its standard input is a sealed memory file, so a hook that does not read blocks nobody; what it writes is
//! drained as it comes, and the beginning kept for the error. It is followed by its pidfd: the wait ends with
//! the process, whoever else it left its descriptors to.

use std::{
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use oci_spec::runtime::State;

use super::{Hook, Problem};
use crate::sys::{fds::give_standard_streams_only, memfd, pidfd};

/// How much of its output an error quotes.
const MAX_OUTPUT: usize = 1024;

/// Runs `hook` to its end, or to the end of its time.
pub(super) fn run(hook: &Hook, state: &State) -> Result<(), Problem> {
    let deadline = hook.timeout_seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
    let (output, theirs) = io::pipe()?;
    let mut command = command(hook, state, theirs.into())?;
    let mut child = command.spawn()?;
    // Its copy of the writing end would keep the output from ending.
    drop(command);
    let mut output = Output::new(File::from(OwnedFd::from(output)))?;
    match follow(&child, &mut output, deadline) {
        Ok(true) => {
            let status = child.wait()?;
            output.drain()?;
            if status.success() { Ok(()) } else { Err(Problem::Failed { status, output: output.text() }) }
        }
        Ok(false) => {
            end(&mut child)?;
            Err(Problem::TimedOut { seconds: hook.timeout_seconds.unwrap_or_default() })
        }
        Err(error) => {
            end(&mut child)?;
            Err(error.into())
        }
    }
}

fn command(hook: &Hook, state: &State, output: OwnedFd) -> io::Result<Command> {
    let stdin = memfd::sealed("state", &serde_json::to_vec(state)?)?;
    let mut command = Command::new(&hook.path);
    if let Some((name, rest)) = hook.args.split_first() {
        command.arg0(name).args(rest);
    }
    if let Some(env) = &hook.env {
        command.env_clear().envs(env.iter().filter_map(|entry| entry.split_once('=')));
    }
    // A group of its own, so that what it started is killed with it.
    command.process_group(0);
    give_standard_streams_only(&mut command);
    command.stdin(stdin).stdout(output.try_clone()?).stderr(Stdio::from(output));
    Ok(command)
}

/// Waits until the process has ended (but is not reaped); `false` when its time was over first.
fn follow(child: &Child, output: &mut Output, deadline: Option<Instant>) -> io::Result<bool> {
    let process = pidfd::open(child.id() as i32)?;
    loop {
        let left = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            None => PollTimeout::NONE,
            Some(left) if left.is_zero() => return Ok(false),
            // Rounded up, so that the loop does not spin through the last millisecond.
            Some(left) => PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX),
        };
        let mut fds = vec![PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        if !output.ended {
            fds.push(PollFd::new(output.file.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, left) {
            Err(Errno::EINTR) => continue,
            result => result?,
        };
        let ended = fds.first().and_then(PollFd::any).unwrap_or(false);
        output.drain()?;
        if ended {
            return Ok(true);
        }
    }
}

fn end(child: &mut Child) -> io::Result<()> {
    // Fails only when there is nothing left to kill.
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    let _ = child.kill();
    child.wait().map(drop)
}

/// The beginning of what the hook wrote.
struct Output {
    file: File,
    kept: Vec<u8>,
    ended: bool,
}

impl Output {
    fn new(file: File) -> io::Result<Self> {
        fcntl(&file, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self { file, kept: Vec::new(), ended: false })
    }

    /// Takes what is there, so that the hook can go on writing.
    fn drain(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        // One pipe's worth at a time, so that a hook that never stops writing meets its deadline.
        for _ in 0..16 {
            match self.file.read(&mut buffer) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(());
                }
                Ok(count) => {
                    let room = MAX_OUTPUT.saturating_sub(self.kept.len()).min(count);
                    self.kept.extend_from_slice(buffer.get(..room).unwrap_or_default());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// On one line, without what could steer a terminal or a log.
    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.kept);
        text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(script: &str) -> Hook {
        Hook {
            path: "/bin/sh".into(),
            args: vec!["sh".into(), "-c".into(), script.into(), "name".into()],
            env: Some(vec!["A=b".into()]),
            timeout_seconds: Some(20),
        }
    }

    fn failure(hook: &Hook) -> String {
        run(hook, &State::default()).unwrap_err().to_string()
    }

    #[test]
    fn it_has_its_state_its_name_and_its_environment() {
        run(&hook("[ $0 = name ] && [ $A = b ] && [ -z $HOME ] && state=$(cat) && case $state in '{'*'\"id\"'*'}') ;; *) exit 1; esac"), &State::default())
            .unwrap();
    }

    #[test]
    fn a_failure_quotes_what_it_said() {
        assert_eq!(failure(&hook("echo one; echo two >&2; exit 3")), "failed with exit status: 3: one two");
        assert_eq!(failure(&hook("kill -9 $$")), "failed with signal: 9 (SIGKILL)");
        assert!(failure(&Hook { path: "/nowhere".into(), ..hook("") }).starts_with("cannot be run: No such"));
    }

    #[test]
    fn more_output_than_a_pipe_holds_blocks_nobody() {
        let text = failure(&hook("head -c 300000 /dev/zero | tr '\\0' x; exit 1"));
        assert_eq!(text.matches('x').count(), MAX_OUTPUT + 1, "the x of \"exit\" is one more");
    }

    #[test]
    fn a_child_that_keeps_its_output_open_is_not_waited_for() {
        run(&hook("sleep 60 & exit 0"), &State::default()).unwrap();
    }

    #[test]
    fn one_that_takes_too_long_is_killed_with_all_it_started() {
        let mut slow = hook("sleep 60 & wait");
        slow.timeout_seconds = Some(1);
        assert_eq!(failure(&slow), "was killed, because it was not done within 1 s");
        let mut loud = hook("while :; do echo x; done");
        loud.timeout_seconds = Some(1);
        assert_eq!(failure(&loud), "was killed, because it was not done within 1 s");
    }
}
