//! Commands about the guest as a whole.

use std::io::Read;

use berth_protocols::agent::CreateSandboxRequest;
use serde_json::json;

use super::{Error, Result, connect, ui};
use crate::{
    call,
    cli::{Call, Global, Policy, Sandbox},
};

pub(super) async fn check(global: &Global) -> Result<i32> {
    let reply = connect(global).await?.check().await?;
    let status = format!("{:?}", reply.status.enum_value_or_default());
    ui::print(&if global.json { json!({ "status": status }).to_string() } else { status })
}

pub(super) async fn version(global: &Global) -> Result<i32> {
    let own = env!("CARGO_PKG_VERSION");
    if global.address.is_none() {
        return ui::print(&if global.json {
            json!({ "berthctl": own }).to_string()
        } else {
            format!("berthctl {own}")
        });
    }
    let reply = connect(global).await?.version().await?;
    let (agent, grpc) = (reply.agent_version, reply.grpc_version);
    ui::print(&if global.json {
        json!({ "berthctl": own, "agent": agent, "grpc": grpc }).to_string()
    } else {
        format!("berthctl {own}\nagent    {agent}\ngrpc     {grpc}")
    })
}

pub(super) async fn policy(global: &Global, policy: Policy) -> Result<i32> {
    let Policy::Set { file } = policy;
    let text = std::fs::read_to_string(&file)
        .map_err(|source| Error::Local { action: "read the policy", source })?;
    connect(global).await?.set_policy(text).await?;
    Ok(0)
}

pub(super) async fn details(global: &Global) -> Result<i32> {
    let reply = connect(global).await?.guest_details().await?;
    let agent = reply.agent_details.get_or_default();
    if global.json {
        return ui::print(
            &json!({
                "mem_block_size_bytes": reply.mem_block_size_bytes,
                "support_mem_hotplug_probe": reply.support_mem_hotplug_probe,
                "agent": {
                    "version": agent.version,
                    "init_daemon": agent.init_daemon,
                    "device_handlers": agent.device_handlers,
                    "storage_handlers": agent.storage_handlers,
                    "supports_seccomp": agent.supports_seccomp,
                    "extra_features": agent.extra_features,
                },
            })
            .to_string(),
        );
    }
    let yes = |value| if value { "yes" } else { "no" };
    let list = |values: &[String]| {
        if values.is_empty() { "none".to_owned() } else { values.join(" ") }
    };
    ui::print(&format!(
        "agent version       {}\nis PID 1            {}\nseccomp             {}\nstorage handlers    {}\n\
         device handlers     {}\nextra features      {}\nmemory block size   {}\nmemory probe        {}",
        agent.version,
        yes(agent.init_daemon),
        yes(agent.supports_seccomp),
        list(&agent.storage_handlers),
        list(&agent.device_handlers),
        list(&agent.extra_features),
        reply.mem_block_size_bytes,
        yes(reply.support_mem_hotplug_probe),
    ))
}

pub(super) async fn sandbox(global: &Global, sandbox: Sandbox) -> Result<i32> {
    let agent = connect(global).await?;
    match sandbox {
        Sandbox::Create { id, hostname, dns } => {
            let request = CreateSandboxRequest { sandbox_id: id, hostname, dns, ..Default::default() };
            agent.create_sandbox(&request).await?;
        }
        Sandbox::Destroy => agent.destroy_sandbox().await?,
    }
    Ok(0)
}

pub(super) async fn call(global: &Global, call: Call) -> Result<i32> {
    let Some(method) = call.method.filter(|_| !call.list) else {
        let line = |method: call::Method| {
            format!(
                "{}/{} ({}) -> {}",
                method.service,
                method.name,
                method.input.name(),
                method.output.name()
            )
        };
        let mut lines: Vec<_> = call::methods().into_iter().map(line).collect();
        lines.sort_unstable();
        return ui::print(&lines.join("\n"));
    };
    let mut request = call.request;
    if request == "-" {
        request.clear();
        let read = std::io::stdin().read_to_string(&mut request);
        read.map_err(|source| Error::Local { action: "read the request from standard input", source })?;
    }
    let agent = connect(global).await?;
    let waits = ["WaitProcess", "ReadStdout", "ReadStderr", "WriteStdin", "GetOOMEvent"];
    let limit = (!waits.iter().any(|name| method.ends_with(name))).then_some(global.timeout);
    ui::print(&call::call(&agent, &method, &request, limit).await?)
}
