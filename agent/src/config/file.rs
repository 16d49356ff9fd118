//! A configuration file: TOML, with the keys of the table.

use super::toml::{TomlError, Value, parse};

/// Why a file is not understood.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    /// Not the TOML that is understood.
    #[error(transparent)]
    Syntax(#[from] TomlError),
    /// A table where a plain value belongs.
    #[error("the value of {key} is no duration {{ secs, nanos }}")]
    Value {
        /// Where.
        key: String,
    },
}

/// Keys with their values as they would stand on the kernel's command line.
pub(super) fn entries(text: &str) -> Result<Vec<(String, String)>, FileError> {
    parse(text)?
        .into_iter()
        .map(|(key, value)| match plain(&value) {
            Some(value) => Ok((key, value)),
            None => Err(FileError::Value { key }),
        })
        .collect()
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Switch(yes) => Some(yes.to_string()),
        Value::Table(duration) => {
            // How serde writes a Duration, and so how hosts do.
            let part = |name| match duration.get(name) {
                None => Some(0),
                Some(Value::Number(number)) => Some(*number),
                Some(_) => None,
            };
            let nanos = part("nanos").filter(|nanos| (0..1_000_000_000).contains(nanos))?;
            let known = duration.keys().all(|key| key == "secs" || key == "nanos");
            known.then_some(format!("{}.{nanos:09}", part("secs")?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_what_the_kernel_would_be_told() {
        let text = "log_level = \"debug\"\nlog_vport = 1025\ndev_mode = true\n\
                    hotplug_timeout = { secs = 3, nanos = 500000000 }\n[cdi_timeout]\nsecs = 7\n";
        let expected = [
            ("cdi_timeout", "7.000000000"),
            ("dev_mode", "true"),
            ("hotplug_timeout", "3.500000000"),
            ("log_level", "debug"),
            ("log_vport", "1025"),
        ];
        assert_eq!(entries(text).unwrap(), expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_table_that_is_no_duration_is_refused_by_name() {
        for text in ["a = { secs = 1, minutes = 2 }", "a = { nanos = -1 }", "a = { secs = '1' }"] {
            let error = entries(text).unwrap_err().to_string();
            assert!(error.contains("value of a"), "{error}");
        }
        assert!(matches!(entries("log_level = "), Err(FileError::Syntax(_))));
    }
}
