//! Pressure stall information: how long tasks waited for a resource.

use super::super::{CgroupError, dir::Dir};

/// Waiting for one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// While at least one task waited.
    pub some: Stall,
    /// While every task that was not idle waited.
    pub full: Stall,
}

/// How much of the time was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// Percent of the last 10 s.
    pub avg10: f64,
    /// Percent of the last 60 s.
    pub avg60: f64,
    /// Percent of the last 300 s.
    pub avg300: f64,
    /// Microseconds since the group was made.
    pub total: u64,
}

impl Pressure {
    /// `None` where the kernel does not measure it.
    pub(super) fn read(dir: &Dir, file: &str) -> Result<Option<Self>, CgroupError> {
        Ok(dir.read_if_any(file)?.map(|text| Self::parse(&text)))
    }

    /// `some avg10=0.12 avg60=0.00 avg300=0.00 total=345`, and the same for `full`.
    fn parse(text: &str) -> Self {
        let mut pressure = Self::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let stall = match words.next() {
                Some("some") => &mut pressure.some,
                Some("full") => &mut pressure.full,
                _ => continue,
            };
            for (key, value) in words.filter_map(|word| word.split_once('=')) {
                match key {
                    "avg10" => stall.avg10 = value.parse().unwrap_or(0.0),
                    "avg60" => stall.avg60 = value.parse().unwrap_or(0.0),
                    "avg300" => stall.avg300 = value.parse().unwrap_or(0.0),
                    "total" => stall.total = value.parse().unwrap_or(0),
                    _ => {}
                }
            }
        }
        pressure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines() {
        let text = "some avg10=1.50 avg60=0.25 avg300=0.00 total=345\nfull avg10=x total=7\nbroken\n";
        let some = Stall { avg10: 1.5, avg60: 0.25, avg300: 0.0, total: 345 };
        assert_eq!(Pressure::parse(text), Pressure { some, full: Stall { total: 7, ..Stall::default() } });
        assert_eq!(Pressure::parse(""), Pressure::default());
    }
}
