//! The few formats of cgroup files. Lines that do not fit are passed over: a new kernel adds fields, and a
//! group that is being removed gives empty files.

use std::collections::HashMap;

/// A lone number; `max` and `-1` are the greatest.
pub(super) fn number(text: &str) -> Option<u64> {
    match text.trim() {
        "max" | "-1" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// `key value` lines.
pub(super) fn flat(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (key, value) = line.split_once([' ', '\t'])?;
        Some((key, number(value)?))
    })
}

/// The value of `key` among `key value` lines.
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    flat(text).find_map(|(found, value)| (found == key).then_some(value))
}

/// All `key value` lines.
pub(super) fn map(text: &str) -> HashMap<String, u64> {
    flat(text).map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Numbers on one line.
pub(super) fn list(text: &str) -> Vec<u64> {
    text.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// The total of the `some` line of a pressure file, in microseconds.
pub(super) fn pressure(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

/// `major:minor`.
pub(super) fn device(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// A cpuset or node list has members.
pub(super) fn is_empty_set(text: &str) -> bool {
    text.trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(number("42\n"), Some(42));
        assert_eq!(number("max\n"), Some(u64::MAX));
        assert_eq!(number("-1"), Some(u64::MAX));
        for broken in ["", "\n", "-2", "1 2", "0x10", "99999999999999999999999", "m\u{fffd}x"] {
            assert_eq!(number(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn pressure_is_the_total_of_some() {
        let text = "some avg10=0.00 avg60=0.10 avg300=0.00 total=1234\nfull avg10=0.00 total=7\n";
        assert_eq!(pressure(text), Some(1234));
        assert_eq!((pressure(""), pressure("some avg10=1"), pressure("full total=3")), (None, None, None));
    }

    #[test]
    fn flat_files_keep_what_fits() {
        let text = "usage_usec 12\nbroken\nnr -3\n\nbig 18446744073709551616\nlast 7";
        assert_eq!(flat(text).collect::<Vec<_>>(), [("usage_usec", 12), ("last", 7)]);
        assert_eq!(keyed(text, "last"), Some(7));
        assert_eq!(keyed(text, "usage"), None);
        assert_eq!(keyed("", "x"), None);
    }

    /// Every prefix of a real file and every damaged byte of it is read without panic, and an intact prefix
    /// gives the same values.
    #[test]
    fn truncated_and_damaged_files() {
        let text = "populated 1\nfrozen 0\n8:0 Read 4096\n8:0 rbytes=1 wbytes=2\n0 1 2 3 \nmax\n";
        for end in 0..=text.len() {
            let mut damaged = text.as_bytes()[..end].to_vec();
            let part = String::from_utf8_lossy(&damaged).into_owned();
            if end > 12 {
                assert_eq!(keyed(&part, "populated"), Some(1));
            }
            if let Some(byte) = damaged.last_mut() {
                *byte = 0xff;
            }
            let part = String::from_utf8_lossy(&damaged);
            let _ = (number(&part), map(&part), list(&part), device(&part), keyed(&part, "frozen"));
        }
    }
}
