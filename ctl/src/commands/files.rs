//! Copying into the guest, and its swap.

use std::{
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use berth_protocols::agent::CopyFileRequest;

use super::{Error, Result, connect, ui};
use crate::{
    Agent,
    cli::{Cp, Global},
};

/// Where hosts may copy to.
const ROOT: &str = "/run/kata-containers/shared/containers";
/// A quarter of the largest message.
const CHUNK: usize = 1 << 20;

pub(super) async fn cp(global: &Global, cp: Cp) -> Result<i32> {
    let agent = connect(global).await?;
    let destination = Path::new(ROOT).join(&cp.destination);
    // A directory after what is in it: its final permissions may not allow to add to it.
    let mut pending = vec![(cp.source, destination, false)];
    let (mut files, mut bytes) = (0u64, 0u64);
    while let Some((source, destination, entered)) = pending.pop() {
        let metadata = fs::symlink_metadata(&source).map_err(local("read the source"))?;
        if metadata.is_dir() && !entered {
            pending.push((source.clone(), destination.clone(), true));
            for entry in fs::read_dir(&source).map_err(local("read the source"))? {
                let name = entry.map_err(local("read the source"))?.file_name();
                pending.push((source.join(&name), destination.join(&name), false));
            }
            continue;
        }
        let request = head(&destination, &metadata, cp.dir_mode);
        bytes += one(&agent, &source, &metadata, request).await?;
        files += 1;
    }
    if !global.quiet {
        ui::say(&format!("{files} copied, {bytes} bytes"));
    }
    Ok(0)
}

fn local(action: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Local { action, source }
}

fn head(destination: &Path, metadata: &Metadata, dir_mode: u32) -> CopyFileRequest {
    CopyFileRequest {
        path: destination.to_string_lossy().into_owned(),
        file_mode: metadata.mode(),
        dir_mode,
        uid: metadata.uid().cast_signed(),
        gid: metadata.gid().cast_signed(),
        ..Default::default()
    }
}

/// Copies one file, link or directory; answers how many bytes it has.
async fn one(
    agent: &Agent,
    source: &PathBuf,
    metadata: &Metadata,
    mut request: CopyFileRequest,
) -> Result<u64> {
    if metadata.is_symlink() {
        let target = fs::read_link(source).map_err(local("read the source"))?;
        request.data = target.as_os_str().as_bytes().to_vec();
    }
    if !metadata.is_file() {
        agent.copy_file(&request).await?;
        return Ok(0);
    }
    let mut file = File::open(source).map_err(local("open the source"))?;
    request.file_size = metadata.len().cast_signed();
    loop {
        // No more than was announced, should the file grow meanwhile.
        let left = request.file_size.saturating_sub(request.offset).cast_unsigned();
        let mut data = Vec::with_capacity(CHUNK);
        let limit = left.min(CHUNK as u64);
        (&mut file).take(limit).read_to_end(&mut data).map_err(local("read the source"))?;
        if (data.len() as u64) < limit {
            return Err(local("copy the source, which became shorter")(io::ErrorKind::UnexpectedEof.into()));
        }
        let next = request.offset + data.len() as i64;
        request.data = data;
        agent.copy_file(&request).await?;
        request.offset = next;
        if next >= request.file_size {
            return Ok(next.cast_unsigned());
        }
    }
}

pub(super) async fn swap(global: &Global, path: &str) -> Result<i32> {
    connect(global).await?.add_swap_path(path).await?;
    Ok(0)
}
