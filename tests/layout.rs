//! What the documents say of the tree is so: imports run one way (agent → rustjail, agent → protocols, ctl →
//! protocols), and the tests that are named exist.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{collections::BTreeSet, fs, path::Path};

const MEMBERS: [(&str, &str, &[&str]); 4] = [
    ("protocols", "berth-protocols", &[]),
    ("rustjail", "rustjail", &[]),
    ("agent", "berth-agent", &["rustjail", "berth-protocols"]),
    ("ctl", "berthctl", &["berth-protocols"]),
];

#[test]
fn crates_depend_on_each_other_one_way_only() {
    for (folder, name, allowed) in MEMBERS {
        let manifest =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join("Cargo.toml"))
                .unwrap();
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap();
        for (_, other, _) in MEMBERS {
            let depends = dependencies.lines().any(|line| line.split(['.', ' ', '=']).next() == Some(other));
            assert_eq!(depends, allowed.contains(&other), "{name} and {other}");
        }
    }
}

/// Rows of the reliability matrix that this repository answers for.
const ROWS: &str = "T1 T2 T3 T4 T5 T6 T7 T8 T9 T10 T11 T12 T13 T14 T15 T16 T17 T18 T19 P8 P9 P10 P11 P12 P13 P14 \
                    R1 R2 R6 R7 R8 R11 R12 H3 H4 H5 H6 H9";

#[test]
fn every_row_of_the_reliability_table_has_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("docs/reliability.md")).unwrap();
    let mut found = BTreeSet::new();
    for line in text.lines().skip_while(|line| !line.starts_with("|---")).skip(1) {
        let Some((row, _)) = line.strip_prefix("| ").and_then(|line| line.split_once(" | ")) else {
            continue;
        };
        let mut source = String::new();
        let mut tests = 0;
        for quoted in line.split('`').skip(1).step_by(2) {
            if quoted.ends_with(".rs") {
                source =
                    fs::read_to_string(root.join(quoted)).unwrap_or_else(|error| panic!("{quoted}: {error}"));
            } else {
                assert!(source.contains(&format!("fn {quoted}(")), "{row}: there is no test {quoted}");
                tests += 1;
            }
        }
        assert!(tests > 0, "{row} has no test");
        found.insert(row);
    }
    assert!(ROWS.split(' ').all(|row| found.contains(row)), "{found:?}");
}
