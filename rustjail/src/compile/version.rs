//! The version of the specification that a configuration is written for.

use super::CompileError;

/// An error unless `version` is one of the specification's that this runtime understands: all of 1.x, because
/// what a later one adds is either known here or an unknown property, which is to be ignored.
pub(super) fn check(version: &str) -> Result<(), CompileError> {
    // Semantic versioning: three numbers, and after them what kind of release it is.
    let core = version.split(['-', '+']).next().unwrap_or_default();
    let numbers: Option<Vec<u32>> = core.split('.').map(|number| number.parse().ok()).collect();
    match numbers.as_deref() {
        Some([1, _, _]) => Ok(()),
        Some([_, _, _]) => Err(CompileError::invalid("ociVersion", version, "is not a version 1.x.y")),
        _ => Err(CompileError::invalid("ociVersion", version, "is not a version")),
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn versions_one_are_understood() {
        for version in ["1.0.0", "1.0.2-dev", "1.3.0+15", "1.0.0-rc5", "1.9.7"] {
            assert!(check(version).is_ok(), "{version}");
        }
        for version in ["", "1", "1.0", "2.0.0", "0.9.0", "v1.0.0", "1.0.x", "1.0.0.0", "garbage"] {
            assert!(check(version).is_err(), "{version}");
        }
    }
}
