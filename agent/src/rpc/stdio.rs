//! Standard streams over calls.

use berth_protocols::agent::{
    CloseStdinRequest, ReadStreamRequest, TtyWinResizeRequest, WriteStreamRequest, WriteStreamResponse,
};
use protobuf::Message;

use super::{
    agent::{Agent, Method, detached, tied},
    decode::decode,
    limits::{METHOD_CAP, READ_MAX},
    reply::{Lease, Reply, Status},
    service::Outcome,
};
use crate::sandbox::{Chunk, Error, Output};

/// Has no cap of its own: it ends when the process has read, which may be never. Never joined: the same
/// bytes twice are two writes.
pub(super) fn write_stdin(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: WriteStreamRequest = decode(body)?;
    let sandbox = agent.sandbox.clone();
    detached(method, None, async move {
        let len = sandbox.write_stdin(&request.container_id, &request.exec_id, request.data).await?;
        let reply = WriteStreamResponse { len, ..Default::default() };
        let bytes = reply.write_to_bytes().map_err(|error| Error::Invalid(error.to_string()))?;
        Ok(Reply::message(bytes))
    })
}

pub(super) fn read_stdout(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    read(agent, method, body, Output::Stdout)
}

pub(super) fn read_stderr(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    read(agent, method, body, Output::Stderr)
}

/// An empty reply means end of file to hosts, so `len` 0 may not be answered with what it asks for.
fn read(agent: &Agent, method: &Method, body: &[u8], from: Output) -> Result<Outcome, Status> {
    let request: ReadStreamRequest = decode(body)?;
    if request.len == 0 {
        return Err(Status::invalid(format_args!("{}: len is 0", method.name)));
    }
    let sandbox = agent.sandbox.clone();
    tied(method, async move {
        let len = request.len.min(READ_MAX);
        let chunk = sandbox.read_output(&request.container_id, &request.exec_id, from, len).await?;
        Ok(Reply::leased_field(1, Box::new(chunk)))
    })
}

/// The bytes leave the container's pipe when the peer has them.
impl Lease for Chunk {
    fn bytes(&self) -> &[u8] {
        &self.data
    }

    fn sent(self: Box<Self>) {
        self.delivered();
    }
}

pub(super) fn close_stdin(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: CloseStdinRequest = decode(body)?;
    let sandbox = agent.sandbox.clone();
    detached(method, Some(METHOD_CAP), async move {
        sandbox.close_stdin(&request.container_id, &request.exec_id).await?;
        Ok(Reply::empty())
    })
}

pub(super) fn resize(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: TtyWinResizeRequest = decode(body)?;
    let cells = |count| {
        u16::try_from(count)
            .map_err(|_| Status::invalid(format_args!("a terminal of {count} rows or columns")))
    };
    let (rows, columns) = (cells(request.row)?, cells(request.column)?);
    let sandbox = agent.sandbox.clone();
    detached(method, Some(METHOD_CAP), async move {
        sandbox.resize_terminal(&request.container_id, &request.exec_id, rows, columns).await?;
        Ok(Reply::empty())
    })
}
