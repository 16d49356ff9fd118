//! Paths as the container sees them.

use std::path::{Component, Path, PathBuf};

use super::CompileError;

/// `path` from the container's root, without `.` and doubled slashes. A `..` is refused: what it means
/// depends on links of the image.
pub(super) fn in_container(field: &'static str, path: &Path) -> Result<PathBuf, CompileError> {
    let problem = |problem| CompileError::invalid(field, path.display(), problem);
    if path.as_os_str().is_empty() {
        return Err(problem("is empty"));
    }
    let text = path.to_str().ok_or_else(|| problem("is not valid UTF-8"))?;
    if text.contains('\0') {
        return Err(problem("has a NUL byte in it"));
    }
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => return Err(problem("has \"..\" in it")),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(clean)
}

/// Like [`in_container`], for a list whose members have to be absolute.
pub(super) fn absolute_list(
    field: &'static str,
    list: Option<&Vec<String>>,
) -> Result<Vec<PathBuf>, CompileError> {
    let convert = |path: &String| match path.starts_with('/') {
        true => in_container(field, Path::new(path)),
        false => Err(CompileError::invalid(field, path, "is not absolute")),
    };
    list.into_iter().flatten().map(convert).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_plain() {
        let clean = |path: &str| in_container("x", Path::new(path));
        assert_eq!(clean("/a//b/./c/").unwrap(), Path::new("/a/b/c"));
        assert_eq!(clean("a").unwrap(), Path::new("/a"));
        assert_eq!(clean("/").unwrap(), Path::new("/"));
        for path in ["", "/a/../b", "/a\0b"] {
            assert!(clean(path).is_err(), "{path:?}");
        }
    }
}
