//! Containers of a user who has no privileges at all: no capability, no control group, an own id and no other, or
//! those that /etc/subuid gives.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::jail::{Jail, Outcome, RUSTJAIL, installed, run};

/// Whoever this is: nobody has to have the id.
const USER: u32 = 61_234;

/// A runtime and a bundle that are the user's own, `spec --rootless` with `script`.
struct Rootless(Jail);

impl Rootless {
    fn new(script: &str) -> Self {
        let mut jail = Jail::new(script);
        // The build directory may be out of the user's reach.
        let program = jail.bundle.path.join("rustjail");
        fs::copy(RUSTJAIL, &program).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        jail.program = program;
        give(&jail.bundle.path);
        let this = Self(jail);
        assert_eq!(this.outcome(&["spec", "--rootless"]).code, 0);
        let config = this.0.bundle.path.join("config.json");
        let mut this = this;
        this.0.bundle.spec = serde_json::from_str(&fs::read_to_string(config).unwrap()).unwrap();
        this.set("/process/terminal", json!(false)).set("/process/args", json!(["sh", "-c", script]));
        this.set("/root/readonly", json!(false)).set("/process/env", json!(["PATH=/bin"]));
        this
    }

    fn set(&mut self, pointer: &str, value: Value) -> &mut Self {
        self.0.bundle.set(pointer, value);
        self
    }

    /// A command line as the user, with what `before` has made of a mount namespace first.
    fn after(&self, before: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        let user = format!("--reuid={USER}");
        let group = format!("--regid={USER}");
        let script =
            format!("{before} exec setpriv {user} {group} --clear-groups --bounding-set=-all \"$@\"");
        // newuidmap is a set-user-id program, and needs what the bounding set leaves it.
        let script = if before.is_empty() { script } else { script.replace(" --bounding-set=-all", "") };
        command.args(["--mount", "sh", "-ec", &script, "sh"]).arg(&self.0.program);
        command.arg("--root").arg(&self.0.root).args(arguments);
        command.current_dir(&self.0.bundle.path).stdin(Stdio::null());
        command
    }

    fn outcome(&self, arguments: &[&str]) -> Outcome {
        run(self.after("", arguments), &self.0.bundle.path)
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        self.0.write_config();
        let outcome = self.outcome(arguments);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{arguments:?}: {outcome:?}");
        outcome.stdout
    }
}

fn give(path: &Path) {
    chown(path, Some(USER), Some(USER)).unwrap_or_default();
    if path.symlink_metadata().unwrap().is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| give(&entry.unwrap().path()));
    }
}

#[test]
fn a_user_alone_runs_a_container_as_its_root() {
    let script = "id -u; id -g; cat /proc/self/uid_map /proc/self/setgroups; echo $$; hostname; \
                  echo kept > /file; [ -c /dev/null ] && echo x > /dev/null; [ -c /proc/version ] && echo masked; \
                  ls /proc/self/fd | wc -l; grep -c CapEff:.0000000020000420 /proc/self/status";
    let mut rootless = Rootless::new(script);
    rootless.set("/linux/maskedPaths/-", json!("/proc/version"));
    let seen = rootless.ok(&["run", "c"]);
    let lines: Vec<Vec<&str>> = seen.lines().map(|line| line.split_whitespace().collect()).collect();
    let user = USER.to_string();
    assert_eq!(lines[..3], [vec!["0"], vec!["0"], vec!["0", user.as_str(), "1"]]);
    let rest: Vec<String> = lines[3..].iter().map(|words| words.join(" ")).collect();
    assert_eq!(rest, ["deny", "1", "rustjail", "masked", "4", "1"]);
    let file = fs::metadata(rootless.0.bundle.rootfs().join("file")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&file), USER);
    assert_eq!(rootless.ok(&["list", "-q"]), "");
}

