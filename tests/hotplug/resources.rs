//! CPUs, memory and network interfaces.

use berth::{Rootfs, Vm, deadline};
use berth_protocols::{
    agent::{CreateSandboxRequest, KernelModule, OnlineCPUMemRequest, UpdateInterfaceRequest},
    types::{IPAddress, Interface},
};
use serde_json::{Value, json};

use crate::host::{PATIENCE, control, guest_says, plug, room};

#[tokio::test]
async fn cpus_memory_and_interfaces_are_put_to_use() {
    let mut vm = Vm::boot_roomy(&[PATIENCE], &Rootfs::busybox(), room()).await;
    let guest = vm.client().await;
    let context = || ttrpc::context::with_timeout(30_000_000_000);
    // With a module, which no program but the agent itself can load here.
    let module = |name: &str| CreateSandboxRequest {
        sandbox_id: "test".into(),
        kernel_modules: vec![KernelModule { name: name.into(), ..Default::default() }],
        ..Default::default()
    };
    let unknown = guest.agent.create_sandbox(context(), &module("berth_none")).await.unwrap_err().to_string();
    assert!(unknown.contains("there is no kernel module berth_none"), "{unknown}");
    guest.agent.create_sandbox(context(), &module("veth")).await.unwrap();
    assert_eq!(guest_says(&vm, &guest, "modules", "grep -c '^veth ' /proc/modules").await, "1");
    let online = |cpus, wait| OnlineCPUMemRequest { wait, nb_cpus: cpus, ..Default::default() };

    let free = control(&mut vm, "query-hotpluggable-cpus", Value::Null).await;
    let free: Vec<Value> =
        free.as_array().unwrap().iter().filter(|cpu| cpu.get("qom-path").is_none()).cloned().collect();
    let waiting = tokio::spawn({
        let (agent, request) = (guest.agent.clone(), online(3, true));
        async move { agent.online_cpu_mem(context(), &request).await }
    });
    let cpu = free.last().unwrap();
    let mut device = cpu["props"].clone();
    device["driver"] = cpu["type"].clone();
    device["id"] = "cpu2".into();
    plug(&mut vm, device).await;
    waiting.await.unwrap().unwrap();
    assert_eq!(guest_says(&vm, &guest, "cpus", "grep -c ^processor /proc/cpuinfo").await, "3");
    let short = guest.agent.online_cpu_mem(context(), &online(9, true)).await.unwrap_err().to_string();
    assert!(short.contains("a total of 9 CPUs did not appear"), "{short}");
    guest.agent.online_cpu_mem(context(), &online(9, false)).await.unwrap();

    let total = "awk '/MemTotal/ { print $2 }' /proc/meminfo";
    let before: u64 = guest_says(&vm, &guest, "before", total).await.parse().unwrap();
    // Shared: the vsock daemon has to reach buffers in it.
    control(
        &mut vm,
        "object-add",
        json!({ "qom-type": "memory-backend-memfd", "id": "more", "share": true, "size": 256 << 20 }),
    )
    .await;
    plug(&mut vm, json!({ "driver": "pc-dimm", "id": "dimm0", "memdev": "more" })).await;
    let mut round = 0;
    let grows = async {
        loop {
            round += 1;
            let now: u64 = guest_says(&vm, &guest, &format!("mem{round}"), total).await.parse().unwrap();
            if now >= before + 200_000 {
                return;
            }
        }
    };
    deadline(grows).await;
    guest.agent.online_cpu_mem(context(), &online(0, true)).await.unwrap();

    // Asked for before it comes, by its place alone.
    let interface = Interface {
        name: "backend".into(),
        devicePath: "12/00".into(),
        mtu: 1300,
        IPAddresses: vec![IPAddress { address: "10.7.0.2".into(), mask: "24".into(), ..Default::default() }],
        ..Default::default()
    };
    let request = UpdateInterfaceRequest { interface: Some(interface).into(), ..Default::default() };
    let waiting = tokio::spawn({
        let (agent, request) = (guest.agent.clone(), request.clone());
        async move { agent.update_interface(context(), &request).await }
    });
    let card =
        json!({ "driver": "virtio-net-pci", "id": "net0", "bus": "port2", "mac": "02:00:00:00:00:07" });
    plug(&mut vm, card.clone()).await;
    waiting.await.unwrap().unwrap();
    let shown = "cd /sys/class/net/backend && cat address mtu";
    assert_eq!(guest_says(&vm, &guest, "net", shown).await, "02:00:00:00:00:07\n1300");

    // Gone, it is told of by its place; back again, it is another interface.
    deadline(vm.running.unplug("net0")).await.unwrap();
    let absent = guest.agent.update_interface(context(), &request).await.unwrap_err().to_string();
    assert!(
        absent.contains("the network interface at PCI path 12/00 did not appear within 15 s"),
        "{absent}"
    );
    plug(&mut vm, card).await;
    guest.agent.update_interface(context(), &request).await.unwrap();
    assert_eq!(guest_says(&vm, &guest, "again", shown).await, "02:00:00:00:00:07\n1300");
}
