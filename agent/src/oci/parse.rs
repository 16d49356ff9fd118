//! Absence, names and ranges.

use std::{fmt::Display, str::FromStr};

use super::{Error, Result};

/// Emptiness on the wire is absence.
pub(super) trait Emptiness {
    fn is_empty(&self) -> bool;
}

impl<T> Emptiness for Vec<T> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl<K, V> Emptiness for std::collections::HashMap<K, V> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl Emptiness for String {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

/// A list or map that may be missing.
pub(super) fn non_empty<T: Emptiness>(value: T) -> Option<T> {
    (!value.is_empty()).then_some(value)
}

/// A string that may be missing, as whatever the runtime-spec makes of it.
pub(super) fn text<T: From<String>>(value: String) -> Option<T> {
    non_empty(value).map(T::from)
}

/// A number that may be missing.
pub(super) fn non_zero<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

/// A limit: missing, unlimited (-1) or a number.
pub(super) fn limit(field: &'static str, value: i64) -> Result<Option<i64>> {
    if value < -1 {
        return Err(Error::Range { field, value: value.into(), must: "it must be -1 (unlimited) or more" });
    }
    Ok(non_zero(value))
}

/// A number that has to fit a smaller type.
pub(super) fn fit<T>(field: &'static str, value: impl Into<i128>, must: &'static str) -> Result<T>
where
    T: TryFrom<i128>,
{
    let value = value.into();
    T::try_from(value).map_err(|_| Error::Range { field, value, must })
}

/// A name of the runtime-spec.
pub(super) fn name<T: FromStr>(what: &'static str, value: &str) -> Result<T> {
    value.parse().map_err(|_| Error::Unknown { what, value: value.to_owned() })
}

/// A list of names.
pub(super) fn names<T: FromStr>(what: &'static str, values: &[String]) -> Result<Option<Vec<T>>> {
    if values.is_empty() {
        return Ok(None);
    }
    values.iter().map(|value| name(what, value)).collect::<Result<_>>().map(Some)
}

/// The builders of oci-spec can fail by type; what they say goes to the host.
pub(super) fn built<T, E: Display>(what: &'static str, result: std::result::Result<T, E>) -> Result<T> {
    result.map_err(|error| Error::Refused { what, reason: error.to_string() })
}
