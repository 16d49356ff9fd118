//! A span as the trace forwarder of Kata's hosts reads it: the JSON form of `SpanData` of the opentelemetry crate 0.14.
//!
//! Those are the fields of Rust structs as serde writes them, so names, order of keys aside, are the wire format. The
//! test of the feature has that crate itself read them.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use serde::Serialize;

/// The most attributes, events and links, as the crate's own default has it. Ours are a few.
const MOST: u32 = 128;

#[derive(Debug, Serialize)]
pub(super) struct SpanData {
    span_context: SpanContext,
    parent_span_id: u64,
    span_kind: &'static str,
    name: &'static str,
    start_time: SystemTime,
    end_time: SystemTime,
    attributes: Attributes,
    events: Nothing,
    links: Nothing,
    status_code: &'static str,
    status_message: &'static str,
    resource: Resource,
}

#[derive(Debug, Serialize)]
pub(super) struct SpanContext {
    pub(super) trace_id: u128,
    pub(super) span_id: u64,
    pub(super) trace_flags: u8,
    pub(super) is_remote: bool,
    pub(super) trace_state: Option<Vec<(String, String)>>,
}

#[derive(Debug, Serialize)]
enum Value {
    String(String),
}

/// In the forwarder's hands this is a map that forgets its oldest entry when it is full.
#[derive(Debug, Serialize)]
pub(super) struct Attributes {
    map: BTreeMap<&'static str, Value>,
    evict_list: Vec<&'static str>,
    max_len: u32,
    dropped_count: u32,
}

#[derive(Debug, Serialize)]
struct Nothing {
    queue: Option<()>,
    max_len: u32,
    dropped_count: u32,
}

#[derive(Debug, Serialize)]
struct Resource {
    attrs: BTreeMap<&'static str, Value>,
}

const NOTHING: Nothing = Nothing { queue: None, max_len: MOST, dropped_count: 0 };

impl Default for Attributes {
    fn default() -> Self {
        Self { map: BTreeMap::new(), evict_list: Vec::new(), max_len: MOST, dropped_count: 0 }
    }
}

impl Attributes {
    pub(super) fn add(&mut self, key: &'static str, value: &str) {
        self.map.insert(key, Value::String(value.to_owned()));
        self.evict_list.insert(0, key);
    }
}

impl SpanData {
    pub(super) fn new(
        span_context: SpanContext,
        parent_span_id: u64,
        name: &'static str,
        attributes: Attributes,
        now: SystemTime,
    ) -> Self {
        let service = Value::String("berth-agent".to_owned());
        Self {
            span_context,
            parent_span_id,
            span_kind: "Server",
            name,
            start_time: now,
            end_time: now,
            attributes,
            events: NOTHING,
            links: NOTHING,
            status_code: "Unset",
            status_message: "",
            resource: Resource { attrs: BTreeMap::from([("service.name", service)]) },
        }
    }

    pub(super) fn end(&mut self, took: Duration, error: Option<&'static str>) {
        self.end_time = self.start_time + took;
        (self.status_code, self.status_message) = match error {
            None => ("Ok", ""),
            Some(code) => ("Error", code),
        };
    }
}
