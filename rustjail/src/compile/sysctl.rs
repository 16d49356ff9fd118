//! Kernel settings: only those that belong to a namespace the container has.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use super::{CompileError, NamespaceKind, namespaces};
use crate::plan::Namespaces;

/// Those of `kernel.` that belong to an IPC namespace; besides them, all of `fs.mqueue.` do.
const IPC: [&str; 8] = ["msgmax", "msgmnb", "msgmni", "sem", "shmall", "shmmax", "shmmni", "shm_rmid_forced"];

/// The settings in `sysctl`, by their path below `/proc/sys`, in a fixed order.
pub(super) fn settings(
    sysctl: Option<&HashMap<String, String>>,
    has: &Namespaces,
) -> Result<Vec<(PathBuf, String)>, CompileError> {
    let mut settings = Vec::new();
    for (name, value) in sysctl.into_iter().flatten() {
        let path = path_of(name)?;
        let kind = owner(&path).ok_or_else(|| {
            CompileError::invalid(
                "linux.sysctl",
                name,
                "belongs to no namespace: it would change the whole machine",
            )
        })?;
        namespaces::require(has, kind, format!("linux.sysctl {name:?}"))?;
        settings.push((path, value.clone()));
    }
    settings.sort();
    Ok(settings)
}

/// As sysctl(8) reads names: whichever of `.` and `/` comes first separates, the other is part of a name.
fn path_of(name: &str) -> Result<PathBuf, CompileError> {
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    let path: String = match name.find(['.', '/']) {
        Some(first) if name.get(first..).is_some_and(|rest| rest.starts_with('.')) => {
            name.chars().map(swap).collect()
        }
        _ => name.to_owned(),
    };
    let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    if path.split('/').all(plain) {
        Ok(path.into())
    } else {
        Err(CompileError::invalid("linux.sysctl", name, "is not the name of a setting"))
    }
}

fn owner(path: &Path) -> Option<NamespaceKind> {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    match parts.as_slice() {
        ["net", _, ..] => Some(NamespaceKind::Network),
        ["fs", "mqueue", _, ..] => Some(NamespaceKind::Ipc),
        ["kernel", name] if IPC.contains(name) => Some(NamespaceKind::Ipc),
        ["kernel", "domainname"] => Some(NamespaceKind::Uts),
        ["user", _] => Some(NamespaceKind::User),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, has: &[NamespaceKind]) -> Result<Vec<(PathBuf, String)>, CompileError> {
        let create = has.iter().fold(0, |all, kind| all | kind.flag());
        let namespaces = Namespaces { create, ..Namespaces::default() };
        settings(Some(&HashMap::from([(name.to_owned(), "1".to_owned())])), &namespaces)
    }

    #[test]
    fn a_setting_needs_the_namespace_it_belongs_to() {
        for (name, kind) in [
            ("net.ipv4.ip_forward", NamespaceKind::Network),
            ("kernel.shmmax", NamespaceKind::Ipc),
            ("fs.mqueue.msg_max", NamespaceKind::Ipc),
            ("user.max_user_namespaces", NamespaceKind::User),
            ("kernel.domainname", NamespaceKind::Uts),
        ] {
            assert!(check(name, &[kind]).is_ok(), "{name}");
            assert!(matches!(check(name, &[]), Err(CompileError::NeedsNamespace { .. })), "{name}");
        }
    }

    #[test]
    fn a_setting_of_the_machine_is_refused() {
        let all = [NamespaceKind::Network, NamespaceKind::Ipc, NamespaceKind::Uts, NamespaceKind::User];
        for name in ["kernel.core_pattern", "vm.swappiness", "net", "kernel.hostname", "fs.file-max", ""] {
            assert!(matches!(check(name, &all), Err(CompileError::Invalid { .. })), "{name}");
        }
    }

    #[test]
    fn both_separators_are_understood_and_neither_climbs() {
        assert_eq!(
            path_of("net.ipv4.conf.eth0/1.forwarding").unwrap(),
            PathBuf::from("net/ipv4/conf/eth0.1/forwarding")
        );
        assert_eq!(path_of("net/ipv4/conf/eth0.1/x").unwrap(), PathBuf::from("net/ipv4/conf/eth0.1/x"));
        for name in ["net.//.//.x", "net/../kernel/x", "/net/x", ".net", "net..x", "net/./x"] {
            assert!(path_of(name).is_err(), "{name}");
        }
    }
}
