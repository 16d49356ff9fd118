//! Holds the generated wire against the published one, row by row and both ways.
//!
//! `data/agent.csv` has a row for each field, enum value and method, `data/agent-services.csv` one for each
//! method. The descriptors embedded in the generated code are written in the same notation, and the two
//! sets of rows must be equal: a row only here is a number we invented, a row only there one we lost.

#![allow(clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeSet;

use berth_protocols::{agent, csi, health, oci, types};
use protobuf::descriptor::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    field_descriptor_proto::{Label, Type},
};

type Row = Vec<String>;

const TABLE: &str = include_str!("data/agent.csv");
const SERVICES: &str = include_str!("data/agent-services.csv");

fn files() -> [&'static FileDescriptorProto; 5] {
    [
        agent::file_descriptor().proto(),
        csi::file_descriptor().proto(),
        health::file_descriptor().proto(),
        oci::file_descriptor().proto(),
        types::file_descriptor().proto(),
    ]
}

#[test]
fn every_message_field_enum_value_and_method_is_in_the_table_and_back() {
    assert_same(&published(TABLE), &files().into_iter().flat_map(file_rows).collect());
}

#[test]
fn every_service_method_is_in_the_table_and_back() {
    let generated = files().into_iter().flat_map(method_rows).map(|method| method.to_vec()).collect();
    assert_same(&published(SERVICES), &generated);
}

/// The table itself could be cut short by accident; its size is known.
#[test]
fn the_whole_published_wire_is_covered() {
    let rows = published(TABLE);
    let count = |kind: &str| rows.iter().filter(|row| row[2] == kind && !row[5].is_empty()).count();
    assert_eq!((count("message"), count("enum")), (369, 10), "fields and enum values");

    let messages: usize = files().iter().map(|file| file.message_type.len()).sum();
    assert_eq!(messages, 113, "messages");
    let enums: BTreeSet<_> = rows.iter().filter(|row| row[2] == "enum").map(|row| &row[3]).collect();
    assert_eq!(enums.len(), 4, "enums");

    let methods = published(SERVICES);
    let services: BTreeSet<_> = methods.iter().map(|row| &row[0]).collect();
    assert_eq!((services.len(), methods.len()), (2, 44), "services and methods");
}

/// The client must ask for the names that the descriptors declare: a host and a guest meet by these strings.
#[cfg(feature = "client")]
#[test]
fn the_generated_client_calls_every_method_by_its_published_name() {
    let client = concat!(
        include_str!(concat!(env!("OUT_DIR"), "/agent_ttrpc.rs")),
        include_str!(concat!(env!("OUT_DIR"), "/health_ttrpc.rs"))
    );
    let called: BTreeSet<Row> = client
        .lines()
        .filter(|line| line.contains("async_client_request!"))
        .map(|line| line.split('"').skip(1).step_by(2).map(String::from).collect())
        .collect();
    let declared = published(SERVICES).into_iter().map(|row| row[..2].to_vec()).collect();
    assert_same(&declared, &called);
}

fn assert_same(published: &BTreeSet<Row>, generated: &BTreeSet<Row>) {
    let lost: Vec<_> = published.difference(generated).map(|row| row.join(",")).collect();
    let invented: Vec<_> = generated.difference(published).map(|row| row.join(",")).collect();
    assert!(
        lost.is_empty() && invented.is_empty(),
        "published but not generated:\n  {}\ngenerated but not published:\n  {}",
        lost.join("\n  "),
        invented.join("\n  ")
    );
}

/// The rows of a table below its header. A field may be quoted, without escapes inside.
fn published(csv: &str) -> BTreeSet<Row> {
    csv.lines().skip(1).map(split).collect()
}

fn split(line: &str) -> Row {
    let mut quoted = false;
    let fields = line.split(|c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    });
    fields.map(|field| field.trim_matches('"').to_owned()).collect()
}

fn row(file: &FileDescriptorProto, rest: [&str; 6]) -> Row {
    [file.name(), file.package()].into_iter().chain(rest).map(String::from).collect()
}

fn file_rows(file: &FileDescriptorProto) -> BTreeSet<Row> {
    let mut rows = BTreeSet::new();
    for message in &file.message_type {
        message_rows(file, message, &mut rows);
    }
    for item in &file.enum_type {
        enum_rows(file, item.name(), item, &mut rows);
    }
    for [service, method, request, response] in method_rows(file) {
        rows.insert(row(file, ["rpc", &service, &method, "", "unary", &format!("{request} -> {response}")]));
    }
    rows
}

/// Messages nest no messages but the entries of their maps, and enums one level deep.
fn message_rows(file: &FileDescriptorProto, message: &DescriptorProto, rows: &mut BTreeSet<Row>) {
    if message.field.is_empty() {
        rows.insert(row(file, ["message", "", message.name(), "", "(empty)", ""]));
    }
    for field in &message.field {
        let (label, kind) = label_and_type(message, field);
        let number = field.number().to_string();
        rows.insert(row(file, ["message", message.name(), field.name(), &number, &label, &kind]));
    }
    for item in &message.enum_type {
        enum_rows(file, &format!("{}.{}", message.name(), item.name()), item, rows);
    }
    for nested in &message.nested_type {
        assert!(nested.options.map_entry(), "{}.{} is not in the table", message.name(), nested.name());
    }
}

fn enum_rows(file: &FileDescriptorProto, name: &str, item: &EnumDescriptorProto, rows: &mut BTreeSet<Row>) {
    for value in &item.value {
        let number = value.number().to_string();
        rows.insert(row(file, ["enum", name, value.name(), &number, "singular", "enum_value"]));
    }
}

fn method_rows(file: &FileDescriptorProto) -> Vec<[String; 4]> {
    let full = |name: &str| name.trim_start_matches('.').to_owned();
    let mut rows = Vec::new();
    for service in &file.service {
        for method in &service.method {
            assert!(!method.client_streaming() && !method.server_streaming(), "{} streams", method.name());
            rows.push([
                format!("{}.{}", file.package(), service.name()),
                method.name().to_owned(),
                full(method.input_type()),
                full(method.output_type()),
            ]);
        }
    }
    rows
}

fn label_and_type(message: &DescriptorProto, field: &FieldDescriptorProto) -> (String, String) {
    let entry = message.nested_type.iter().find(|nested| {
        nested.options.map_entry() && field.type_name().ends_with(&format!(".{}", nested.name()))
    });
    if let Some(entry) = entry {
        let [key, value] = entry.field.as_slice() else { panic!("{} is not a pair", entry.name()) };
        return ("map".into(), format!("map<{},{}>", type_name(key), type_name(value)));
    }
    let label = if field.label() == Label::LABEL_REPEATED {
        "repeated".into()
    } else if field.proto3_optional() {
        "optional".into()
    } else if field.has_oneof_index() {
        format!("oneof {}", message.oneof_decl[field.oneof_index() as usize].name())
    } else {
        "singular".into()
    };
    (label, type_name(field))
}

fn type_name(field: &FieldDescriptorProto) -> String {
    match field.type_() {
        Type::TYPE_MESSAGE | Type::TYPE_ENUM => field.type_name().trim_start_matches('.').to_owned(),
        scalar => format!("{scalar:?}").trim_start_matches("TYPE_").to_lowercase(),
    }
}
