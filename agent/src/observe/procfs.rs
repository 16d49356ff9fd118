//! The formats of procfs files. What does not fit is passed over: every kernel has lines of its own.

/// The columns of `/proc/net/dev`, by the names under which hosts scrape them.
pub const INTERFACE_COLUMNS: [&str; 16] = [
    "recv_bytes",
    "recv_packets",
    "recv_errs",
    "recv_drop",
    "recv_fifo",
    "recv_frame",
    "recv_compressed",
    "recv_multicast",
    "sent_bytes",
    "sent_packets",
    "sent_errs",
    "sent_drop",
    "sent_fifo",
    "sent_colls",
    "sent_carrier",
    "sent_compressed",
];

/// A line of `/proc/net/dev`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name in its namespace.
    pub name: String,
    /// See [`INTERFACE_COLUMNS`].
    pub counters: [u64; INTERFACE_COLUMNS.len()],
}

impl Interface {
    /// The counter of that column; 0 where there is no such column.
    pub fn counter(&self, column: &str) -> u64 {
        let index = INTERFACE_COLUMNS.iter().position(|name| *name == column);
        index.and_then(|index| self.counters.get(index)).copied().unwrap_or(0)
    }
}

/// `/proc/net/dev`.
pub fn interfaces(text: &str) -> Vec<Interface> {
    text.lines()
        .filter_map(|line| {
            // A name may hold a colon (an alias); the counters cannot.
            let (name, numbers) = line.rsplit_once(':')?;
            let mut counters = [0; INTERFACE_COLUMNS.len()];
            let mut words = numbers.split_ascii_whitespace();
            for counter in &mut counters {
                *counter = words.next()?.parse().ok()?;
            }
            Some(Interface { name: name.trim().to_owned(), counters })
        })
        .collect()
}

/// `Key:   123 kB` or `key 123` lines, with sizes in the unit of the file.
pub fn keyed(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (key, rest) = line.split_once([':', ' ', '\t'])?;
        let number = rest.trim_start_matches([':', ' ', '\t']).split_ascii_whitespace().next()?;
        Some((key, number.parse().ok()?))
    })
}

/// The numbers on a line.
pub fn numbers(line: &str) -> Vec<u64> {
    line.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_of_a_real_file() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
            lo:     100       2    3    4    5     6          7         8      900      10   11   12   13    14      15         16\n  \
            a:b: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n broken: 1 2\n";
        let found = interfaces(text);
        assert_eq!(found.iter().map(|found| found.name.as_str()).collect::<Vec<_>>(), ["lo", "a:b"]);
        assert_eq!(found[0].counter("recv_bytes"), 100);
        assert_eq!(found[0].counter("sent_bytes"), 900);
        assert_eq!(found[0].counter("sent_compressed"), 16);
        assert_eq!(found[0].counter("nope"), 0);
    }

    #[test]
    fn keyed_files_of_both_styles() {
        let text = "MemTotal:        2048 kB\nActive(anon):  7 kB\nnr_free_pages 12\nName:\tx\nbroken\nVmRSS:\t  44 kB\n";
        let all: Vec<_> = keyed(text).collect();
        assert_eq!(all, [("MemTotal", 2048), ("Active(anon)", 7), ("nr_free_pages", 12), ("VmRSS", 44)]);
    }

    /// Every prefix, intact and damaged, is read without panic.
    #[test]
    fn truncated_and_damaged_files() {
        let text =
            "a: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\nMemTotal: 99999999999999999999 kB\n1 (x) S 2\n";
        for end in 0..=text.len() {
            for damage in ["", "\u{fffd}", "\0", ":", ")"] {
                let part = format!("{}{damage}", &text[..end]);
                let _ = (interfaces(&part), keyed(&part).count(), numbers(&part));
            }
        }
    }
}
