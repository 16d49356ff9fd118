//! OCI bundles on the host: read one, or make one up for a directory and a command.
//!
//! A configuration is JSON until the moment it is sent, then [`wire`] turns it into `grpc.Spec`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use berth_protocols::oci::Spec;
use serde_json::Value;

pub mod default;
pub mod wire;

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the bundle cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// The configuration is not JSON.
    #[error("{path} is not JSON: {source}")]
    Json {
        /// Which.
        path: PathBuf,
        /// Where it stops being JSON.
        source: serde_json::Error,
    },
    /// The configuration is JSON, but not an OCI configuration.
    #[error("{path}: {source}")]
    Wire {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        source: wire::Error,
    },
    /// The root filesystem is not there.
    #[error("the root filesystem {path} is not a directory")]
    NoRootfs {
        /// Where it should be.
        path: PathBuf,
    },
}

/// A bundle on the host.
#[derive(Debug)]
pub struct Bundle {
    /// Its configuration, as it goes over the wire.
    pub spec: Spec,
    /// What the configuration asks for and the wire cannot say, as JSON paths.
    pub lost: Vec<String>,
    /// Its root filesystem, on the host.
    pub rootfs: PathBuf,
}

impl Bundle {
    /// Reads `directory/config.json`; the root filesystem is where that says.
    pub fn load(directory: &Path) -> Result<Self, Error> {
        let (spec, lost) = configuration(directory)?;
        let root = spec.Root.Path.as_str();
        let rootfs = directory.join(if root.is_empty() { "rootfs" } else { root });
        Self { spec, lost, rootfs }.checked()
    }

    /// A bundle for a bare directory, with the configuration of [`default::spec`].
    pub fn for_rootfs(rootfs: &Path) -> Result<Self, Error> {
        let json: Value = default::spec();
        let (spec, lost) = wire::spec(&json).map_err(|source| Error::Wire { path: rootfs.into(), source })?;
        Self { spec, lost, rootfs: rootfs.to_owned() }.checked()
    }

    fn checked(self) -> Result<Self, Error> {
        if self.rootfs.is_dir() { Ok(self) } else { Err(Error::NoRootfs { path: self.rootfs }) }
    }
}

/// `directory/config.json` in its wire form, and the JSON paths that have none.
pub fn configuration(directory: &Path) -> Result<(Spec, Vec<String>), Error> {
    let path = directory.join("config.json");
    let text = fs::read(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
    let json = serde_json::from_slice(&text).map_err(|source| Error::Json { path: path.clone(), source })?;
    wire::spec(&json).map_err(|source| Error::Wire { path, source })
}
