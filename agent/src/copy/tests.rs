//! Copies in any order, beside a model of what they come to.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{Piece, file};

/// Copies before the tree is emptied; directories, which make way for nothing, would fill it.
const ROUND: usize = 80;
/// As many as the kernel follows in one lookup.
const LINKS: usize = 40;
const FILE: u32 = 0o100_644;
const DIRECTORY: u32 = 0o040_755;
const LINK: u32 = 0o120_777;

/// What the tree ought to be.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Directory(BTreeMap<String, Node>),
    File(Vec<u8>),
    Link(String),
}

/// Why a lookup ends.
#[derive(Debug, PartialEq, Eq)]
enum Dead {
    Missing,
    Other,
}

impl Node {
    fn empty() -> Self {
        Self::Directory(BTreeMap::new())
    }

    fn children(&mut self) -> &mut BTreeMap<String, Node> {
        match self {
            Self::Directory(children) => children,
            other => panic!("{other:?} is no directory"),
        }
    }

    fn at(&mut self, path: &[String]) -> &mut Node {
        path.iter().fold(self, |node, name| node.children().get_mut(name).unwrap())
    }

    /// The directory that `path` leads to, links followed as long as they stay inside.
    fn directory(&mut self, path: &[String]) -> Result<Vec<String>, Dead> {
        let mut reached: Vec<String> = Vec::new();
        let mut ahead: Vec<String> = path.iter().rev().cloned().collect();
        let mut followed = 0;
        while let Some(name) = ahead.pop() {
            let Self::Directory(children) = self.at(&reached) else { return Err(Dead::Other) };
            match (name.as_str(), children.get(&name)) {
                ("" | ".", _) => {}
                ("..", _) if reached.pop().is_some() => {}
                ("..", _) => return Err(Dead::Other),
                (_, None) => return Err(Dead::Missing),
                (_, Some(Self::Link(target))) => {
                    followed += 1;
                    if followed > LINKS || target.starts_with('/') {
                        return Err(Dead::Other);
                    }
                    ahead.extend(target.split('/').rev().map(str::to_owned));
                }
                (_, Some(_)) => reached.push(name),
            }
        }
        match self.at(&reached) {
            Self::Directory(_) => Ok(reached),
            _ => Err(Dead::Other),
        }
    }

    /// As [`Node::directory`], and what is missing is made.
    fn made(&mut self, path: &[String]) -> Result<Vec<String>, Dead> {
        match self.directory(path) {
            Err(Dead::Missing) => {}
            found => return found,
        }
        let mut at = Vec::new();
        for length in 1..=path.len() {
            at = match self.directory(&path[..length]) {
                Err(Dead::Missing) => {
                    self.at(&at).children().entry(path[length - 1].clone()).or_insert_with(Node::empty);
                    self.directory(&path[..length])?
                }
                found => found?,
            };
        }
        Ok(at)
    }

    /// One copy; whether it is to succeed.
    fn copy(&mut self, path: &[String], made: Node) -> bool {
        let (name, parent) = path.split_last().unwrap();
        let Ok(parent) = self.made(parent) else { return false };
        let children = self.at(&parent).children();
        match (children.get(name), &made) {
            (Some(Self::Directory(_)), Self::Directory(_)) => return true,
            (Some(Self::Directory(_)), _) => return false,
            _ => children.insert(name.clone(), made),
        };
        true
    }

    /// What there really is.
    fn read(path: &Path) -> Self {
        let metadata = fs::symlink_metadata(path).unwrap();
        if metadata.is_symlink() {
            return Self::Link(fs::read_link(path).unwrap().into_os_string().into_string().unwrap());
        }
        if metadata.is_file() {
            return Self::File(fs::read(path).unwrap());
        }
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
        let named =
            entries.map(|entry| (entry.file_name().into_string().unwrap(), Self::read(&entry.path())));
        Self::Directory(named.collect())
    }
}

/// A xorshift generator: the test needs variety, and the same on every run.
struct Dice(u64);

impl Dice {
    fn roll<'a, T>(&mut self, sides: &'a [T]) -> &'a T {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        &sides[self.0 as usize % sides.len()]
    }
}

/// Every path outside with what could be changed of it.
fn outside_is(dir: &Path) -> BTreeMap<PathBuf, (u64, u32, u32, u64, i64, i64)> {
    let mut all = BTreeMap::new();
    for path in [dir.to_owned(), dir.join("victim"), dir.join("d"), dir.join("d/victim")] {
        let found = fs::symlink_metadata(&path).unwrap();
        let times = (found.mtime_nsec(), found.ctime_nsec());
        all.insert(path, (found.ino(), found.mode(), found.uid(), found.len(), times.0, times.1));
    }
    all
}

/// Rows H1 and A9 of the reliability tests (CVE-2026-41326): whatever is copied after whatever, each copy comes to
/// what the model says, and nothing outside the tree is touched. `COPY_TRIES=1000000` for more of it.
#[test]
fn copies_of_any_kind_in_any_order_stay_in_the_tree() {
    let dir = std::env::temp_dir().join(format!("berth-copies-{}", std::process::id()));
    let (root, outside) = (dir.join("shared"), dir.join("outside"));
    fs::create_dir_all(outside.join("d")).unwrap();
    fs::write(outside.join("victim"), "untouched").unwrap();
    fs::write(outside.join("d/victim"), "untouched").unwrap();
    let before = outside_is(&outside);

    let tries = std::env::var("COPY_TRIES").map_or(12_000, |tries| tries.parse().unwrap());
    let names = ["a", "b", "c", "d"];
    let absolute = outside.display().to_string();
    let targets = [
        "a",
        "b",
        "c/d",
        "..",
        "../b",
        "../../outside",
        "../outside/d",
        "/proc/self/root",
        ".",
        "nowhere",
        &absolute,
    ];
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut done = [0usize; 2];
    for _ in 0..tries / ROUND {
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).unwrap();
        let mut model = Node::empty();
        let mut history = Vec::new();
        for _ in 0..ROUND {
            let depth = *dice.roll(&[1, 1, 2, 2, 3]);
            let path: Vec<String> = (0..depth).map(|_| (*dice.roll(&names)).to_owned()).collect();
            let target = (*dice.roll(&targets)).to_owned();
            let (mode, data, made) = match *dice.roll(&[LINK, LINK, FILE, FILE, DIRECTORY]) {
                LINK => (LINK, target.clone().into_bytes(), Node::Link(target)),
                FILE => (FILE, target.clone().into_bytes(), Node::File(target.into_bytes())),
                mode => (mode, Vec::new(), Node::empty()),
            };
            let piece = Piece {
                path: root.join(path.join("/")).display().to_string(),
                size: data.len() as i64,
                mode,
                dir_mode: 0o755,
                uid: -1,
                gid: -1,
                offset: 0,
                data,
            };
            let place = piece.place(&root).unwrap();
            let outcome = file::copy(&root, &place, &piece);
            history.push(format!("{mode:o} {} {made:?}: {outcome:?}", path.join("/")));
            let expected = model.copy(&path, made);
            assert_eq!(outcome.is_ok(), expected, "{history:#?}");
            done[usize::from(expected)] += 1;
        }
        assert_eq!(Node::read(&root), model, "{history:#?}");
    }
    assert_eq!(outside_is(&outside), before);
    assert!(done.iter().all(|count| *count > tries / 10), "of {tries} copies (refused, made): {done:?}");
    fs::remove_dir_all(&dir).unwrap();
}
