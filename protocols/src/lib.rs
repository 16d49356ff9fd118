//! The wire between a host and the guest agent: the messages of `grpc.AgentService` and `grpc.Health`,
//! generated from `protos/*.proto`, and nothing else. What a field means is said there, beside its number.
//!
//! The guest needs only the messages. Hosts and tests switch on the `client` feature, which adds the
//! ttrpc crate's service traits and asynchronous clients (`agent_ttrpc`, `health_ttrpc`). What is generated
//! is held, row by row, against the table of the published wire in `tests/data/`: a field number here can
//! neither drift nor be invented.

#![allow(missing_docs, missing_debug_implementations)]
// Generated code looks its own descriptors up and unwraps what it has just put there.
#![allow(clippy::unwrap_used)]

include!(concat!(env!("OUT_DIR"), "/messages.rs"));

#[cfg(feature = "client")]
include!(concat!(env!("OUT_DIR"), "/services.rs"));
