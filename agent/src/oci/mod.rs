//! From the spec on the wire to the runtime-spec's types.
//!
//! `grpc.Spec` is proto3: a number that is 0 and one that is not given look the same, and so do an empty string
//! or list and none. Zero is therefore read as "not given" wherever the runtime-spec makes a difference and a
//! real zero means nothing; negative sentinels (-1 for "unlimited" or "any") are legal and kept. A name that
//! this agent does not know, of a capability, limit, namespace, device or seccomp rule, is an error: to drop it
//! would run a container with less confinement than was asked for. Every field is set from the request, because
//! the types' own defaults are those of an example container. The Solaris and Windows sections are not read.

mod hooks;
mod linux;
mod mounts;
mod parse;
mod process;
mod resources;
mod seccomp;

use berth_protocols::oci as wire;
use oci_spec::runtime::Spec;

pub use process::process;
pub use resources::resources;

use parse::{non_empty, text};

/// What is wrong with a spec on the wire.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A name that is not in the runtime-spec.
    #[error("the OCI spec has an unknown {what}: {value:?}")]
    Unknown {
        /// Of what kind.
        what: &'static str,
        /// As the spec has it.
        value: String,
    },
    /// A number that its field cannot have.
    #[error("the OCI spec has {field} = {value}: {must}")]
    Range {
        /// Which.
        field: &'static str,
        /// As the spec has it.
        value: i128,
        /// What would be right.
        must: &'static str,
    },
    /// The runtime-spec's own rules refuse it.
    #[error("the OCI spec has an invalid {what}: {reason}")]
    Refused {
        /// Which part.
        what: &'static str,
        /// What its builder says.
        reason: String,
    },
}

/// What a configuration that names no version is taken for: the one that the wire's fields are from.
const VERSION: &str = "1.0.2";

/// The result of a conversion.
pub type Result<T> = std::result::Result<T, Error>;

/// Converts a container's whole configuration.
pub fn spec(wire: wire::Spec) -> Result<Spec> {
    let mut spec = Spec::default();
    spec.set_version(non_empty(wire.Version).unwrap_or_else(|| VERSION.to_owned()))
        .set_process(wire.Process.into_option().map(process).transpose()?)
        .set_root(wire.Root.into_option().map(mounts::root))
        .set_hostname(text(wire.Hostname))
        .set_mounts(Some(wire.Mounts.into_iter().map(mounts::mount).collect()))
        .set_hooks(wire.Hooks.into_option().map(hooks::hooks).transpose()?)
        .set_annotations(non_empty(wire.Annotations))
        .set_linux(wire.Linux.into_option().map(linux::linux).transpose()?);
    Ok(spec)
}

#[cfg(test)]
mod tests;
