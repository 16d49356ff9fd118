//! The options by which a host tells what a disk is to a container's root: which layer, which partition of the
//! disk, and what its content has to be.
//!
//! All begin with `X-kata.`, and mount(2) never sees them. What protects is taken strictly: an option of
//! dm-verity that is unknown, given twice or without the word that turns it on refuses the storage, because to
//! leave it out would be to mount what nobody has checked.

use std::path::{Component, Path, PathBuf};

use super::{error::StorageError, mapping::verity::Verity, options::words, request::Storage};

const PREFIX: &str = "X-kata.";
const VERITY: &str = "X-kata.dmverity";

/// The driver of what is put together.
pub(super) const MULTI_LAYER: &str = "erofs.multi-layer";

/// Where a layer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Takes what is written; there is one at most.
    Upper,
    /// Is read.
    Lower,
}

/// A directory to be there before layers are put over each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Directory {
    /// In which mount: the upper is 0, the lower layers follow.
    pub(super) mount: usize,
    /// Where in it, relative and without `..`.
    pub(super) path: PathBuf,
    pub(super) mode: u32,
}

/// What the options of one storage say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Layer {
    /// It is one of several that make one mount.
    pub(super) grouped: bool,
    pub(super) role: Option<Role>,
    pub(super) partition: Option<u32>,
    pub(super) verity: Option<Verity>,
    pub(super) directories: Vec<Directory>,
}

/// What is wrong with such options, as the end of a sentence that begins with the storage.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LayerError {
    #[error("has {name}={value:?}, which is not {wanted}")]
    Value { name: String, value: String, wanted: &'static str },
    #[error("has the option {name} twice")]
    Twice { name: String },
    #[error("has the option {name}, which is unknown")]
    Unknown { name: String },
    #[error("has {given} and no {missing}")]
    Missing { given: &'static str, missing: &'static str },
}

impl Layer {
    /// What the options of `storage` say.
    pub(super) fn of(storage: &Storage) -> Result<Self, StorageError> {
        Self::parse(&storage.options).map_err(|problem| storage.invalid(problem.to_string()))
    }

    /// Which layer `storage`, which this is of, is: as its options say, or as file systems of its type are.
    pub(super) fn role_of(&self, storage: &Storage) -> Result<Role, StorageError> {
        let role = self.role.or(match storage.fstype.as_str() {
            "erofs" => Some(Role::Lower),
            "ext4" | "tmpfs" => Some(Role::Upper),
            _ => None,
        });
        role.ok_or_else(|| {
            let problem = format!(
                "has a layer of type {:?} that is neither overlay-upper nor overlay-lower",
                storage.fstype
            );
            storage.invalid(problem)
        })
    }

    /// Reads a storage's options; those of others are left alone.
    pub(super) fn parse(options: &[String]) -> Result<Self, LayerError> {
        let (mut layer, mut seen) = (Self::default(), Vec::new());
        let (mut partitioned, mut checked, mut verity) = (false, false, None::<Verity>);
        for word in words(options).filter(|word| word.starts_with(PREFIX)) {
            let (name, value) = word.split_once('=').unwrap_or((word, "true"));
            let wrong = |wanted| LayerError::Value { name: name.into(), value: value.into(), wanted };
            if name == "X-kata.mkdir.path" {
                layer.directories.push(directory(value).ok_or_else(|| wrong("PATH:MODE within a layer"))?);
                continue;
            }
            if seen.contains(&name) {
                return Err(LayerError::Twice { name: name.into() });
            }
            seen.push(name);
            let flag = || value.parse::<bool>().map_err(|_| wrong("true or false"));
            match name {
                "X-kata.multi-layer" => layer.grouped = flag()?,
                "X-kata.overlay-upper" if flag()? => layer.role = Some(Role::Upper),
                "X-kata.overlay-lower" if flag()? => layer.role = Some(Role::Lower),
                "X-kata.gpt-partitioned" => partitioned = flag()?,
                "X-kata.partition-number" => {
                    let number = value.parse().ok().filter(|number| *number > 0);
                    layer.partition = Some(number.ok_or_else(|| wrong("a number from 1 on"))?);
                }
                "X-kata.dmverity-enabled" => checked = flag()?,
                _ => {
                    if let Some(option) = name.strip_prefix(VERITY) {
                        verity.get_or_insert_default().set(option, value).map_err(|wanted| match wanted {
                            Some(wanted) => wrong(wanted),
                            None => LayerError::Unknown { name: name.into() },
                        })?;
                    }
                }
            }
        }
        let needs = |given, missing| Err(LayerError::Missing { given, missing });
        layer.verity = match (checked, verity) {
            (false, None) => None,
            (false, Some(_)) => return needs("options of dm-verity", "X-kata.dmverity-enabled=true"),
            (true, Some(verity)) if !verity.root_hash.is_empty() => Some(verity),
            (true, _) => return needs("X-kata.dmverity-enabled=true", "X-kata.dmverity.roothash"),
        };
        match (partitioned, layer.partition) {
            (true, None) => needs("X-kata.gpt-partitioned=true", "X-kata.partition-number"),
            (false, Some(_)) => needs("X-kata.partition-number", "X-kata.gpt-partitioned=true"),
            _ => Ok(layer),
        }
    }

