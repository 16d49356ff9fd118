//! Any call of the agent, by name and JSON.
//!
//! The methods and their messages come from the descriptors in the generated code, so a call that is added to the
//! protocol can be made here at once. JSON is protobuf's own mapping: bytes are base64, 64-bit numbers may be text.

use std::time::Duration;

use protobuf::reflect::{FileDescriptor, MessageDescriptor};
use protobuf_json_mapping::{ParseError, PrintError};
use ttrpc::proto::Request;

use crate::client::{self, Agent};

/// Why a call by name gave no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such method.
    #[error("there is no call {method:?}; `berthctl call --list` shows them all{}", suggestion(.method))]
    Unknown {
        /// As given.
        method: String,
    },
    /// The JSON is not the request.
    #[error("{method}: the request is not a {message}: {source}")]
    Request {
        /// The call.
        method: String,
        /// The message it takes.
        message: String,
        /// What is wrong, and where.
        source: ParseError,
    },
    /// The message could not be turned into bytes, or back.
    #[error("{method}: {source}")]
    Encoding {
        /// The call.
        method: String,
        /// What is wrong.
        source: protobuf::Error,
    },
    /// The reply cannot be shown as JSON.
    #[error("{method}: the reply cannot be written as JSON: {source}")]
    Reply {
        /// The call.
        method: String,
        /// What is wrong.
        source: PrintError,
    },
    /// The call failed.
    #[error(transparent)]
    Client(#[from] client::Error),
}

/// One call of the protocol.
#[derive(Debug, Clone)]
pub struct Method {
    /// "grpc.AgentService" or "grpc.Health".
    pub service: String,
    /// The call's name.
    pub name: String,
    /// What it takes.
    pub input: MessageDescriptor,
    /// What it gives.
    pub output: MessageDescriptor,
}

/// Every call there is.
pub fn methods() -> Vec<Method> {
    let files = [berth_protocols::agent::file_descriptor(), berth_protocols::health::file_descriptor()];
    files.into_iter().flat_map(methods_of).collect()
}

fn methods_of(file: &FileDescriptor) -> Vec<Method> {
    let package = file.proto().package();
    let services: Vec<_> = file.services().collect();
    let of_service = |service: &protobuf::reflect::ServiceDescriptor| {
        let full = format!("{package}.{}", service.proto().name());
        let method = |method: protobuf::reflect::MethodDescriptor| Method {
            service: full.clone(),
            name: method.proto().name().to_owned(),
            input: method.input_type(),
            output: method.output_type(),
        };
        service.methods().map(method).collect::<Vec<_>>()
    };
    services.iter().flat_map(of_service).collect()
}

fn suggestion(wanted: &str) -> String {
    let wanted = wanted.to_ascii_lowercase();
    let near = methods().into_iter().find(|method| method.name.to_ascii_lowercase().contains(&wanted));
    near.map(|method| format!(" (did you mean {}?)", method.name)).unwrap_or_default()
}

/// Makes the call `name` ("GetMetrics", "Health/Check" or "grpc.Health/Check"), waiting at most `timeout`.
pub async fn call(agent: &Agent, name: &str, json: &str, timeout: Option<Duration>) -> Result<String, Error> {
    let (service, short) = name.rsplit_once('/').unwrap_or(("", name));
    let matches = |method: &Method| {
        let of_service = service.is_empty()
            || method.service.trim_start_matches("grpc.") == service.trim_start_matches("grpc.");
        of_service && method.name.eq_ignore_ascii_case(short)
    };
    let found = methods().into_iter().find(matches);
    let method = found.ok_or_else(|| Error::Unknown { method: short.to_owned() })?;
    let name = || method.name.clone();

    let request = protobuf_json_mapping::parse_dyn_from_str(&method.input, json).map_err(|source| {
        Error::Request { method: name(), message: method.input.name().to_owned(), source }
    })?;
    let payload =
        request.write_to_bytes_dyn().map_err(|source| Error::Encoding { method: name(), source })?;
    let request = Request {
        service: method.service.clone(),
        method: method.name.clone(),
        payload,
        timeout_nano: timeout.map_or(0, |limit| i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX)),
        ..Default::default()
    };
    let reply =
        agent.ttrpc().request(request).await.map_err(|error| client::Error::of(&method.name, error))?;
    let reply = method.output.parse_from_bytes(&reply.payload);
    let reply = reply.map_err(|source| Error::Encoding { method: name(), source })?;
    protobuf_json_mapping::print_to_string(&*reply).map_err(|source| Error::Reply { method: name(), source })
}

#[cfg(test)]
mod tests {
    use super::methods;

    #[test]
    fn all_calls_of_both_services_are_known() {
        let all = methods();
        assert_eq!(all.iter().filter(|method| method.service == "grpc.Health").count(), 2);
        assert!(all.iter().filter(|method| method.service == "grpc.AgentService").count() >= 42);
    }
}
