//! A container's own files: its configuration, as it was when the container was made.
//!
//! Hooks and people expect a `config.json` in the bundle, and a later worker reads back from it what the wire told
//! an earlier one. Only what a Linux container has is read: understanding what the specification says of other
//! systems too would be 60 KiB of the binary, for what the wire cannot carry.

use std::{collections::HashMap, fs, io, path::Path};

use oci_spec::runtime::{Hooks, Linux, Mount, Process, Root, Spec};
use serde::Deserialize;

const CONFIG: &str = "config.json";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LinuxSpec {
    oci_version: String,
    root: Option<Root>,
    mounts: Option<Vec<Mount>>,
    process: Option<Process>,
    hostname: Option<String>,
    domainname: Option<String>,
    hooks: Option<Hooks>,
    annotations: Option<HashMap<String, String>>,
    linux: Option<Linux>,
}

/// Makes the bundle, with its configuration.
pub(super) fn write(bundle: &Path, spec: &Spec) -> io::Result<()> {
    fs::create_dir_all(bundle)?;
    fs::write(bundle.join(CONFIG), serde_json::to_vec(spec)?)
}

/// The configuration in the bundle.
pub(super) fn read(bundle: &Path) -> io::Result<Spec> {
    let read: LinuxSpec = serde_json::from_slice(&fs::read(bundle.join(CONFIG))?)?;
    let mut spec = Spec::default();
    spec.set_version(read.oci_version)
        .set_root(read.root)
        .set_mounts(read.mounts)
        .set_process(read.process)
        .set_hostname(read.hostname)
        .set_domainname(read.domainname)
        .set_hooks(read.hooks)
        .set_annotations(read.annotations)
        .set_linux(read.linux);
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let dir = std::env::temp_dir().join(format!("berth-bundle-{}", std::process::id()));
        let mut spec = Spec::default();
        spec.set_hostname(Some("host".to_owned()))
            .set_domainname(Some("domain".to_owned()))
            .set_hooks(Some(Hooks::default()))
            .set_annotations(Some(HashMap::from([("a".to_owned(), "b".to_owned())])));
        write(&dir, &spec).unwrap();
        let again = read(&dir);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(again.unwrap(), spec);
    }
}
