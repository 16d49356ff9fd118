//! QEMU's control socket: two commands out, the events that end a machine in.
//!
//! QEMU connects to us, so there is no moment at which its socket does not exist yet.

use std::io;

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

use super::Ending;

/// The longest line we believe. Events are a few hundred bytes.
const LINE_MAX: u64 = 64 << 10;

/// A connection to one QEMU.
#[derive(Debug)]
pub(super) struct Qmp {
    commands: OwnedWriteHalf,
    ending: watch::Receiver<Option<Ending>>,
    reader: JoinHandle<()>,
}

impl Qmp {
    /// Takes QEMU's connection and leaves its negotiation mode.
    pub(super) async fn accept(listener: &UnixListener) -> io::Result<Self> {
        let (stream, _) = listener.accept().await?;
        Self::new(stream).await
    }

    async fn new(stream: UnixStream) -> io::Result<Self> {
        let (events, mut commands) = stream.into_split();
        commands.write_all(b"{\"execute\":\"qmp_capabilities\"}\n").await?;
        let (sender, ending) = watch::channel(None);
        let reader = tokio::spawn(read(events, sender));
        Ok(Self { commands, ending, reader })
    }

    /// Sends a command without arguments. One that cannot be sent has nobody left to obey it.
    pub(super) async fn send(&mut self, command: &str) {
        let _ = self.commands.write_all(format!("{{\"execute\":\"{command}\"}}\n").as_bytes()).await;
    }

    /// Waits for an event that ends the machine; for ever, when the connection ends without one.
    pub(super) async fn ended(&mut self) -> Ending {
        if let Ok(ending) = self.ending.wait_for(Option::is_some).await
            && let Some(ending) = ending.clone()
        {
            return ending;
        }
        std::future::pending().await
    }
}

impl Drop for Qmp {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read(stream: OwnedReadHalf, sender: watch::Sender<Option<Ending>>) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut stream).take(LINE_MAX).read_until(b'\n', &mut line).await {
            Err(_) | Ok(0) => return,
            Ok(_) => {}
        }
        if let Some(ending) = ending(&line) {
            // The first event is the cause; the ones after it are its consequences.
            sender.send_if_modified(|known| {
                let first = known.is_none();
                known.get_or_insert(ending);
                first
            });
        }
    }
}

fn ending(line: &[u8]) -> Option<Ending> {
    let message: Value = serde_json::from_slice(line).ok()?;
    match message.get("event")?.as_str()? {
        "GUEST_PANICKED" => Some(Ending::Panicked),
        "SHUTDOWN" => {
            let reason = message.pointer("/data/reason").and_then(Value::as_str).unwrap_or("no reason given");
            Some(Ending::Shutdown(reason.to_owned()))
        }
        "STOP" => Some(Ending::Stopped),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Ending, ending};

    #[test]
    fn only_events_that_end_the_machine_count() {
        let shutdown =
            br#"{"timestamp": {}, "event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"}}"#;
        assert_eq!(ending(shutdown), Some(Ending::Shutdown("guest-shutdown".into())));
        assert_eq!(
            ending(br#"{"event": "GUEST_PANICKED", "data": {"action": "poweroff"}}"#),
            Some(Ending::Panicked)
        );
        for other in
            [&br#"{"return": {}}"#[..], br#"{"QMP": {}}"#, br#"{"event": "RTC_CHANGE"}"#, b"nonsense"]
        {
            assert_eq!(ending(other), None);
        }
    }
}
