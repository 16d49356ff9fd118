//! Rows of the reliability matrix that no other test has; `docs/reliability.md` names the test of each row.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    fs,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use berth::{Agent, Container, Guest, RawClient, Role, code, deadline, process, until};
use berth_protocols::{
    agent::{DestroySandboxRequest, RemoveContainerRequest, SharedMount, WaitProcessRequest},
    oci,
};
use nix::sys::signal::Signal;
use ttrpc::Code;

async fn running(guest: &Guest, container: &Container) {
    guest.create(container).await.unwrap();
    guest.start(&container.request.container_id).await.unwrap();
}

/// P9.
#[tokio::test]
async fn reads_writes_resizes_and_the_end_of_input_race_the_exit_and_all_end() {
    let (agent, guest) = Agent::with_sandbox().await;
    running(&guest, &agent.container("c1", &["sleep", "100000"])).await;
    for round in 0..100 {
        let id = format!("e{round}");
        let terminal = round % 2 == 0;
        guest.exec("c1", &id, oci::Process { Terminal: terminal, ..process(&["cat"]) }).await.unwrap();
        // Each of them may come before the exit or after it; none may be left waiting.
        let (read, write, close, resize, kill, wait) = tokio::join!(
            guest.read_stdout("c1", &id, 100),
            guest.write("c1", &id, b"hello"),
            guest.close_stdin("c1", &id),
            guest.resize("c1", &id, 10, 20),
            guest.signal("c1", &id, 9),
            guest.wait("c1", &id),
        );
        assert!([0, 137].contains(&wait.unwrap()), "round {round}");
        read.unwrap();
        for (what, outcome) in [("write", write.map(drop)), ("close", close), ("kill", kill)] {
            let code = outcome.err().map(|error| code(Err::<(), _>(error)).0);
            assert!(
                matches!(code, None | Some(Code::FAILED_PRECONDITION | Code::NOT_FOUND)),
                "{what}: {code:?}"
            );
        }
        assert!(terminal || code(resize).0 == Code::UNAVAILABLE);
    }
    assert_eq!(agent.container_pids().len(), 1);
}

/// P10: those whose ordinary effect is not an end.
const HARMLESS: [i32; 8] = [17, 18, 19, 20, 21, 22, 23, 28];

/// P10.
#[tokio::test]
async fn every_signal_ends_a_process_by_its_number_and_reaches_a_handler_once() {
    let (agent, guest) = Agent::with_sandbox().await;
    let handled = [1, 2, 3, 10, 12, 14, 15, 28, 40, 64];
    let traps: String = handled.map(|signal| format!("trap 'echo got {signal}' {signal}; ")).concat();
    running(
        &guest,
        &agent.shell("c1", &format!("{traps} echo ready; sleep 100000 & while :; do wait; done")),
    )
    .await;
    guest.read_until("c1", "", "ready\n").await;
    for signal in handled {
        guest.signal("c1", "", signal).await.unwrap();
        let told = guest.read_until("c1", "", "\n").await;
        assert_eq!(told, format!("got {signal}\n"), "once, and nothing else");
    }
    for signal in (1..=64).filter(|signal| !HARMLESS.contains(signal)) {
        let id = format!("e{signal}");
        guest.exec("c1", &id, process(&["sleep", "100000"])).await.unwrap();
        guest.signal("c1", &id, signal).await.unwrap();
        assert_eq!(guest.wait("c1", &id).await.unwrap(), 128 + signal);
    }
    // Without a process named, SIGKILL is for all of them.
    guest.exec("c1", "last", process(&["sleep", "100000"])).await.unwrap();
    guest.signal("c1", "", 9).await.unwrap();
    assert_eq!(guest.wait("c1", "last").await.unwrap(), 137);
    assert_eq!(guest.wait("c1", "").await.unwrap(), 137);
}

