//! Mount options as fstab has them, for mount(2).

use nix::mount::MsFlags;

/// A page, less its NUL: what mount(2) takes.
pub(super) const MAX_DATA: usize = 4095;

#[derive(Debug, Clone, Copy)]
enum Word {
    Set(MsFlags),
    Clear(MsFlags),
    Nothing,
    Refused(&'static str),
}

const TABLE: &[(&str, Word)] = &[
    ("ro", Word::Set(MsFlags::MS_RDONLY)),
    ("rw", Word::Clear(MsFlags::MS_RDONLY)),
    ("nosuid", Word::Set(MsFlags::MS_NOSUID)),
    ("suid", Word::Clear(MsFlags::MS_NOSUID)),
    ("nodev", Word::Set(MsFlags::MS_NODEV)),
    ("dev", Word::Clear(MsFlags::MS_NODEV)),
    ("noexec", Word::Set(MsFlags::MS_NOEXEC)),
    ("exec", Word::Clear(MsFlags::MS_NOEXEC)),
    ("sync", Word::Set(MsFlags::MS_SYNCHRONOUS)),
    ("async", Word::Clear(MsFlags::MS_SYNCHRONOUS)),
    ("dirsync", Word::Set(MsFlags::MS_DIRSYNC)),
    ("remount", Word::Set(MsFlags::MS_REMOUNT)),
    ("mand", Word::Set(MsFlags::MS_MANDLOCK)),
    ("nomand", Word::Clear(MsFlags::MS_MANDLOCK)),
    ("noatime", Word::Set(MsFlags::MS_NOATIME)),
    ("atime", Word::Clear(MsFlags::MS_NOATIME)),
    ("nodiratime", Word::Set(MsFlags::MS_NODIRATIME)),
    ("diratime", Word::Clear(MsFlags::MS_NODIRATIME)),
    ("relatime", Word::Set(MsFlags::MS_RELATIME)),
    ("norelatime", Word::Clear(MsFlags::MS_RELATIME)),
    ("strictatime", Word::Set(MsFlags::MS_STRICTATIME)),
    ("nostrictatime", Word::Clear(MsFlags::MS_STRICTATIME)),
    ("lazytime", Word::Set(MsFlags::MS_LAZYTIME)),
    ("silent", Word::Set(MsFlags::MS_SILENT)),
    ("bind", Word::Set(MsFlags::MS_BIND)),
    ("rbind", Word::Set(MsFlags::MS_BIND.union(MsFlags::MS_REC))),
    ("shared", Word::Set(MsFlags::MS_SHARED)),
    ("rshared", Word::Set(MsFlags::MS_SHARED.union(MsFlags::MS_REC))),
    ("slave", Word::Set(MsFlags::MS_SLAVE)),
    ("rslave", Word::Set(MsFlags::MS_SLAVE.union(MsFlags::MS_REC))),
    ("private", Word::Set(MsFlags::MS_PRIVATE)),
    ("rprivate", Word::Set(MsFlags::MS_PRIVATE.union(MsFlags::MS_REC))),
    ("unbindable", Word::Set(MsFlags::MS_UNBINDABLE)),
    ("runbindable", Word::Set(MsFlags::MS_UNBINDABLE.union(MsFlags::MS_REC))),
    ("defaults", Word::Nothing),
    ("auto", Word::Nothing),
    ("noauto", Word::Nothing),
    ("nofail", Word::Nothing),
    ("_netdev", Word::Nothing),
    ("loop", Word::Refused("asks for a loop device; send the file as a block device instead")),
];

/// Words for a driver or for programs, never for the kernel.
const NOT_FOR_THE_KERNEL: [&str; 5] = ["x-", "X-", "io.katacontainers.", "fsgid=", "comment="];

/// What changes how a mount is seen by others; mount(2) takes it in a call of its own.
pub(super) const PROPAGATION: MsFlags =
    MsFlags::MS_SHARED.union(MsFlags::MS_SLAVE).union(MsFlags::MS_PRIVATE).union(MsFlags::MS_UNBINDABLE);

/// Flags and file-system options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) flags: MsFlags,
    pub(super) data: String,
}

impl Options {
    /// Reads `words`, the later of two that contradict each other winning. The error ends a sentence that begins
    /// with the storage.
    pub(super) fn parse(words: &[String]) -> Result<Self, String> {
        let mut options = Self { flags: MsFlags::empty(), data: String::new() };
        for word in self::words(words) {
            match TABLE.iter().find(|(known, _)| *known == word) {
                Some((_, Word::Set(flag))) => options.flags |= *flag,
                Some((_, Word::Clear(flag))) => options.flags &= !*flag,
                Some((_, Word::Nothing)) => {}
                Some((_, Word::Refused(why))) => return Err(format!("has the option {word:?}, which {why}")),
                None if NOT_FOR_THE_KERNEL.iter().any(|prefix| word.starts_with(prefix)) => {}
                None => options.add(word),
            }
        }
        if options.data.contains('\0') || options.data.len() > MAX_DATA {
            return Err("has file-system options of over 4095 bytes, or with a NUL".to_owned());
        }
        Ok(options)
    }

    /// Adds an option for the file system.
    pub(super) fn add(&mut self, option: &str) {
        if !self.data.is_empty() {
            self.data.push(',');
        }
        self.data.push_str(option);
    }
}

/// The single words of a storage's options.
pub(super) fn words(options: &[String]) -> impl Iterator<Item = &str> {
    options.iter().flat_map(|words| split(words))
}

/// A word may be a whole fstab field. Commas within quotes (SELinux contexts) and escaped ones (overlay
/// directories) belong to the value.
fn split(words: &str) -> Vec<&str> {
    let (mut parts, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (index, letter) in words.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ',' if !quoted => {
                parts.extend(words.get(start..index));
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.extend(words.get(start..));
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<(MsFlags, String), String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Options::parse(&words).map(|options| (options.flags, options.data))
    }

    #[test]
    fn flags_and_data_are_told_apart() {
        let (flags, data) =
            parse(&["ro", "nosuid,noexec", "size=64m", "defaults", "fsgid=5", "X-mount.mkdir", "mode=0755"])
                .unwrap();
        assert_eq!(flags, MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC);
        assert_eq!(data, "size=64m,mode=0755");
        assert_eq!(parse(&["ro", "rw"]).unwrap().0, MsFlags::empty());
        assert_eq!(parse(&[]).unwrap(), (MsFlags::empty(), String::new()));
    }

    #[test]
    fn commas_inside_values_stay() {
        let (_, data) = parse(&[r#"context="a:b,c",lowerdir=/a\,b:/c"#]).unwrap();
        assert_eq!(data, r#"context="a:b,c",lowerdir=/a\,b:/c"#);
    }

    #[test]
    fn what_mount_would_not_take_is_refused() {
        assert!(parse(&["loop"]).unwrap_err().contains("loop device"));
        assert!(parse(&[&"x".repeat(4096)]).is_err());
        assert!(parse(&["a\0b"]).is_err());
    }
}
