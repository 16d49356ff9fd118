//! Container configurations as a host sends them.

use berth_protocols::{agent::CreateContainerRequest, oci};
use protobuf::MessageField;

const CAPABILITIES: [&str; 6] =
    ["CAP_KILL", "CAP_CHOWN", "CAP_SETUID", "CAP_SETGID", "CAP_MKNOD", "CAP_NET_BIND_SERVICE"];

/// A CreateContainer request in the making; its fields are the wire's and may be changed freely.
#[derive(Debug, Clone)]
pub struct Container {
    /// What will be sent.
    pub request: CreateContainerRequest,
}

impl Container {
    /// The default container: new namespaces, the usual mounts, `args` as root.
    pub fn new(id: &str, rootfs: &str, args: &[&str]) -> Self {
        let mut spec = oci::Spec::new();
        spec.Version = "1.2.0".into();
        spec.Process = MessageField::some(process(args));
        spec.Root = MessageField::some(oci::Root { Path: rootfs.into(), ..Default::default() });
        spec.Mounts = mounts();
        spec.Linux = MessageField::some(linux());
        let request = CreateContainerRequest {
            container_id: id.into(),
            exec_id: id.into(),
            OCI: MessageField::some(spec),
            ..Default::default()
        };
        Self { request }
    }

    /// The configuration, to be changed in place.
    pub fn spec(&mut self) -> &mut oci::Spec {
        self.request.OCI.mut_or_insert_default()
    }

    /// The init's process, to be changed in place.
    pub fn process(&mut self) -> &mut oci::Process {
        self.spec().Process.mut_or_insert_default()
    }

    /// The Linux section, to be changed in place.
    pub fn linux(&mut self) -> &mut oci::Linux {
        self.spec().Linux.mut_or_insert_default()
    }

    /// With a terminal of 24 by 80.
    pub fn terminal(mut self) -> Self {
        self.process().Terminal = true;
        self.process().ConsoleSize =
            MessageField::some(oci::Box { Height: 24, Width: 80, ..Default::default() });
        self
    }

    /// In the sandbox's shared PID namespace.
    pub fn shared_pidns(mut self) -> Self {
        self.request.sandbox_pidns = true;
        self
    }
}

/// A process as root in `/` with a plain environment and a few capabilities.
pub fn process(args: &[&str]) -> oci::Process {
    let names: Vec<String> = CAPABILITIES.map(String::from).to_vec();
    oci::Process {
        Args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        Env: vec!["PATH=/bin:/sbin:/usr/bin".into(), "TERM=xterm".into()],
        Cwd: "/".into(),
        User: MessageField::some(oci::User::new()),
        NoNewPrivileges: true,
        Capabilities: MessageField::some(oci::LinuxCapabilities {
            Bounding: names.clone(),
            Effective: names.clone(),
            Permitted: names,
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn mounts() -> Vec<oci::Mount> {
    let mount = |destination: &str, kind: &str, options: &[&str]| oci::Mount {
        destination: destination.into(),
        source: kind.into(),
        type_: kind.into(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
        ..Default::default()
    };
    vec![
        mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
        mount("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
        mount("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
    ]
}

fn linux() -> oci::Linux {
    let namespace = |kind: &str| oci::LinuxNamespace { Type: kind.into(), ..Default::default() };
    oci::Linux {
        Namespaces: ["mount", "pid", "ipc", "uts"].map(namespace).to_vec(),
        MaskedPaths: ["/proc/kcore", "/proc/keys", "/proc/scsi", "/sys/firmware"].map(String::from).to_vec(),
        ReadonlyPaths: ["/proc/sys", "/proc/irq", "/proc/bus"].map(String::from).to_vec(),
        ..Default::default()
    }
}
