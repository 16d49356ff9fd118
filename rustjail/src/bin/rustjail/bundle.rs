//! The bundle: a directory with a `config.json`.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use oci_spec::runtime::{Capability, Spec};
use rustjail::seccomp::Filter;
use serde::Deserialize as _;
use serde_json::Value;

use crate::{
    error::Error,
    filters::{self, Understood},
};

/// A configuration and where it came from.
#[derive(Debug)]
pub struct Bundle {
    /// Absolute.
    pub path: PathBuf,
    /// The document, as it was read.
    pub text: Vec<u8>,
    /// The document, understood: without its seccomp profile, if the filter is known.
    pub spec: Spec,
    /// What the profile was compiled to.
    pub filter: Option<Filter>,
}

impl Bundle {
    /// Reads the bundle `path`, by default the working directory. Filters are known below `root`.
    pub fn load(path: Option<&str>, root: &Path) -> Result<Self, Error> {
        let given = Path::new(path.unwrap_or("."));
        let path = find(given).map_err(Error::io("find the bundle", given))?;
        let config = path.join("config.json");
        let text = fs::read(&config).map_err(Error::io("read", &config))?;
        match filters::understand(root, &text) {
            Ok(Understood { spec, filter }) => Ok(Self { path, text, spec, filter }),
            Err(error) => match without_unknown_capabilities(&text) {
                Some((text, spec)) => Ok(Self { path, text, spec, filter: None }),
                None => Err(Error::json(&config)(error)),
            },
        }
    }

    /// The root file system, absolute.
    pub fn rootfs(&self) -> PathBuf {
        let root = self.spec.root().as_ref().map(|root| root.path().as_path());
        self.path.join(root.unwrap_or(Path::new("")))
    }
}

/// The kernel's name for the directory `given`. It knows that of the working directory; what the C library finds out
/// for others, part by part, takes memory from an allocator that nothing else here uses.
fn find(given: &Path) -> io::Result<PathBuf> {
    if given == Path::new(".") { env::current_dir() } else { fs::canonicalize(given) }
}

/// What `text` says but for capabilities that nobody knows, if it makes sense then. runtime-spec has them ignored: a
/// newer kernel's cannot be granted on an older one.
fn without_unknown_capabilities(text: &[u8]) -> Option<(Vec<u8>, Spec)> {
    let mut document: Value = serde_json::from_slice(text).ok()?;
    let sets = document.pointer_mut("/process/capabilities")?.as_object_mut()?;
    for names in sets.values_mut().filter_map(Value::as_array_mut) {
        names.retain(|name| !name.is_string() || Capability::deserialize(name).is_ok());
    }
    let text = serde_json::to_vec(&document).ok()?;
    let spec = serde_json::from_slice(&text).ok()?;
    Some((text, spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_capabilities_are_left_out_and_nothing_else() {
        let known = without_unknown_capabilities(
            br#"{"process": {"cwd": "/", "args": ["x"], "user": {"uid": 0, "gid": 0},
                 "capabilities": {"bounding": ["CAP_KILL", "CAP_OF_TOMORROW"], "ambient": ["CAP_OF_TOMORROW"]}}}"#,
        );
        let (text, spec) = known.unwrap();
        assert!(!String::from_utf8(text).unwrap().contains("TOMORROW"));
        let capabilities = spec.process().clone().unwrap().capabilities().clone().unwrap();
        assert_eq!(capabilities.bounding().as_ref().unwrap().len(), 1);
        for bad in ["{", "{}", r#"{"process": {"cwd": 1, "capabilities": {"bounding": ["CAP_X"]}}}"#] {
            assert!(without_unknown_capabilities(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