#[test]
fn a_user_alone_has_every_step_of_a_containers_life() {
    let mut rootless = Rootless::new("");
    rootless.set("/process/args", json!(["sleep", "1000"]));
    rootless.ok(&["create", "c"]);
    assert!(rootless.ok(&["state", "c"]).contains("\"created\""));
    rootless.ok(&["start", "c"]);
    assert!(rootless.ok(&["state", "c"]).contains("\"running\""));
    // In the container's namespaces, its process 1 in sight, and it ends as it likes.
    let joined =
        rootless.ok(&["exec", "c", "sh", "-c", "id -u; hostname; cat /proc/1/cmdline | tr '\\0' ' '"]);
    assert_eq!(joined, "0\nrustjail\nsleep 1000");
    assert_eq!(rootless.outcome(&["exec", "c", "sh", "-c", "exit 7"]).code, 7);
    rootless.ok(&["kill", "c", "KILL"]);
    rootless.ok(&["delete", "--force", "c"]);
    assert_eq!(rootless.ok(&["list", "-q"]), "");
}

#[test]
fn a_user_alone_is_refused_what_it_has_no_right_to() {
    let mut rootless = Rootless::new("true");
    rootless.set("/linux/cgroupsPath", json!("/asked-for"));
    rootless.0.write_config();
    let outcome = rootless.outcome(&["run", "c"]);
    assert!(outcome.code == 1 && outcome.stderr.contains("asked-for"), "{outcome:?}");

    let mut rootless = Rootless::new("true");
    rootless.set("/linux/namespaces", json!([{"type": "mount"}, {"type": "pid"}]));
    rootless.0.write_config();
    let outcome = rootless.outcome(&["run", "c"]);
    assert!(outcome.stderr.contains("without a user namespace as a user without"), "{outcome:?}");

    // Nobody else's id without newuidmap's consent.
    let mut rootless = Rootless::new("true");
    rootless.set("/linux/uidMappings/-", json!({"containerID": 1, "hostID": 70_000, "size": 1}));
    rootless.0.write_config();
    let outcome = rootless.outcome(&["run", "c"]);
    assert!(outcome.code == 1 && outcome.stderr.contains("map the container's ids"), "{outcome:?}");
    assert_eq!(rootless.ok(&["list", "-q"]), "");
}

#[test]
fn more_ids_are_mapped_by_newuidmap() {
    if !installed("newuidmap") {
        return;
    }
    let mut rootless =
        Rootless::new("id -u; touch /tmp/own && stat -c %u /tmp/own; cat /proc/self/setgroups");
    for ids in ["uidMappings", "gidMappings"] {
        rootless.set(&format!("/linux/{ids}/-"), json!({"containerID": 1, "hostID": 700_000, "size": 1000}));
    }
    rootless.set("/process/user", json!({"uid": 33, "gid": 33, "additionalGids": [44]}));
    fs::set_permissions(rootless.0.bundle.rootfs().join("tmp"), PermissionsExt::from_mode(0o777)).unwrap();
    rootless.0.write_config();
    // /etc as it is, but for who may have which ids; newuidmap wants to know the user's name.
    let lower = rootless.0.bundle.path.join("etc");
    fs::create_dir(&lower).unwrap();
    fs::write(lower.join("passwd"), format!("root:x:0:0::/:/bin/sh\nuser:x:{USER}:{USER}::/:/bin/sh\n"))
        .unwrap();
    for file in ["subuid", "subgid"] {
        fs::write(lower.join(file), "user:700000:1000\n").unwrap();
        fs::set_permissions(lower.join(file), PermissionsExt::from_mode(0o644)).unwrap();
    }
    let before = format!("mount -t overlay -o lowerdir={}:/etc x /etc;", lower.display());
    let outcome = run(rootless.after(&before, &["run", "c"]), &rootless.0.bundle.path);
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("33\n33\nallow", ""), "{outcome:?}");
    let own = fs::metadata(rootless.0.bundle.rootfs().join("tmp/own")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&own), 700_032);
}
