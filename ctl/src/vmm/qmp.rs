//! QEMU's control socket: commands out, their answers and the events that end a machine in.
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
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::{ControlError, Ending};

/// The longest line we believe. Events are a few hundred bytes.
const LINE_MAX: u64 = 64 << 10;

/// What a command answers: a value, or a sentence.
type Answer = Result<Value, String>;

/// A connection to one QEMU.
#[derive(Debug)]
pub(super) struct Qmp {
    commands: OwnedWriteHalf,
    ending: watch::Receiver<Option<Ending>>,
    answers: mpsc::Receiver<Answer>,
    unplugged: mpsc::UnboundedReceiver<String>,
    reader: JoinHandle<()>,
}

impl Qmp {
    /// Takes QEMU's connection and leaves its negotiation mode.
    pub(super) async fn accept(listener: &UnixListener) -> io::Result<Self> {
        let (stream, _) = listener.accept().await?;
        Self::new(stream).await
    }

    async fn new(stream: UnixStream) -> io::Result<Self> {
        let (events, commands) = stream.into_split();
        let (sender, ending) = watch::channel(None);
        let (answered, answers) = mpsc::channel(1);
        let (gone, unplugged) = mpsc::unbounded_channel();
        let reader = tokio::spawn(read(events, sender, answered, gone));
        let mut qmp = Self { commands, ending, answers, unplugged, reader };
        qmp.execute("qmp_capabilities", &Value::Null).await.map_err(io::Error::other)?;
        Ok(qmp)
    }

    /// Sends a command without arguments. One that cannot be sent has nobody left to obey it.
    pub(super) async fn send(&mut self, command: &str) {
        let _ = self.execute(command, &Value::Null).await;
    }

    /// Sends a command and waits for its answer; answers come in the order of the commands.
    pub(super) async fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, ControlError> {
        let mut message = serde_json::json!({ "execute": command });
        if let (Value::Object(message), Value::Object(_)) = (&mut message, arguments) {
            message.insert("arguments".to_owned(), arguments.clone());
        }
        let sent = self.commands.write_all(format!("{message}\n").as_bytes()).await;
        sent.map_err(|source| ControlError::Lost { command: command.to_owned(), source })?;
        match self.answers.recv().await {
            Some(Ok(value)) => Ok(value),
            Some(Err(reason)) => Err(ControlError::Refused { command: command.to_owned(), reason }),
            None => Err(ControlError::Lost {
                command: command.to_owned(),
                source: io::ErrorKind::UnexpectedEof.into(),
            }),
        }
    }

    /// Waits until the guest has let go of the device `id`.
    pub(super) async fn unplugged(&mut self, id: &str) -> io::Result<()> {
        while let Some(gone) = self.unplugged.recv().await {
            if gone == id {
                return Ok(());
            }
        }
        Err(io::ErrorKind::UnexpectedEof.into())
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

async fn read(
    stream: OwnedReadHalf,
    sender: watch::Sender<Option<Ending>>,
    answers: mpsc::Sender<Answer>,
    gone: mpsc::UnboundedSender<String>,
) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut stream).take(LINE_MAX).read_until(b'\n', &mut line).await {
            Err(_) | Ok(0) => return,
            Ok(_) => {}
        }
        if let Some(answer) = answer(&line) {
            // Nobody waits for it any more.
            let _ = answers.send(answer).await;
        }
        if let Some(device) = unplugged(&line) {
            let _ = gone.send(device);
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

fn answer(line: &[u8]) -> Option<Answer> {
    let mut message: Value = serde_json::from_slice(line).ok()?;
    if let Some(error) = message.get("error") {
        let reason = error.get("desc").and_then(Value::as_str).unwrap_or("it gives no reason");
        return Some(Err(reason.to_owned()));
    }
    message.get_mut("return").map(|value| Ok(value.take()))
}

fn unplugged(line: &[u8]) -> Option<String> {
    let message: Value = serde_json::from_slice(line).ok()?;
    let deleted = message.get("event")?.as_str()? == "DEVICE_DELETED";
    deleted.then(|| message.pointer("/data/device")?.as_str().map(str::to_owned)).flatten()
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
    use serde_json::json;

    use super::{Ending, answer, ending};

    #[test]
    fn answers_are_told_from_events() {
        assert_eq!(answer(br#"{"return": {"a": 1}}"#), Some(Ok(json!({ "a": 1 }))));
        let refused = br#"{"error": {"class": "GenericError", "desc": "no such bus"}}"#;
        assert_eq!(answer(refused), Some(Err("no such bus".into())));
        assert_eq!(answer(br#"{"event": "STOP"}"#), None);
        assert_eq!(answer(b"nonsense"), None);
    }

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
