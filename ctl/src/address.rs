//! Where an agent listens, and how a host gets there.
//!
//! Four forms: a Unix socket by path or by abstract name, AF_VSOCK, and *hybrid* vsock, the Unix socket by which
//! Cloud Hypervisor, Firecracker and vhost-device-vsock reach the ports of a guest. A hybrid socket wants
//! `CONNECT <port>\n` and answers `OK <host port>\n`, or just closes. The answer is read byte by byte and bounded,
//! so that not one byte of the stream behind it is swallowed and a peer that speaks something else is not waited for.

use std::{
    fmt,
    io::{self, ErrorKind},
    os::{fd::OwnedFd, linux::net::SocketAddrExt, unix::net as unix},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};
use tokio_vsock::{VsockAddr, VsockStream};

/// The port of the agent's ttrpc service.
pub const TTRPC_PORT: u32 = 1024;
/// The port of the agent's raw stdio listener.
pub const STDIO_PORT: u32 = 1027;
/// The port where hosts have the agent serve its log.
pub const LOG_PORT: u32 = 1025;
/// The port where hosts have the agent serve its debug console.
pub const CONSOLE_PORT: u32 = 1026;
/// Longest answer to CONNECT: "OK 4294967295\n".
const ANSWER_MAX: usize = 14;
/// A hybrid socket answers in under a millisecond; a busy host under emulation has needed 3 s.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Where an agent listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `unix://PATH`
    Unix(PathBuf),
    /// `unix://@NAME`
    Abstract(String),
    /// `vsock://CID:PORT`
    Vsock {
        /// The guest's context id.
        cid: u32,
        /// The port in the guest.
        port: u32,
    },
    /// `hvsock://PATH:PORT`
    Hybrid {
        /// The VMM's socket.
        path: PathBuf,
        /// The port in the guest.
        port: u32,
    },
}

/// Why a text is not an address.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not an address: {reason}; use unix://PATH, unix://@NAME, vsock://CID:PORT or hvsock://PATH:PORT"
)]
pub struct ParseError {
    text: String,
    reason: &'static str,
}

/// Why an agent cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket cannot be connected to.
    #[error("cannot connect to {address}: {source}{}", hint(source))]
    Connect {
        /// Where to.
        address: Address,
        /// How it failed.
        source: io::Error,
    },
    /// The hybrid socket is there, but did not lead to the port.
    #[error("{address}: no connection to port {port} in the guest: {reason}")]
    Handshake {
        /// Where to.
        address: Address,
        /// Which port.
        port: u32,
        /// What came instead of `OK`.
        reason: String,
    },
    /// The hybrid socket leads to the guest, but does not say which port is ours.
    #[error(
        "{address}: its device answers with the guest's port instead of ours (as vhost-device-vsock 0.3), so the agent \
         could not tell raw streams apart; leave raw stdio out"
    )]
    PortUntold {
        /// Where to.
        address: Address,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => " (is the VM running, and is this its socket?)",
        ErrorKind::ConnectionRefused => {
            " (the socket is there but nobody listens: has the VM or the agent ended?)"
        }
        ErrorKind::PermissionDenied => " (the socket belongs to another user)",
        _ => "",
    }
}

/// A raw stdio connection, with the port by which the agent knows it.
#[derive(Debug)]
pub struct StdioStream {
    /// The connection.
    pub stream: UnixStream,
    /// What to put into `stdin_port`, `stdout_port` or `stderr_port`.
    pub port: u32,
}

impl Address {
    /// Connects to the agent's ttrpc service.
    pub async fn connect(&self) -> Result<UnixStream, ConnectError> {
        match self {
            Self::Unix(path) => UnixStream::connect(path).await.map_err(|source| self.failed(source)),
            Self::Abstract(name) => abstract_stream(name).map_err(|source| self.failed(source)),
            Self::Vsock { cid, port } => Ok(self.vsock(*cid, *port).await?.0),
            Self::Hybrid { path, port } => Ok(self.hybrid(path, *port).await?.0),
        }
    }

    /// Connects to another port of the same agent; where there are no ports, to the socket named `what` beside it.
    pub async fn connect_beside(&self, what: &str, port: u32) -> Result<UnixStream, ConnectError> {
        match self {
            Self::Unix(path) => {
                let mut beside = path.clone().into_os_string();
                beside.push(format!(".{what}"));
                Self::Unix(beside.into()).connect().await
            }
            Self::Abstract(name) => Self::Abstract(format!("{name}.{what}")).connect().await,
            Self::Vsock { cid, .. } => Self::Vsock { cid: *cid, port }.connect().await,
            Self::Hybrid { path, .. } => Self::Hybrid { path: path.clone(), port }.connect().await,
        }
    }

