//! What a document sees of a request: the message as JSON, with every field, under the names that hosts' documents
//! use.
//!
//! COMPAT: those are the names of a Rust struct's fields, so `type` is `type_`. A message that is not there is null,
//! an enum is its number, bytes are a list of numbers, a group of alternatives is `{"Name": value}` or null. Only
//! CopyFileRequest is another object: it says what kind of file is made, and leaves the content out.

use berth_protocols::agent;
use protobuf::{
    MessageDyn,
    reflect::{
        FieldDescriptor, MessageDescriptor, ReflectFieldRef, ReflectValueRef, RuntimeFieldType, RuntimeType,
    },
};
use serde_json::{Map, Value, json};

use crate::rpc::wire::{Fields, Malformed, Value as Wire};

/// What a request may become, at least; beyond it three times its size.
const FLOOR: usize = 4 << 20;
/// For one message: its object, and the objects of what it could have.
const MESSAGE: usize = 2048;
/// For any other field.
const FIELD: usize = 96;
/// Deeper than any message of the protocol.
const DEPTH: u32 = 32;

/// Why a document is not asked.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// No such call.
    #[error("policy: there is no call {0}")]
    Method(String),
    /// The bytes are no message of that kind.
    #[error("cannot decode the request: {0}")]
    Decode(String),
    /// The bytes are not even protobuf.
    #[error("cannot decode the request: {0}")]
    Malformed(#[from] Malformed),
    /// It would take more memory than its size justifies.
    #[error("the request has too many fields for its size to be decided over")]
    Budget,
    /// A symbolic link to what is no text.
    #[error("policy: the target of a symbolic link is not UTF-8")]
    Link,
}

/// The rule for a call of grpc.AgentService, and its input.
pub(super) fn of(method: &str, payload: &[u8]) -> Result<(String, Value), InputError> {
    let descriptor = request_of(method).ok_or_else(|| InputError::Method(method.to_owned()))?;
    let mut left = FLOOR.max(payload.len().saturating_mul(3));
    weigh(&descriptor, payload, DEPTH, &mut left)?;
    let message =
        descriptor.parse_from_bytes(payload).map_err(|error| InputError::Decode(error.to_string()))?;
    let input = match message.downcast_ref::<agent::CopyFileRequest>() {
        Some(request) => copy_file(request)?,
        None => object(&*message),
    };
    Ok((descriptor.name().to_owned(), input))
}

fn request_of(method: &str) -> Option<MessageDescriptor> {
    let service =
        agent::file_descriptor().services().find(|service| service.proto().name() == "AgentService")?;
    let row = service.methods().find(|row| row.proto().name() == method)?;
    Some(row.input_type())
}

/// Adds up what decoding and showing the message allocate, before anything is.
fn weigh(of: &MessageDescriptor, message: &[u8], depth: u32, left: &mut usize) -> Result<(), InputError> {
    let mut fields = Fields::new(message);
    while let Some((number, value)) = fields.next_field()? {
        let inner = of.field_by_number(number).and_then(|field| message_type(&field));
        let cost = match (value, inner) {
            (Wire::Bytes(bytes), Some(inner)) => {
                if depth == 0 {
                    return Err(InputError::Budget);
                }
                weigh(&inner, bytes, depth - 1, left)?;
                MESSAGE
            }
            (Wire::Bytes(bytes), None) => FIELD + bytes.len(),
            _ => FIELD,
        };
        *left = left.checked_sub(cost).ok_or(InputError::Budget)?;
    }
    Ok(())
}

fn message_type(field: &FieldDescriptor) -> Option<MessageDescriptor> {
    match field.runtime_field_type() {
        RuntimeFieldType::Singular(RuntimeType::Message(inner))
        | RuntimeFieldType::Repeated(RuntimeType::Message(inner)) => Some(inner),
        _ => None,
    }
}

fn object(message: &dyn MessageDyn) -> Value {
    let descriptor = message.descriptor_dyn();
    let mut object = Map::new();
    for group in descriptor.oneofs().filter(|group| !group.is_synthetic()) {
        let chosen = group.fields().find_map(|field| {
            let value = field.get_singular(message)?;
            Some(json!({ variant(field.name()): plain(value) }))
        });
        object.insert(group.name().to_owned(), chosen.unwrap_or(Value::Null));
    }
    for field in descriptor.fields().filter(|field| field.containing_oneof().is_none()) {
        let value = match field.get_reflect(message) {
            ReflectFieldRef::Repeated(list) => list.into_iter().map(plain).collect(),
            ReflectFieldRef::Map(map) => {
                map.into_iter().map(|(key, value)| (key.to_string(), plain(value))).collect()
            }
            ReflectFieldRef::Optional(value) => match value.value() {
                Some(value) => plain(value),
                // A plain field that was not sent reads as its default; only what can be absent is null.
                None if can_be_absent(&field) => Value::Null,
                None => plain(field.get_singular_field_or_default(message)),
            },
        };
        object.insert(key(field.name()), value);
    }
    Value::Object(object)
}

fn can_be_absent(field: &FieldDescriptor) -> bool {
    message_type(field).is_some() || field.proto().proto3_optional()
}

