//! What the roles say to each other: SEQPACKET sockets, small packets, descriptors beside them.
//!
//! ```text
//!   init                               worker                             launcher
//!    |-- HELLO generation, pid1 -------->|                                   |
//!    |-- STAGE name, nanoseconds ------->|   one for each boot stage         |
//!    |-- LISTENER kind + fd ------------>|                                   |
//!    |-- RECORDS + fd ------------------>|   where the log can be read by port
//!    |-- STORED key + fd --------------->|                                   |
//!    |-- LAUNCHER + fd ----------------->|   again when it was replaced      |
//!    |-- READY ------------------------->|   the hand-over is complete       |
//!    |<------------------------- PING ---|   every 2 s, from the reactor     |
//!    |<--------------- STORE key + fd ---|                                   |
//!    |<------------------- FORGET key ---|                                   |
//!    |<----------------------- EXPECT ---|                                   |
//!    |                                   |-- LAUNCH id + plan, fds... ------>|
//!    |                                   |<------ MADE id, pid + pidfd ------|
//!    |                                   |<------ FAILED id, errno, text ----|
//!    |<---------------- SETTLE pid, 0 ---|   0: no process was made          |
//!    |-- EXIT pid, status -------------->|   to every worker, until it       |
//!    |<-------------- ACKNOWLEDGE pid ---|   is acknowledged                 |
//!    |<--------------------- SHUTDOWN ---|                                   |
//! ```
//!
//! Between init and worker every packet is one 64-byte frame, because init must be able to read whatever a
//! broken worker sends without allocating or guessing. A packet that does not decode is dropped and counted as
//! a fault of its sender; it never ends the link.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use nix::unistd::dup2_stdin;

pub mod frame;
pub mod launch;
pub mod message;

pub use frame::FRAME_SIZE;
pub use launch::{LaunchReply, LaunchRequest};
pub use message::{ListenerKind, ToInit, ToWorker};

/// Takes the link a role was started with, which is its standard input: the one place where a descriptor can be
/// handed to a program without either side having to believe in a number. Standard input then reads as empty.
pub fn inherited() -> io::Result<OwnedFd> {
    let link = io::stdin().as_fd().try_clone_to_owned()?;
    let (empty, _) = io::pipe()?;
    dup2_stdin(empty)?;
    Ok(link)
}
