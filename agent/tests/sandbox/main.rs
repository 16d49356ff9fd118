//! Containers end to end: the real agent with its three roles, driven by ttrpc, without a VM. Needs root.

// Clippy knows only the bodies of tests as tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod hooks;
mod host;
mod lifecycle;
mod locks;
mod raw;
mod recovery;
mod streams;
#[path = "../support/mod.rs"]
mod support;