fn plain(value: ReflectValueRef<'_>) -> Value {
    match value {
        ReflectValueRef::U32(number) => number.into(),
        ReflectValueRef::U64(number) => number.into(),
        ReflectValueRef::I32(number) | ReflectValueRef::Enum(_, number) => number.into(),
        ReflectValueRef::I64(number) => number.into(),
        ReflectValueRef::F32(number) => number.into(),
        ReflectValueRef::F64(number) => number.into(),
        ReflectValueRef::Bool(yes) => yes.into(),
        ReflectValueRef::String(text) => text.into(),
        ReflectValueRef::Bytes(bytes) => bytes.into(),
        ReflectValueRef::Message(message) => object(&*message),
    }
}

/// The one name of the protocol that is a word of Rust's.
fn key(name: &str) -> String {
    if name == "type" { "type_".to_owned() } else { name.to_owned() }
}

fn variant(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

fn copy_file(request: &agent::CopyFileRequest) -> Result<Value, InputError> {
    let kind = match request.file_mode & libc::S_IFMT {
        libc::S_IFREG => "Regular",
        libc::S_IFDIR => "Directory",
        libc::S_IFLNK => "Symlink",
        _ => "Unknown",
    };
    let target = match kind {
        "Symlink" => Some(std::str::from_utf8(&request.data).map_err(|_| InputError::Link)?),
        _ => None,
    };
    Ok(json!({
        "path": request.path,
        "file_type": kind,
        "symlink_target": target,
        "file_size": request.file_size,
        "file_mode": request.file_mode,
        "dir_mode": request.dir_mode,
        "uid": request.uid,
        "gid": request.gid,
        "offset": request.offset,
    }))
}

#[cfg(test)]
mod tests {
    use berth_protocols::oci;
    use protobuf::Message;

    use super::*;

    fn shown(method: &str, request: &impl Message) -> (String, Value) {
        of(method, &request.write_to_bytes().unwrap()).unwrap()
    }

    #[test]
    fn a_request_is_shown_under_the_names_documents_use() {
        let mut spec = oci::Spec::new();
        spec.Version = "1.0".into();
        spec.Root.mut_or_insert_default().Readonly = true;
        spec.Annotations.insert("a.b/c".into(), "v".into());
        spec.Mounts.push(oci::Mount { type_: "bind".into(), ..Default::default() });
        let mut syscall = oci::LinuxSyscall::new();
        syscall.set_errnoret(5);
        let seccomp = spec.Linux.mut_or_insert_default().Seccomp.mut_or_insert_default();
        seccomp.Syscalls = vec![syscall, oci::LinuxSyscall::new()];
        let request = agent::CreateContainerRequest {
            container_id: "c".into(),
            OCI: Some(spec).into(),
            ..Default::default()
        };
        let (rule, input) = shown("CreateContainer", &request);
        assert_eq!(rule, "CreateContainerRequest");
        assert_eq!(input["container_id"], "c");
        assert_eq!(
            (&input["exec_id"], &input["storages"], &input["sandbox_pidns"]),
            (&json!(""), &json!([]), &json!(false))
        );
        assert_eq!(input["string_user"], Value::Null);
        assert_eq!(input["OCI"]["Root"], json!({ "Path": "", "Readonly": true }));
        assert_eq!(input["OCI"]["Annotations"], json!({ "a.b/c": "v" }));
        assert_eq!(
            input["OCI"]["Mounts"][0],
            json!({ "destination": "", "source": "", "type_": "bind", "options": [] })
        );
        let syscalls = &input["OCI"]["Linux"]["Seccomp"]["Syscalls"];
        assert_eq!(syscalls[0]["ErrnoRet"], json!({ "Errnoret": 5 }));
        assert_eq!(syscalls[1]["ErrnoRet"], Value::Null);
    }

    #[test]
    fn bytes_are_numbers_and_what_was_left_out_optional_is_null() {
        let write = agent::WriteStreamRequest { data: vec![1, 255], ..Default::default() };
        let (rule, input) = shown("WriteStdin", &write);
        assert_eq!((rule.as_str(), &input["data"]), ("WriteStreamRequest", &json!([1, 255])));
        let (_, input) = shown("MemAgentMemcgSet", &agent::MemAgentMemcgConfig::new());
        assert_eq!(input["swap"], Value::Null);
    }

    #[test]
    fn a_copied_file_is_shown_by_its_kind_and_without_its_content() {
        let mut request =
            agent::CopyFileRequest { path: "/a".into(), file_mode: 0o120_777, ..Default::default() };
        request.data = b"../b".to_vec();
        let (rule, input) = shown("CopyFile", &request);
        assert_eq!(rule, "CopyFileRequest");
        assert_eq!((&input["file_type"], &input["symlink_target"]), (&json!("Symlink"), &json!("../b")));
        assert!(input.get("data").is_none());
        request.data = vec![0xff];
        assert!(matches!(of("CopyFile", &request.write_to_bytes().unwrap()), Err(InputError::Link)));
    }

    #[test]
    fn floods_are_refused_before_they_are_decoded() {
        assert!(matches!(of("CreateContainer", &[0x2a, 0].repeat(1 << 20)), Err(InputError::Budget)));
        assert!(matches!(of("CreateContainer", &[0x2a]), Err(InputError::Malformed(_))));
        assert!(matches!(of("Nope", &[]), Err(InputError::Method(_))));
    }
}
