//! Imports run one way: agent → rustjail, agent → protocols, ctl → protocols.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{fs, path::Path};

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
