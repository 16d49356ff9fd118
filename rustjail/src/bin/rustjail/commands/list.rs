//! `list`: the containers below `--root`.

use std::{fs, os::unix::fs::MetadataExt};

use super::{Command, print, state::State};
use crate::{
    arguments::{Arguments, Flag, switch, value},
    context::Context,
    error::Error,
    status::Status,
    store::{Container, Record},
};

const FLAGS: &[Flag] =
    &[value(&["format", "f"], "table (default) or json"), switch(&["quiet", "q"], "show the ids alone")];

pub const COMMAND: Command = Command {
    name: "list",
    about: "show all containers",
    usage: "no operands",
    flags: &[FLAGS],
    operands: (0, 0),
    flags_end: usize::MAX,
    failure: 1,
    run,
};

fn run(context: &Context, arguments: &Arguments) -> Result<u8, Error> {
    let ids = Container::list(&context.root)?;
    if arguments.has("quiet") {
        return print(&ids.iter().map(|id| format!("{id}\n")).collect::<String>()).map(|()| 0);
    }
    let found: Vec<(String, Record, Status, String)> =
        ids.into_iter().filter_map(|id| look_at(context, id)).collect();
    let states: Vec<State<'_>> = found
        .iter()
        .map(|(id, record, status, owner)| State::new(id, record, *status, owner.clone()))
        .collect();
    match arguments.get("format") {
        None | Some("table") => print(&table(&states))?,
        Some("json") => {
            print(&format!("{}\n", serde_json::to_string(&states).map_err(Error::json("the list"))?))?;
        }
        Some(other) => return Err(Error::Usage(format!("--format {other:?} is not table or json"))),
    }
    Ok(0)
}

/// `None` when it vanishes meanwhile, or nothing was written about it yet.
fn look_at(context: &Context, id: String) -> Option<(String, Record, Status, String)> {
    let container = Container::open(&context.root, &id).ok()?;
    let record = container.record().ok()??;
    let status = container.status(Some(&record)).ok()?;
    let uid = fs::metadata(context.root.join(&id)).ok()?.uid();
    Some((id, record, status, user_name(uid)))
}

/// By `/etc/passwd` alone: a static binary cannot ask the name service.
fn user_name(uid: u32) -> String {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let text = uid.to_string();
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(&text));
    line.and_then(|line| line.split(':').next()).map_or_else(|| format!("#{uid}"), str::to_owned)
}

/// Columns as wide as their widest entry, three spaces apart, at least twelve wide.
fn table(states: &[State<'_>]) -> String {
    let mut rows = vec![["ID", "PID", "STATUS", "BUNDLE", "CREATED", "OWNER"].map(str::to_owned)];
    rows.extend(states.iter().map(|state| {
        [
            state.id.to_owned(),
            state.pid.to_string(),
            state.status.clone(),
            state.bundle.clone(),
            state.created.to_owned(),
            state.owner.clone(),
        ]
    }));
    let width = |column: usize| {
        let widest = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        (widest.unwrap_or_default() + 3).max(12)
    };
    let widths: Vec<usize> = (0..5).map(width).collect();
    rows.iter()
        .map(|row| {
            let [cells @ .., last] = row;
            let padded: String =
                cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            format!("{padded}{last}\n")
        })
        .collect()
}
