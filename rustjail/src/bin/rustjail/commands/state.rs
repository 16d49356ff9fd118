//! `state`: the document of runtime-spec, with runc's additions.

use serde::Serialize;

use super::{Command, print};
use crate::{
    arguments::Arguments,
    context::Context,
    error::Error,
    status::Status,
    store::{Container, Record},
};

pub const COMMAND: Command = Command {
    name: "state",
    about: "show the state of a container",
    usage: "<container-id>",
    flags: &[],
    operands: (1, 1),
    flags_end: usize::MAX,
    failure: 1,
    run,
};

/// What `state` shows of one container, and `list` of each.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct State<'a> {
    oci_version: &'a str,
    pub id: &'a str,
    pub pid: i32,
    pub status: String,
    pub bundle: String,
    rootfs: String,
    pub created: &'a str,
    #[serde(skip_serializing_if = "std::collections::HashMap::is_empty")]
    annotations: &'a std::collections::HashMap<String, String>,
    pub owner: String,
}

impl<'a> State<'a> {
    pub fn new(id: &'a str, record: &'a Record, status: Status, owner: String) -> Self {
        let pid = record.init.as_ref().filter(|_| status != Status::Stopped).map_or(0, |init| init.pid);
        Self {
            oci_version: &record.oci_version,
            id,
            pid,
            status: status.to_string(),
            bundle: record.bundle.display().to_string(),
            rootfs: record.rootfs.display().to_string(),
            created: &record.created,
            annotations: &record.annotations,
            owner,
        }
    }
}

fn run(context: &Context, arguments: &Arguments) -> Result<u8, Error> {
    let container = Container::open(&context.root, arguments.id())?;
    let record = container.record()?;
    let status = container.status(record.as_ref())?;
    let Some(record) = record else {
        // Somebody is about to write it, or died before.
        let problem = "cannot show the state of a container of which nothing is known yet";
        return Err(Error::State { problem, id: container.id, status });
    };
    let state = State::new(&container.id, &record, status, String::new());
    let text = serde_json::to_string_pretty(&state).map_err(Error::json("the state"))?;
    print(&text)?;
    Ok(0)
}
