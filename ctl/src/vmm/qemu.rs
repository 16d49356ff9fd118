//! QEMU as the VMM, with an x86-64 guest on q35.
//!
//! The arguments are the ones under which 100 of 100 boots took 1.5 s of emulation. `-cx16` hides an instruction that
//! QEMU 7.2 emulates wrongly for kernels since 6.12 (3 of 19 boots corrupted memory). All emulated CPUs share a thread:
//! with one each, QEMU 7.2 may keep running code of which another CPU has just rewritten a byte, as Linux does
//! with its static keys (2 of 12 guests hung when they made their first container). KVM is tried before it is
//! trusted: on a host whose own virtualization is a shadow of the real thing /dev/kvm exists, and a guest crawls, or
//! QEMU gives up because KVM does not do what it says it can.

use std::{
    fs::{self, OpenOptions},
    io,
    path::Path,
    process::Command,
    time::Duration,
};

use tokio::{
    net::UnixListener,
    time::{sleep, timeout},
};

use super::{
    Accel, Error, Machine, Nic, Notice, Room, Running, Stage, Tail, Vmm,
    process::{self, Process},
    qmp::Qmp,
    vsock::HostVsock,
    workdir::WorkDir,
};

/// The guest's console, in the machine's directory.
pub(super) const SERIAL: &str = "serial.log";
/// More than anybody plugs in.
const MEMORY_SLOTS: u32 = 8;
/// The PCI slot of the first port: those below are for what the machine boots with.
const FIRST_PORT: u32 = 0x10;
const PROGRAM: &str = "qemu-system-x86_64";
const NAME: &str = "QEMU";
/// From the end of a VMM's connections to its own.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// With real hardware a guest is ready in well under a second; one that has not printed a byte by now never will.
const KVM_PATIENCE: Duration = Duration::from_secs(5);

/// Console and a fast boot: the self-tests and the probing of devices that are not there cost 0.4 s of 1.9.
const KERNEL_ARGUMENTS: [&str; 11] = [
    "console=ttyS0",
    "panic=-1",
    "quiet",
    "mitigations=off",
    "cryptomgr.notests",
    "8250.nr_uarts=1",
    "i8042.noaux",
    "i8042.nomux",
    "i8042.nopnp",
    "i8042.dumbkbd",
    "random.trust_cpu=on",
];

/// The kernel counts the timer's first ticks against its own clock and panics ("IO-APIC + timer doesn't work") when
/// too few came, as on a loaded host that emulates both.
const UNTIMED: &str = "no_timer_check";

/// The QEMU of this host.
#[derive(Debug, Clone, Copy, Default)]
pub struct Qemu;

impl Vmm for Qemu {
    async fn boot(&self, machine: &Machine, notice: &dyn Fn(Notice)) -> Result<Running, Error> {
        let reason = match machine.accel {
            Accel::Tcg => return attempt(machine, Accel::Tcg).await,
            Accel::Kvm => match kvm() {
                Ok(()) => return attempt(machine, Accel::Kvm).await,
                Err(reason) => return Err(Error::NoKvm { reason }),
            },
            Accel::Auto => match kvm() {
                Err(reason) => reason,
                Ok(()) => match attempt(machine, Accel::Auto).await {
                    Err(Error::Silent { .. }) => {
                        "KVM is here, but the guest gave no sign of life under it".to_owned()
                    }
                    Err(Error::Ended { ending, .. }) => {
                        format!("KVM is here, but under it the guest {ending}")
                    }
                    Err(Error::Helper { program: NAME, status, output }) => {
                        let word = output.last().map(|line| format!(": {line}")).unwrap_or_default();
                        format!("KVM is here, but QEMU ended under it with {status}{word}")
                    }
                    booted => return booted,
                },
            },
        };
        notice(Notice::Emulation { reason });
        attempt(machine, Accel::Tcg).await
    }
}

fn kvm() -> Result<(), String> {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    opened.map(drop).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "there is no /dev/kvm".to_owned(),
        io::ErrorKind::PermissionDenied => "/dev/kvm belongs to a group you are not in".to_owned(),
        _ => format!("/dev/kvm: {error}"),
    })
}

/// One boot; [`Accel::Auto`] is KVM on probation.
async fn attempt(machine: &Machine, accel: Accel) -> Result<Running, Error> {
    for (what, path) in [("kernel", &machine.kernel), ("initrd", &machine.initrd)] {
        if !path.exists() {
            return Err(Error::NoImage { what, path: path.clone() });
        }
    }
    let program = process::find(PROGRAM).ok_or(Error::NoProgram {
        program: PROGRAM,
        install: "install the package qemu-system-x86 (Debian, Ubuntu), qemu-system-x86-core (Fedora) or qemu-system-x86_64 (Alpine)",
    })?;
    let failed = |action: &str, source| Error::Io { action: action.to_owned(), source };
    let dir = WorkDir::new().map_err(|source| failed("make a directory for the VM", source))?;
    let tether = machine.tether.as_deref();
    let mut vsock = HostVsock::new(&dir, tether).await?;
    let control =
        UnixListener::bind(dir.join("qmp.sock")).map_err(|source| failed("listen for QEMU", source))?;

    let command = command(&program, machine, accel, &vsock, &dir);
    let mut vmm = Process::spawn(&command, dir.join("vmm.log"), tether)
        .map_err(|source| failed("start QEMU", source))?;
    let qmp = connection(&control, &mut vmm).await?;
    let actual = if accel == Accel::Tcg { Accel::Tcg } else { Accel::Kvm };
    let daemon = vsock.daemon.take();
    let address = vsock.address.clone();
    let mut running = Running { address, accel: actual, stages: Vec::new(), vmm, _vsock: daemon, qmp, dir };
    running.stages = ready(&mut running, &vsock, machine.patience, accel == Accel::Auto).await?;
    Ok(running)
}

