//! What the security modules know a container by.
//!
//! A label that cannot be set is an error: whoever asked for one relies on it, and a kernel without the module
//! would run the container unconfined.

use std::{fs, path::Path};

use oci_spec::runtime::Process as Requested;

use super::CompileError;
use crate::plan::{FsOption, Labels};

/// The labels of a process; what it omits is taken from `defaults`.
pub(super) fn of_process(
    requested: &Requested,
    defaults: Option<&Requested>,
) -> Result<Labels, CompileError> {
    let or_default = |get: fn(&Requested) -> &Option<String>| {
        let own = get(requested).as_ref().filter(|label| !label.is_empty());
        own.or_else(|| defaults.and_then(|process| get(process).as_ref())).filter(|label| !label.is_empty())
    };
    let selinux = or_default(Requested::selinux_label);
    let apparmor = or_default(Requested::apparmor_profile).filter(|name| *name != "unconfined");
    Ok(Labels {
        selinux: selinux.map(|label| usable("process.selinuxLabel", label, &SELINUX)).transpose()?,
        apparmor: apparmor.map(|name| usable("process.apparmorProfile", name, &APPARMOR)).transpose()?,
    })
}

/// The label of the file systems made for a container, if it is to have one.
pub(super) fn of_mounts(label: Option<&String>) -> Result<Option<FsOption>, CompileError> {
    let label = label.filter(|label| !label.is_empty());
    let label = label.map(|label| usable("linux.mountLabel", label, &SELINUX)).transpose()?;
    Ok(label.map(|label| FsOption::Value("context".into(), label)))
}

struct Module {
    name: &'static str,
    /// There when the kernel runs the module; with a text, when it begins with that. The module's own file system
    /// need not be mounted.
    sign: (&'static str, Option<&'static str>),
}

const SELINUX: Module = Module { name: "SELinux", sign: ("/sys/fs/selinux", None) };
const APPARMOR: Module =
    Module { name: "AppArmor", sign: ("/sys/module/apparmor/parameters/enabled", Some("Y")) };

impl Module {
    fn runs(&self) -> bool {
        let (path, text) = self.sign;
        match text {
            None => Path::new(path).exists(),
            Some(text) => fs::read_to_string(path).is_ok_and(|found| found.starts_with(text)),
        }
    }
}

fn usable(field: &'static str, label: &str, module: &Module) -> Result<String, CompileError> {
    if label.chars().any(char::is_control) {
        return Err(CompileError::invalid(field, label, "has control characters in it"));
    }
    if !module.runs() {
        return Err(CompileError::NoSecurityModule { field, module: module.name });
    }
    Ok(label.to_owned())
}
