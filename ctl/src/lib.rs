//! Drives Berth from the host: connects to an agent, boots a VM around one, and runs containers in it.
//!
//! The crate is the body of the `berthctl` command and of tests that need a guest. Everything runs on one
//! tokio thread; whatever is started here (processes, a terminal in raw mode, a directory) is undone when the
//! value that stands for it is dropped, so leaving early by an error or a signal leaves nothing behind.

pub mod address;
pub mod bundle;
pub mod call;
pub mod cli;
pub mod client;
pub mod commands;
pub mod cpio;
pub mod session;
pub mod stdio;
pub mod terminal;
pub mod vmm;

pub use address::Address;
pub use client::Agent;
