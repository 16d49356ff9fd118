//! Mounts that one container makes and another one gets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use berth::{Agent, Container, code};
use berth_protocols::agent::SharedMount;
use ttrpc::Code;

/// Mounts at a line of input, and ends at the next. The tree is moved into place once it is whole, for it is
/// taken as soon as there is a mount.
fn source(agent: &Agent, id: &str) -> Container {
    let script =
        "read x; mkdir -p /tmp/new /tmp/made; mount -t tmpfs new /tmp/new; echo shared >/tmp/new/file;
        mkdir /tmp/new/inner; mount -t tmpfs inner /tmp/new/inner; echo deep >/tmp/new/inner/file;
        mount -o move /tmp/new /tmp/made; read x";
    let mut container = agent.shell(id, script);
    container.spec().Annotations.insert("io.kubernetes.cri.container-name".into(), "maker".into());
    let capabilities = container.process().Capabilities.mut_or_insert_default();
    for set in [&mut capabilities.Bounding, &mut capabilities.Permitted, &mut capabilities.Effective] {
        set.push("CAP_SYS_ADMIN".into());
    }
    container
}

fn target(agent: &Agent, id: &str, script: &str, from: &str, path: &str) -> Container {
    let mut container = agent.shell(id, script);
    container.request.shared_mounts.push(SharedMount {
        name: "share".into(),
        src_ctr: "maker".into(),
        src_path: from.into(),
        dst_ctr: id.into(),
        dst_path: path.into(),
        ..Default::default()
    });
    container
}

#[tokio::test]
async fn a_mount_is_waited_for_and_shared_with_all_below_it() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.create(&source(&agent, "c1")).await.unwrap();
    guest.start("c1").await.unwrap();
    let script = "cat /tmp/a/b/file /tmp/a/b/inner/file; echo answer >/tmp/a/b/back; cat /tmp/other/back";
    let mut container = target(&agent, "c2", script, "/tmp/made", "/tmp/a/b");
    let again = SharedMount { dst_path: "/tmp/other".into(), ..container.request.shared_mounts[0].clone() };
    container.request.shared_mounts.push(again);
    let creating = tokio::spawn({
        let (guest, container) = (guest.clone(), container.clone());
        async move { guest.create(&container).await }
    });
    guest.write("c1", "", b"mount\n").await.unwrap();
    creating.await.unwrap().unwrap();
    guest.start("c2").await.unwrap();
    let output = guest.collect("c2", "").await;
    assert_eq!(output.stdout, "shared\ndeep\nanswer\n", "{output:?}");
    assert_eq!(guest.run_in("c1", "e1", &["cat", "/tmp/made/back"]).await.stdout, "answer\n");
    guest.remove("c2").await.unwrap();
    // The source has its own as before.
    assert_eq!(guest.run_in("c1", "e2", &["cat", "/tmp/made/inner/file"]).await.stdout, "deep\n");
    guest.remove("c1").await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_shared_leaves_no_container() {
    let (agent, guest) = Agent::with_sandbox().await;
    let (refused, text) = code(guest.create(&target(&agent, "c2", "true", "/tmp/made", "/tmp/x")).await);
    assert_eq!(refused, Code::FAILED_PRECONDITION, "{text}");
    assert!(text.contains("no running container \"maker\""), "{text}");

    guest.create(&source(&agent, "c1")).await.unwrap();
    guest.start("c1").await.unwrap();
    let relative = code(guest.create(&target(&agent, "c2", "true", "/tmp/../made", "/tmp/x")).await);
    assert_eq!(relative.0, Code::INVALID_ARGUMENT, "{}", relative.1);
    let (_, text) = code(guest.create(&target(&agent, "c2", "true", "/tmp/made", "/tmp/x")).await);
    assert!(text.contains("the mount /tmp/made in container \"maker\" did not appear within 10 s"), "{text}");

    // It goes while it is waited for.
    let container = target(&agent, "c2", "true", "/tmp/none", "/tmp/x");
    let creating = tokio::spawn({
        let guest = guest.clone();
        async move { guest.create(&container).await }
    });
    guest.close_stdin("c1", "").await.unwrap();
    let (_, text) = code(creating.await.unwrap());
    assert!(text.contains("no running container \"maker\""), "{text}");
    guest.remove("c1").await.unwrap();
    // The id is free.
    assert_eq!(guest.run(&agent.shell("c2", "echo free")).await.stdout, "free\n");
}
