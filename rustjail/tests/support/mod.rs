//! Bundles with a busybox root file system, and what a process saw in them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(dead_code, reason = "each test program uses a part")]

pub mod agent;
pub mod race;

use std::{
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use serde_json::{Value, json};

/// Where the tests take their one program from (Debian's busybox-static).
const BUSYBOX: &str = "/bin/busybox";

const APPLETS: &[&str] = &[
    "sh", "cat", "ls", "id", "true", "false", "sleep", "stat", "readlink", "grep", "hostname", "mount",
    "touch", "env", "pwd", "ulimit", "tty", "stty", "mkdir", "wc", "cut", "head", "tail", "uname", "ionice",
    "sort", "awk", "tr", "ip", "taskset", "rm", "ln",
];

/// A directory with a `config.json` and a `rootfs`, removed when dropped.
pub struct Bundle {
    pub path: PathBuf,
    /// What `config.json` will hold.
    pub spec: Value,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Bundle {
    /// A container that runs `script` in a shell, with the usual mounts.
    pub fn new(script: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rustjail-test-{}-{number}", std::process::id()));
        let rootfs = path.join("rootfs");
        for directory in ["bin", "etc", "proc", "sys", "dev", "tmp"] {
            fs::create_dir_all(rootfs.join(directory)).unwrap();
        }
        fs::copy(BUSYBOX, rootfs.join("bin/busybox")).expect("busybox-static is installed");
        for applet in APPLETS {
            symlink("busybox", rootfs.join("bin").join(applet)).unwrap();
        }
        fs::write(rootfs.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nweb:x:33:33::/tmp:/bin/sh\n")
            .unwrap();
        Self { path, spec: spec(script) }
    }

    pub fn rootfs(&self) -> PathBuf {
        self.path.join("rootfs")
    }

    /// Changes the value at `pointer` (RFC 6901); `-` at its end appends to a list.
    pub fn set(&mut self, pointer: &str, value: Value) -> &mut Self {
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        match self.spec.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent} in the spec")) {
            Value::Object(object) => {
                object.insert(name.to_owned(), value);
            }
            Value::Array(list) => list.push(value),
            other => panic!("{parent} is {other}"),
        }
        self
    }

    /// Puts the container into a user namespace, where it is root of a file system that is its own.
    pub fn in_user_namespace(&mut self) -> &mut Self {
        let map = json!([{"containerID": 0, "hostID": OUTSIDE, "size": 65536}]);
        self.set("/linux/namespaces/-", json!({"type": "user"}));
        self.set("/linux/uidMappings", map.clone()).set("/linux/gidMappings", map);
        give_to_outside(&self.rootfs());
        self
    }

    /// Creates and starts the container and waits for its end.
    pub fn run(&self) -> Outcome {
        self.launch(&[])
    }

    /// Runs `process` in the container, whose init only waits.
    pub fn exec(&mut self, process: Value) -> Outcome {
        self.exec_all(&[process])
    }

    /// The same with several, one after the other; the last one's end is the outcome's.
    pub fn exec_all(&mut self, processes: &[Value]) -> Outcome {
        let files = self.write_processes(processes);
        self.launch(&files)
    }

    fn write_processes(&mut self, processes: &[Value]) -> Vec<PathBuf> {
        self.set("/process/args", json!(["sleep", "86400"]));
        let write = |(number, process): (usize, &Value)| {
            let path = self.path.join(format!("exec{number}.json"));
            fs::write(&path, process.to_string()).unwrap();
            path
        };
        processes.iter().enumerate().map(write).collect()
    }

    /// Like [`Bundle::run`], after the shell commands `before` in a network and mount namespace of this test's.
    pub fn run_after(&self, before: &str) -> Outcome {
        let launcher = env!("CARGO_BIN_EXE_rustjail-test-launcher");
        let script = format!("set -e; {before}; exec {launcher} {}", self.path.display());
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--propagation", "slave", "sh", "-c", &script]);
        self.finish(command)
    }

    /// Leaves out the namespaces that most of a container's cost lies in.
    pub fn without_costly_namespaces(&mut self) -> &mut Self {
        self.spec.as_object_mut().unwrap().remove("hostname");
        self.set("/linux/namespaces", json!([{"type": "mount"}, {"type": "pid"}]))
    }

    /// Runs the container until [`launches`] were made, of which it holds `each`: how many programs were run, all of
    /// them to exit status 0, and how many containers were refused.
    #[track_caller]
    pub fn run_often(&self, each: u32) -> (u32, u32) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rustjail-test-launcher"));
        command.args(["--tries", &launches().to_string(), "--each", &each.to_string()]).arg(&self.path);
        let begun = std::time::Instant::now();
        let outcome = self.finish(command);
        let counts = outcome.text().lines().last().unwrap().split_once(' ').unwrap();
        let (ran, refused) = (counts.0.parse().unwrap(), counts.1.parse().unwrap());
        assert!(ran * each + refused >= launches());
        let took = begun.elapsed().as_secs();
        eprintln!("{} tries: {ran} ran with {each} each, {refused} refused, {took} s", ran * each + refused);
        (ran, refused)
    }

    /// Runs `first` in the container, and then `process` as often as races are tried, by a runtime without
    /// CAP_SYS_PTRACE.
    #[track_caller]
    pub fn exec_often(&mut self, first: &Value, process: &Value) {
        let tries = race::tries(500).to_string();
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-sys_ptrace", env!("CARGO_BIN_EXE_rustjail-test-launcher")]);
        command.args(["--tries", &tries, "--each", "1"]);
        command.arg(&self.path).args(self.write_processes(&[first.clone(), process.clone()]));
        let begun = std::time::Instant::now();
        self.finish(command).text();
        eprintln!("{tries} tries, {} s", begun.elapsed().as_secs());
    }

    /// Begins to run the container.
    pub fn spawn(&self) -> Child {
        fs::write(self.path.join("config.json"), self.spec.to_string()).unwrap();
        Command::new(env!("CARGO_BIN_EXE_rustjail-test-launcher")).arg(&self.path).spawn().unwrap()
    }

    fn launch(&self, more: &[PathBuf]) -> Outcome {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rustjail-test-launcher"));
        command.arg(&self.path).args(more);
        self.finish(command)
    }

    fn finish(&self, mut command: Command) -> Outcome {
        fs::write(self.path.join("config.json"), self.spec.to_string()).unwrap();
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"input\n").ok();
        let output = child.wait_with_output().unwrap();
        Outcome {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8_lossy(&output.stdout).trim_end().to_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
        }
    }
}

