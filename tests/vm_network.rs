//! The network calls and CopyFile in a real VM, over vsock, with virtio network interfaces.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{process::Command, time::Duration};

use berth::{Vm, code, ctl_binary};
use berth_protocols::{
    agent::{CopyFileRequest, SetIPTablesRequest},
    types::{IPAddress, IPFamily, Interface, Route},
};
use berthctl::{Agent, vmm::Nic};

fn interface(name: &str, mac: &str, address: &str, mask: &str) -> Interface {
    Interface {
        name: name.into(),
        hwAddr: mac.into(),
        mtu: 1400,
        IPAddresses: vec![IPAddress { address: address.into(), mask: mask.into(), ..Default::default() }],
        ..Default::default()
    }
}

#[tokio::test]
async fn a_vm_has_its_network_and_its_files() {
    let macs = ["52:54:00:00:00:01", "52:54:00:00:00:02"];
    let nic = |mac: &str, network: &str| Nic { mac: mac.into(), network: network.into() };
    let network = [nic(macs[0], "10.1.0.0/24"), nic(macs[1], "10.2.0.0/24")];
    let vm = Vm::boot_with(&["berth.modules=virtio_net"], &berth::Rootfs::busybox(), &network).await;
    let agent = Agent::connect(vm.running.address(), Duration::from_secs(30)).await.unwrap();

    // The kernel's names are the other way round: the first call takes the name from the second interface.
    agent.update_interface(interface("eth1", macs[0], "10.1.0.15", "24")).await.unwrap();
    agent.update_interface(interface("eth0", macs[1], "10.2.0.15", "24")).await.unwrap();
    let missing =
        agent.update_interface(interface("eth7", "52:54:00:00:00:07", "10.3.0.1", "24")).await.unwrap_err();
    assert!(missing.to_string().contains("Link not found"), "{missing}");
    let interfaces = agent.list_interfaces().await.unwrap();
    let named = |name: &str| interfaces.iter().find(|interface| interface.name == name).unwrap();
    for (name, mac, address) in [("eth1", macs[0], "10.1.0.15"), ("eth0", macs[1], "10.2.0.15")] {
        let interface = named(name);
        assert_eq!((interface.hwAddr.to_lowercase().as_str(), interface.mtu), (mac, 1400));
        assert!(interface.IPAddresses.iter().any(|ip| ip.address == address), "{interface:?}");
    }
    let route = |dest: &str, gateway: &str, device: &str| Route {
        dest: dest.into(),
        gateway: gateway.into(),
        device: device.into(),
        family: IPFamily::v4.into(),
        ..Default::default()
    };
    let wanted = vec![route("", "10.1.0.2", "eth1"), route("172.16.0.0/12", "10.2.0.2", "eth0")];
    let routes = agent.update_routes(wanted).await.unwrap();
    assert!(routes.iter().any(|route| route.dest.is_empty() && route.device == "eth1"), "{routes:?}");
    let wrong = agent.update_routes(vec![
        route("10.9.0.0/16", "10.1.0.9", "eth1"),
        route("10.8.0.0/16", "192.0.2.1", "eth1"),
    ]);
    assert!(wrong.await.is_err());
    assert_eq!(agent.list_routes().await.unwrap(), routes, "all or none");
    let rules = SetIPTablesRequest { data: b"*filter\nCOMMIT\n".to_vec(), ..Default::default() };
    let refused = agent.set_iptables(&rules).await.unwrap_err();
    assert!(refused.to_string().contains("iptables-restore"), "the image has none and says so: {refused}");
    assert!(agent.add_swap_path("/dev/nothing").await.is_err());

    // 16 MiB by pieces, and a link out of the tree; a container sees the file and the network.
    let piece = vec![0x42; 1 << 20];
    let root = "/run/kata-containers/shared/containers";
    for n in 0..16i64 {
        let request = CopyFileRequest {
            path: format!("{root}/c1/big"),
            file_size: 16 << 20,
            file_mode: 0o100_644,
            dir_mode: 0o755,
            offset: n << 20,
            data: piece.clone(),
            ..Default::default()
        };
        agent.copy_file(&request).await.unwrap();
    }
    let link = CopyFileRequest {
        path: format!("{root}/c1/out"),
        file_mode: 0o120_777,
        data: b"/etc".to_vec(),
        ..Default::default()
    };
    agent.copy_file(&link).await.unwrap();
    let through =
        CopyFileRequest { path: format!("{root}/c1/out/hosts"), file_mode: 0o100_644, ..Default::default() };
    assert!(agent.copy_file(&through).await.is_err());
    let copied = Command::new(ctl_binary())
        .args(["--address", &vm.running.address().to_string(), "cp", "Cargo.toml", "c1/Cargo.toml"])
        .output()
        .unwrap();
    assert!(copied.status.success(), "{copied:?}");

    let guest = vm.client().await;
    guest.create_sandbox("berth-vm").await.unwrap();
    let mut container = vm.shell(
        "c1",
        "ip route | sort; wc -c < /copied/big; head -n 1 /copied/Cargo.toml; test ! -e /etc/hosts.new; ping -c 1 -W 10 10.1.0.2 >/dev/null && echo reached",
    );
    container.linux().Namespaces.retain(|namespace| namespace.Type != "network");
    let capabilities = container.process().Capabilities.mut_or_insert_default();
    for set in [&mut capabilities.Bounding, &mut capabilities.Permitted, &mut capabilities.Effective] {
        set.push("CAP_NET_RAW".into());
    }
    container.spec().Mounts.push(berth_protocols::oci::Mount {
        destination: "/copied".into(),
        source: format!("{root}/c1"),
        type_: "bind".into(),
        options: vec!["rbind".into(), "ro".into()],
        ..Default::default()
    });
    let output = guest.run(&container).await;
    for line in
        ["default via 10.1.0.2 dev eth1", "172.16.0.0/12 via 10.2.0.2 dev eth0", "16777216", "[workspace]"]
    {
        assert!(output.stdout.contains(line), "{line:?} is not in {output:?}");
    }
    assert!(output.stdout.contains("reached"), "{output:?}");
    let (_, message) = code(guest.agent.add_swap(ttrpc::context::with_timeout(0), &Default::default()).await);
    assert!(!message.is_empty());
}
