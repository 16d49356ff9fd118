//! OCI configuration JSON to `grpc.Spec`.
//!
//! The names of the two differ only in their case (`oomScoreAdj`, `OOMScoreAdj`), but for `ociVersion`, so the
//! conversion walks the JSON beside the message descriptors and renames keys. It is therefore complete by
//! construction for whatever the protocol carries, and it knows what the protocol does not carry: those JSON paths are
//! returned, because silently dropping a restriction would run a container with more rights than was asked for.

use berth_protocols::oci::Spec;
use protobuf::{
    MessageFull,
    reflect::{FieldDescriptor, MessageDescriptor, RuntimeFieldType, RuntimeType},
};
use protobuf_json_mapping::ParseError;
use serde_json::{Map, Value};

/// Why a JSON value is not an OCI configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value has another type than the protocol's field.
    #[error("{path} must be {wanted}, not {found}")]
    Type {
        /// Where in the configuration, like `process.args[1]`.
        path: String,
        /// What the protocol has there.
        wanted: &'static str,
        /// What the configuration has there.
        found: &'static str,
    },
    /// A number does not fit, or the renamed JSON is otherwise unfit.
    #[error("a value does not fit the protocol: {0}")]
    Value(#[from] ParseError),
}

/// The wire form of a configuration, and the JSON paths that have none.
pub fn spec(config: &Value) -> Result<(Spec, Vec<String>), Error> {
    let mut lost = Vec::new();
    let renamed = message(&Spec::descriptor(), config, "", &mut lost)?;
    Ok((protobuf_json_mapping::parse_from_str(&renamed.to_string())?, lost))
}

fn message(
    into: &MessageDescriptor,
    value: &Value,
    path: &str,
    lost: &mut Vec<String>,
) -> Result<Value, Error> {
    let object = value.as_object().ok_or_else(|| wrong(path, "an object", value))?;
    let mut renamed = Map::new();
    for (key, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match field_named(into, key) {
            Some(field) => {
                _ = renamed.insert(field.name().to_owned(), field_value(&field, value, &path, lost)?)
            }
            None => lost.push(path),
        }
    }
    Ok(Value::Object(renamed))
}

fn field_named(message: &MessageDescriptor, key: &str) -> Option<FieldDescriptor> {
    let name = if key == "ociVersion" { "Version" } else { key };
    message.fields().find(|field| field.name().eq_ignore_ascii_case(name))
}

fn field_value(
    field: &FieldDescriptor,
    value: &Value,
    path: &str,
    lost: &mut Vec<String>,
) -> Result<Value, Error> {
    match field.runtime_field_type() {
        RuntimeFieldType::Singular(kind) => single(&kind, value, path, lost),
        RuntimeFieldType::Repeated(kind) => {
            let list = value.as_array().ok_or_else(|| wrong(path, "a list", value))?;
            let item = |(at, value)| single(&kind, value, &format!("{path}[{at}]"), lost);
            list.iter().enumerate().map(item).collect::<Result<_, _>>().map(Value::Array)
        }
        RuntimeFieldType::Map(_, kind) => {
            let object = value.as_object().ok_or_else(|| wrong(path, "an object", value))?;
            let entry = |(key, value): (&String, &Value)| {
                Ok((key.clone(), single(&kind, value, &format!("{path}.{key}"), lost)?))
            };
            object.iter().map(entry).collect::<Result<_, _>>().map(Value::Object)
        }
    }
}

fn single(kind: &RuntimeType, value: &Value, path: &str, lost: &mut Vec<String>) -> Result<Value, Error> {
    let (fits, wanted) = match kind {
        RuntimeType::Message(into) => return message(into, value, path, lost),
        RuntimeType::String => (value.is_string(), "a string"),
        RuntimeType::Bool => (value.is_boolean(), "true or false"),
        _ => (value.is_i64() || value.is_u64(), "a whole number"),
    };
    if fits { Ok(value.clone()) } else { Err(wrong(path, wanted, value)) }
}

fn wrong(path: &str, wanted: &'static str, value: &Value) -> Error {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    let path = if path.is_empty() { "the configuration" } else { path };
    Error::Type { path: path.to_owned(), wanted, found }
}
