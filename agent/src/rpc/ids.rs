//! Which ids a request may give to a new container or process.
//!
//! Only creation checks them: a look-up of an id that cannot exist finds nothing.

use super::limits::{CONTAINER_ID, EXEC_ID};
use crate::sandbox::{Error, Result};

/// A container's id: letters, digits, `_`, `.` and `-`, at least two, beginning with a letter or digit. It
/// becomes the name of directories and files, and this rule leaves it nothing to be but a name.
pub(super) fn container(id: &str) -> Result<()> {
    let name = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let reason = if id.len() < 2 {
        "it has fewer than 2 characters"
    } else if id.len() > CONTAINER_ID {
        "it has more than 240 characters"
    } else if !id.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        "it must begin with a letter or a digit"
    } else if !id.bytes().all(name) {
        "only letters, digits, '_', '.' and '-' may be in it"
    } else {
        return Ok(());
    };
    Err(Error::InvalidId { kind: "container", id: id.to_owned(), reason })
}

/// An exec's id. Empty means the container's init wherever a process is looked up, and so does the container's
/// own id: a process of either name could never be reached.
pub(super) fn exec(container_id: &str, id: &str) -> Result<()> {
    let reason = if id.is_empty() || id == container_id {
        "it means the container's first process"
    } else if id.len() > EXEC_ID {
        "it has more than 1024 bytes"
    } else if id.contains('/') || id == "." || id == ".." {
        "it must not be a path"
    } else if id.chars().any(char::is_control) {
        "it has control characters"
    } else {
        return Ok(());
    };
    Err(Error::InvalidId { kind: "exec", id: id.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_ids() {
        for good in ["ab", "0a", "a.b_c-d", &"f".repeat(240)] {
            assert!(container(good).is_ok(), "{good}");
        }
        let long = "f".repeat(241);
        for bad in ["", "a", ".a", "..", "-a", "a/b", "a b", "a\n", "\u{430}b", "a\0", long.as_str()] {
            assert!(container(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn exec_ids() {
        for good in ["1", "exec-1", "a b", "\u{430}", &"f".repeat(1024)] {
            assert!(exec("c1", good).is_ok(), "{good}");
        }
        let long = "f".repeat(1025);
        for bad in ["", "c1", "a/b", "..", "a\n", "\u{1b}[0m", long.as_str()] {
            assert!(exec("c1", bad).is_err(), "{bad}");
        }
    }
}
