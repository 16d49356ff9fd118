//! A root file system with Debian's systemd in it, and the container that is run by it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use berth::{Container, Rootfs};
use berth_protocols::oci;

/// Boots what is there with a target that wants nothing but the tests, whose output goes to whoever reads it.
const BOOT: &str = r#"
set -e
mkdir -p /run/systemd/system
cd /run/systemd/system
cat > bare.target <<END
[Unit]
DefaultDependencies=no
Wants=test.service
END
cat > test.service <<END
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/bin/sh -c "cgroup_v2 guest_systemd:: --ignored --test-threads=1 --nocapture >/result 2>&1"
END
mkfifo /result 2>/dev/null || true
export container=oci
exec /lib/systemd/systemd --system --unit=bare.target --log-target=null
"#;

/// What the container of [`crate::guest_systemd`] has on its screen, and what is asked of its group.
const CONFIG: &str = r#"{"ociVersion": "1.2.0", "root": {"path": "/bundle/rootfs"},
  "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/sh", "-c", "cat /proc/self/cgroup; cd /sys/fs/cgroup;
    cat cpu.max cpuset.cpus memory.max memory.swap.max memory.low pids.max;
    mknod /tmp/kmsg c 1 11; (: </tmp/kmsg) 2>/dev/null || echo refused"], "env": ["PATH=/bin"],
    "capabilities": {"bounding": ["CAP_MKNOD"], "effective": ["CAP_MKNOD"], "permitted": ["CAP_MKNOD"]}},
  "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
    {"destination": "/sys/fs/cgroup", "type": "cgroup2", "source": "cgroup", "options": ["ro"]}],
  "linux": {"cgroupsPath": "pods-green.slice:berth:command", "resources": @RESOURCES@,
    "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "cgroup"}]}}"#;

/// Puts systemd, its libraries, the command `rustjail` and a bundle for it into `rootfs`.
pub fn install(rootfs: &Rootfs, resources: &str) {
    let programs = ["/lib/systemd/systemd", "/bin/systemctl"].map(PathBuf::from);
    let needed: BTreeSet<PathBuf> = programs.iter().flat_map(|program| libraries(program)).collect();
    for file in programs.iter().chain(&needed) {
        let place = rootfs.path().join(file.strip_prefix("/").unwrap());
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(file, &place)
            .unwrap_or_else(|error| panic!("{} (package systemd): {error}", file.display()));
    }
    fs::copy(berth::rustjail_binary(), rootfs.path().join("bin/rustjail")).unwrap();
    let inner = rootfs.path().join("bundle/rootfs");
    for directory in ["bin", "proc", "sys/fs/cgroup", "tmp"] {
        fs::create_dir_all(inner.join(directory)).unwrap();
    }
    for applet in ["sh", "cat", "mknod"] {
        std::os::unix::fs::symlink("busybox", inner.join("bin").join(applet)).unwrap();
    }
    fs::hard_link(rootfs.path().join("bin/busybox"), inner.join("bin/busybox")).unwrap();
    let config = CONFIG.replace("@RESOURCES@", resources).replace(";\n", "; ");
    fs::write(rootfs.path().join("bundle/config.json"), config).unwrap();
}

/// Everything the dynamic linker says it would map.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().expect("ldd");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "ldd {} (package systemd): {text}", program.display());
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    text.lines().filter_map(path).collect()
}

/// systemd as the first process of `container`.
pub fn boot(container: &mut Container) {
    container.process().Args = ["sh", "-c", BOOT].map(String::from).to_vec();
    for place in ["/run", "/tmp"] {
        container.spec().Mounts.push(oci::Mount {
            destination: place.into(),
            source: "tmpfs".into(),
            type_: "tmpfs".into(),
            options: vec!["nosuid".into(), "nodev".into()],
            ..Default::default()
        });
    }
}
