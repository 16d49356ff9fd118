//! Storages on real disks, file systems and directories of this machine. Needs root, loop devices and the mkfs
//! programs of `make setup`.

// Clippy knows only the bodies of tests as tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod bench;
mod cases;
mod disks;
mod handlers;
mod layers;
mod life;
mod plain;
#[path = "../support/mod.rs"]
mod support;
mod volumes;
mod watchable;
