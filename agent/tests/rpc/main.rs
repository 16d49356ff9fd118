//! The ttrpc server from outside: its own process, a raw client that may say anything, and the ttrpc crate's.
//!
//! Names T1 to T22 are rows of the reliability matrix.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "in a test's helpers a panic is the test's failure"
)]

mod calls;
mod client;
mod flood;
mod interop;
mod probe;
mod server;
mod speed;
mod wire;

/// The server's process is this test binary again, running this one "test".
#[test]
#[ignore = "the server's half of the other tests"]
fn serve() {
    server::run();
}
