//! A container's share of caches and memory bandwidth, if its configuration asks for one.
//!
//! What was made is told by a file in the bundle, so that execs find the group again and the removal of the bundle,
//! by whichever worker, takes it away. Most guests have no such hardware; then the kernel's answer is the error.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::mount::{MsFlags, mount};
use oci_spec::runtime::{LinuxIntelRdt, Spec};
use rustjail::{
    compile::CompileError,
    resctrl::{Group, ROOT},
};
use serde::{Deserialize, Serialize};

use super::{Error, Result, error::failed_to};

const FILE: &str = "resctrl.json";
const FSTYPE: &str = "resctrl";

#[derive(Serialize, Deserialize)]
struct Made {
    /// Of the container that it was made for.
    id: String,
    /// It was not there before.
    made: bool,
    wanted: LinuxIntelRdt,
}

/// Makes that of a new container.
pub(super) fn create(spec: &Spec, id: &str, bundle: &Path) -> Result<Option<Group>> {
    let Some(wanted) = wanted(spec).cloned() else { return Ok(None) };
    if !Path::new(ROOT).join("schemata").exists() {
        mount(Some(FSTYPE), ROOT, Some(FSTYPE), MsFlags::empty(), None::<&str>)
            .map_err(io::Error::from)
            .map_err(failed_to(|| format!("mount {ROOT} for linux.intelRdt; has this guest Intel RDT?")))?;
    }
    let group = Group::create(Path::new(ROOT), id, &wanted).map_err(CompileError::from)?;
    let made = Made { id: id.to_owned(), made: group.was_made(), wanted };
    let file = file(bundle);
    let text = serde_json::to_vec(&made).map_err(io::Error::from);
    // The rest of the bundle is written later.
    let written = text.and_then(|text| fs::create_dir_all(bundle).and_then(|()| fs::write(&file, text)));
    match written {
        Ok(()) => Ok(Some(group)),
        Err(error) => {
            group.delete().map_err(CompileError::from)?;
            Err(failed_to(|| format!("write {}", file.display()))(error))
        }
    }
}

/// That of a container there is, of the configuration `spec`.
pub(super) fn of(spec: &Spec, bundle: &Path) -> Result<Option<Group>> {
    match wanted(spec) {
        Some(_) => open(bundle),
        None => Ok(None),
    }
}

fn wanted(spec: &Spec) -> Option<&LinuxIntelRdt> {
    spec.linux().as_ref().and_then(|linux| linux.intel_rdt().as_ref())
}

fn open(bundle: &Path) -> Result<Option<Group>> {
    let file = file(bundle);
    let made: Made = match fs::read(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text
            .and_then(|text| Ok(serde_json::from_slice(&text)?))
            .map_err(failed_to(|| format!("read {}", file.display())))?,
    };
    let group = Group::open(Path::new(ROOT), &made.id, &made.wanted, made.made);
    Ok(Some(group.map_err(CompileError::from).map_err(Error::from)?))
}

/// Takes away what was made for a container.
pub(super) fn delete(bundle: &Path) -> Result<()> {
    match open(bundle)? {
        Some(group) => Ok(group.delete().map_err(CompileError::from)?),
        None => Ok(()),
    }
}

fn file(bundle: &Path) -> PathBuf {
    bundle.join(FILE)
}
