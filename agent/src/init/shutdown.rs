//! The end: everybody is asked, then made, to go; data is written out; the machine is switched off.

use std::{
    fs, io,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        reboot::{RebootMode, reboot},
        signal::{SigSet, Signal, kill},
        signalfd::SignalFd,
    },
    unistd::{Pid, sync},
};
use rustjail::sys::wait;

use super::supervise::Init;

/// How long processes have after SIGTERM, and again after SIGKILL, which a process in the kernel may outlive.
const PATIENCE: Duration = Duration::from_secs(2);

impl Init {
    /// Ends every process. As process 1, does not return but powers off, unless the kernel refuses.
    pub fn end(mut self) {
        self.story.event(&"ending all processes", &[]);
        if self.pid1 {
            signal_all(&[-1], Signal::SIGTERM);
        } else {
            signal_all(&self.processes(), Signal::SIGTERM);
        }
        if !all_gone(&self.signals, || {})
            && !all_gone(&self.signals, || signal_all(&self.rest(), Signal::SIGKILL))
        {
            self.story.problem(&"some processes outlive SIGKILL and are left");
        }
        self.listeners.iter().for_each(super::listeners::Listener::remove_file);
        if self.pid1 {
            sync();
            self.story.event(&"powering off", &[]);
            let Err(errno) = reboot(RebootMode::RB_POWER_OFF);
            self.story.problem(&format_args!("cannot power off: {errno}"));
        }
    }

    /// Whom SIGKILL is for. Anything that dies leaves its children to init, so asking again reaches everybody.
    fn rest(&self) -> Vec<i32> {
        if self.pid1 {
            return vec![-1];
        }
        let children = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
        children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).filter(|&pid| pid > 0).collect()
    }
}

/// The signals that mean an end.
const ENDS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGPWR];

/// Whether one of them comes within `patience`.
pub(super) fn told_to_end(signals: &SignalFd, patience: Duration) -> bool {
    let mut files = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut files, patience.try_into().unwrap_or(PollTimeout::MAX));
    let mut end = false;
    while let Ok(Some(signal)) = signals.read_signal() {
        let number = Signal::try_from(signal.ssi_signo.cast_signed());
        end |= number.is_ok_and(|number| ENDS.contains(&number));
    }
    end
}

/// Where process 1 stays when it cannot work: visibly, until it is told to power off.
pub(super) fn park() {
    let ends = SigSet::from_iter(ENDS);
    let blocked = ends.thread_block();
    while blocked.is_ok() && ends.wait().is_err() {}
    sync();
    // It returns only when refused, and then a kernel panic is all that is left.
    let _ = reboot(RebootMode::RB_POWER_OFF);
}

/// Reaps until no child is left, or patience is; `each_time` is done before each waiting.
fn all_gone(signals: &SignalFd, each_time: impl Fn()) -> bool {
    let deadline = Instant::now() + PATIENCE;
    loop {
        each_time();
        loop {
            match wait::reap() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let mut files = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let left = left + Duration::from_micros(999);
        let _ = poll(&mut files, left.try_into().unwrap_or(PollTimeout::ZERO));
        while let Ok(Some(_)) = signals.read_signal() {}
    }
}

fn signal_all(pids: &[i32], signal: Signal) {
    for &pid in pids {
        // ESRCH: it is gone, which is what was wanted.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}
