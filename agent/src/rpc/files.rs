//! Files and swap that hosts bring into the guest.

use std::path::PathBuf;

use berth_protocols::agent::{AddSwapPathRequest, CopyFileRequest};

use super::{
    decode::decode,
    dispatch::{Agent, Method},
    reply::{Reply, Status},
    service::Outcome,
};
use crate::{copy::Piece, swap};

pub(super) fn copy(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: CopyFileRequest = decode(body)?;
    let piece = Piece {
        path: request.path,
        size: request.file_size,
        mode: request.file_mode,
        dir_mode: request.dir_mode,
        uid: request.uid,
        gid: request.gid,
        offset: request.offset,
        data: request.data,
    };
    let copier = agent.copier.clone();
    agent.mutate(method, body, async move {
        copier.copy(piece).await?;
        Ok(Reply::empty())
    })
}

pub(super) fn add_swap_path(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: AddSwapPathRequest = decode(body)?;
    agent.mutate(method, body, async move {
        swap::add(PathBuf::from(request.path)).await?;
        Ok(Reply::empty())
    })
}
