//! Real virtual hardware, plugged into a running guest while containers use it, and taken away.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod disks;
mod gone;
mod host;
mod resources;
