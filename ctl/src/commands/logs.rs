//! The agent's log, line by line as it comes.

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::{Error, Result, ui};
use crate::cli::{Global, Logs};

pub(super) async fn logs(global: &Global, logs: Logs) -> Result<i32> {
    let address = global.address.as_ref().ok_or(Error::NoAddress)?;
    let mut stream = address.connect_beside("log", logs.port).await?;
    let failed = |source| Error::Local { action: "read the agent's log", source };
    if let Some(level) = logs.level {
        stream.write_all(format!("level {level}\n").as_bytes()).await.map_err(failed)?;
    }
    let mut lines = BufReader::new(stream).lines();
    let mut left = logs.lines.unwrap_or(u64::MAX);
    while left > 0
        && let Some(line) = lines.next_line().await.map_err(failed)?
    {
        ui::print(&line)?;
        left -= 1;
    }
    Ok(0)
}
