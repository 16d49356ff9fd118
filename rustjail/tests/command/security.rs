//! What a container must not get at.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use nix::sys::statvfs::{FsFlags, statvfs};
use serde_json::json;

use crate::jail::{Jail, RUSTJAIL, run};

/// CVE-2019-5736: an image has the runtime executed inside, and writes to it through `/proc/PID/exe`.
#[test]
fn the_runtimes_own_binary_cannot_be_written_to() {
    let before = fs::read(RUSTJAIL).unwrap();
    let mut jail = Jail::new("");
    let odd = jail.bundle.rootfs().join("bin/odd");
    fs::write(&odd, "#!/proc/self/exe list\n").unwrap();
    fs::set_permissions(&odd, PermissionsExt::from_mode(0o755)).unwrap();
    // The attacker: every process it sees, again and again.
    let attack = "while :; do for exe in /proc/[0-9]*/exe; do \
                  case $(readlink $exe) in */busybox) ;; *) echo x >>$exe && echo written >>/written;; esac; \
                  done; done 2>/dev/null";
    jail.bundle.set("/process/args", json!(["sh", "-c", attack]));
    let all = ["CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_CHOWN"];
    jail.bundle.set("/process/capabilities", json!({"bounding": all, "effective": all, "permitted": all}));
    jail.ok(&["run", "--detach", "c"]);
    for _ in 0..30 {
        // Executes our binary inside, which finds a command line it does not know, or no containers.
        jail.call(&["exec", "c", "odd"]);
        jail.call(&["exec", "c", "true"]);
    }
    assert!(!jail.bundle.rootfs().join("written").exists());
    assert!(fs::read(RUSTJAIL).unwrap() == before, "the binary was changed");
}

#[test]
fn the_binary_that_runs_inside_is_on_a_read_only_mount() {
    let mut jail = Jail::new("");
    let odd = jail.bundle.rootfs().join("bin/odd");
    fs::write(&odd, "#!/proc/self/exe\n").unwrap();
    fs::set_permissions(&odd, PermissionsExt::from_mode(0o755)).unwrap();
    jail.bundle.set("/process/args", json!(["odd"]));
    // It is our own command line that complains: the runtime was executed with `/bin/odd` for a command.
    let outcome = jail.call(&["run", "c"]);
    assert!(outcome.code == 3 && outcome.stderr.contains("/bin/odd"), "{outcome:?}");
}

/// An init has our binary until it is started. Whether it has changed to the protected one itself, as it does where it is alone,
/// or its maker has: nobody can write to it, and nothing of it is mapped from where somebody could.
#[test]
fn the_binary_of_a_waiting_init_is_on_a_read_only_mount() {
    let other = Jail::sleeping();
    other.ok(&["run", "--detach", "o"]);
    let joined = json!({"type": "pid", "path": format!("/proc/{}/ns/pid", other.pid("o"))});
    let user = json!({"type": "user"});
    for more in [json!([{"type": "pid"}]), json!([{"type": "pid"}, user]), json!([joined]), json!([])] {
        let mut jail = Jail::sleeping();
        let mut namespaces = ["mount", "uts", "ipc", "network"].map(|kind| json!({"type": kind})).to_vec();
        namespaces.extend_from_slice(more.as_array().unwrap());
        if namespaces.contains(&user) {
            jail.bundle.in_user_namespace();
        }
        jail.bundle.set("/linux/namespaces", json!(namespaces));
        jail.ok(&["create", "c"]);
        let init = PathBuf::from(format!("/proc/{}", jail.pid("c")));

        let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).unwrap();
        let own = identity(Path::new(RUSTJAIL));
        assert_eq!(identity(&init.join("exe")), own, "{more}");
        let protected = |path: &Path| {
            let mount = statvfs(path).unwrap();
            assert!(mount.flags().contains(FsFlags::ST_RDONLY), "{more} {}", path.display());
        };
        protected(&init.join("exe"));
        let areas: Vec<PathBuf> =
            fs::read_dir(init.join("map_files")).unwrap().map(|area| area.unwrap().path()).collect();
        let ours = areas.iter().filter(|area| identity(area) == own);
        assert!(ours.map(|area| protected(area)).count() > 1, "{more}");
        assert!(fs::read_to_string(init.join("cmdline")).unwrap().contains("create"), "{more}");
        jail.ok(&["start", "c"]);
    }
}

#[test]
fn no_descriptor_of_ours_is_left_open() {
    let jail = Jail::new("ls /proc/self/fd");
    // 3 is that of ls itself.
    assert_eq!(jail.ok(&["run", "c"]), "0\n1\n2\n3");
    let jail = Jail::sleeping();
    jail.ok(&["create", "c"]);
    jail.ok(&["start", "c"]);
    assert_eq!(jail.ok(&["exec", "c", "ls", "/proc/self/fd"]), "0\n1\n2\n3");
    assert_eq!(jail.ok(&["exec", "c", "ls", "/proc/1/fd"]), "0\n1\n2");
}

#[test]
fn the_state_is_the_owners_alone() {
    let jail = Jail::sleeping();
    jail.ok(&["create", "c"]);
    let mode = |path: &str| fs::metadata(jail.root.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(""), 0o700);
    assert_eq!(mode("c/state"), 0o600);
}

