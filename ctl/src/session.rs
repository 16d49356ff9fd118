//! One process in the guest with our standard streams, terminal and signals attached to it.
//!
//! ```text
//!   attached --exit status--> draining --end of both outputs--> done
//!      |  ^                      |
//!      |  '- SIGWINCH: resize, first SIGINT/TERM/QUIT: forward
//!      '---- SIGHUP, second signal, lost connection, no reader: leave
//! ```
//! The process's status is known when WaitProcess answers, its output complete only when both streams have ended.

use std::{pin::pin, time::Duration};

use nix::sys::signal::Signal;
use tokio::{
    io::{stderr, stdout},
    signal::unix::{SignalKind, signal},
    time::timeout,
};

use crate::{
    client::{self, Agent, Output, ProcessId},
    stdio::{self, RawStreams},
    terminal::{self, RawMode},
};

/// What a process that ended may leave behind: a child of it that holds the output open. Only an exec can have one,
/// for a container's init takes all its processes along.
const DRAIN: Duration = Duration::from_secs(2);

/// Why a session ended without an exit status.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call failed.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// A stream failed.
    #[error(transparent)]
    Stdio(#[from] stdio::Error),
    /// The user wants out.
    #[error("left on {0}")]
    Signal(Signal),
    /// The terminal or the signals could not be set up.
    #[error("cannot set up the terminal: {0}")]
    Terminal(#[from] std::io::Error),
}

/// How to attach.
#[derive(Debug)]
pub struct Session {
    /// The connection.
    pub agent: Agent,
    /// To which process.
    pub process: ProcessId,
    /// The process has a terminal, and ours becomes its.
    pub terminal: bool,
    /// Our standard input goes to it.
    pub stdin: bool,
    /// Raw streams, if it was created with any.
    pub raw: RawStreams,
}

impl Session {
    /// Attaches, calls `start`, and stays until the process has ended and its output is out.
    pub async fn run(self, start: impl Future<Output = client::Result<()>>) -> Result<i32, Error> {
        let Self { agent, process, terminal, stdin, raw } = self;
        let mut signals = Signals::new()?;
        let stream = |stream: Option<crate::address::StdioStream>| stream.map(|stream| stream.stream);
        let (raw_in, raw_out, raw_err) = (stream(raw.stdin), stream(raw.stdout), stream(raw.stderr));

        start.await?;
        // Only now, so that an error before it is printed on a sane terminal.
        let _raw_mode = if terminal && stdin { RawMode::enter()? } else { None };
        if terminal {
            resize(&agent, &process).await;
        }

        let mut input = pin!(async {
            if !stdin {
                return Ok(());
            }
            stdio::input(&agent, &process, raw_in, tokio::io::stdin()).await
        });
        let mut output = pin!(async {
            let out = stdio::output(&agent, &process, Output::Stdout, raw_out, stdout());
            if terminal {
                return out.await;
            }
            let err = stdio::output(&agent, &process, Output::Stderr, raw_err, stderr());
            tokio::try_join!(out, err).map(drop)
        });
        let mut exit = pin!(agent.wait(&process));

        let (mut input_done, mut output_done) = (false, false);
        let status = loop {
            tokio::select! {
                status = &mut exit => break status?,
                // The process may have ended, or closed its input, before it read everything.
                _ = &mut input, if !input_done => input_done = true,
                ended = &mut output, if !output_done => match ended {
                    Err(error) if error.is_broken_pipe() => {
                        let _ = agent.signal(&process, Signal::SIGPIPE as u32).await;
                        return Err(error.into());
                    }
                    ended => { ended?; output_done = true }
                },
                event = signals.next() => match event {
                    Event::Resize if terminal => resize(&agent, &process).await,
                    Event::Resize => {}
                    Event::Forward(signal) => agent.signal(&process, signal as u32).await?,
                    Event::Leave(signal) => return Err(Error::Signal(signal)),
                },
            }
        };
        if !output_done {
            drained(&process, &mut signals, output).await?;
        }
        Ok(status)
    }
}

async fn drained(
    process: &ProcessId,
    signals: &mut Signals,
    output: impl Future<Output = Result<(), stdio::Error>>,
) -> Result<(), Error> {
    let all = async {
        if process.exec.is_empty() {
            return output.await;
        }
        timeout(DRAIN, output).await.unwrap_or(Ok(()))
    };
    let mut all = pin!(all);
    loop {
        tokio::select! {
            ended = &mut all => return Ok(ended?),
            event = signals.next() => if let Event::Forward(signal) | Event::Leave(signal) = event {
                return Err(Error::Signal(signal));
            },
        }
    }
}

/// Waits for a signal that asks us to end, for work that no process is attached to.
pub async fn interrupted() -> std::io::Result<Signal> {
    let mut signals = Signals::new()?;
    loop {
        match signals.next().await {
            Event::Resize => {}
            Event::Forward(signal) | Event::Leave(signal) => return Ok(signal),
        }
    }
}

/// A size that could not be set is no reason to end a session: the process may just have exited.
async fn resize(agent: &Agent, process: &ProcessId) {
    if let Some((rows, columns)) = terminal::size() {
        let _ = agent.resize(process, rows, columns).await;
    }
}

enum Event {
    Resize,
    Forward(Signal),
    Leave(Signal),
}

struct Signals {
    resize: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    quit: tokio::signal::unix::Signal,
    forwarded: bool,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            resize: signal(SignalKind::window_change())?,
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
            forwarded: false,
        })
    }

    async fn next(&mut self) -> Event {
        let came = tokio::select! {
            _ = self.resize.recv() => return Event::Resize,
            // The terminal is gone, so nobody could ask a second time.
            _ = self.hangup.recv() => return Event::Leave(Signal::SIGHUP),
            _ = self.interrupt.recv() => Signal::SIGINT,
            _ = self.terminate.recv() => Signal::SIGTERM,
            _ = self.quit.recv() => Signal::SIGQUIT,
        };
        if std::mem::replace(&mut self.forwarded, true) { Event::Leave(came) } else { Event::Forward(came) }
    }
}
