//! Any text as initdata or as a configuration file: what our reader understands, the `toml` crate understands as the
//! same. Who owns a confidential guest and who measures it read the document with one like that.
#![no_main]

use berth_agent::config::toml::{Table, Value, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &str| {
    let Ok(table) = parse(data) else { return };
    let theirs: toml::Table = toml::from_str(data).expect("what we understand is TOML");
    assert!(same(&table, &theirs), "{table:?}\n{theirs:?}");
});

fn same(ours: &Table, theirs: &toml::Table) -> bool {
    ours.len() == theirs.len()
        && ours.iter().all(|(key, value)| match (value, theirs.get(key)) {
            (Value::Text(ours), Some(toml::Value::String(theirs))) => ours == theirs,
            (Value::Number(ours), Some(toml::Value::Integer(theirs))) => ours == theirs,
            (Value::Switch(ours), Some(toml::Value::Boolean(theirs))) => ours == theirs,
            (Value::Table(ours), Some(toml::Value::Table(theirs))) => same(ours, theirs),
            _ => false,
        })
}