/// The second command takes the filter that the first has compiled, and only for the same profile.
#[test]
fn a_profile_that_is_known_by_now_is_enforced_all_the_same() {
    let mut jail = Jail::new("mkdir /tmp/x 2>/dev/null && rmdir /tmp/x || echo refused");
    let profile = |errno: u32| {
        let denied = json!({"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno});
        json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [denied]})
    };
    jail.bundle.set("/linux/seccomp", profile(1));
    for _ in 0..3 {
        assert_eq!(jail.ok(&["run", "c"]), "refused");
    }
    let kept = jail.root.join("~seccomp");
    let mode = fs::metadata(&kept).unwrap().permissions().mode() & 0o777;
    assert_eq!((fs::read_dir(&kept).unwrap().count(), mode), (1, 0o700));
    assert_eq!(jail.ok(&["list", "-q"]), "");

    jail.bundle.set("/process/args", json!(["sleep", "1000"]));
    jail.ok(&["run", "--detach", "c"]);
    let refused = |jail: &Jail| jail.ok(&["exec", "c", "sh", "-c", "mkdir /tmp/x 2>&1 || :"]);
    assert_eq!(refused(&jail), "mkdir: can't create directory '/tmp/x': Operation not permitted");
    jail.ok(&["delete", "--force", "c"]);
    jail.bundle.set("/linux/seccomp", profile(28));
    jail.ok(&["run", "--detach", "c"]);
    assert_eq!(refused(&jail), "mkdir: can't create directory '/tmp/x': No space left on device");
}

/// CVE-2016-9962: to whoever is root inside, with all privileges but that to trace everything on the machine.
#[test]
fn a_waiting_init_shows_nothing_to_the_container() {
    let mut jail = Jail::sleeping();
    let own = caps::read(None, caps::CapSet::Permitted).unwrap();
    let all: Vec<String> =
        own.iter().map(ToString::to_string).filter(|name| name != "CAP_SYS_PTRACE").collect();
    jail.bundle.set("/process/capabilities", json!({"bounding": all, "effective": all, "permitted": all}));
    jail.ok(&["create", "c"]);
    let look = "cd /proc/1; for link in exe cwd root fd/*; do readlink $link; done; head -c 1 mem; ls cwd/";
    for user in ["0", "1000"] {
        let outcome = jail.call(&["exec", "--user", user, "c", "sh", "-c", look]);
        assert_eq!(outcome.stdout, "", "{outcome:?}");
    }
    // Of a program of its own all of that can be seen.
    jail.ok(&["start", "c"]);
    let seen = jail.call(&["exec", "c", "sh", "-c", "readlink /proc/1/exe; ls /proc/1/cwd/etc"]);
    assert_eq!(seen.stdout, "/bin/busybox\npasswd", "{seen:?}");
}

/// CVE-2020-2023, CVE-2026-24834: a container makes a node for each device that the machine has, and opens it.
#[test]
fn of_all_the_machines_devices_a_container_opens_the_harmless_ones() {
    let harmless =
        ["char 1:3", "char 1:5", "char 1:7", "char 1:8", "char 1:9", "char 5:0", "char 5:1", "char 5:2"];
    let mut devices = String::new();
    for kind in ["char", "block"] {
        for entry in fs::read_dir(format!("/sys/dev/{kind}")).unwrap() {
            devices += &format!("{kind} {}\n", entry.unwrap().file_name().display());
        }
    }
    // Those that no driver has here, /dev/mem for one, are closed as well.
    devices += "char 1:1\nchar 1:2\nchar 1:4\nchar 1:11\nblock 259:0\n";
    let script = "while read kind number; do case $kind in char) t=c;; *) t=b;; esac; \
                  busybox mknod /node $t ${number%:*} ${number#*:} || echo cannot make $kind $number; \
                  if (exec 3</node) 2>/why; then echo opened $kind $number; \
                  else grep -q 'Operation not permitted' /why || echo allowed $kind $number; fi; rm -f /node; \
                  done < /devices";
    for view in [
        "true",
        "umount /sys/fs/cgroup/unified",
        "umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup",
    ] {
        let mut jail = Jail::new(script);
        fs::write(jail.bundle.rootfs().join("devices"), &devices).unwrap();
        let all = ["CAP_MKNOD", "CAP_SYS_RAWIO", "CAP_DAC_OVERRIDE"];
        jail.bundle
            .set("/process/capabilities", json!({"bounding": all, "effective": all, "permitted": all}));
        jail.write_config();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", &format!("{view}; exec \"$@\""), "sh", RUSTJAIL, "--root"]);
        command.arg(&jail.root).args(["run", "c"]).current_dir(&jail.bundle.path);
        let outcome = run(command, &jail.bundle.path);
        assert!(outcome.code == 0 && outcome.stdout.contains("opened char 1:3"), "{view}: {outcome:?}");
        for line in outcome.stdout.lines() {
            let device = line.split_once(' ').unwrap().1;
            assert!(harmless.contains(&device), "{view}: {line}");
        }
    }
}
