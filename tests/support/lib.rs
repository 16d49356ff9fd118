//! What the integration tests share: an agent in a scope of its own, a client that speaks to it (or to one in
//! a VM), and a busybox root file system for its containers.
//!
//! Every agent runs in fresh mount, PID and network namespaces with its own state directory and cgroup
//! prefix. Dropping it kills everything in them and removes what it left, whether the test passed or not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod agent;
mod confined;
mod guest;
mod mutate;
mod network;
mod raw;
mod rootfs;
mod spec;
mod vm;

pub use agent::{Agent, Role};
pub use guest::{Guest, Output, code, deadline, until};
pub use mutate::Mutator;
pub use raw::RawClient;
pub use rootfs::{Rootfs, agent_binary, rustjail_binary, scratch_dir};
pub use spec::{Container, process};
pub use vm::{Vm, ctl_binary};
