//! The files that describe CDI devices.
//!
//! A file that is not whole may be on its way, so it only counts as not there yet; why it could not be read is in
//! the cause when the time is over.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{edits::Edits, names::Wanted, yaml};
use crate::{
    device::{DeviceError, Result},
    hotplug::Look,
};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    kind: String,
    devices: Vec<Described>,
    /// For whichever of its devices.
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Described {
    name: String,
    #[serde(default)]
    container_edits: Edits,
}

/// A document of one of the directories, with the directory's place among them.
struct Found {
    path: PathBuf,
    rank: usize,
    document: Document,
}

/// What all of `wanted` means, in their order; a document's own edits come before those of its first device.
pub(super) fn look(directories: &[PathBuf], wanted: &[Wanted]) -> Result<Look<Vec<Edits>>> {
    let (found, problems) = read_all(directories);
    let mut used = Vec::new();
    let mut edits = Vec::new();
    for one in wanted {
        let devices = match &one.name {
            Some(name) => named(&found, &one.kind, name)?.into_iter().collect(),
            None => all_of(&found, &one.kind)?,
        };
        if devices.is_empty() {
            let places: Vec<String> = directories.iter().map(|path| path.display().to_string()).collect();
            let cause = format!("no file in {} describes {one}", places.join(" or "));
            let causes: Vec<String> = [cause].into_iter().chain(problems).collect();
            return Ok(Look::NotYet(causes.join("; ")));
        }
        for (from, device) in devices {
            if !used.contains(&&from.path) {
                used.push(&from.path);
                edits.push(from.document.container_edits.clone());
            }
            edits.push(device.container_edits.clone());
        }
    }
    Ok(Look::Found(edits))
}

/// The device as the last directory describes it that does; two files of one directory must not.
fn named<'a>(found: &'a [Found], kind: &str, name: &str) -> Result<Option<(&'a Found, &'a Described)>> {
    let mut best: Option<(&Found, &Described)> = None;
    for from in found.iter().filter(|from| from.document.kind == kind) {
        for device in from.document.devices.iter().filter(|device| device.name == name) {
            match best {
                Some((other, _)) if other.rank > from.rank => {}
                Some((other, _)) if other.rank == from.rank => {
                    let (one, other) = (from.path.display(), other.path.display());
                    let problem = format!("is described twice, in {other} and {one}; one of them has to go");
                    return Err(DeviceError::Invalid { device: format!("{kind}={name}"), problem });
                }
                _ => best = Some((from, device)),
            }
        }
    }
    Ok(best)
}

/// The device called `all`, which some drivers describe, or every one of the kind.
fn all_of<'a>(found: &'a [Found], kind: &str) -> Result<Vec<(&'a Found, &'a Described)>> {
    if let Some(all) = named(found, kind, "all")? {
        return Ok(vec![all]);
    }
    let same = found.iter().filter(|from| from.document.kind == kind);
    let mut names: Vec<&str> =
        same.flat_map(|from| &from.document.devices).map(|device| device.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().filter_map(|name| named(found, kind, name).transpose()).collect()
}

/// Every document, and what was wrong with the others.
fn read_all(directories: &[PathBuf]) -> (Vec<Found>, Vec<String>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for (rank, directory) in directories.iter().enumerate() {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort_unstable();
        for path in paths {
            let read = match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => read_json(&path),
                Some("yaml" | "yml") => read_yaml(&path),
                _ => continue,
            };
            match read {
                Ok(document) => found.push(Found { path, rank, document }),
                Err(error) => problems.push(format!("{}: {error}", path.display())),
            }
        }
    }
    (found, problems)
}

fn read_json(path: &Path) -> io::Result<Document> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// By way of JSON, so that what a document may have is compiled once.
fn read_yaml(path: &Path) -> io::Result<Document> {
    let value = yaml::read(&fs::read_to_string(path)?).map_err(io::Error::other)?;
    Ok(serde_json::from_slice(&serde_json::to_vec(&value)?)?)
}
