//! The table of mount options.
//!
//! Words that are in the table say something about the mount; every other word is an option of the file
//! system and left to it. A plain word is about the mount itself, its form with an `r` before it about the
//! mount and all below it.

use std::path::Path;

use super::{CompileError, idmap::MapOption};
use crate::plan::{Attributes, FsOption, Propagation};

use libc::{
    MOUNT_ATTR_NOATIME, MOUNT_ATTR_NODEV, MOUNT_ATTR_NODIRATIME, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_NOSYMFOLLOW, MOUNT_ATTR_RDONLY, MOUNT_ATTR_RELATIME, MOUNT_ATTR_STRICTATIME,
};

use crate::sys::mount::ATTR_ATIME;

/// The longest key or value fsconfig(2) takes, less its NUL.
const MAX_OPTION: usize = 255;

/// What one word means.
#[derive(Debug, Clone, Copy)]
enum Word {
    Set(u64),
    Clear(u64),
    Atime(u64),
    SetAll(u64),
    ClearAll(u64),
    AtimeAll(u64),
    Propagation(u64, bool),
    Bind {
        recursive: bool,
    },
    /// Shown with mapped ids.
    Map {
        recursive: bool,
    },
    CopyUp,
    /// A source that is a symbolic link is made anew as one.
    CopySymlink,
    /// A source that is a symbolic link is what is bound.
    SourceNofollow,
    /// A destination that is a symbolic link is what is mounted on.
    DestinationNofollow,
    /// Of the file system, not the mount.
    Super,
    Nothing,
    Refused(&'static str),
}

const TABLE: &[(&str, Word)] = &[
    ("defaults", Word::Nothing),
    ("bind", Word::Bind { recursive: false }),
    ("rbind", Word::Bind { recursive: true }),
    ("ro", Word::Set(MOUNT_ATTR_RDONLY)),
    ("rw", Word::Clear(MOUNT_ATTR_RDONLY)),
    ("nosuid", Word::Set(MOUNT_ATTR_NOSUID)),
    ("suid", Word::Clear(MOUNT_ATTR_NOSUID)),
    ("nodev", Word::Set(MOUNT_ATTR_NODEV)),
    ("dev", Word::Clear(MOUNT_ATTR_NODEV)),
    ("noexec", Word::Set(MOUNT_ATTR_NOEXEC)),
    ("exec", Word::Clear(MOUNT_ATTR_NOEXEC)),
    ("nodiratime", Word::Set(MOUNT_ATTR_NODIRATIME)),
    ("diratime", Word::Clear(MOUNT_ATTR_NODIRATIME)),
    ("nosymfollow", Word::Set(MOUNT_ATTR_NOSYMFOLLOW)),
    ("symfollow", Word::Clear(MOUNT_ATTR_NOSYMFOLLOW)),
    ("noatime", Word::Atime(MOUNT_ATTR_NOATIME)),
    ("atime", Word::Atime(MOUNT_ATTR_RELATIME)),
    ("relatime", Word::Atime(MOUNT_ATTR_RELATIME)),
    ("norelatime", Word::Atime(MOUNT_ATTR_RELATIME)),
    ("strictatime", Word::Atime(MOUNT_ATTR_STRICTATIME)),
    ("nostrictatime", Word::Atime(MOUNT_ATTR_RELATIME)),
    ("rro", Word::SetAll(MOUNT_ATTR_RDONLY)),
    ("rrw", Word::ClearAll(MOUNT_ATTR_RDONLY)),
    ("rnosuid", Word::SetAll(MOUNT_ATTR_NOSUID)),
    ("rsuid", Word::ClearAll(MOUNT_ATTR_NOSUID)),
    ("rnodev", Word::SetAll(MOUNT_ATTR_NODEV)),
    ("rdev", Word::ClearAll(MOUNT_ATTR_NODEV)),
    ("rnoexec", Word::SetAll(MOUNT_ATTR_NOEXEC)),
    ("rexec", Word::ClearAll(MOUNT_ATTR_NOEXEC)),
    ("rnodiratime", Word::SetAll(MOUNT_ATTR_NODIRATIME)),
    ("rdiratime", Word::ClearAll(MOUNT_ATTR_NODIRATIME)),
    ("rnosymfollow", Word::SetAll(MOUNT_ATTR_NOSYMFOLLOW)),
    ("rsymfollow", Word::ClearAll(MOUNT_ATTR_NOSYMFOLLOW)),
    ("rnoatime", Word::AtimeAll(MOUNT_ATTR_NOATIME)),
    ("ratime", Word::AtimeAll(MOUNT_ATTR_RELATIME)),
    ("rrelatime", Word::AtimeAll(MOUNT_ATTR_RELATIME)),
    ("rnorelatime", Word::AtimeAll(MOUNT_ATTR_RELATIME)),
    ("rstrictatime", Word::AtimeAll(MOUNT_ATTR_STRICTATIME)),
    ("rnostrictatime", Word::AtimeAll(MOUNT_ATTR_RELATIME)),
    ("shared", Word::Propagation(libc::MS_SHARED, false)),
    ("rshared", Word::Propagation(libc::MS_SHARED, true)),
    ("slave", Word::Propagation(libc::MS_SLAVE, false)),
    ("rslave", Word::Propagation(libc::MS_SLAVE, true)),
    ("private", Word::Propagation(libc::MS_PRIVATE, false)),
    ("rprivate", Word::Propagation(libc::MS_PRIVATE, true)),
    ("unbindable", Word::Propagation(libc::MS_UNBINDABLE, false)),
    ("runbindable", Word::Propagation(libc::MS_UNBINDABLE, true)),
    ("sync", Word::Super),
    ("async", Word::Super),
    ("dirsync", Word::Super),
    ("lazytime", Word::Super),
    ("nolazytime", Word::Super),
    ("mand", Word::Super),
    ("nomand", Word::Super),
    ("remount", Word::Refused("changes a mount, and this one is new")),
    ("idmap", Word::Map { recursive: false }),
    ("ridmap", Word::Map { recursive: true }),
    ("tmpcopyup", Word::CopyUp),
    ("copy-symlink", Word::CopySymlink),
    ("src-nofollow", Word::SourceNofollow),
    ("dest-nofollow", Word::DestinationNofollow),
];

/// The words that say something about a mount, for whoever asks what can be said.
pub fn mount_options() -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter(|(_, word)| !matches!(word, Word::Refused(_))).map(|(name, _)| *name)
}

