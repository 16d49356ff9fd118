//! The document itself: TOML with its own version, the algorithm of its digest, and the parts.

use sha2::{Digest, Sha256, Sha384, Sha512};

use crate::config::toml::{self, TomlError, Value};

/// The one version there is.
const VERSION: &str = "0.1.0";

/// Why a document is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// No text.
    #[error("it is not UTF-8")]
    Text,
    /// No TOML.
    #[error("{0}")]
    Toml(#[from] TomlError),
    /// A key with another value than it must have, or without one.
    #[error("{key} must be {must}")]
    Value {
        /// Which.
        key: String,
        /// What it must be.
        must: &'static str,
    },
}

/// A document that was understood.
#[derive(Debug)]
pub(super) struct Document {
    text: String,
    digest: String,
    parts: toml::Table,
}

impl Document {
    /// Reads all of it: what is wrong anywhere is wrong.
    pub(super) fn parse(bytes: Vec<u8>) -> Result<Self, DocumentError> {
        let text = String::from_utf8(bytes).map_err(|_| DocumentError::Text)?;
        let mut table = toml::parse(&text)?;
        let wrong = |key: &str, must| DocumentError::Value { key: key.to_owned(), must };
        if table.get("version") != Some(&Value::Text(VERSION.to_owned())) {
            return Err(wrong("version", "\"0.1.0\""));
        }
        let digest = match table.get("algorithm") {
            Some(Value::Text(name)) => digest(name, text.as_bytes()),
            _ => None,
        };
        let digest = digest.ok_or_else(|| wrong("algorithm", "sha256, sha384 or sha512"))?;
        let Some(Value::Table(parts)) = table.remove("data") else {
            return Err(wrong("data", "a table"));
        };
        match parts.iter().find(|(_, value)| !matches!(value, Value::Text(_))) {
            Some((key, _)) => Err(wrong(&format!("data.{key:?}"), "a text")),
            None => Ok(Self { text, digest, parts }),
        }
    }

    /// All of it.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Of all of it: the algorithm's name, a colon, and hexadecimal digits.
    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// One part of the data.
    pub(super) fn part(&self, name: &str) -> Option<&str> {
        match self.parts.get(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }
}

fn digest(algorithm: &str, bytes: &[u8]) -> Option<String> {
    let digest = match algorithm {
        "sha256" => Sha256::digest(bytes).to_vec(),
        "sha384" => Sha384::digest(bytes).to_vec(),
        "sha512" => Sha512::digest(bytes).to_vec(),
        _ => return None,
    };
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("{algorithm}:{digits}"))
}
