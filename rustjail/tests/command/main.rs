//! The command `rustjail`, driven as a process: alone, beside runc, and by podman and containerd.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod containerd;
mod exec;
mod flags;
mod hooks;
mod jail;
mod lifecycle;
mod limits;
mod notify;
mod podman;
mod races;
mod rootless;
mod runc;
mod security;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