    /// Makes one connection to the agent's raw stdio listener.
    pub async fn connect_stdio(&self) -> Result<StdioStream, ConnectError> {
        let (stream, port) = match self {
            Self::Unix(path) => {
                let mut beside = path.clone().into_os_string();
                beside.push(".stdio");
                self.hybrid(Path::new(&beside), STDIO_PORT).await?
            }
            Self::Abstract(name) => {
                let stream =
                    abstract_stream(&format!("{name}.stdio")).map_err(|source| self.failed(source))?;
                self.handshake(stream, STDIO_PORT).await?
            }
            Self::Vsock { cid, .. } => self.vsock(*cid, STDIO_PORT).await?,
            Self::Hybrid { path, .. } => self.hybrid(path, STDIO_PORT).await?,
        };
        // VMMs number our side from 2^30 up, so this is the guest's port: useless, for all streams have the same.
        if port == STDIO_PORT {
            return Err(ConnectError::PortUntold { address: self.clone() });
        }
        Ok(StdioStream { stream, port })
    }

    async fn vsock(&self, cid: u32, port: u32) -> Result<(UnixStream, u32), ConnectError> {
        let connected = VsockStream::connect(VsockAddr::new(cid, port)).await;
        let connected = connected.and_then(|stream| Ok((stream.local_addr()?.port(), OwnedFd::from(stream))));
        let (local, fd) = connected.map_err(|source| self.failed(source))?;
        // The stream's reads, writes and shutdown are the same calls for every SOCK_STREAM family.
        let stream =
            UnixStream::from_std(unix::UnixStream::from(fd)).map_err(|source| self.failed(source))?;
        Ok((stream, local))
    }

    async fn hybrid(&self, path: &Path, port: u32) -> Result<(UnixStream, u32), ConnectError> {
        let stream = UnixStream::connect(path).await.map_err(|source| self.failed(source))?;
        self.handshake(stream, port).await
    }

    async fn handshake(&self, mut stream: UnixStream, port: u32) -> Result<(UnixStream, u32), ConnectError> {
        let refused = |reason| ConnectError::Handshake { address: self.clone(), port, reason };
        match timeout(HANDSHAKE, shake_hands(&mut stream, port)).await {
            Ok(Ok(local)) => Ok((stream, local)),
            Ok(Err(error)) => Err(refused(error.to_string())),
            Err(_) => Err(refused(format!("no answer within {} s", HANDSHAKE.as_secs()))),
        }
    }

    fn failed(&self, source: io::Error) -> ConnectError {
        ConnectError::Connect { address: self.clone(), source }
    }
}

fn abstract_stream(name: &str) -> io::Result<UnixStream> {
    let stream = unix::UnixStream::connect_addr(&unix::SocketAddr::from_abstract_name(name)?)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

async fn shake_hands(stream: &mut UnixStream, port: u32) -> io::Result<u32> {
    stream.write_all(format!("CONNECT {port}\n").as_bytes()).await?;
    let mut answer = Vec::with_capacity(ANSWER_MAX);
    loop {
        match stream.read_u8().await {
            Ok(b'\n') => break,
            Ok(byte) if answer.len() < ANSWER_MAX => answer.push(byte),
            Ok(_) => return Err(not_ok(&answer)),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof && answer.is_empty() => {
                return Err(io::Error::new(
                    error.kind(),
                    "closed without an answer: nothing listens on that port",
                ));
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(not_ok(&answer)),
            Err(error) => return Err(error),
        }
    }
    let text = std::str::from_utf8(&answer).ok();
    text.and_then(|text| text.strip_prefix("OK ")?.parse().ok()).ok_or_else(|| not_ok(&answer))
}

fn not_ok(answer: &[u8]) -> io::Error {
    let answer = String::from_utf8_lossy(answer);
    io::Error::new(ErrorKind::InvalidData, format!("answered {answer:?} instead of \"OK <port>\""))
}

impl FromStr for Address {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = |reason| ParseError { text: text.to_owned(), reason };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        let with_port = || {
            let (before, port) = rest.rsplit_once(':').ok_or_else(|| wrong("the port is missing"))?;
            Ok((before, port.parse().map_err(|_| wrong("the port is not a number below 2^32"))?))
        };
        match scheme {
            "unix" if matches!(rest, "" | "@") => Err(wrong("the path is missing")),
            "unix" => Ok(match rest.strip_prefix('@') {
                Some(name) => Self::Abstract(name.to_owned()),
                None => Self::Unix(rest.into()),
            }),
            "vsock" => {
                let (cid, port) = with_port()?;
                let cid = cid.parse().map_err(|_| wrong("the context id is not a number below 2^32"))?;
                Ok(Self::Vsock { cid, port })
            }
            "hvsock" => match with_port()? {
                ("", _) => Err(wrong("the path is missing")),
                (path, port) => Ok(Self::Hybrid { path: path.into(), port }),
            },
            _ => Err(wrong("the scheme is unknown")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Abstract(name) => write!(f, "unix://@{name}"),
            Self::Vsock { cid, port } => write!(f, "vsock://{cid}:{port}"),
            Self::Hybrid { path, port } => write!(f, "hvsock://{}:{port}", path.display()),
        }
    }
}