/// What the error names, and how it is brought about.
type Failure = (&'static str, fn(&mut Container));

/// P11.
#[tokio::test]
async fn whichever_step_of_a_launch_fails_is_named_and_nothing_is_left() {
    let (agent, guest) = Agent::with_sandbox().await;
    let bin = agent.rootfs.path().join("bin");
    fs::write(bin.join("plain"), "neither a program nor a script").unwrap();
    fs::write(bin.join("odd"), "#!/no/interpreter\n").unwrap();
    make_executable(&bin.join("odd"));
    let failures: [Failure; 7] = [
        ("no-such-program", |c| c.process().Args = vec!["no-such-program".into()]),
        ("/bin/plain", |c| c.process().Args = vec!["/bin/plain".into()]),
        ("/bin", |c| c.process().Args = vec!["/bin".into()]),
        ("/bin/odd", |c| c.process().Args = vec!["/bin/odd".into()]),
        ("/etc/passwd", |c| c.process().Cwd = "/etc/passwd".into()),
        ("/bin/true", |c| c.process().Env.push(format!("LARGE={}", "x".repeat(1 << 20)))),
        ("kernel.nonsense", |c| _ = c.linux().Sysctl.insert("kernel.nonsense".into(), "1".into())),
    ];
    for (word, break_it) in failures {
        let mut container = agent.container("c1", &["true"]);
        break_it(&mut container);
        let outcome = match guest.create(&container).await {
            Ok(()) => guest.start("c1").await,
            refused => refused,
        };
        assert!(outcome.is_err(), "{word}");
        let (_, message) = code(outcome);
        assert!(message.contains(word), "{message:?} does not name {word}");
        // One that was created and could not start is there to be removed.
        let _not_created = guest.remove("c1").await;
        assert_eq!(agent.container_pids(), [] as [i32; 0], "{word}");
        assert_eq!(agent.cgroups().iter().filter(|group| group.ends_with("c1")).count(), 0, "{word}");
    }
    assert_eq!(guest.run(&agent.container("c1", &["echo", "fine"])).await.stdout, "fine\n");
}

fn make_executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// P12.
#[tokio::test]
async fn a_sandbox_is_destroyed_in_the_middle_of_everything() {
    let (agent, guest) = Agent::with_sandbox().await;
    let rounds = Arc::<AtomicUsize>::default();
    let mut busy = Vec::new();
    for n in 0..4 {
        running(&guest, &agent.container(&format!("c{n}"), &["sleep", "100000"])).await;
        for what in 0..3 {
            busy.push(tokio::spawn(keep_busy(guest.clone(), format!("c{n}"), what, Arc::clone(&rounds))));
        }
    }
    until("everything to be under way", async || rounds.load(Ordering::Relaxed) > 100).await;
    let request = DestroySandboxRequest::new();
    // By a connection of its own: the ttrpc crate's client drops a reply that is there when it cannot send the next call.
    let last = agent.client().await;
    deadline(last.agent.destroy_sandbox(ttrpc::context::with_timeout(0), &request)).await.unwrap();
    for task in busy {
        deadline(task).await.unwrap();
    }
    let groups = agent.cgroups();
    assert!(groups.iter().all(|group| group.ends_with(agent.dir().file_name().unwrap())), "{groups:?}");
    agent.ended();
}

/// Execs, statistics or pauses, until there is no container any more or nobody to ask.
async fn keep_busy(guest: Guest, id: String, what: usize, rounds: Arc<AtomicUsize>) {
    loop {
        let round = rounds.fetch_add(1, Ordering::Relaxed);
        let outcome = match what {
            0 => guest.exec(&id, &format!("e{round}"), process(&["true"])).await,
            1 => guest.stats(&id).await.map(drop),
            _ => match guest.pause(&id).await {
                Ok(()) => guest.resume(&id).await,
                refused => refused,
            },
        };
        match outcome {
            Ok(()) => {}
            // A paused container takes no exec, and one that is going no call.
            Err(ttrpc::Error::RpcStatus(status)) if status.code() == Code::FAILED_PRECONDITION => {}
            Err(_) => return,
        }
    }
}

/// P13.
#[tokio::test]
async fn a_removal_that_cannot_finish_leaves_no_process_and_the_next_finishes_it() {
    let (agent, guest) = Agent::with_sandbox().await;
    running(&guest, &agent.container("c1", &["sleep", "100000"])).await;
    let dir = agent.dir().join("state/containers/c1");
    let in_scope = |command: &[&str]| {
        let init = agent.role(Role::Init).to_string();
        let status =
            Command::new("nsenter").args(["--target", &init, "--mount", "--"]).args(command).status();
        assert!(status.unwrap().success(), "{command:?}");
    };
    let inner = dir.to_string_lossy().into_owned();
    in_scope(&["mount", "-t", "tmpfs", "busy", &inner]);
    let (_, message) = code(guest.remove("c1").await);
    assert!(message.contains("containers/c1"), "{message}");
    assert_eq!(agent.container_pids(), [] as [i32; 0], "the processes are gone all the same");
    in_scope(&["umount", &inner]);
    guest.remove("c1").await.unwrap();
    assert!(!dir.exists());
    assert_eq!(agent.cgroups().iter().filter(|group| group.ends_with("c1")).count(), 0);
    assert_eq!(guest.run(&agent.container("c1", &["echo", "again"])).await.stdout, "again\n");
}

/// H3.
#[tokio::test]
async fn in_a_confidential_guest_one_call_is_done_at_a_time_and_waiting_is_not_a_call() {
    let agent = Agent::configured("sequential = true\n").await;
    let guest = agent.client().await;
    guest.create_sandbox("box").await.unwrap();
    let mut maker =
        agent.shell("maker", "read x; mkdir /tmp/made; mount -t tmpfs made /tmp/made; exec sleep 100000");
    maker.spec().Annotations.insert("io.kubernetes.cri.container-name".into(), "maker".into());
    let capabilities = maker.process().Capabilities.mut_or_insert_default();
    for set in [&mut capabilities.Bounding, &mut capabilities.Permitted, &mut capabilities.Effective] {
        set.push("CAP_SYS_ADMIN".into());
    }
    running(&guest, &maker).await;
    running(&guest, &agent.container("doomed", &["sleep", "100000"])).await;
    running(&guest, &agent.shell("clock", "sleep 0.5; exit 3")).await;

    // A creation that waits for a mount has the turn.
    let mut waits = agent.container("waits", &["true"]);
    waits.request.shared_mounts.push(SharedMount {
        name: "share".into(),
        src_ctr: "maker".into(),
        src_path: "/tmp/made".into(),
        dst_ctr: "waits".into(),
        dst_path: "/tmp/got".into(),
        ..Default::default()
    });
    let mut host = RawClient::connect(&agent.socket()).unwrap();
    let service = "grpc.AgentService";
    let creation = host.send(service, "CreateContainer", &waits.request).unwrap();
    let remove = RemoveContainerRequest { container_id: "doomed".into(), ..Default::default() };
    let removal = host.send(service, "RemoveContainer", &remove).unwrap();
    let wait = WaitProcessRequest { container_id: "clock".into(), ..Default::default() };
    let wait = host.send(service, "WaitProcess", &wait).unwrap();
    let mut next = || {
        let (id, reply) = host.receive_with_id().unwrap();
        assert_eq!(reply.status().code(), Code::OK, "{:?}", reply.status());
        id
    };
    assert_eq!(next(), wait, "half a second later nothing else is done");
    guest.signal("doomed", "", 0).await.unwrap();
    guest.write("maker", "", b"go\n").await.unwrap();
    assert_eq!([next(), next()], [creation, removal]);
    assert_eq!(code(guest.signal("doomed", "", 0).await).0, Code::INVALID_ARGUMENT);
}

/// H9.
#[tokio::test]
async fn nothing_in_a_request_opens_a_debug_console() {
    let (agent, guest) = Agent::with_sandbox().await;
    let mut container = agent.container("c1", &["sleep", "100000"]);
    for key in ["kernel_params", "agent.debug_console", "agent.debug_console_vport", "runtime.debug"] {
        let value = "agent.debug_console agent.debug_console_vport=1026".to_owned();
        container
            .spec()
            .Annotations
            .insert(format!("io.katacontainers.config.hypervisor.{key}"), value.clone());
        container.process().Env.push(format!("{}={value}", key.to_uppercase()));
    }
    running(&guest, &container).await;
    agent.replace(Role::Worker, Signal::SIGKILL).await;
    agent.client().await.stats("c1").await.unwrap();
    assert!(!agent.socket().with_extension("sock.console").exists());
}
