//! Seccomp profiles compiled by earlier commands, in the directory `~seccomp` below `--root`.
//!
//! Engines give nearly every container the same profile, and understanding and compiling its hundreds of names is
//! what takes most of the time that a command spends outside the kernel. An entry is named by a hash, but serves only a
//! profile that is the same to the byte, and the compiler that made it: so whoever writes profiles cannot pass one off as
//! another, and a sum over both tells one that a failing disk has changed. Nor are entries taken, or left, where somebody
//! else could have put them: a `--root` may be in a directory that all can write to. Whatever goes wrong here costs time
//! and nothing else. A profile whose calls an agent decides is not kept, because more of it is asked for than the filter.

use std::{
    collections::hash_map::DefaultHasher,
    fs::{self, DirBuilder, OpenOptions},
    hash::Hasher,
    io::{self, Write},
    ops::Range,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::unistd::geteuid;
use oci_spec::runtime::Spec;
use rustjail::seccomp::{self, Filter};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Deserializer;

/// No id of a container.
const DIR: &str = "~seccomp";

/// An entry begins with it.
const HEADER: [u8; 8] = seccomp::REVISION.to_ne_bytes();

const KEY: &[u8] = b"\"seccomp\"";

/// How many there may be; then all make room.
const MOST: usize = 64;

/// A configuration, understood.
#[derive(Debug)]
pub struct Understood {
    /// Without the profile, if its filter is known.
    pub spec: Spec,
    /// What its profile was compiled to.
    pub filter: Option<Filter>,
}

/// Understands the configuration `text`.
pub fn understand(root: &Path, text: &[u8]) -> serde_json::Result<Understood> {
    if let Some(place) = profile_in(text)
        && let Some(filter) = find(root, text.get(place.clone()).unwrap_or_default())
        && let Ok(spec) = without(text, place)
    {
        return Ok(Understood { spec, filter: Some(filter) });
    }
    Ok(Understood { spec: serde_json::from_slice(text)?, filter: None })
}

/// Keeps what the profile in `text` was compiled to.
pub fn keep(root: &Path, text: &[u8], filter: &Filter) {
    if let Some(profile) = profile_in(text).and_then(|place| text.get(place))
        && !filter.notifies()
    {
        // The next command compiles it once more, then.
        let _ = write(root, profile, filter);
    }
}

fn find(root: &Path, profile: &[u8]) -> Option<Filter> {
    let dir = own(root.join(DIR)).ok()?;
    let entry = fs::read(path(&dir, profile)).ok()?;
    let (sum, rest) = entry.strip_prefix(&HEADER)?.split_first_chunk()?;
    let compiled = rest.strip_prefix(profile)?;
    if u64::from_ne_bytes(*sum) != hash(rest) {
        return None;
    }
    postcard::from_bytes(compiled).ok()
}

/// The directory, if it is one that nobody but us can write to.
fn own(dir: PathBuf) -> io::Result<PathBuf> {
    let found = fs::symlink_metadata(&dir)?;
    let ours = found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0;
    if ours { Ok(dir) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

fn path(dir: &Path, profile: &[u8]) -> PathBuf {
    dir.join(format!("{:016x}", hash(profile)))
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

fn write(root: &Path, profile: &[u8], filter: &Filter) -> io::Result<()> {
    let dir = root.join(DIR);
    match DirBuilder::new().mode(0o700).create(&dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let dir = own(dir)?;
    make_room(&dir)?;
    let compiled = postcard::to_stdvec(filter).map_err(io::Error::other)?;
    let rest = [profile, &compiled].concat();
    let entry = [HEADER.as_slice(), &hash(&rest).to_ne_bytes(), &rest].concat();
    let draft = dir.join(format!("{}.new", std::process::id()));
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft);
    file.and_then(|mut file| file.write_all(&entry))
        .and_then(|()| fs::rename(&draft, path(&dir, profile)))
        .inspect_err(|_| {
            // On a full disk what was written of it is all that can be given back.
            let _ = fs::remove_file(&draft);
        })
}

fn make_room(dir: &Path) -> io::Result<()> {
    let entries: Vec<_> = fs::read_dir(dir)?.flatten().collect();
    if entries.len() < MOST {
        return Ok(());
    }
    entries.iter().try_for_each(|entry| fs::remove_file(entry.path()))
}

/// Where the profile is in the configuration `text`.
fn profile_in(text: &[u8]) -> Option<Range<usize>> {
    // Most of what is asked of a configuration without one.
    if !text.windows(KEY.len()).any(|part| part == KEY) {
        return None;
    }
    let start = member(text, member(text, 0, "linux")?, "seccomp")?;
    Some(start..next::<IgnoredAny>(text, start)?.1)
}

/// Where the value of `name` begins in the object that begins at `at`.
fn member(text: &[u8], at: usize, name: &str) -> Option<usize> {
    let mut at = after(text, at, b'{')?;
    loop {
        let (found, end) = next::<String>(text, at)?;
        at = after(text, end, b':')?;
        if found == name {
            return skip_blanks(text, at);
        }
        at = after(text, next::<IgnoredAny>(text, at)?.1, b',')?;
    }
}

/// The value that begins at `at`, and where it ends.
fn next<T: DeserializeOwned>(text: &[u8], at: usize) -> Option<(T, usize)> {
    let mut values = Deserializer::from_slice(text.get(at..)?).into_iter();
    let value = values.next()?.ok()?;
    Some((value, at.checked_add(values.byte_offset())?))
}

/// What follows `mark`, which is the next thing after `at`.
fn after(text: &[u8], at: usize, mark: u8) -> Option<usize> {
    let place = skip_blanks(text, at)?;
    (*text.get(place)? == mark).then_some(place + 1)
}

fn skip_blanks(text: &[u8], at: usize) -> Option<usize> {
    let blanks = text.get(at..)?.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    at.checked_add(blanks)
}

fn without(text: &[u8], profile: Range<usize>) -> serde_json::Result<Spec> {
    let (before, after) = (text.get(..profile.start), text.get(profile.end..));
    serde_json::from_slice(&[before.unwrap_or_default(), b"null", after.unwrap_or_default()].concat())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::Permissions,
        os::unix::fs::{PermissionsExt, chown, symlink},
    };

    use super::*;

    fn config(profile: &str) -> String {
        format!(
            r#"{{"ociVersion": "1.2.0", "linux": {{"seccomp": {profile}, "maskedPaths": ["/x"]}}, "hostname": "h"}}"#
        )
    }

    const DENY: &str = r#"{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": []}"#;

    fn root(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("rustjail-filters-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    fn compiled(text: &str) -> Filter {
        let spec: Spec = serde_json::from_str(text).unwrap();
        seccomp::compile(spec.linux().as_ref().unwrap().seccomp().as_ref().unwrap()).unwrap()
    }

    #[test]
    fn a_profile_that_was_compiled_is_not_understood_again() {
        let (root, text) = (root("again"), config(DENY));
        let first = understand(&root, text.as_bytes()).unwrap();
        assert!(first.filter.is_none());
        keep(&root, text.as_bytes(), &compiled(&text));
        let again = understand(&root, text.as_bytes()).unwrap();
        assert_eq!(again.filter, Some(compiled(&text)));
        assert_eq!(again.spec.hostname().as_deref(), Some("h"));
        let linux = again.spec.linux().clone().unwrap();
        assert!(linux.seccomp().is_none() && linux.masked_paths().is_some());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn another_profile_or_another_compiler_is_not_served() {
        let (root, text) = (root("other"), config(DENY));
        keep(&root, text.as_bytes(), &compiled(&text));
        let at = path(&root.join(DIR), DENY.as_bytes());
        let entry = fs::read(&at).unwrap();
        for spoil in 0..entry.len() {
            let mut spoilt = entry.clone();
            spoilt[spoil] ^= 1;
            fs::write(&at, spoilt).unwrap();
            assert!(understand(&root, text.as_bytes()).unwrap().filter.is_none(), "byte {spoil}");
        }
        fs::write(&at, &entry[..entry.len() - 1]).unwrap();
        assert!(understand(&root, text.as_bytes()).unwrap().filter.is_none(), "cut short");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_others_could_have_put_there_is_not_served() {
        let (root, text) = (root("foreign"), config(DENY));
        let served = || understand(&root, text.as_bytes()).unwrap().filter.is_some();
        keep(&root, text.as_bytes(), &compiled(&text));
        assert!(served());
        let dir = root.join(DIR);
        for (owner, mode) in [(1, 0o700), (0, 0o720), (0, 0o702)] {
            chown(&dir, Some(owner), None).unwrap();
            fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
            assert!(!served(), "{owner} {mode:o}");
        }
        fs::set_permissions(&dir, Permissions::from_mode(0o700)).unwrap();
        assert!(served());
        let elsewhere = root.join("elsewhere");
        fs::rename(&dir, &elsewhere).unwrap();
        symlink(&elsewhere, &dir).unwrap();
        assert!(!served());
        let entries = || fs::read_dir(&elsewhere).unwrap().count();
        let other = config(r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": []}"#);
        keep(&root, other.as_bytes(), &compiled(&other));
        assert_eq!(entries(), 1, "nothing is written there either");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn the_profile_is_the_one_in_linux_however_it_is_written() {
        let found = |text: &str| profile_in(text.as_bytes()).map(|place| text[place].to_owned());
        let decoys = r#""annotations": {"seccomp": "{", "linux": "\"seccomp\""}, "n": -1.5e3, "t": [true, null, {"seccomp": 1}]"#;
        let text = format!(
            r#" {{ {decoys} , "linux" : {{ "x" : {{"seccomp": 2}}, "seccomp"  :  {DENY} , "y": 0 }} }}"#
        );
        assert_eq!(found(&text).as_deref(), Some(DENY));
        for text in [
            r#"{"seccomp": {}}"#,
            r#"{"linux": [{"seccomp": {}}]}"#,
            r#"{"linux": {"x": {"seccomp": {}}}}"#,
            r#"{"linux": {"x": "seccomp", "y": "seccomp": {}}}"#,
            r#"{"linux": {"seccomp": {"defaultAction"#,
            r#""seccomp""#,
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }

    #[test]
    fn there_are_only_so_many() {
        let root = root("many");
        for number in 0..MOST + 10 {
            let text =
                config(&format!(r#"{{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": {number}}}"#));
            keep(&root, text.as_bytes(), &compiled(&text));
        }
        assert!(fs::read_dir(root.join(DIR)).unwrap().count() <= MOST);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_has_no_profile_or_makes_no_sense_is_left_to_the_reader() {
        let root = root("none");
        assert!(understand(&root, br#"{"ociVersion": "1.2.0", "linux": {}}"#).unwrap().filter.is_none());
        assert!(understand(&root, br#"{"ociVersion": "1.2.0"}"#).unwrap().filter.is_none());
        assert!(understand(&root, b"{").is_err());
        let twice = config(DENY).replace("\"maskedPaths\"", "\"seccomp\": null, \"maskedPaths\"");
        assert!(understand(&root, twice.as_bytes()).is_err());
        fs::remove_dir_all(root).unwrap();
    }
}