    /// Whether it is to be read through something that only a disk can have.
    pub(super) fn needs_disk(&self) -> bool {
        self.partition.is_some() || self.verity.is_some()
    }
}

/// `{{ mount N }}/PATH[:MODE[:UID:GID]]`; without the first part it is the upper layer. Owners are the upper
/// layer's own affair.
fn directory(text: &str) -> Option<Directory> {
    let mut fields = text.split(':');
    let path = fields.next()?;
    let mode = fields.next().map_or(Some(0o755), |mode| u32::from_str_radix(mode, 8).ok())?;
    let (mount, path) = match path.strip_prefix("{{ mount ") {
        Some(rest) => rest.split_once(" }}").and_then(|(number, path)| Some((number.parse().ok()?, path)))?,
        None => (0, path),
    };
    let path = Path::new(path.trim_start_matches('/'));
    let plain = path.components().all(|component| matches!(component, Component::Normal(_)));
    let usable = plain && path.file_name().is_some() && mode <= 0o7777;
    usable.then(|| Directory { mount, path: path.to_owned(), mode })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str =
        "X-kata.dmverity.roothash=0011223344556677889900112233445566778899001122334455667788990011";
    const ON: &str = "X-kata.dmverity-enabled=true";

    fn parse(options: &[&str]) -> Result<Layer, String> {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        Layer::parse(&options).map_err(|error| error.to_string())
    }

    #[test]
    fn what_hosts_send() {
        let upper = parse(&[
            "rw",
            "X-kata.overlay-upper",
            "X-kata.multi-layer=true",
            "X-kata.mkdir.path={{ mount 0 }}/upper:0700",
            "X-kata.mkdir.path={{ mount 1 }}/a/b:0755:0:0",
            "X-kata.mkdir.path=work",
        ]);
        let upper = upper.unwrap();
        assert_eq!((upper.grouped, upper.role, upper.verity), (true, Some(Role::Upper), None));
        let directory = |mount, path: &str, mode| Directory { mount, path: path.into(), mode };
        let wanted = [directory(0, "upper", 0o700), directory(1, "a/b", 0o755), directory(0, "work", 0o755)];
        assert_eq!(upper.directories, wanted);

        let lower = parse(&[
            "ro,X-kata.overlay-lower,X-kata.multi-layer=true",
            ON,
            HASH,
            "X-kata.dmverity.hashoffset=40960",
            "X-kata.gpt-partitioned=true",
            "X-kata.partition-number=7",
            "X-kata.something-new=1",
            "x-other=1",
        ]);
        let lower = lower.unwrap();
        assert_eq!((lower.role, lower.partition), (Some(Role::Lower), Some(7)));
        assert!(lower.verity.is_some() && lower.needs_disk());
        assert_eq!(parse(&["ro", "noatime"]).unwrap(), Layer::default());
    }

    #[test]
    fn nothing_that_protects_is_left_out() {
        for (options, problem) in [
            (vec![HASH], "no X-kata.dmverity-enabled=true"),
            (vec!["X-kata.dmverity-enabled=false", HASH], "no X-kata.dmverity-enabled=true"),
            (vec![ON], "no X-kata.dmverity.roothash"),
            (vec![ON, "X-kata.dmverity.salt=00"], "no X-kata.dmverity.roothash"),
            (vec![ON, HASH, HASH], "twice"),
            (vec![ON, "ro,X-kata.dmverity-enabled=true", HASH], "twice"),
            (vec![ON, HASH, "X-kata.dmverity.root=00"], "X-kata.dmverity.root, which is unknown"),
            (vec![ON, HASH, "X-kata.dmverityx=00"], "unknown"),
            (vec!["X-kata.dmverity-enabled=yes", HASH], "not true or false"),
            (vec!["X-kata.partition-number=1"], "no X-kata.gpt-partitioned"),
            (vec!["X-kata.gpt-partitioned=true"], "no X-kata.partition-number"),
            (vec!["X-kata.gpt-partitioned=true", "X-kata.partition-number=0"], "a number from 1 on"),
        ] {
            let error = parse(&options).unwrap_err();
            assert!(error.contains(problem), "{options:?}: {error}");
        }
    }

    #[test]
    fn no_directory_outside_of_a_layer() {
        for path in ["", "/", "../x", "a/../b", "{{ mount 0 }}", "{{ mount 0 }}/../x", "{{ mount x }}/a"] {
            assert!(parse(&[&format!("X-kata.mkdir.path={path}")]).is_err(), "{path}");
        }
        for mode in ["9", "", "77777"] {
            assert!(parse(&[&format!("X-kata.mkdir.path=a:{mode}")]).is_err(), "{mode}");
        }
    }
}
