//! What a real systemd runs in a guest with cgroup2 alone, of which it owns a part with every controller: what the
//! manager tells it is in the kernel's files, and stays there when systemd looks at its units anew.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
};

use oci_spec::runtime::LinuxResources;
use rustjail::cgroup::{
    Cgroup, Hierarchies,
    systemd::{Systemd, Unit},
};

const ROOT: &str = "/sys/fs/cgroup";
const BUNDLE: &str = "/bundle";

/// A scope with a process, both gone when it is dropped.
struct Scope {
    systemd: Systemd,
    unit: Unit,
    group: Cgroup,
    sleeper: Child,
    dir: PathBuf,
}

impl Scope {
    /// As an agent or the command makes one: the unit, then the rest of its limits in the group itself.
    fn new(name: &str, resources: &str) -> Self {
        let hierarchies = Hierarchies::detect().unwrap();
        let mut systemd = Systemd::connect(&hierarchies).unwrap();
        let unit = Unit::parse(Some(name.as_ref()), "unused").unwrap();
        let sleeper = Command::new("sleep").arg("1000").spawn().unwrap();
        let resources = parsed(resources);
        systemd.start(&unit, Some(sleeper.id()), Some(&resources)).unwrap();
        let group = Cgroup::adopt(&hierarchies, &unit.path().unwrap(), Some(&resources)).unwrap();
        let dir = PathBuf::from(format!("{ROOT}{}", unit.path().unwrap()));
        Self { systemd, unit, group, sleeper, dir }
    }

    fn update(&mut self, resources: &str) {
        let resources = parsed(resources);
        self.systemd.update(&self.unit, &resources).unwrap();
        self.group.update(&resources).unwrap();
    }

    #[track_caller]
    fn holds(&self, files: &[(&str, &str)]) {
        for (file, expected) in files {
            assert_eq!(content(&self.dir.join(file)), *expected, "{file}");
        }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.sleeper.kill().unwrap();
        self.sleeper.wait().unwrap();
        self.systemd.stop(&self.unit).unwrap();
        assert!(!self.dir.exists());
    }
}

fn parsed(resources: &str) -> LinuxResources {
    serde_json::from_str(resources).unwrap()
}

fn content(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.trim().to_owned()
}

fn reload() {
    let output = Command::new("/bin/systemctl").arg("daemon-reload").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

pub const LIMITS: &str = r#"{"cpu": {"shares": 2048, "quota": 25000, "period": 50000, "burst": 10000, "cpus": "0", "mems": "0"},
    "memory": {"limit": 67108864, "swap": 100663296, "reservation": 33554432}, "pids": {"limit": 77},
    "unified": {"memory.high": "50331648", "memory.oom.group": "1", "cgroup.max.descendants": "3"}}"#;
const FILES: [(&str, &str); 10] = [
    ("cpu.max", "25000 50000"),
    ("cpu.max.burst", "10000"),
    ("cpuset.cpus", "0"),
    ("cpuset.mems", "0"),
    ("memory.max", "67108864"),
    ("memory.swap.max", "33554432"),
    ("memory.low", "33554432"),
    ("memory.high", "50331648"),
    ("pids.max", "77"),
    ("cgroup.max.descendants", "3"),
];

#[test]
#[ignore = "runs in the guest"]
fn limits_of_a_scope_are_in_the_kernels_files_and_stay_there() {
    let mut scope = Scope::new("pods-blue.slice:berth:limits", LIMITS);
    scope.holds(&FILES);
    let weight = content(&scope.dir.join("cpu.weight"));
    assert!(weight != "100" && weight.parse::<u32>().unwrap() > 50, "{weight}");
    reload();
    scope.holds(&FILES);

    let more = r#"{"cpu": {"quota": -1}, "memory": {"limit": -1, "swap": -1}, "pids": {"limit": 9}}"#;
    scope.update(more);
    let changed = [
        ("memory.max", "max"),
        ("memory.swap.max", "max"),
        ("pids.max", "9"),
        // Not named, so as before.
        ("memory.low", "33554432"),
        ("cpuset.cpus", "0"),
    ];
    // The period of no quota means nothing, and systemd writes its own.
    let unlimited = |scope: &Scope| content(&scope.dir.join("cpu.max")).starts_with("max ");
    scope.holds(&changed);
    assert!(unlimited(&scope));
    reload();
    scope.holds(&changed);
    assert!(unlimited(&scope));
    scope.update(r#"{"cpu": {"idle": 1}}"#);
    scope.holds(&[("cpu.idle", "1")]);
    reload();
    scope.holds(&[("cpu.idle", "1")]);
}

/// The command `rustjail` over the bundle, with its output.
fn rustjail(arguments: &[&str]) -> String {
    let mut command = Command::new("/bin/rustjail");
    command.args(["--root", "/run/rustjail", "--systemd-cgroup"]).args(arguments).current_dir(BUNDLE);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "runs in the guest"]
fn a_container_of_the_commands_sees_the_limits_of_its_scope() {
    let files: HashMap<&str, &str> = FILES.into_iter().collect();
    let shown = rustjail(&["run", "limited"]);
    let mut lines = shown.lines();
    assert_eq!(lines.next(), Some("0::/"));
    for name in ["cpu.max", "cpuset.cpus", "memory.max", "memory.swap.max", "memory.low", "pids.max"] {
        assert_eq!(lines.next(), Some(files[name]), "{name} of {shown}");
    }
    // The program its groups' device rules are: the console is not among the default devices.
    assert_eq!(lines.next(), Some("refused"), "{shown}");
    assert!(!Path::new("/sys/fs/cgroup/pods.slice/pods-green.slice/berth-command.scope").exists());
}
