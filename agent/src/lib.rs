//! Berth's guest agent: three roles in one static binary.
//!
//! `init` is PID 1 (or a child subreaper): one thread, no async runtime, it parses nothing that comes from a
//! host or a workload, and it outlives the other two. `launcher` makes container processes. The worker
//! (`worker`, with `rpc`, `sandbox`, `stdio`) holds all policy and state and may die at any moment: what
//! must survive it is in init's fd store and in the journal. `link` is what they say to each other.

pub mod address;
#[cfg(feature = "cdh")]
pub mod cdh;
pub mod config;
pub mod console;
pub mod copy;
pub mod device;
pub mod guest;
pub mod hotplug;
pub mod init;
#[cfg(feature = "initdata")]
pub mod initdata;
pub mod launcher;
pub mod link;
pub mod network;
pub mod observe;
pub mod oci;
#[cfg(feature = "policy")]
pub mod policy;
pub mod port;
pub mod reactor;
pub mod rpc;
pub mod sandbox;
pub mod stdio;
pub mod storage;
pub mod supervisor;
pub mod swap;
pub mod task;
pub mod worker;
