//! The systemd manager against a real systemd, booted as PID 1 of namespaces of its own (with a cgroup2 view
//! that has no controllers, on a machine whose controllers are on v1), over its own socket and over a real
//! dbus-daemon. What systemd understood is read back with its own `systemctl`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::{
    collections::HashMap,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use oci_spec::runtime::LinuxResources;
use rustjail::cgroup::{
    Cgroup, Hierarchies,
    systemd::{Systemd, SystemdError, Unit},
};
use serde_json::json;
use support::Bundle;

const PATIENCE: Duration = Duration::from_secs(30);

/// Boots systemd with a target that only wants a bus and the test, whose end is systemd's end.
const BOOT: &str = r#"
set -e
mount --make-rprivate /
umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs none /run
mkdir -p /run/systemd/system /run/dbus
cd /run/systemd/system
cat > bare.target <<END
[Unit]
DefaultDependencies=no
Wants=dbus.service test.service
END
cat > dbus.socket <<END
[Unit]
DefaultDependencies=no
[Socket]
ListenStream=/run/dbus/system_bus_socket
END
cat > dbus.service <<END
[Unit]
DefaultDependencies=no
Requires=dbus.socket
[Service]
Type=notify
ExecStart=/usr/bin/dbus-daemon --system --address=systemd: --nofork --nopidfile --systemd-activation
END
cat > test.service <<END
[Unit]
DefaultDependencies=no
After=dbus.service
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
ExecStart=$TEST view_systemd --exact --ignored --nocapture
StandardOutput=append:$OUTPUT
StandardError=append:$OUTPUT
TimeoutStartSec=120
END
export container=other
exec /lib/systemd/systemd --system --unit=bare.target --log-target=null
"#;

#[test]
fn scopes_are_started_changed_and_stopped() {
    if !Path::new("/lib/systemd/systemd").exists() || !Path::new("/usr/bin/dbus-daemon").exists() {
        assert!(std::env::var_os("CI").is_none(), "needs the packages systemd and dbus-daemon");
        eprintln!("skipped: needs the packages systemd and dbus-daemon");
        return;
    }
    let hierarchies = Hierarchies::detect().unwrap();
    let path = rustjail::cgroup::CgroupPath::parse(None, &format!("systemd-{}", std::process::id())).unwrap();
    let group = Cgroup::create(&hierarchies, &path, None).unwrap();
    let output = std::env::temp_dir().join(format!("berth-systemd-{}", std::process::id()));
    // systemd manages the tree from its own group down, which is the root of its cgroup namespace.
    let tree = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
        .into_iter()
        .find(|tree| Path::new(tree).join("cgroup.controllers").exists())
        .expect("a cgroup2 tree");
    let enter = format!(
        "echo 0 > {tree}{path}/cgroup.procs && exec unshare -C -p -m -f --mount-proc sh -c \"$BOOT\""
    );
    let status = Command::new("timeout")
        .args(["-k", "5", "180", "sh", "-c", &enter])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("BOOT", BOOT)
        .env("TEST", std::env::current_exe().unwrap())
        .env("OUTPUT", &output)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    group.destroy(PATIENCE).unwrap();
    let text = fs::read_to_string(&output).unwrap_or_default();
    let _ = fs::remove_file(&output);
    assert!(text.contains("1 passed"), "{status}: {text}");
}

/// A process that ends when it is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    fn cgroup(&self) -> String {
        let text = fs::read_to_string(format!("/proc/{}/cgroup", self.0.id())).unwrap();
        text.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

