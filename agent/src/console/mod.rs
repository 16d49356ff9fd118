//! The debug console: a root shell of the guest on a terminal of its own, for each connection.
//!
//! ```text
//!   connection <--bytes--> terminal <--> shell (a session of its own)
//!        |                                 |
//!        '- closed: the terminal is hung   '- ends: the connection is closed
//!           up, and the shell with it
//! ```
//!
//! There is no password: init opens the port only if the guest's own configuration says so, and a connection has to
//! come from the host. The shell is a child of the worker and does not outlive it.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{fs::OpenOptionsExt, process::CommandExt},
    },
    process::{Child, Command, ExitStatus, Stdio},
    rc::Rc,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::socket::{Shutdown, shutdown},
    unistd,
};
use rustjail::sys::{pidfd, pty};
use slog::Logger;
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::timeout,
};

use crate::{
    port::Socket,
    reactor::register,
    stdio::{set_nonblocking, when_ready},
};

mod shell;

pub use shell::{ROLE, run as run_shell};

/// How many consoles there may be.
pub const CONSOLES: usize = 8;
/// What is moved at once.
const CHUNK: usize = 8 << 10;
/// How long a shell has after its terminal was hung up.
const PATIENCE: Duration = Duration::from_secs(2);

/// Serves one connection until it or its shell ends.
pub async fn serve(socket: Socket, log: Logger) {
    slog::warn!(log, "a debug console was opened");
    match converse(socket).await {
        Ok(status) => slog::info!(log, "a debug console was closed"; "status" => %status),
        Err(error) => slog::warn!(log, "a debug console failed"; "error" => %error),
    }
}

/// Keeps a shell on `/dev/console`: a new one when it ends, unless it ended at once.
pub async fn on_device(log: Logger) {
    /// A shell that ends within this time will not do better the next time.
    const SHORT: Duration = Duration::from_secs(1);
    loop {
        let began = tokio::time::Instant::now();
        let device = crate::task::blocking(|| start(open("/dev/console")?));
        let ended = match device.await.flatten() {
            Ok(shell) => ended(shell, None).await,
            Err(error) => Err(error),
        };
        slog::warn!(log, "the shell on /dev/console ended"; "how" => ?ended);
        if ended.is_err() || began.elapsed() < SHORT {
            return;
        }
    }
}

async fn converse(socket: Socket) -> io::Result<ExitStatus> {
    let (master, shell) = crate::task::blocking(|| {
        let master = open("/dev/ptmx")?;
        pty::unlock(master.as_fd())?;
        pty::set_size(master.as_fd(), 24, 80)?;
        let shell = start(pty::open_slave(master.as_fd())?)?;
        set_nonblocking(&master)?;
        io::Result::Ok((master, shell))
    })
    .await??;
    let master = Rc::new(register(master, Interest::READABLE | Interest::WRITABLE)?);
    let typed = crate::task::spawn(copy(Rc::clone(&socket), Rc::clone(&master)));
    let shown = crate::task::spawn(copy(Rc::clone(&master), Rc::clone(&socket)));
    let shown_end = shown.abort_handle();
    // The terminal ends with its shell, the connection with its peer; either ends the other.
    crate::task::spawn({
        let socket = Rc::clone(&socket);
        async move {
            let _over = typed.await;
            shown_end.abort();
            let _gone = shutdown(socket.as_raw_fd(), Shutdown::Both);
        }
    });
    let _over = shown.await;
    let _gone = shutdown(socket.as_raw_fd(), Shutdown::Both);
    // The last owner of the master: the shell's session gets SIGHUP.
    drop(master);
    ended(shell, Some(PATIENCE)).await
}

fn open(terminal: &str) -> io::Result<OwnedFd> {
    let mut options = File::options();
    Ok(options.read(true).write(true).custom_flags(libc::O_NOCTTY).open(terminal)?.into())
}

fn start(terminal: OwnedFd) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg0("berth-agent")
        .arg(shell::ROLE)
        .stdin(Stdio::from(terminal.try_clone()?))
        .stdout(Stdio::from(terminal.try_clone()?))
        .stderr(Stdio::from(terminal))
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/")
        .env("TERM", "linux")
        .spawn()
}

/// Waits for the end of `shell`, and makes it end when patience is over.
async fn ended(mut shell: Child, patience: Option<Duration>) -> io::Result<ExitStatus> {
    let process = register(pidfd::open(shell.id().cast_signed())?, Interest::READABLE)?;
    if let Some(patience) = patience
        && timeout(patience, process.readable()).await.is_err()
    {
        shell.kill()?;
    }
    loop {
        if let Some(status) = shell.try_wait()? {
            return Ok(status);
        }
        process.readable().await?.clear_ready();
    }
}

/// Until the end of either.
async fn copy(from: Rc<AsyncFd<OwnedFd>>, to: Rc<AsyncFd<OwnedFd>>) -> io::Result<()> {
    let mut buffer = [0; CHUNK];
    loop {
        let read = when_ready(&from, Interest::READABLE, |fd| match unistd::read(fd, &mut buffer) {
            // A terminal that nobody has open any more.
            Err(Errno::EIO) => Ok(0),
            read => Ok(read?),
        });
        let mut bytes = match read.await? {
            0 => return Ok(()),
            length => buffer.get(..length).unwrap_or_default(),
        };
        while !bytes.is_empty() {
            let written = when_ready(&to, Interest::WRITABLE, |fd| Ok(unistd::write(fd, bytes)?)).await?;
            bytes = bytes.get(written..).unwrap_or_default();
        }
    }
}
