//! The host's side of a guest's vsock: the kernel's device when there is one, else the vhost-user daemon.
//!
//! Both give the guest the same device. With the kernel's, the guest has a context id of its own on the host and
//! dials AF_VSOCK; with the daemon, ports are Unix sockets (see [`crate::address`]) and the guest's dial to port P
//! arrives at `<socket>_P`.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::fd::AsFd,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use libc::VMADDR_PORT_ANY;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    net::{UnixListener, unix::pipe::Receiver},
    time::{sleep, timeout},
};
use tokio_vsock::{VMADDR_CID_ANY, VsockAddr, VsockListener};

use super::{
    Error, Stage, Tail,
    listening::listens,
    printable,
    process::{self, Process},
    workdir::WorkDir,
};
use crate::address::{Address, TTRPC_PORT};

/// The port the guest dials when its agent is ready; beside the agent's own 1024 to 1027.
const READY_PORT: u32 = 1028;
const DAEMON: &str = "vhost-device-vsock";
/// The daemon listens 20 ms after its start, 0.5 s on a busy host.
const PATIENCE: Duration = Duration::from_secs(10);
/// From a socket's bind(2) to its listen(2), with room.
const LISTENING: Duration = Duration::from_millis(1);
/// The notice is written at once after the dial.
const NOTICE: Duration = Duration::from_secs(1);
const NOTICE_MAX: u64 = 8 << 10;
/// Context ids up to 2 are taken by the protocol.
const FIRST_CID: u32 = 3;

/// A guest's vsock, before the guest.
#[derive(Debug)]
pub(super) struct HostVsock {
    /// How the agent will be reached.
    pub(super) address: Address,
    /// QEMU's arguments for the device.
    pub(super) device: Vec<String>,
    /// What the guest must dial.
    pub(super) ready_port: u32,
    /// The daemon, if that is what serves the device.
    pub(super) daemon: Option<Process>,
    ready: Ready,
}

#[derive(Debug)]
enum Ready {
    Unix(UnixListener),
    Vsock { listener: VsockListener, cid: u32 },
}

impl HostVsock {
    pub(super) async fn new(dir: &WorkDir, tether: Option<&std::path::Path>) -> Result<Self, Error> {
        // AF_VSOCK sockets bind and listen even where nothing can ever connect; only the vhost device tells.
        if OpenOptions::new().read(true).write(true).open("/dev/vhost-vsock").is_ok() {
            return Self::kernel()
                .map_err(|source| Error::Io { action: "listen on AF_VSOCK".into(), source });
        }
        Self::daemon(dir, tether).await
    }

    fn kernel() -> io::Result<Self> {
        let listener = VsockListener::bind(VsockAddr::new(VMADDR_CID_ANY, VMADDR_PORT_ANY))?;
        let ready_port = listener.local_addr()?.port();
        // Ids must differ between the VMs of a host, which nobody hands out: QEMU fails on one that is taken.
        let mut random = [0; 3];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let cid = FIRST_CID + random.into_iter().fold(0, |cid, byte| cid << 8 | u32::from(byte));
        Ok(Self {
            address: Address::Vsock { cid, port: TTRPC_PORT },
            device: vec!["-device".into(), format!("vhost-vsock-pci,guest-cid={cid}")],
            ready_port,
            daemon: None,
            ready: Ready::Vsock { listener, cid },
        })
    }

