//! Signals to one process, or to a whole container.

use std::{fs, os::fd::AsFd, rc::Rc};

use nix::libc::{ESRCH, SIGKILL, SIGTERM};

use super::{Core, Error, Result, blocking, error::failed_to};

/// SIGRTMAX of the kernel.
const LAST: i32 = 64;

impl Core {
    pub(super) async fn signal_process(&self, id: &str, exec_id: &str, signal: u32) -> Result<()> {
        let signal = i32::try_from(signal).ok().filter(|signal| (0..=LAST).contains(signal));
        let signal = signal.ok_or_else(|| Error::Invalid(format!("a signal is 0 to {LAST}")))?;
        let container = self.container(id)?;
        if exec_id.is_empty()
            && signal == SIGKILL
            && let Some(cgroup) = container.cgroup()
        {
            return blocking(move || Ok(cgroup.kill()?)).await;
        }
        let process = container.process(exec_id)?;
        let pidfd = process.pidfd.borrow().clone();
        let Some(pidfd) = pidfd else {
            // Reaped: hosts expect success. Not launched yet: there is nobody to signal.
            return match process.exit.get() {
                Some(_) => Ok(()),
                None => Err(container.wrong_state("signal a process of")),
            };
        };
        let signal = match signal {
            // An init that has no handler never sees SIGTERM: the kernel shields the first process of a PID
            // namespace. Hosts count on it ending all the same.
            SIGTERM if Rc::ptr_eq(&process, &container.init) && ignores_by_default(process.pid.get()) => {
                SIGKILL
            }
            signal => signal,
        };
        match rustjail::sys::pidfd::signal(pidfd.as_fd(), signal) {
            Err(error) if error.raw_os_error() != Some(ESRCH) => {
                Err(failed_to(|| format!("send signal {signal} to process {:?}", process.exec_id))(error))
            }
            _ => Ok(()),
        }
    }
}

/// Whether SIGTERM is neither blocked, ignored, nor handled. A pid that has been reused in the meantime does
/// no harm: the signal itself goes by descriptor.
fn ignores_by_default(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| !mentions(&status, SIGTERM))
}

fn mentions(status: &str, signal: i32) -> bool {
    status
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| matches!(*name, "SigBlk" | "SigIgn" | "SigCgt"))
        .filter_map(|(_, mask)| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|mask| mask & (1 << (signal - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::mentions;

    #[test]
    fn a_signal_is_found_in_each_of_three_masks() {
        let status = |blocked: &str, ignored: &str, caught: &str| {
            format!(
                "Name:\tx\nSigPnd:\t0000000000004000\nShdPnd:\t0000000000004000\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\nSigCgt:\t{caught}\nCapInh:\t0000000000004000\n"
            )
        };
        let (none, term) = ("0000000000000000", "0000000000004000");
        assert!(!mentions(&status(none, none, none), 15));
        assert!(mentions(&status(term, none, none), 15));
        assert!(mentions(&status(none, term, none), 15));
        assert!(mentions(&status(none, none, term), 15));
        assert!(!mentions(&status(term, term, term), 14));
        assert!(!mentions("", 15));
    }
}
