//! Any text as a CDI description: where our reader of YAML and a reader of all of YAML understand it, they understand it
//! as the same.
#![no_main]

use berth_agent::device::cdi::yaml::read;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use serde_yaml_ng::Value as Yaml;

fuzz_target!(|data: &str| {
    let Ok(ours) = read(data) else { return };
    // Ours lets pass what is no YAML, such as control characters.
    let Ok(theirs) = serde_yaml_ng::from_str::<Yaml>(data) else { return };
    assert!(same(&ours, &theirs), "{ours:?}\n{theirs:?}");
});

fn same(ours: &Value, theirs: &Yaml) -> bool {
    match (ours, theirs) {
        (Value::Null, Yaml::Null) => true,
        (Value::Bool(ours), Yaml::Bool(theirs)) => ours == theirs,
        (Value::String(ours), Yaml::String(theirs)) => ours == theirs,
        // Octal numbers and the like are read as CDI's own tools read them, which is an older YAML.
        (Value::Number(_), Yaml::Number(_) | Yaml::String(_)) => true,
        (Value::Array(ours), Yaml::Sequence(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| same(ours, theirs))
        }
        (Value::Object(ours), Yaml::Mapping(theirs)) => {
            ours.len() == theirs.len()
                && ours
                    .iter()
                    .zip(theirs)
                    .all(|((key, ours), (name, theirs))| named(name, key) && same(ours, theirs))
        }
        _ => false,
    }
}

/// Every key is a text to us.
fn named(name: &Yaml, key: &str) -> bool {
    name.as_str().is_none_or(|name| name == key)
}
