//! What one container leaves in a volume, another is not led by.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use berth::{Agent, Container};
use berth_protocols::{agent::Storage, oci};

const VOLUME: &str = "/run/kata-containers/sandbox/ephemeral/shared";

fn with(mut container: Container, source: &str) -> Container {
    container.request.storages = vec![Storage {
        driver: "ephemeral".into(),
        source: "tmpfs".into(),
        fstype: "tmpfs".into(),
        mount_point: VOLUME.into(),
        ..Default::default()
    }];
    container.spec().Mounts.push(oci::Mount {
        destination: "/volume".into(),
        source: source.into(),
        type_: "bind".into(),
        options: vec!["rbind".into(), "rw".into()],
        ..Default::default()
    });
    container
}

#[tokio::test]
async fn a_link_in_a_volume_does_not_lead_out_of_it() {
    let (agent, guest) = Agent::with_sandbox().await;
    let links = "mkdir -p /volume/data/root/bin && echo inside >/volume/data/file \
        && ln -s data /volume/within && ln -s /proc /volume/absolute && ln -s ../../../../sys /volume/relative \
        && ln -s /proc/1/root /volume/magic && ln -s loop /volume/loop";
    let writer = guest.run(&with(agent.shell("writer", links), VOLUME)).await;
    assert_eq!(writer.status, 0, "{writer:?}");

    let within = with(agent.shell("within", "cat /volume/file"), &format!("{VOLUME}/within"));
    assert_eq!(guest.run(&within).await.stdout, "inside\n");
    for link in ["absolute", "relative", "magic", "loop", "absolute/1", "within/../../x"] {
        let led = with(agent.shell("led", "ls /volume"), &format!("{VOLUME}/{link}"));
        let refusal = guest.create(&led).await.unwrap_err().to_string();
        assert!(refusal.contains(&format!("leads out of {VOLUME}")), "{link}: {refusal}");
        let mut led = with(agent.shell("led", "ls /"), VOLUME);
        led.spec().Root.mut_or_insert_default().Path = format!("{VOLUME}/{link}");
        let refusal = guest.create(&led).await.unwrap_err().to_string();
        assert!(refusal.contains(&format!("leads out of {VOLUME}")), "root {link}: {refusal}");
    }
    // Nothing of those that were refused is in the way.
    assert_eq!(guest.run(&with(agent.shell("led", "echo free"), VOLUME)).await.stdout, "free\n");
}
