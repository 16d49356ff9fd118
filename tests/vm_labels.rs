//! Containers under a security module of the guest's kernel: under an AppArmor profile that was loaded there, and with a
//! label of SELinux's, of which a kernel without a policy knows the few that it was compiled with.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    io::Write,
    process::{Command, Stdio},
};

use berth::{Guest, Vm, code};
use berth_protocols::oci;

/// What a container sees of itself, and whether it may read a file that the profile keeps from it.
const LOOK: &str = "cat /proc/self/attr/current; cat /etc/passwd > /dev/null 2>&1 && echo readable";

const PROFILE: &str = "profile berth-test flags=(attach_disconnected) \
                       { file, capability, network, unix, signal, deny /etc/passwd r, }";

/// The profile as the kernel takes it, whatever the kernel of this machine knows of AppArmor.
fn compiled() -> String {
    const FEATURES: &str = "/etc/apparmor.d/abi/3.0";
    let mut parser = Command::new("apparmor_parser")
        .args(["--skip-kernel-load", "--skip-cache", "--stdout", "--quiet"])
        .args(["--policy-features", FEATURES, "--kernel-features", FEATURES])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("apparmor_parser is installed: run `make setup`");
    parser.stdin.take().unwrap().write_all(PROFILE.as_bytes()).unwrap();
    let output = parser.wait_with_output().unwrap();
    assert!(output.status.success() && !output.stdout.is_empty());
    output.stdout.iter().map(|byte| format!("\\x{byte:02x}")).collect()
}

/// Loads the profile from a container that may do so.
async fn load_profile(vm: &Vm, guest: &Guest) {
    // The kernel takes a profile in one write.
    let script = format!(
        "printf '{}' > /profile; dd if=/profile of=/security/apparmor/.replace bs=1M 2>/dev/null; \
         cat /security/apparmor/profiles",
        compiled()
    );
    let mut loader = vm.shell("loader", &script);
    loader.spec().Mounts.push(oci::Mount {
        destination: "/security".into(),
        source: "securityfs".into(),
        type_: "securityfs".into(),
        ..Default::default()
    });
    let capabilities = loader.process().Capabilities.mut_or_insert_default();
    for set in [&mut capabilities.Bounding, &mut capabilities.Effective, &mut capabilities.Permitted] {
        set.push("CAP_MAC_ADMIN".into());
    }
    let output = guest.run(&loader).await;
    assert!(output.stdout.contains("berth-test (enforce)"), "{output:?}");
}

#[tokio::test]
async fn a_container_is_under_the_apparmor_profile_it_was_given() {
    let (vm, guest) = Vm::with_sandbox(&["security=apparmor", "apparmor=1"]).await;
    load_profile(&vm, &guest).await;

    let output = guest.run(&vm.shell("unconfined", LOOK)).await;
    assert_eq!(output.stdout, "unconfined\nreadable\n", "{output:?}");
    let mut confined = vm.shell("confined", LOOK);
    confined.process().ApparmorProfile = "berth-test".into();
    let output = guest.run(&confined).await;
    assert_eq!(output.stdout, "berth-test (enforce)\n", "{output:?}");

    // A process that joins is under the container's, and a profile that nobody loaded is no profile.
    let mut sleeper = vm.container("sleeper", &["sleep", "1000"]);
    sleeper.process().ApparmorProfile = "berth-test".into();
    guest.create(&sleeper).await.unwrap();
    guest.start("sleeper").await.unwrap();
    let output = guest.run_in("sleeper", "joined", &["sh", "-c", LOOK]).await;
    assert_eq!(output.stdout, "berth-test (enforce)\n", "{output:?}");
    let mut unknown = vm.container("unknown", &["true"]);
    unknown.process().ApparmorProfile = "berth-never-loaded".into();
    let (_, text) = code(guest.create(&unknown).await);
    assert!(text.contains("attr/apparmor/exec"), "{text}");
    // The other module does not run here.
    let mut other = vm.container("other", &["true"]);
    other.process().SelinuxLabel = "security".into();
    let (_, text) = code(guest.create(&other).await);
    assert!(text.contains("SELinux"), "{text}");
}

#[tokio::test]
async fn a_container_has_the_selinux_label_it_was_given() {
    let (vm, guest) = Vm::with_sandbox(&["security=selinux", "selinux=1"]).await;
    let see = "cat /proc/self/attr/current | tr '\\0' '\\n'";
    let output = guest.run(&vm.shell("plain", see)).await;
    assert_eq!(output.stdout.trim(), "kernel", "{output:?}");
    let mut labelled = vm.shell("labelled", see);
    labelled.process().SelinuxLabel = "security".into();
    let output = guest.run(&labelled).await;
    assert_eq!(output.stdout.trim(), "security", "{output:?}");
    let mut other = vm.container("other", &["true"]);
    other.process().ApparmorProfile = "berth-test".into();
    let (_, text) = code(guest.create(&other).await);
    assert!(text.contains("AppArmor"), "{text}");
}
