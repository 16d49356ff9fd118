//! OCI containers on Linux, without RPC types, async code or globals.
//!
//! A container is made in two halves. [`compile`] turns a runtime-spec document into a flat [`plan::Plan`]
//! and the descriptors it refers to: everything that can be wrong about a request is found there, in
//! ordinary code, before anything exists. [`launch`] then makes one `clone3` straight into the cgroup and
//! the new namespaces; the new process ([`child`]) only walks the plan and execs, reporting over the
//! socket described in [`sync`]. [`cgroup`] owns the control groups of either version.
//!
//! Whoever calls [`launch::spawn`] must be single-threaded, because its child goes on in ordinary Rust.

pub mod cgroup;
pub mod child;
pub mod compile;
pub mod launch;
pub mod plan;
pub mod seccomp;
pub mod sync;
pub mod sys;