/// QEMU's control connection; a QEMU that ended meanwhile is told by its own words.
async fn connection(control: &UnixListener, vmm: &mut Process) -> Result<Qmp, Error> {
    let lost = tokio::select! {
        qmp = Qmp::accept(control) => match qmp {
            Ok(qmp) => return Ok(qmp),
            Err(source) => Error::Io { action: "talk to QEMU".into(), source },
        },
        () = wait_for(vmm) => return Err(died(vmm).await),
    };
    // The connection of one that dies ends before the process does.
    match timeout(LAST_WORDS, wait_for(vmm)).await {
        Ok(()) => Err(died(vmm).await),
        Err(_) => Err(lost),
    }
}

async fn wait_for(vmm: &mut Process) {
    let _told_again = vmm.exited().await;
}

async fn died(vmm: &mut Process) -> Error {
    match vmm.exited().await {
        Ok(status) => Error::Helper { program: NAME, status, output: Tail::of("its output", vmm.log()) },
        Err(source) => Error::Io { action: "wait for QEMU".into(), source },
    }
}

async fn ready(
    running: &mut Running,
    vsock: &HostVsock,
    patience: Duration,
    probation: bool,
) -> Result<Vec<Stage>, Error> {
    let serial = running.dir.join(SERIAL);
    let lifeless = async {
        if probation {
            sleep(KVM_PATIENCE).await;
            if fs::metadata(&serial).map_or(0, |serial| serial.len()) == 0 {
                return;
            }
        }
        std::future::pending().await
    };
    let waited = tokio::select! {
        dialled = timeout(patience, vsock.ready()) => dialled.map_err(|_| patience),
        () = lifeless => Err(KVM_PATIENCE),
        ending = running.ended() => {
            // The console's last bytes are written while the VMM ends.
            let _ = timeout(LAST_WORDS, running.vmm.exited()).await;
            return Err(Error::Ended { ending, console: running.console(), output: running.output() });
        }
    };
    match waited {
        Ok(dialled) => dialled.map_err(|source| Error::Io { action: "wait for the guest".into(), source }),
        Err(patience) => {
            Err(Error::Silent { patience, console: running.console(), output: running.output() })
        }
    }
}

fn command(program: &Path, machine: &Machine, accel: Accel, vsock: &HostVsock, dir: &WorkDir) -> Command {
    let Machine { kernel, initrd, memory, cpus, network, append, room, .. } = machine;
    let emulated = accel == Accel::Tcg;
    let (accel, cpu) = match accel {
        Accel::Tcg => ("tcg,thread=single", "qemu64,-cx16,+rdrand"),
        Accel::Auto | Accel::Kvm => ("kvm", "host"),
    };
    let mut arguments = KERNEL_ARGUMENTS.map(str::to_owned).to_vec();
    if emulated {
        arguments.push(UNTIMED.to_owned());
    }
    arguments.push(format!("berth.ready_port={}", vsock.ready_port));
    arguments.extend(append.iter().cloned());

    let mut command = Command::new(program);
    command
        .args(["-accel", accel, "-cpu", cpu])
        .args([
            "-m",
            &memory_argument(*memory, room),
            "-smp",
            &format!("{cpus},maxcpus={}", room.cpus.max(*cpus)),
        ])
        // Shared, because the vsock daemon reads the guest's queues in place.
        .args(["-object", &format!("memory-backend-memfd,id=memory,size={memory}M,share=on")])
        .args([
            "-machine",
            &format!("q35,hpet=off,memory-backend=memory{}", if room.memory > 0 { ",nvdimm=on" } else { "" }),
        ])
        .args(["-display", "none", "-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-serial", &format!("file:{}", dir.join(SERIAL).display())])
        .args(["-chardev", &format!("socket,id=qmp,path={}", dir.join("qmp.sock").display())])
        .args(["-mon", "chardev=qmp,mode=control", "-device", "pvpanic-pci"])
        .args(&vsock.device)
        .args((0..room.ports).flat_map(port))
        .args(&room.arguments)
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initrd)
        .args(["-append", &arguments.join(" ")]);
    for (n, Nic { mac, network }) in network.iter().enumerate() {
        // Restricted: the guest reaches the VMM, and through it nothing else.
        command.args(["-netdev", &format!("user,id=net{n},net={network},restrict=on")]);
        command.args(["-device", &format!("virtio-net-pci,netdev=net{n},mac={mac}")]);
    }
    command
}

fn memory_argument(memory: u32, room: &Room) -> String {
    match room.memory {
        0 => format!("{memory}M"),
        most => format!("{memory}M,slots={MEMORY_SLOTS},maxmem={}M", most.max(memory)),
    }
}

/// A port that takes one device.
fn port(number: u8) -> [String; 2] {
    let device = format!(
        "pcie-root-port,id=port{number},chassis={},addr={:#x}",
        u32::from(number) + 1,
        FIRST_PORT + u32::from(number)
    );
    ["-device".to_owned(), device]
}
