//! Images unpacked in the guest: layouts made here and by podman, unpacked on this machine's kernel, and run by a
//! real agent. Needs root, and the programs of `make setup`. `--features image-pull`.

#![cfg(feature = "image-pull")]
// Clippy knows only the bodies of tests as tests, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../storage/bench.rs"]
#[allow(dead_code, reason = "some of it is for disks")]
mod bench;
mod container;
#[path = "../sandbox/host.rs"]
#[allow(dead_code, reason = "some of it is for other tests")]
mod host;
mod hostile;
mod layers;
mod layout;
mod refused;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "some of it is for other tests")]
mod support;
