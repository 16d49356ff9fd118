//! Prometheus's text format, version 0.0.4.

use std::fmt::{Display, Write};

/// What a family's numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only ever grows, until the process ends.
    Counter,
    /// Any number.
    Gauge,
    /// Buckets, a sum and a count.
    Histogram,
}

/// A text under construction.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// Begins a family; all its samples follow before the next begins, as the format demands.
    pub fn family<'a>(&'a mut self, name: &'a str, kind: Kind, help: &str) -> Family<'a> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { text: &mut self.0, name }
    }

    /// The whole text.
    pub fn finish(self) -> String {
        self.0
    }
}

/// Where a family's samples go.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: &'a str,
}

impl Family<'_> {
    /// One number.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.suffixed("", labels, value)
    }

    /// One number of a histogram: `_bucket`, `_sum` or `_count`.
    pub fn suffixed(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        for (index, (name, value)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            self.text.push_str(name);
            self.text.push_str("=\"");
            value.chars().for_each(|character| match character {
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                '\n' => self.text.push_str("\\n"),
                other => self.text.push(other),
            });
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_break_out_of_their_quotes() {
        let mut out = Exposition::default();
        out.family("a", Kind::Gauge, "A.").sample(&[("x", "q\"\\\n{}"), ("y", "é")], 1.5).sample(&[], 2);
        assert_eq!(out.finish(), "# HELP a A.\n# TYPE a gauge\na{x=\"q\\\"\\\\\\n{}\",y=\"é\"} 1.5\na 2\n");
    }
}
