//! Moves bytes between this process and one in the guest.
//!
//! Two ways: calls (WriteStdin, ReadStdout, ReadStderr), which work over any connection, and raw streams, one
//! connection each, which cost no call per chunk. A stream ends when the guest says so; a process the agent no longer
//! knows has nothing more to say, so that counts as the end too.

use std::io;

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy},
    net::UnixStream,
};
use ttrpc::Code;

use crate::{
    address::{Address, ConnectError, StdioStream},
    client::{self, Agent, Output, ProcessId},
};

/// What one read may bring. Hosts use 8 to 32 KiB; larger chunks cost fewer calls and stay far below the frame limit.
const CHUNK: usize = 64 << 10;

/// Why a stream ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The agent's side.
    #[error(transparent)]
    Agent(#[from] client::Error),
    /// Our own side.
    #[error("cannot {action}: {source}")]
    Local {
        /// What was being done.
        action: &'static str,
        /// How it failed.
        source: io::Error,
    },
}

impl Error {
    /// Whoever read our output has gone away.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Local { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// The raw streams of a process that is yet to be created.
#[derive(Debug, Default)]
pub struct RawStreams {
    /// To its standard input.
    pub stdin: Option<StdioStream>,
    /// From its standard output, or its terminal.
    pub stdout: Option<StdioStream>,
    /// From its standard error.
    pub stderr: Option<StdioStream>,
}

impl RawStreams {
    /// Connects the streams of a process, which has no standard error of its own on a terminal.
    pub async fn open(address: &Address, stdin: bool, terminal: bool) -> Result<Self, ConnectError> {
        let mut streams = Self::default();
        if stdin {
            streams.stdin = Some(address.connect_stdio().await?);
        }
        streams.stdout = Some(address.connect_stdio().await?);
        if !terminal {
            streams.stderr = Some(address.connect_stdio().await?);
        }
        Ok(streams)
    }

    /// What goes into the request: the ports of stdin, stdout and stderr; 0 is none.
    pub fn ports(&self) -> (u32, u32, u32) {
        let port = |stream: &Option<StdioStream>| stream.as_ref().map_or(0, |stream| stream.port);
        (port(&self.stdin), port(&self.stdout), port(&self.stderr))
    }
}

/// Copies an output stream of the process to `sink` until it ends.
pub async fn output(
    agent: &Agent,
    process: &ProcessId,
    from: Output,
    raw: Option<UnixStream>,
    mut sink: impl AsyncWrite + Unpin,
) -> Result<(), Error> {
    let mut buffer = vec![0; if raw.is_some() { CHUNK } else { 0 }];
    let mut raw = raw;
    loop {
        let owned;
        let data = match &mut raw {
            Some(stream) => {
                let got = stream.read(&mut buffer).await;
                let got = got.map_err(|source| Error::Local { action: "read a raw stream", source })?;
                buffer.get(..got).unwrap_or_default()
            }
            None => {
                owned = chunk(agent, process, from).await?;
                owned.as_slice()
            }
        };
        if data.is_empty() {
            return Ok(());
        }
        let written = async {
            sink.write_all(data).await?;
            sink.flush().await
        };
        written.await.map_err(|source| Error::Local { action: "write to standard output", source })?;
    }
}

async fn chunk(agent: &Agent, process: &ProcessId, from: Output) -> Result<Vec<u8>, client::Error> {
    match agent.read(process, from, CHUNK as u32).await {
        Err(error) if error.code() == Some(Code::NOT_FOUND) => Ok(Vec::new()),
        read => read,
    }
}

/// Copies `source` to the process's standard input until either ends.
pub async fn input(
    agent: &Agent,
    process: &ProcessId,
    raw: Option<UnixStream>,
    mut source: impl AsyncRead + Unpin,
) -> Result<(), Error> {
    if let Some(mut stream) = raw {
        return match copy(&mut source, &mut stream).await {
            // The process closed its standard input; that is its right.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            copied => {
                copied.map(drop).map_err(|source| Error::Local { action: "copy standard input", source })
            }
        };
    }
    let mut buffer = vec![0; CHUNK];
    loop {
        let got = source.read(&mut buffer).await;
        let got = got.map_err(|source| Error::Local { action: "read standard input", source })?;
        match buffer.get(..got) {
            None | Some([]) => return Ok(agent.close_stdin(process).await?),
            Some(data) => _ = agent.write_stdin(process, data.to_vec()).await?,
        }
    }
}