/// How often a race is tried with a whole container.
pub fn launches() -> u32 {
    race::tries(1200) / 20
}

/// Root of the user namespaces of these tests, as the machine knows it.
pub const OUTSIDE: u32 = 100_000;

pub fn give_to_outside(path: &Path) {
    std::os::unix::fs::lchown(path, Some(OUTSIDE), Some(OUTSIDE)).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| give_to_outside(&entry.unwrap().path()));
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

impl Outcome {
    /// Its output, if it succeeded.
    #[track_caller]
    pub fn text(&self) -> &str {
        assert_eq!(self.code, 0, "{self:?}");
        &self.stdout
    }

    /// Its error text, if the process was never run.
    #[track_caller]
    pub fn refusal(&self) -> &str {
        assert_eq!(self.code, 125, "{self:?}");
        &self.stderr
    }
}

/// A process that runs `script` with few privileges.
pub fn process(script: &str) -> Value {
    let caps = json!(["CAP_KILL", "CAP_NET_BIND_SERVICE"]);
    json!({
        "user": {"uid": 0, "gid": 0},
        "args": ["sh", "-c", script],
        "env": ["PATH=/bin", "LANG=C"],
        "cwd": "/",
        "noNewPrivileges": true,
        "capabilities": {"bounding": caps, "effective": caps, "permitted": caps},
    })
}

/// The mounts most containers have.
pub fn mounts() -> Value {
    json!([
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
         "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
        {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
         "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
         "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]},
        {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue",
         "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs",
         "options": ["nosuid", "noexec", "nodev", "ro"]},
    ])
}

fn spec(script: &str) -> Value {
    let kinds = ["pid", "ipc", "uts", "mount", "network", "cgroup"];
    json!({
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs"},
        "hostname": "jail",
        "process": process(script),
        "mounts": mounts(),
        "linux": {
            "namespaces": kinds.map(|kind| json!({"type": kind})),
            "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    })
}

/// Reads a file of this machine.
pub fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}
