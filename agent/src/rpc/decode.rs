//! Request bodies, decoded within a budget.
//!
//! The protobuf crate stores every unknown field and makes an object of every empty message: two bytes of
//! frame become up to 400 of heap. So a body is first walked in place by its [`Shape`], which says what each
//! field becomes, and refused when the sum is out of proportion to the frame. Depth needs no bound here: shapes
//! are a few levels deep, and groups, the only endless construct, are refused.

use protobuf::Message;

use super::{
    limits::{DECODE_FLOOR, DECODE_RATIO},
    reply::Status,
    wire::{Fields, Malformed, Value},
};

/// What decoding a message allocates, as far as it is not bounded by the bytes themselves.
#[derive(Debug)]
pub struct Shape {
    /// The highest field number; above it are unknown fields.
    pub last: u32,
    /// The fields that are more than a number or a string.
    pub fields: &'static [(u32, Kind)],
}

/// What one field becomes.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A message of this many bytes in memory, and what is in it.
    Message(&'static Shape, usize),
    /// A list of numbers, of which each may take one byte on the wire.
    Packed,
}

/// A request message with its shape.
pub trait Request: Message {
    /// See [`Shape`].
    const SHAPE: &'static Shape;
    /// What it may decode to however small it is.
    const FLOOR: usize = DECODE_FLOOR;
}

/// Heap bytes for one number in a growing list.
const NUMBER: usize = 16;
/// For one string's header in a growing list, and the allocator's own.
const STRING: usize = 64;
/// For one unknown field: a hash map's entry of four vectors, half full, and the vector's first block.
const UNKNOWN: usize = 384;

/// Why a request body was not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not protobuf.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It would take more memory than its size justifies.
    #[error("the request decodes to more than {budget} bytes: too many unknown or empty fields")]
    Budget {
        /// What it was allowed.
        budget: usize,
    },
}

/// Decodes `body`, or says why not.
pub fn decode<M: Request>(body: &[u8]) -> Result<M, Status> {
    check(M::SHAPE, M::FLOOR, body).map_err(Status::invalid)?;
    M::parse_from_bytes(body)
        .map_err(|error| Status::invalid(format_args!("cannot decode the request: {error}")))
}

fn check(shape: &Shape, floor: usize, body: &[u8]) -> Result<(), DecodeError> {
    let budget = floor.max(body.len().saturating_mul(DECODE_RATIO));
    let mut left = budget;
    walk(shape, body, budget, &mut left)
}

fn walk(shape: &Shape, message: &[u8], budget: usize, left: &mut usize) -> Result<(), DecodeError> {
    let mut fields = Fields::new(message);
    while let Some((number, value)) = fields.next_field()? {
        let kind = shape.fields.iter().find(|(known, _)| *known == number).map(|(_, kind)| *kind);
        let cost = match (kind, value) {
            (Some(Kind::Message(shape, size)), Value::Bytes(bytes)) => {
                walk(shape, bytes, budget, left)?;
                2 * size
            }
            (Some(Kind::Packed), Value::Bytes(bytes)) => bytes.len().saturating_mul(NUMBER),
            (_, Value::Bytes(bytes)) if number <= shape.last => STRING + bytes.len(),
            (_, Value::Bytes(bytes)) => UNKNOWN + bytes.len(),
            _ if number <= shape.last => NUMBER,
            _ => UNKNOWN,
        };
        *left = left.checked_sub(cost).ok_or(DecodeError::Budget { budget })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use berth_protocols::{agent::CreateContainerRequest, oci};

    use super::*;

    fn refused<M: Request>(body: &[u8]) -> bool {
        matches!(check(M::SHAPE, M::FLOOR, body), Err(DecodeError::Budget { .. }))
    }

    #[test]
    fn floods_of_unknown_and_of_empty_fields_are_refused() {
        let unknown: Vec<u8> = (20..1_000_000u64)
            .flat_map(|number| super::super::wire::varint(number << 3).chain([1]))
            .collect();
        assert!(refused::<CreateContainerRequest>(&unknown));
        assert!(refused::<CreateContainerRequest>(&[0x2a, 0].repeat(2 << 20)), "empty storages");
        let mounts = [0x2a, 0].repeat(1 << 20);
        let mut nested = vec![0x32];
        nested.extend(super::super::wire::varint(mounts.len() as u64));
        nested.extend(&mounts);
        assert!(refused::<CreateContainerRequest>(&nested), "empty mounts in the spec");
        let flags = [0x38, 1].repeat(2 << 20);
        assert!(refused::<CreateContainerRequest>(&flags), "one flag two million times");
    }

    #[test]
    fn an_ordinary_large_spec_passes() {
        let syscalls = (0..450).map(|i| format!("syscall_{i}")).collect();
        let mut spec = oci::Spec::new();
        let seccomp = spec.Linux.mut_or_insert_default().Seccomp.mut_or_insert_default();
        seccomp.Syscalls = vec![oci::LinuxSyscall { Names: syscalls, ..Default::default() }; 4];
        spec.Mounts = vec![oci::Mount { destination: "/a".into(), ..Default::default() }; 200];
        spec.Annotations = (0..2000).map(|i| (format!("key.{i}"), "x".repeat(500))).collect();
        let request = CreateContainerRequest { OCI: Some(spec).into(), ..Default::default() };
        let body = request.write_to_bytes().unwrap();
        assert_eq!(decode::<CreateContainerRequest>(&body).unwrap(), request);
    }

    #[test]
    fn a_hundred_thousand_nested_groups_are_an_error() {
        let groups = [0x7b].repeat(1_000_000);
        assert_eq!(check(CreateContainerRequest::SHAPE, DECODE_FLOOR, &groups), Err(Malformed.into()));
    }
}
