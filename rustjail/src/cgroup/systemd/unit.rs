//! The unit a container gets, and where its group is: systemd derives the one from the other.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{super::CgroupPath, SystemdError};

const SLICE: &str = ".slice";

/// Where containers go whose configuration names no slice.
const DEFAULT_SLICE: &str = "system.slice";

/// A transient scope (or slice) with the slice it is in.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Unit {
    pub(super) slice: String,
    pub(super) name: String,
}

impl Unit {
    /// Reads a `cgroupsPath` of the form `slice:prefix:name`, whose slice and prefix may be empty; without
    /// one, the scope is named after the container's id.
    pub fn parse(cgroups_path: Option<&Path>, id: &str) -> Result<Self, SystemdError> {
        let given = cgroups_path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let wrong = |reason| SystemdError::Unit { path: given.clone(), reason };
        let (slice, prefix, name) = match given.split(':').collect::<Vec<_>>().as_slice() {
            [""] => ("", "berth", id),
            [slice, prefix, name] => (*slice, *prefix, *name),
            _ => return Err(wrong("it needs two colons")),
        };
        let slice = if slice.is_empty() { DEFAULT_SLICE } else { slice };
        expand(slice).ok_or_else(|| wrong("the slice is not a name like a-b.slice"))?;
        if !is_unit_name(name) || !(prefix.is_empty() || is_unit_name(prefix)) {
            return Err(wrong("a unit's name is of letters, digits and :-_.\\"));
        }
        let name = match prefix {
            _ if name.ends_with(SLICE) => name.to_owned(),
            "" => format!("{name}.scope"),
            prefix => format!("{prefix}-{name}.scope"),
        };
        Ok(Self { slice: slice.to_owned(), name })
    }

    /// As systemd knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where systemd puts its group.
    pub fn path(&self) -> Result<CgroupPath, SystemdError> {
        let unknown = || SystemdError::Unit { path: self.slice.clone(), reason: "it has no place" };
        let path = match self.is_slice() {
            true => expand(&self.name).ok_or_else(unknown)?,
            false => expand(&self.slice).ok_or_else(unknown)?.join(&self.name),
        };
        Ok(CgroupPath::parse(Some(&path), &self.name)?)
    }

    pub(super) fn is_slice(&self) -> bool {
        self.name.ends_with(SLICE)
    }
}

/// `a-b.slice` is in `a.slice`; `-.slice` is the root.
fn expand(slice: &str) -> Option<PathBuf> {
    let name = slice.strip_suffix(SLICE).filter(|name| is_unit_name(name))?;
    if name == "-" {
        return Some(PathBuf::new());
    }
    let mut path = PathBuf::new();
    let mut prefix = String::new();
    for part in name.split('-') {
        if part.is_empty() {
            return None;
        }
        prefix.push_str(part);
        path.push(format!("{prefix}{SLICE}"));
        prefix.push('-');
    }
    Some(path)
}

/// systemd's VALID_CHARS of unit names, without `@`, which makes instances of templates; and short enough for a
/// directory once a prefix and a suffix are added.
fn is_unit_name(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\".contains(&byte);
    (1..=120).contains(&name.len()) && name.bytes().all(valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(path: &str) -> Option<(String, String)> {
        let unit = Unit::parse(Some(Path::new(path)), "c1").ok()?;
        Some((unit.name().to_owned(), unit.path().ok()?.to_string()))
    }

    #[test]
    fn names_and_places() {
        for (path, name, place) in [
            ("", "berth-c1.scope", "/system.slice/berth-c1.scope"),
            ("::c2", "c2.scope", "/system.slice/c2.scope"),
            ("user.slice:docker:x", "docker-x.scope", "/user.slice/docker-x.scope"),
            ("a-b.slice:p:x", "p-x.scope", "/a.slice/a-b.slice/p-x.scope"),
            ("-.slice:p:x", "p-x.scope", "/p-x.scope"),
            ("a.slice:p:a-b.slice", "a-b.slice", "/a.slice/a-b.slice"),
        ] {
            assert_eq!(unit(path), Some((name.to_owned(), place.to_owned())), "{path:?}");
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for path in [
            "/a/b",
            "a:b",
            "a:b:c:d",
            "a.slice:p:",
            "a:p:x",
            "a--b.slice:p:x",
            "a/b.slice:p:x",
            "a.slice:p:x/y",
            "a.slice:p:..//x",
            "a.slice:p:x@y",
            "a.slice:p\n:x",
            ".slice:p:x",
        ] {
            assert_eq!(unit(path), None, "{path:?}");
        }
    }
}
