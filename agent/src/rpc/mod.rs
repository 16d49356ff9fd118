//! The ttrpc server and the handlers of `grpc.AgentService` and `grpc.Health`.
//!
//! [`server`] accepts, [`connection`] turns bytes into requests and replies into bytes, [`call`] runs what takes
//! longer than a frame; all they know of a service is [`service::Service`]. Every number they keep to is in
//! [`limits`]. `docs/protocol.md` says what is on the wire and why this server is not the ttrpc crate's.

mod agent;
mod breaker;
mod budget;
mod call;
mod calls;
mod connection;
mod container;
mod control;
pub mod decode;
mod dispatch;
pub mod envelope;
mod files;
mod fingerprint;
mod frame;
pub mod gate;
mod guest;
mod hardware;
mod health;
mod hub;
mod ids;
mod inflight;
mod input;
pub mod limits;
mod memory;
mod network;
mod output;
mod policy;
mod process;
pub mod reply;
mod sandbox;
pub mod server;
pub mod service;
mod shapes;
#[cfg(feature = "tracing")]
mod span;
mod stats;
mod status;
mod stdio;
mod storages;
mod unheard;
mod volumes;
mod watch;
pub mod wire;

pub use agent::{About, Agent};
