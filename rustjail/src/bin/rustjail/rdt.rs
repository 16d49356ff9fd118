//! A container's group of resctrl, if `linux.intelRdt` asks for one.

use std::path::Path;

use oci_spec::runtime::{LinuxIntelRdt, Spec};
use rustjail::resctrl::{Group, ROOT};

use crate::{error::Error, store::Record};

fn wanted(spec: &Spec) -> Option<&LinuxIntelRdt> {
    spec.linux().as_ref().and_then(|linux| linux.intel_rdt().as_ref())
}

/// Makes that of a new container.
pub fn create(spec: &Spec, id: &str) -> Result<Option<Group>, Error> {
    Ok(wanted(spec).map(|wanted| Group::create(Path::new(ROOT), id, wanted)).transpose()?)
}

/// That of a container there is.
pub fn open(spec: &Spec, id: &str, record: &Record) -> Result<Option<Group>, Error> {
    let open = |wanted| Group::open(Path::new(ROOT), id, wanted, record.made_resctrl);
    Ok(wanted(spec).map(open).transpose()?)
}
