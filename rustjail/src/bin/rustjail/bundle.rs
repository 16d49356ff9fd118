//! The bundle: a directory with a `config.json`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use oci_spec::runtime::Spec;

use crate::error::Error;

/// A configuration and where it came from.
#[derive(Debug)]
pub struct Bundle {
    /// Absolute.
    pub path: PathBuf,
    /// The document, as it was read.
    pub text: Vec<u8>,
    /// The document, understood.
    pub spec: Spec,
}

impl Bundle {
    /// Reads the bundle `path`, by default the working directory.
    pub fn load(path: Option<&str>) -> Result<Self, Error> {
        let given = Path::new(path.unwrap_or("."));
        let path = fs::canonicalize(given).map_err(Error::io("find the bundle", given))?;
        let config = path.join("config.json");
        let text = fs::read(&config).map_err(Error::io("read", &config))?;
        let spec: Spec = serde_json::from_slice(&text).map_err(Error::json(&config))?;
        Ok(Self { path, text, spec })
    }

    /// The root file system, absolute.
    pub fn rootfs(&self) -> PathBuf {
        let root = self.spec.root().as_ref().map(|root| root.path().as_path());
        self.path.join(root.unwrap_or(Path::new("")))
    }
}
