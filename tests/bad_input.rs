//! Bad requests: each gets a prompt, specific error and leaves everything else as it was.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use berth::{Agent, Container, Guest, code, process};
use protobuf::MessageField;
use ttrpc::Code;

/// A sandbox with one container that must come through untouched.
async fn bystander() -> (Agent, Guest) {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.create(&agent.container("bystander", &["cat"])).await.unwrap();
    guest.start("bystander").await.unwrap();
    (agent, guest)
}

async fn untouched(agent: &Agent, guest: &Guest) {
    guest.write("bystander", "", b"alive\n").await.unwrap();
    assert_eq!(guest.read_until("bystander", "", "\n").await, "alive\n");
    assert_eq!(agent.container_pids().len(), 1, "only the bystander's init is left");
    let cgroups = agent.cgroups();
    let strangers: Vec<_> = cgroups.iter().filter(|dir| !dir.ends_with("bystander")).collect();
    assert!(strangers.iter().all(|dir| dir.ends_with(agent.dir().file_name().unwrap())), "{strangers:?}");
}

async fn refused(change: impl FnOnce(&mut Container), wanted: Code, words: &[&str]) {
    let (agent, guest) = bystander().await;
    let mut container = agent.container("c1", &["true"]);
    change(&mut container);
    let (code, message) = code(guest.create(&container).await);
    assert_eq!(code, wanted, "{message}");
    for word in words {
        assert!(message.contains(word), "{message:?} does not name {word:?}");
    }
    assert_ne!(message.len(), 0);
    untouched(&agent, &guest).await;
    let again = guest.run(&agent.container("c1", &["echo", "fine"])).await;
    assert_eq!(again.stdout, "fine\n", "the id is free again");
}

#[tokio::test]
async fn ids_that_may_not_be_used() {
    let (agent, guest) = bystander().await;
    let long = "x".repeat(2000);
    for id in ["", ".", "..", "a", "a/b", "../etc", "-a", "a b", "a\n", "é1", long.as_str()] {
        let (code, message) = code(guest.create(&agent.container(id, &["true"])).await);
        assert_eq!(code, Code::INVALID_ARGUMENT, "{id:?}: {message}");
    }
    for exec_id in ["", "a/b", "..", "x\0y", long.as_str()] {
        let (code, message) = code(guest.exec("bystander", exec_id, process(&["true"])).await);
        assert_eq!(code, Code::INVALID_ARGUMENT, "{exec_id:?}: {message}");
    }
    untouched(&agent, &guest).await;
}

#[tokio::test]
async fn a_duplicate_id_leaves_the_first_alone() {
    let (agent, guest) = bystander().await;
    let (duplicate, message) = code(guest.create(&agent.container("bystander", &["true"])).await);
    assert_eq!(duplicate, Code::ALREADY_EXISTS, "{message}");
    assert!(message.contains("bystander"), "{message}");
    guest.exec("bystander", "e1", process(&["sleep", "1000"])).await.unwrap();
    let (duplicate, message) = code(guest.exec("bystander", "e1", process(&["true"])).await);
    assert_eq!(duplicate, Code::ALREADY_EXISTS, "{message}");
    guest.signal("bystander", "e1", 9).await.unwrap();
    assert_eq!(guest.wait("bystander", "e1").await.unwrap(), 137);
    untouched(&agent, &guest).await;
}

#[tokio::test]
async fn unknown_containers_and_processes() {
    let (agent, guest) = bystander().await;
    let unknown = [
        code(guest.start("nobody").await),
        code(guest.remove("nobody").await),
        code(guest.signal("nobody", "", 15).await),
        code(guest.wait("nobody", "").await),
        code(guest.read_stdout("nobody", "", 1).await),
        code(guest.write("nobody", "", b"x").await),
        code(guest.close_stdin("nobody", "").await),
        code(guest.resize("nobody", "", 1, 1).await),
        code(guest.exec("nobody", "e1", process(&["true"])).await),
    ];
    for (code, message) in unknown {
        assert_eq!(code, Code::INVALID_ARGUMENT, "{message}");
        assert!(message.starts_with("Invalid container id"), "{message}");
    }
    for (code, message) in [
        code(guest.wait("bystander", "nobody").await),
        code(guest.signal("bystander", "nobody", 15).await),
        code(guest.read_stdout("bystander", "nobody", 1).await),
    ] {
        assert_eq!(code, Code::NOT_FOUND, "{message}");
    }
    let (no_tty, message) = code(guest.resize("bystander", "", 1, 1).await);
    assert_eq!((no_tty, message.as_str()), (Code::UNAVAILABLE, "no tty"));
    untouched(&agent, &guest).await;
}

#[tokio::test]
async fn a_spec_that_is_missing_or_incomplete() {
    refused(|c| c.request.OCI = MessageField::none(), Code::INVALID_ARGUMENT, &["OCI"]).await;
    refused(|c| c.spec().Process = MessageField::none(), Code::INVALID_ARGUMENT, &["process"]).await;
    refused(|c| c.process().Args.clear(), Code::INVALID_ARGUMENT, &["args"]).await;
    refused(|c| c.spec().Root = MessageField::none(), Code::INVALID_ARGUMENT, &["root"]).await;
}

