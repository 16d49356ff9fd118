//! The signals this process gets, read as they come instead of acted on.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};

use crate::error::Error;

/// All of them. The processes made afterwards inherit the mask, and reset it.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Takes them from now on.
    pub fn take() -> Result<Self, Error> {
        let all = SigSet::all();
        all.thread_set_mask().map_err(Error::io("block", "signals"))?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        SignalFd::with_flags(&all, flags).map(Self).map_err(Error::io("listen for", "signals"))
    }

    /// Readable once one has come that asks this command to end; it is left to be read.
    pub fn interrupts(&self) -> Result<SignalFd, Error> {
        let asking: SigSet =
            [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM].into_iter().collect();
        SignalFd::with_flags(&asking, SfdFlags::SFD_CLOEXEC).map_err(Error::io("listen for", "signals"))
    }

    /// The next one that has come.
    pub fn next(&self) -> Option<i32> {
        let info = self.0.read_signal().ok()??;
        i32::try_from(info.ssi_signo).ok()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
