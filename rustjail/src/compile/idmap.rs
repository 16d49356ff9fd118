//! The value of the mount option `idmap=`, as crun has it: `uids=0-1000-10#20-2000-5;gids=0-1000-10`.
//!
//! Each range names its first id in the file system, the one that is shown for it, and how many there are. With an
//! `@` before them those that are shown are ids of the container's user namespace, else of the machine.

use crate::plan::IdMap;

/// Which ids the files of a mount are shown with: the container's own maps, when it names none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct MapOption {
    /// The mounts below as well.
    pub(super) recursive: bool,
    /// Of users.
    pub(super) uids: Vec<Range>,
    /// Of groups.
    pub(super) gids: Vec<Range>,
}

/// One range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    relative: bool,
    map: IdMap,
}

const FORM: &str = "is not of the form idmap=uids=FIRST-SHOWN-COUNT#...;gids=FIRST-SHOWN-COUNT#...";

impl MapOption {
    /// Reads what is after the `=`.
    pub(super) fn parse(value: &str) -> Result<Self, &'static str> {
        let mut option = Self::default();
        for part in value.split(';') {
            let (list, ranges) = match part.split_once('=') {
                Some(("uids", ranges)) => (&mut option.uids, ranges),
                Some(("gids", ranges)) => (&mut option.gids, ranges),
                _ => return Err(FORM),
            };
            if !list.is_empty() {
                return Err("names uids or gids twice");
            }
            *list =
                ranges.split('#').map(|range| Range::parse(range).ok_or(FORM)).collect::<Result<_, _>>()?;
        }
        match option.uids.is_empty() || option.gids.is_empty() {
            true => Err("names uids or gids, and not the other: it takes both"),
            false => Ok(option),
        }
    }
}

impl Range {
    fn parse(text: &str) -> Option<Self> {
        let (relative, text) = match text.strip_prefix('@') {
            Some(text) => (true, text),
            None => (false, text),
        };
        // `parse` would take a sign.
        let number =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
        let mut numbers = text.split('-').map(number);
        let map = IdMap { inside: numbers.next()??, outside: numbers.next()??, count: numbers.next()?? };
        (numbers.next().is_none() && map.count > 0).then_some(Self { relative, map })
    }

    /// It, as ids of the machine. `container` is the map of the user namespace that a relative one is about; `None`
    /// when a part of the range is nobody there.
    pub(super) fn resolve(self, container: &[IdMap]) -> Option<IdMap> {
        if !self.relative {
            return Some(self.map);
        }
        container.iter().find_map(|range| {
            let offset = self.map.outside.checked_sub(range.inside)?;
            let outside = range.outside.checked_add(offset)?;
            (offset.checked_add(self.map.count)? <= range.count).then_some(IdMap { outside, ..self.map })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(inside: u32, outside: u32, count: u32) -> IdMap {
        IdMap { inside, outside, count }
    }

    #[test]
    fn both_lists_have_ranges() {
        let option = MapOption::parse("uids=0-1-10#10-11-10;gids=0-100-10").unwrap();
        let plain = |map| Range { relative: false, map };
        assert_eq!(option.uids, [plain(id(0, 1, 10)), plain(id(10, 11, 10))]);
        assert_eq!(option.gids, [plain(id(0, 100, 10))]);
        for bad in [
            "",
            "uids=0-1-10",
            "uids=0-1-10;gids=",
            "uids=0-1-10;gids=0-1",
            "uids=0-1-10;gids=0-1-2-3",
            "uids=0-1-10;gids=0-1-0",
            "uids=0-1-10;gids=0-+1-1",
            "uids=0-1-10;gids=0-1-4294967296",
            "uids=0-1-10;uids=0-1-10;gids=0-1-10",
            "uids=0-1-10;gids=0-1-10;",
            "uids=0-1-10;pids=0-1-10",
        ] {
            assert!(MapOption::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_relative_range_is_of_the_containers_ids() {
        let container = [id(0, 0, 1), id(1, 2, 1000)];
        let resolve = |text| Range::parse(text).unwrap().resolve(&container);
        assert_eq!(resolve("1-3-10"), Some(id(1, 3, 10)));
        assert_eq!(resolve("@1-3-10"), Some(id(1, 4, 10)));
        assert_eq!(resolve("@7-0-1"), Some(id(7, 0, 1)));
        assert_eq!(resolve("@0-0-2"), None);
        assert_eq!(resolve("@0-1001-1"), None);
        assert_eq!(resolve("@0-4294967295-1"), None);
    }
}