#[tokio::test]
async fn a_bad_rootfs() {
    refused(
        |c| c.spec().Root.mut_or_insert_default().Path = "/no/such".into(),
        Code::INVALID_ARGUMENT,
        &["/no/such"],
    )
    .await;
    refused(
        |c| c.spec().Root.mut_or_insert_default().Path = "/bin/busybox".into(),
        Code::INVALID_ARGUMENT,
        &["/bin/busybox"],
    )
    .await;
}

#[tokio::test]
async fn a_missing_binary_or_directory() {
    refused(|c| c.process().Args = vec!["no-such".into()], Code::INVALID_ARGUMENT, &["no-such"]).await;
    refused(|c| c.process().Args = vec!["/etc/passwd".into()], Code::INVALID_ARGUMENT, &["/etc/passwd"])
        .await;
    refused(|c| c.process().Cwd = "relative".into(), Code::INVALID_ARGUMENT, &["cwd"]).await;
    let (agent, guest) = bystander().await;
    let (code, message) = code(guest.exec("bystander", "e1", process(&["no-such"])).await);
    assert_eq!(code, Code::INVALID_ARGUMENT, "{message}");
    assert!(message.contains("no-such"), "{message}");
    untouched(&agent, &guest).await;
}

#[tokio::test]
async fn names_nobody_knows() {
    let capability = |c: &mut Container| {
        c.process().Capabilities.mut_or_insert_default().Bounding.push("CAP_NONSENSE".into());
    };
    refused(capability, Code::INVALID_ARGUMENT, &["CAP_NONSENSE"]).await;
    let rlimit = |c: &mut Container| {
        let limit = berth_protocols::oci::POSIXRlimit {
            Type: "RLIMIT_NONSENSE".into(),
            Hard: 1,
            Soft: 1,
            ..Default::default()
        };
        c.process().Rlimits.push(limit);
    };
    refused(rlimit, Code::INVALID_ARGUMENT, &["RLIMIT_NONSENSE"]).await;
    let seccomp = |c: &mut Container| {
        c.linux().Seccomp.mut_or_insert_default().DefaultAction = "SCMP_ACT_NONSENSE".into();
    };
    refused(seccomp, Code::INVALID_ARGUMENT, &["SCMP_ACT_NONSENSE"]).await;
    let syscall = |c: &mut Container| {
        let profile = c.linux().Seccomp.mut_or_insert_default();
        profile.DefaultAction = "SCMP_ACT_ALLOW".into();
        profile.Syscalls.push(berth_protocols::oci::LinuxSyscall {
            Names: vec!["nonsense_call".into()],
            Action: "SCMP_ACT_ERRNO".into(),
            ..Default::default()
        });
    };
    refused(syscall, Code::INVALID_ARGUMENT, &["nonsense_call"]).await;
    let namespace = |c: &mut Container| {
        c.linux()
            .Namespaces
            .push(berth_protocols::oci::LinuxNamespace { Type: "nonsense".into(), ..Default::default() })
    };
    refused(namespace, Code::INVALID_ARGUMENT, &["nonsense"]).await;
}

#[tokio::test]
async fn a_uid_that_is_no_uid() {
    refused(
        |c| c.process().User.mut_or_insert_default().UID = u32::MAX,
        Code::INVALID_ARGUMENT,
        &["4294967295"],
    )
    .await;
}

#[tokio::test]
async fn a_second_start_and_a_start_of_a_dead_init() {
    let (agent, guest) = bystander().await;
    let (second, message) = code(guest.start("bystander").await);
    assert_eq!(second, Code::FAILED_PRECONDITION, "{message}");
    guest.create(&agent.container("c1", &["true"])).await.unwrap();
    guest.signal("c1", "", 9).await.unwrap();
    assert_eq!(guest.wait("c1", "").await.unwrap(), 137);
    let (dead, message) = code(guest.start("c1").await);
    assert_eq!(dead, Code::FAILED_PRECONDITION, "{message}");
    let (dead, message) = code(guest.exec("c1", "e1", process(&["true"])).await);
    assert_eq!(dead, Code::FAILED_PRECONDITION, "{message}");
    guest.remove("c1").await.unwrap();
    untouched(&agent, &guest).await;
}

#[tokio::test]
async fn an_absurd_read_length_costs_nothing() {
    let (agent, guest) = bystander().await;
    guest.write("bystander", "", b"short").await.unwrap();
    assert_eq!(guest.read_stdout("bystander", "", u32::MAX).await.unwrap(), b"short");
    guest.write("bystander", "", b"again").await.unwrap();
    assert_eq!(guest.read_stdout("bystander", "", 1 << 31).await.unwrap(), b"again");
    untouched(&agent, &guest).await;
}
