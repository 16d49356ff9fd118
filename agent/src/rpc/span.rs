//! Which container and process a call is about, for its span. Read in place: the handler decodes the request itself.

use super::{
    envelope::Request,
    wire::{Fields, Value},
};
use crate::observe::tracing::{Span, Subject, Tracer};

/// The calls that name a container in field 1.
const OF_CONTAINER: [&str; 6] = [
    "PauseContainer",
    "RemoveContainer",
    "ResumeContainer",
    "StartContainer",
    "StatsContainer",
    "UpdateContainer",
];
/// Those that name a process of it in field 2 as well.
const OF_PROCESS: [&str; 9] = [
    "CloseStdin",
    "CreateContainer",
    "ExecProcess",
    "ReadStderr",
    "ReadStdout",
    "SignalProcess",
    "TtyWinResize",
    "WaitProcess",
    "WriteStdin",
];
/// Longer names are no ids.
const LONGEST: usize = 1024;

pub(super) fn begin(tracer: &Tracer, method: &'static str, request: &Request<'_>) -> Option<Span> {
    tracer.begin(method, &request.trace, &subject(method, request))
}

fn subject<'a>(method: &str, request: &Request<'a>) -> Subject<'a> {
    let of_process = OF_PROCESS.contains(&method);
    let mut subject = Subject { service: request.service, ..Subject::default() };
    if !of_process && !OF_CONTAINER.contains(&method) {
        return subject;
    }
    let mut fields = Fields::new(request.payload);
    while let Ok(Some(field)) = fields.next_field() {
        match field {
            (1, Value::Bytes(id)) => subject.container = text(id),
            (2, Value::Bytes(id)) if of_process => subject.exec = text(id),
            _ => {}
        }
    }
    subject
}

fn text(id: &[u8]) -> Option<&str> {
    std::str::from_utf8(id).ok().filter(|id| (1..=LONGEST).contains(&id.len()))
}
