//! The one table that `make bench` prints.

use std::io::IsTerminal;

/// One figure, beside what it is compared with.
#[derive(Debug)]
struct Row {
    what: String,
    ours: String,
    other: String,
    ratio: Option<f64>,
    limit: Option<f64>,
}

/// Rows in the order they were measured.
#[derive(Debug, Default)]
pub struct Table(Vec<Row>);

impl Table {
    /// A figure with no counterpart; `limit` is the most it may be, in the same unit.
    pub fn figure(&mut self, what: &str, value: f64, unit: &str, limit: Option<f64>) {
        self.add(Row {
            what: what.into(),
            ours: format!("{value:.2} {unit}"),
            other: limit.map_or(String::new(), |limit| format!("limit {limit} {unit}")),
            ratio: limit.map(|limit| value / limit),
            limit: limit.map(|_| 1.0),
        });
    }

    /// A duration beside a peer's or a floor's; the ratio may be at most `limit`.
    pub fn time(&mut self, what: &str, ours: f64, peer: &str, theirs: f64, limit: Option<f64>) {
        self.add(Row {
            what: what.into(),
            ours: milliseconds(ours),
            other: format!("{peer} {}", milliseconds(theirs)),
            ratio: Some(ours / theirs),
            limit,
        });
    }

    /// A rate beside a floor's; the ratio must be at least `least`.
    pub fn rate(&mut self, what: &str, ours: f64, peer: &str, theirs: f64, least: Option<f64>) {
        self.rate_of("MiB/s", what, ours, peer, theirs, least);
    }

    /// The same of something else than bytes.
    pub fn rate_of(
        &mut self,
        unit: &str,
        what: &str,
        ours: f64,
        peer: &str,
        theirs: f64,
        least: Option<f64>,
    ) {
        self.add(Row {
            what: what.into(),
            ours: format!("{ours:.0} {unit}"),
            other: format!("{peer} {theirs:.0} {unit}"),
            ratio: Some(ours / theirs),
            limit: least.map(|least| -least),
        });
    }

    /// A number of something beside a peer's; the ratio may be at most `limit`.
    pub fn count(&mut self, what: &str, ours: f64, peer: &str, theirs: f64, unit: &str, limit: Option<f64>) {
        self.add(Row {
            what: what.into(),
            ours: format!("{ours:.0} {unit}"),
            other: format!("{peer} {theirs:.0} {unit}"),
            ratio: Some(ours / theirs),
            limit,
        });
    }

    fn add(&mut self, row: Row) {
        if std::io::stderr().is_terminal() {
            eprintln!("measured: {}", row.what);
        }
        self.0.push(row);
    }

    /// Prints all rows; whether every limit held.
    pub fn print(&self) -> bool {
        println!(
            "| {:<46} | {:>14} | {:<30} | {:>7} | {:<12} |",
            "what", "berth", "beside", "ratio", "target"
        );
        println!(
            "|{}|{}|{}|{}|{}|",
            "-".repeat(48),
            "-".repeat(16),
            "-".repeat(32),
            "-".repeat(9),
            "-".repeat(14)
        );
        let mut all = true;
        for row in &self.0 {
            let (target, met) = verdict(row);
            all &= met;
            let ratio = row.ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
            println!(
                "| {:<46} | {:>14} | {:<30} | {ratio:>7} | {target:<12} |",
                row.what, row.ours, row.other
            );
        }
        all
    }
}

fn verdict(row: &Row) -> (String, bool) {
    let (Some(ratio), Some(limit)) = (row.ratio, row.limit) else {
        return (String::new(), true);
    };
    let (sign, bound, met) =
        if limit < 0.0 { (">=", -limit, ratio >= -limit) } else { ("<=", limit, ratio <= limit) };
    (format!("{sign} {bound} {}", if met { "met" } else { "MISSED" }), met)
}

fn milliseconds(value: f64) -> String {
    if value < 1.0 { format!("{:.1} us", value * 1e3) } else { format!("{value:.2} ms") }
}