    async fn daemon(dir: &WorkDir, tether: Option<&std::path::Path>) -> Result<Self, Error> {
        let program = process::find(DAEMON).ok_or(Error::NoProgram {
            program: DAEMON,
            install: "get it with `cargo install --locked vhost-device-vsock`, or `modprobe vhost_vsock` if the host's kernel has that",
        })?;
        let socket = dir.join("vsock");
        let ready_path = dir.join(&format!("vsock_{READY_PORT}"));
        let failed = |action: &str, path: &PathBuf, source| Error::Io {
            action: format!("{action} {}", path.display()),
            source,
        };
        let ready =
            UnixListener::bind(&ready_path).map_err(|source| failed("listen at", &ready_path, source))?;

        let vhost = dir.join("vhost.sock");
        let mut watch = Watch::new(dir).map_err(|source| failed("watch", &vhost, source))?;
        let mut command = Command::new(&program);
        let vm = format!("guest-cid={FIRST_CID},socket={},uds-path={}", vhost.display(), socket.display());
        command.args(["--vm", &vm]);
        let daemon = Process::spawn(&command, dir.join("vsock.log"), tether);
        let mut daemon = daemon.map_err(|source| failed("start", &program, source))?;
        let listening = async {
            while !(vhost.exists() && socket.exists()) {
                watch.changed().await?;
            }
            // Nothing tells of a listen(2), which follows at once.
            while !(listens(&vhost)? && listens(&socket)?) {
                sleep(LISTENING).await;
            }
            Ok::<_, io::Error>(())
        };
        tokio::select! {
            listening = timeout(PATIENCE, listening) => {
                let late = |_| Err(io::ErrorKind::TimedOut.into());
                listening.unwrap_or_else(late).map_err(|source| failed("wait for", &vhost, source))?;
            }
            status = daemon.exited() => {
                let status = status.map_err(|source| failed("wait for", &program, source))?;
                return Err(Error::Helper { program: DAEMON, status, output: Tail::of("its output", daemon.log()) });
            }
        }
        Ok(Self {
            address: Address::Hybrid { path: socket, port: TTRPC_PORT },
            device: vec![
                "-chardev".into(),
                format!("socket,id=vsock,path={}", vhost.display()),
                "-device".into(),
                "vhost-user-vsock-pci,chardev=vsock".into(),
            ],
            ready_port: READY_PORT,
            daemon: Some(daemon),
            ready: Ready::Unix(ready),
        })
    }

    /// Waits for the guest's dial, which alone means that its agent serves; gives what the guest says about its boot.
    pub(super) async fn ready(&self) -> io::Result<Vec<Stage>> {
        match &self.ready {
            Ready::Unix(listener) => Ok(stages(listener.accept().await?.0).await),
            // Any guest of this host can dial any port.
            Ready::Vsock { listener, cid } => loop {
                let (stream, peer) = listener.accept().await?;
                if peer.cid() == *cid {
                    return Ok(stages(stream).await);
                }
            },
        }
    }
}

/// The notice is one line, `{"event": "serving", "stages": [{"name": "mounts", "ns": 123}, ...]}`; none is no fault.
async fn stages(notice: impl AsyncRead + Unpin) -> Vec<Stage> {
    let mut line = String::new();
    let mut notice = BufReader::new(notice).take(NOTICE_MAX);
    if !matches!(timeout(NOTICE, notice.read_line(&mut line)).await, Ok(Ok(_))) {
        return Vec::new();
    }
    let notice: Value = serde_json::from_str(&line).unwrap_or_default();
    let stage = |stage: &Value| {
        let since_boot = Duration::from_nanos(stage.get("ns")?.as_u64()?);
        Some(Stage { name: printable(stage.get("name")?.as_str()?), since_boot })
    };
    notice.get("stages").and_then(Value::as_array).into_iter().flatten().filter_map(stage).collect()
}

/// Tells when something appears in a directory.
struct Watch(Receiver);

impl Watch {
    fn new(dir: &WorkDir) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        inotify.add_watch(dir.path(), AddWatchFlags::IN_CREATE)?;
        // Not a pipe, but readable and read like one; what the events say is looked up in the directory itself.
        Ok(Self(Receiver::from_owned_fd_unchecked(inotify.as_fd().try_clone_to_owned()?)?))
    }

    async fn changed(&mut self) -> io::Result<()> {
        self.0.read(&mut [0; 4096]).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Stage, stages};

    #[tokio::test]
    async fn a_notice_is_read_and_nonsense_is_no_fault() {
        let line = br#"{"event": "serving", "stages": [{"name": "mounts\u001b", "ns": 5000000}, {"name": 7}, {"name": "x"}]}"#;
        let expected = [Stage { name: "mounts".into(), since_boot: Duration::from_millis(5) }];
        assert_eq!(stages(&[line, b"\nmore".as_slice()].concat()[..]).await, expected);
        for nothing in [&b""[..], b"READY\n", b"{}", b"\xff\n", b"{\"stages\": 1}"] {
            assert_eq!(stages(nothing).await, []);
        }
    }
}