fn show(unit: &Unit) -> HashMap<String, String> {
    let output = Command::new("systemctl").args(["show", unit.name()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

fn unit(path: &str) -> Unit {
    Unit::parse(Some(path.as_ref()), "unused").unwrap()
}

fn resources(json: &str) -> LinuxResources {
    serde_json::from_str(json).unwrap()
}

#[track_caller]
fn expect(unit: &Unit, properties: &[(&str, &str)]) {
    let shown = show(unit);
    for (name, value) in properties {
        assert_eq!(shown.get(*name).map(String::as_str), Some(*value), "{name} of {}", unit.name());
    }
}

fn life(systemd: &mut Systemd, hierarchies: &Hierarchies, name: &str) {
    let unit = unit(&format!("pods-blue.slice:berth:{name}"));
    let limits = resources(
        r#"{"cpu": {"shares": 1024, "quota": 25000, "period": 50000, "cpus": "0"},
            "memory": {"limit": 67108864, "swap": 100663296, "reservation": 33554432}, "pids": {"limit": 77},
            "unified": {"memory.high": "50331648"}}"#,
    );
    let sleeper = Sleeper::new();
    systemd.start(&unit, Some(sleeper.0.id()), Some(&limits)).unwrap();
    assert_eq!(sleeper.cgroup(), format!("/pods.slice/pods-blue.slice/berth-{name}.scope"));
    assert_eq!(sleeper.cgroup(), unit.path().unwrap().to_string());
    expect(
        &unit,
        &[
            ("ActiveState", "active"),
            ("Slice", "pods-blue.slice"),
            ("Delegate", "yes"),
            ("Transient", "yes"),
            ("CPUWeight", "100"),
            ("CPUQuotaPerSecUSec", "500ms"),
            ("CPUQuotaPeriodUSec", "50ms"),
            ("AllowedCPUs", "0"),
            ("MemoryMax", "67108864"),
            ("MemorySwapMax", "33554432"),
            ("MemoryLow", "33554432"),
            ("MemoryHigh", "50331648"),
            ("TasksMax", "77"),
            ("MemoryAccounting", "yes"),
        ],
    );
    systemd
        .update(
            &unit,
            &resources(r#"{"memory": {"limit": -1}, "pids": {"limit": 9}, "cpu": {"quota": -1, "idle": 1}}"#),
        )
        .unwrap();
    expect(
        &unit,
        &[
            ("MemoryMax", "infinity"),
            ("MemorySwapMax", "infinity"),
            ("TasksMax", "9"),
            ("CPUQuotaPerSecUSec", "infinity"),
            ("CPUWeight", "idle"),
            ("MemoryLow", "33554432"),
        ],
    );
    // The group is used as any other from here on.
    let group = Cgroup::adopt(hierarchies, &unit.path().unwrap(), None).unwrap();
    assert_eq!(group.pids().unwrap(), [sleeper.0.id() as i32]);

    let second = Sleeper::new();
    let taken = systemd.start(&unit, Some(second.0.id()), None).unwrap_err();
    assert!(taken.to_string().contains(unit.name()), "{taken}");
    group.kill().unwrap();
    assert!(group.wait_until_empty(PATIENCE).unwrap());
    drop(sleeper);
    systemd.stop(&unit).unwrap();
    group.delete().unwrap();
    expect(&unit, &[("ActiveState", "inactive")]);
    systemd.stop(&unit).unwrap();
}

/// The command `rustjail` over `bundle`.
fn rustjail(bundle: &Bundle, arguments: &[&str]) -> (i32, String) {
    fs::write(bundle.path.join("config.json"), bundle.spec.to_string()).unwrap();
    let file = |name: &str| bundle.path.join(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_rustjail"));
    command.arg("--root").arg(file("state")).args(arguments).current_dir(&bundle.path);
    // Files, because a container keeps a pipe open.
    let output = fs::File::create(file("output")).unwrap();
    command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let status = command.status().unwrap();
    (status.code().unwrap(), fs::read_to_string(file("output")).unwrap())
}

#[track_caller]
fn ok(bundle: &Bundle, arguments: &[&str]) -> String {
    let (code, text) = rustjail(bundle, arguments);
    assert_eq!(code, 0, "{arguments:?}: {text}");
    text
}

fn cgroup_of(pid: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    text.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned()
}

fn command(hierarchies: &Hierarchies) {
    let mut bundle = Bundle::new("");
    bundle.set("/process/args", json!(["sleep", "1000"]));
    bundle.set("/linux/cgroupsPath", json!("pods-blue.slice:berth:command"));
    let (unit, path) =
        (unit("pods-blue.slice:berth:command"), "/pods.slice/pods-blue.slice/berth-command.scope");
    ok(&bundle, &["--systemd-cgroup", "create", "--pid-file", "pid", "c"]);
    expect(&unit, &[("ActiveState", "active"), ("Slice", "pods-blue.slice"), ("Delegate", "yes")]);
    let init = fs::read_to_string(bundle.path.join("pid")).unwrap();
    assert_eq!(cgroup_of(&init), path);
    // What kept the scope is gone before the program runs.
    let group = Cgroup::open(hierarchies, &unit.path().unwrap()).unwrap();
    assert_eq!(group.pids().unwrap(), [init.parse::<i32>().unwrap()]);
    // Every other command finds the group without the flag.
    ok(&bundle, &["start", "c"]);
    ok(&bundle, &["exec", "--detach", "--pid-file", "pid2", "c", "sleep", "1000"]);
    assert_eq!(cgroup_of(&fs::read_to_string(bundle.path.join("pid2")).unwrap()), path);
    // Without controllers the kernel refuses, and then systemd is told nothing either.
    let (code, text) = rustjail(&bundle, &["update", "--pids-limit", "9", "c"]);
    assert!(code == 1 && text.contains("pids"), "{text}");
    assert_ne!(show(&unit).get("TasksMax").map(String::as_str), Some("9"));
    ok(&bundle, &["pause", "c"]);
    ok(&bundle, &["resume", "c"]);
    ok(&bundle, &["delete", "--force", "c"]);
    expect(&unit, &[("ActiveState", "inactive"), ("LoadState", "not-found")]);
    assert!(Cgroup::open(hierarchies, &unit.path().unwrap()).is_err());

    bundle.set("/process/args", json!(["cat", "/proc/1/cgroup"]));
    assert!(ok(&bundle, &["--systemd-cgroup", "run", "c"]).ends_with("0::/\n"));
    expect(&unit, &[("ActiveState", "inactive")]);
    bundle.set("/process/args", json!(["nosuch"]));
    assert!(rustjail(&bundle, &["--systemd-cgroup", "run", "c"]).1.contains("nosuch"));
    expect(&unit, &[("ActiveState", "inactive")]);
    bundle.set("/linux/cgroupsPath", json!("/pods/blue"));
    let (code, text) = rustjail(&bundle, &["--systemd-cgroup", "run", "c"]);
    assert!(code == 1 && text.contains("two colons"), "{text}");
}

#[test]
#[ignore = "run by systemd in namespaces of its own"]
fn view_systemd() {
    let hierarchies = Hierarchies::detect().unwrap();
    let mut systemd = Systemd::connect(&hierarchies).unwrap();
    command(&hierarchies);
    life(&mut systemd, &hierarchies, "one");
    // The same name again, over the same connection.
    life(&mut systemd, &hierarchies, "one");

    let empty = systemd.start(&unit("::empty"), None, None).unwrap_err();
    assert!(matches!(&empty, SystemdError::Refused { method: "StartTransientUnit", .. }), "{empty}");
    let error = systemd.update(&unit("::empty"), &resources(r#"{"pids": {"limit": 9}}"#)).unwrap_err();
    assert!(matches!(error, SystemdError::Refused { .. }), "{error}");
    let slice = unit("pods.slice:x:pods-green.slice");
    systemd.start(&slice, None, Some(&resources(r#"{"pids": {"limit": 9}}"#))).unwrap();
    expect(&slice, &[("ActiveState", "active"), ("TasksMax", "9")]);
    systemd.stop(&slice).unwrap();

    // Without systemd's own socket there is the bus.
    fs::rename("/run/systemd/private", "/run/systemd/hidden").unwrap();
    let mut systemd = Systemd::connect(&hierarchies).unwrap();
    life(&mut systemd, &hierarchies, "two");
    fs::rename("/run/dbus/system_bus_socket", "/run/dbus/hidden").unwrap();
    let nobody = Systemd::connect(&hierarchies).unwrap_err();
    assert!(nobody.to_string().contains("/run/systemd/private"), "{nobody}");
}
