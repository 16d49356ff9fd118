//! Where a container's group is, below the roots of the hierarchies.

use std::{
    ffi::OsStr,
    fmt,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use super::{CgroupError, dir::is_component};

/// A relative path of plain components: it cannot name a root nor leave one. Parsing it again gives it back.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct CgroupPath(PathBuf);

impl CgroupPath {
    /// Reads a spec's `cgroupsPath`; without one, `/berth-<id>`: without a
    /// group above it, which would have to be made and removed with each container.
    ///
    /// An absolute and a relative path both count from the hierarchies' roots. The systemd form
    /// `slice:prefix:name` becomes the plain path `slice/prefix/name`; its slice and prefix may be empty.
    pub fn parse(cgroups_path: Option<&Path>, id: &str) -> Result<Self, CgroupError> {
        let given = match cgroups_path {
            Some(path) if !path.as_os_str().is_empty() => path.as_os_str().as_bytes(),
            _ => {
                plain(OsStr::new(id)).ok_or_else(|| invalid("container id", id.as_ref()))?;
                return Ok(Self(PathBuf::from(format!("berth-{id}"))));
            }
        };
        let components: Vec<&[u8]> = if is_systemd(given) {
            let mut parts: Vec<_> = given.split(|byte| *byte == b':').collect();
            let name = parts.pop();
            parts.into_iter().filter(|part| !part.is_empty()).chain(name).collect()
        } else {
            given.strip_prefix(b"/").unwrap_or(given).split(|byte| *byte == b'/').collect()
        };
        components
            .into_iter()
            .map(|component| plain(OsStr::from_bytes(component)))
            .collect::<Option<PathBuf>>()
            .map(Self)
            .ok_or_else(|| invalid("cgroupsPath", OsStr::from_bytes(given)))
    }

    /// Relative to the hierarchies' roots.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0.display())
    }
}

fn is_systemd(path: &[u8]) -> bool {
    !path.contains(&b'/') && path.iter().filter(|byte| **byte == b':').count() == 2
}

fn plain(component: &OsStr) -> Option<&OsStr> {
    is_component(component).then_some(component)
}

fn invalid(setting: &'static str, value: &OsStr) -> CgroupError {
    CgroupError::invalid(setting, value.display(), "empty, \".\" and \"..\" components and NUL are refused")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> Option<String> {
        CgroupPath::parse(Some(Path::new(path)), "c1").ok().map(|path| path.0.to_str().unwrap().to_owned())
    }

    #[test]
    fn paths_of_every_form() {
        assert_eq!(parse("/kubepods/pod1/c1").as_deref(), Some("kubepods/pod1/c1"));
        assert_eq!(parse("kubepods/pod1/c1").as_deref(), Some("kubepods/pod1/c1"));
        assert_eq!(parse("system.slice:docker:c1").as_deref(), Some("system.slice/docker/c1"));
        assert_eq!(parse("::c1").as_deref(), Some("c1"));
        assert_eq!(parse(":cri-containerd:c1").as_deref(), Some("cri-containerd/c1"));
        assert_eq!(parse("/a/b:c:d").as_deref(), Some("a/b:c:d"));
        assert_eq!(parse("").as_deref(), Some("berth-c1"));
        assert_eq!(CgroupPath::parse(None, "c1").unwrap().as_path(), Path::new("berth-c1"));
    }

    #[test]
    fn parsing_again_changes_nothing() {
        for path in ["/kubepods/pod1/c1", "system.slice:docker:c1", "/a/b:c:d"] {
            let once = CgroupPath::parse(Some(Path::new(path)), "c1").unwrap();
            assert_eq!(CgroupPath::parse(Some(once.as_path()), "c1").unwrap(), once);
        }
    }

    #[test]
    fn what_could_leave_the_root_is_refused() {
        for path in
            ["/", "//", "..", "/..", "a/../b", "a//b", "a/", "./a", "a\0b", "a:b:", "a:..:c", "..:b:c"]
        {
            assert_eq!(parse(path), None, "{path:?}");
        }
        for id in ["", "..", "a/b", "a\0"] {
            assert!(CgroupPath::parse(None, id).is_err(), "{id:?}");
        }
    }
}