/// The meaning of a list of options.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Options {
    /// An existing tree, with its mounts when the value is true.
    pub(super) bind: Option<bool>,
    /// Of the mount itself.
    pub(super) attributes: Attributes,
    /// Of the mount and all below it.
    pub(super) recursive: Attributes,
    /// With mapped ids.
    pub(super) map: Option<MapOption>,
    /// A link in the place of a mount, if the source is one.
    pub(super) copy_symlink: bool,
    /// The source itself, should it be a link.
    pub(super) source_nofollow: bool,
    /// The destination itself, should it be a link.
    pub(super) destination_nofollow: bool,
    /// Beginning as a copy of what is hidden.
    pub(super) copy_up: bool,
    /// For the file system.
    pub(super) data: Vec<FsOption>,
}

impl Options {
    /// Reads `words`, the later of two that contradict each other winning, as with mount(8).
    pub(super) fn parse(words: &[String], destination: &Path) -> Result<Self, CompileError> {
        let mut options = Self::default();
        for word in words {
            let problem = match find(word) {
                Some(known) => options.apply(known, word),
                None => options.pass_on(word),
            };
            if let Err(problem) = problem {
                let (destination, option) = (destination.to_owned(), word.clone());
                return Err(CompileError::MountOption { destination, option, problem });
            }
        }
        Ok(options)
    }

    fn apply(&mut self, meaning: Word, word: &str) -> Result<(), &'static str> {
        match meaning {
            Word::Set(bit) => self.attributes.set |= bit,
            // What the source of a bind has stays: only our own earlier word is taken back.
            Word::Clear(bit) => self.attributes.set &= !bit,
            Word::Atime(mode) => set_atime(&mut self.attributes, mode),
            Word::SetAll(bit) => {
                self.recursive.set |= bit;
                self.recursive.clear &= !bit;
            }
            Word::ClearAll(bit) => {
                self.recursive.set &= !bit;
                self.recursive.clear |= bit;
            }
            Word::AtimeAll(mode) => set_atime(&mut self.recursive, mode),
            Word::Propagation(kind, recursive) => {
                self.attributes.propagation = if recursive { 0 } else { kind };
                self.recursive.propagation = if recursive { kind } else { 0 };
            }
            Word::Bind { recursive } => self.bind = Some(recursive || self.bind == Some(true)),
            Word::Map { recursive } => self.map_ids(recursive, MapOption::default()),
            Word::CopyUp => self.copy_up = true,
            Word::CopySymlink => self.copy_symlink = true,
            Word::SourceNofollow => self.source_nofollow = true,
            Word::DestinationNofollow => self.destination_nofollow = true,
            Word::Super => self.data.push(FsOption::Flag(word.to_owned())),
            Word::Nothing => {}
            Word::Refused(why) => return Err(why),
        }
        Ok(())
    }

    fn map_ids(&mut self, recursive: bool, map: MapOption) {
        let recursive = recursive || self.map.as_ref().is_some_and(|map| map.recursive);
        self.map = Some(MapOption { recursive, ..map });
    }

    fn pass_on(&mut self, word: &str) -> Result<(), &'static str> {
        if let Some((key @ ("idmap" | "ridmap"), value)) = word.split_once('=') {
            self.map_ids(key == "ridmap", MapOption::parse(value)?);
            return Ok(());
        }
        let option = match word.split_once('=') {
            Some((key, value)) => FsOption::Value(key.to_owned(), value.to_owned()),
            None => FsOption::Flag(word.to_owned()),
        };
        let (FsOption::Flag(key) | FsOption::Value(key, _)) = &option;
        if key.is_empty() || word.contains('\0') {
            return Err("is not an option");
        }
        if word.len() - key.len() > MAX_OPTION || key.len() > MAX_OPTION {
            return Err("is longer than the kernel takes (255 bytes)");
        }
        self.data.push(option);
        Ok(())
    }
}

