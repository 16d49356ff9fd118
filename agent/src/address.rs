//! Where the agent listens.
//!
//! The forms are those that hosts write: `vsock://CID:PORT` with -1 for any CID, `unix://PATH` and `unix://@NAME`
//! for the abstract namespace.

use std::{fmt, num::ParseIntError, path::PathBuf, str::FromStr};

/// The port on which hosts expect the agent.
pub const RPC_PORT: u32 = 1024;

/// The kernel's VMADDR_CID_ANY.
const ANY_CID: u32 = u32::MAX;

/// `sun_path` holds 108 bytes, a zero at one end among them.
const MAX_UNIX_NAME: usize = 107;

/// Of the sockets beside the one for calls.
const LONGEST_SUFFIX: &str = ".console";

/// A place to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// virtio-vsock.
    Vsock {
        /// Our context id, or VMADDR_CID_ANY.
        cid: u32,
        /// The port.
        port: u32,
    },
    /// A socket file.
    Unix(PathBuf),
    /// A name in the network namespace.
    Abstract(String),
}

/// Why a text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Neither vsock nor unix.
    #[error("{0:?} is no address: write vsock://CID:PORT, unix://PATH or unix://@NAME")]
    Form(String),
    /// The number is none, or too large.
    #[error("{text:?} is no {what}: {source}")]
    Number {
        /// "CID" or "port".
        what: &'static str,
        /// As written.
        text: String,
        /// Why.
        source: ParseIntError,
    },
    /// The kernel could not take it.
    #[error("the unix socket name {name:?} must have 1 to {MAX_UNIX_NAME} bytes, none of them zero")]
    UnixName {
        /// As written.
        name: String,
    },
}

impl Address {
    /// Where `what` is served when calls are served at `self`: on a port of its own, or on a unix socket beside.
    pub fn beside(&self, what: &str, vsock_port: u32) -> Self {
        match self {
            Self::Vsock { cid, .. } => Self::Vsock { cid: *cid, port: vsock_port },
            Self::Unix(path) => {
                let mut name = path.clone().into_os_string();
                name.push(format!(".{what}"));
                Self::Unix(name.into())
            }
            Self::Abstract(name) => Self::Abstract(format!("{name}.{what}")),
        }
    }
}

impl Default for Address {
    fn default() -> Self {
        Self::Vsock { cid: ANY_CID, port: RPC_PORT }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let form = || AddressError::Form(text.to_owned());
        if let Some(rest) = text.strip_prefix("vsock://") {
            let (cid, port) = rest.split_once(':').ok_or_else(form)?;
            let cid = if cid == "-1" { ANY_CID } else { number("CID", cid)? };
            return Ok(Self::Vsock { cid, port: number("port", port)? });
        }
        let name = text.strip_prefix("unix://").ok_or_else(form)?;
        let bare = name.strip_prefix('@').unwrap_or(name);
        // Room is left for the sockets beside it.
        if bare.is_empty() || name.len() + LONGEST_SUFFIX.len() > MAX_UNIX_NAME || name.contains('\0') {
            return Err(AddressError::UnixName { name: name.to_owned() });
        }
        Ok(match name.strip_prefix('@') {
            Some(name) => Self::Abstract(name.to_owned()),
            None => Self::Unix(name.into()),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vsock { cid: ANY_CID, port } => write!(f, "vsock://-1:{port}"),
            Self::Vsock { cid, port } => write!(f, "vsock://{cid}:{port}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Abstract(name) => write!(f, "unix://@{name}"),
        }
    }
}

fn number(what: &'static str, text: &str) -> Result<u32, AddressError> {
    text.parse().map_err(|source| AddressError::Number { what, text: text.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_that_hosts_write_are_read_and_written_back() {
        for text in ["vsock://-1:1024", "vsock://3:1", "unix:///run/agent.sock", "unix://@agent"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("vsock://-1:1024".parse(), Ok(Address::default()));
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        for text in
            ["", "1024", "vsock://1024", "vsock://a:1", "vsock://3:99999999999", "unix://", "unix://@"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        assert!(format!("unix:///{}", "x".repeat(120)).parse::<Address>().is_err());
    }

    #[test]
    fn what_is_no_call_has_a_socket_of_its_own() {
        let beside = |text: &str| text.parse::<Address>().unwrap().beside("stdio", 1027).to_string();
        assert_eq!(beside("vsock://-1:1024"), "vsock://-1:1027");
        assert_eq!(beside("unix:///run/a.sock"), "unix:///run/a.sock.stdio");
        assert_eq!(beside("unix://@a"), "unix://@a.stdio");
    }
}
