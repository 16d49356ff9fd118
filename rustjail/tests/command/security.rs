//! What a container must not get at.

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::json;

use crate::jail::{Jail, RUSTJAIL};

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
    assert_eq!(mode("c/state.json"), 0o600);
    assert_eq!(mode("c/config.json"), 0o600);
}

#[test]
fn a_waiting_init_shows_nothing_to_the_container() {
    let mut jail = Jail::sleeping();
    let all = ["CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH"];
    jail.bundle.set("/process/capabilities", json!({"bounding": all, "effective": all, "permitted": all}));
    jail.ok(&["create", "c"]);
    let script = "ls /proc/1/fd; readlink /proc/1/exe; head -c 1 /proc/1/mem; ls /proc/1/cwd/";
    let outcome = jail.call(&["exec", "--user", "1000", "c", "sh", "-c", script]);
    assert_eq!(outcome.stdout, "", "{outcome:?}");
}