/// The atime modes are one field, of which the kernel wants all bits cleared before any is set.
fn set_atime(attributes: &mut Attributes, mode: u64) {
    attributes.set = attributes.set & !ATTR_ATIME | mode;
    attributes.clear |= ATTR_ATIME;
}

fn find(word: &str) -> Option<Word> {
    TABLE.iter().find(|(name, _)| *name == word).map(|(_, meaning)| *meaning)
}

/// The value of `linux.rootfsPropagation`.
pub(super) fn propagation(word: &str) -> Option<Propagation> {
    match find(word) {
        Some(Word::Propagation(kind, recursive)) => Some(Propagation { kind, recursive }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options, CompileError> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        Options::parse(&words, Path::new("/mnt"))
    }

    #[test]
    fn each_word_is_in_the_table_once() {
        for (index, (name, _)) in TABLE.iter().enumerate() {
            assert!(TABLE[index + 1..].iter().all(|(other, _)| other != name), "{name}");
        }
    }

    #[test]
    fn the_later_word_wins() {
        assert_eq!(parse(&["ro", "rw"]).unwrap().attributes.set, 0);
        assert_eq!(parse(&["rw", "ro"]).unwrap().attributes.set, MOUNT_ATTR_RDONLY);
        let all = parse(&["rro", "rrw"]).unwrap().recursive;
        assert_eq!((all.set, all.clear), (0, MOUNT_ATTR_RDONLY));
        let atime = parse(&["noatime", "strictatime"]).unwrap().attributes;
        assert_eq!((atime.set, atime.clear), (MOUNT_ATTR_STRICTATIME, ATTR_ATIME));
        let propagation = parse(&["rshared", "private"]).unwrap();
        assert_eq!(
            (propagation.attributes.propagation, propagation.recursive.propagation),
            (libc::MS_PRIVATE, 0)
        );
    }

    #[test]
    fn plain_words_are_about_the_mount_and_r_words_about_all_below() {
        let options = parse(&["nosuid", "rnodev", "rbind", "bind"]).unwrap();
        assert_eq!(options.attributes.set, MOUNT_ATTR_NOSUID);
        assert_eq!(options.recursive.set, MOUNT_ATTR_NODEV);
        assert_eq!(options.bind, Some(true));
    }

    #[test]
    fn a_map_with_ids_is_of_the_mount_and_not_of_the_file_system() {
        let map = parse(&["idmap=uids=0-1-1;gids=0-2-1", "ridmap"]).unwrap();
        assert_eq!(map.map, Some(MapOption { recursive: true, ..MapOption::default() }));
        let map = parse(&["ridmap=uids=0-1-1;gids=0-2-1"]).unwrap();
        assert!(map.data.is_empty() && map.map.is_some_and(|map| map.recursive && map.uids.len() == 1));
    }

    #[test]
    fn other_words_are_for_the_file_system() {
        let options = parse(&["mode=755", "newinstance", "sync", "context=a=b"]).unwrap();
        let value = |key: &str, value: &str| FsOption::Value(key.into(), value.into());
        let flag = |key: &str| FsOption::Flag(key.into());
        assert_eq!(
            options.data,
            [value("mode", "755"), flag("newinstance"), flag("sync"), value("context", "a=b")]
        );
    }

    #[test]
    fn what_is_not_done_is_refused_by_name() {
        for word in ["idmap=", "idmap=uids=0-0-0", "remount", "", "=x"] {
            assert!(
                matches!(parse(&[word]), Err(CompileError::MountOption { option, .. }) if option == word)
            );
        }
        assert!(parse(&[&format!("lowerdir={}", "x".repeat(255))]).is_err());
        assert!(parse(&[&format!("lowerdir={}", "x".repeat(254))]).is_ok());
    }
}
