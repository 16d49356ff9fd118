//! The sockets that hosts connect to, opened before anything that could fail and kept until the end: while a worker
//! restarts, connections wait in the backlog instead of being refused.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{FileTypeExt, PermissionsExt},
    },
    path::Path,
    sync::Arc,
};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrLike, UnixAddr, VsockAddr, bind, connect, listen,
    socket,
};

use crate::{address::Address, link::ListenerKind};

/// An open listening socket.
#[derive(Debug, Clone)]
pub struct Listener {
    /// What it is for.
    pub kind: ListenerKind,
    /// Shared with the messages that carry it to workers.
    pub socket: Arc<OwnedFd>,
    address: Address,
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody is there.
    #[error("cannot listen on {0}: another process does")]
    Taken(Address),
    /// The kernel refused.
    #[error("cannot listen on {address}: {action}: {source}")]
    Call {
        /// Where.
        address: Address,
        /// The call.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl Listener {
    /// Listens at `address`.
    pub fn open(kind: ListenerKind, address: Address) -> Result<Self, ListenError> {
        let socket = match &address {
            Address::Vsock { cid, port } => {
                listening(&address, AddressFamily::Vsock, &VsockAddr::new(*cid, *port))
            }
            Address::Abstract(name) => match UnixAddr::new_abstract(name.as_bytes()) {
                Ok(name) => listening(&address, AddressFamily::Unix, &name),
                Err(errno) => Err(failed(&address, "socket name", errno)),
            },
            Address::Unix(path) => unix(&address, path),
        }?;
        Ok(Self { kind, socket: Arc::new(socket), address })
    }

    /// Removes what the socket leaves in the file system.
    pub fn remove_file(&self) {
        if let Address::Unix(path) = &self.address {
            // At the end of the process there is nobody to tell.
            let _ = fs::remove_file(path);
        }
    }
}

fn unix(address: &Address, path: &Path) -> Result<OwnedFd, ListenError> {
    let name = UnixAddr::new(path).map_err(|errno| failed(address, "socket name", errno))?;
    if path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket()) {
        if someone_listens(&name) {
            return Err(ListenError::Taken(address.clone()));
        }
        let left_over = |source| ListenError::Call { address: address.clone(), action: "remove", source };
        fs::remove_file(path).map_err(left_over)?;
    }
    let socket = bound(address, AddressFamily::Unix, &name)?;
    // Until listen() nobody can connect, so there is no instant at which others could.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(|source| ListenError::Call {
        address: address.clone(),
        action: "chmod",
        source,
    })?;
    open_up(address, socket)
}

/// A connection that would have to wait (EAGAIN) means yes as well.
fn someone_listens(name: &UnixAddr) -> bool {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None);
    probe.and_then(|probe| connect(probe.as_raw_fd(), name)) != Err(nix::Error::ECONNREFUSED)
}

fn listening(
    address: &Address,
    family: AddressFamily,
    name: &dyn SockaddrLike,
) -> Result<OwnedFd, ListenError> {
    open_up(address, bound(address, family, name)?)
}

fn bound(address: &Address, family: AddressFamily, name: &dyn SockaddrLike) -> Result<OwnedFd, ListenError> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket =
        socket(family, SockType::Stream, flags, None).map_err(|errno| failed(address, "socket", errno))?;
    bind(socket.as_raw_fd(), name).map_err(|errno| failed(address, "bind", errno))?;
    Ok(socket)
}

fn open_up(address: &Address, socket: OwnedFd) -> Result<OwnedFd, ListenError> {
    listen(&socket, Backlog::MAXCONN).map_err(|errno| failed(address, "listen", errno))?;
    Ok(socket)
}

fn failed(address: &Address, action: &'static str, errno: nix::Error) -> ListenError {
    ListenError::Call { address: address.clone(), action, source: errno.into() }
}
