//! The guest's debug console, on the user's terminal.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Error, Result};
use crate::{cli::Global, terminal::RawMode};

/// ^], as in telnet: in raw mode every other key belongs to the guest.
const LEAVE: u8 = 0x1d;

pub(super) async fn console(global: &Global, port: u32) -> Result<i32> {
    let address = global.address.as_ref().ok_or(Error::NoAddress)?;
    let (mut from_guest, mut to_guest) = address.connect_beside("console", port).await?.into_split();
    let failed = |source| Error::Local { action: "use the debug console", source };
    let raw = RawMode::enter().map_err(failed)?;
    let typed = async {
        let (mut stdin, mut bytes) = (tokio::io::stdin(), [0; 4096]);
        loop {
            let length = stdin.read(&mut bytes).await.map_err(failed)?;
            let bytes = bytes.get(..length).unwrap_or_default();
            let leave = raw.as_ref().and_then(|_| bytes.iter().position(|&byte| byte == LEAVE));
            let sent = bytes.get(..leave.unwrap_or(length)).unwrap_or_default();
            to_guest.write_all(sent).await.map_err(failed)?;
            if leave.is_some() {
                return Ok::<(), Error>(());
            }
            if length == 0 {
                // What was piped in is typed; its shell may still have something to say.
                std::future::pending::<()>().await;
            }
        }
    };
    let shown = async {
        let mut stdout = tokio::io::stdout();
        tokio::io::copy(&mut from_guest, &mut stdout).await.map_err(failed)?;
        stdout.flush().await.map_err(failed)?;
        Ok::<(), Error>(())
    };
    tokio::select! {
        left = typed => left?,
        ended = shown => ended?,
    }
    Ok(0)
}
