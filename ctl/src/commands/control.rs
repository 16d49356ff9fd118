//! Commands that steer and watch containers, and the guest's clock.

use std::time::{SystemTime, UNIX_EPOCH};

use berth_protocols::{
    agent::{
        GetDiagnosticDataRequest, PauseContainerRequest, ReseedRandomDevRequest, ResumeContainerRequest,
        SetGuestDateTimeRequest, StatsContainerResponse, UpdateContainerRequest,
    },
    oci::LinuxResources,
};
use serde_json::json;

use super::{Error, Result, connect, ui};
use crate::cli::{Date, Events, Global, Update};

pub(super) async fn stats(global: &Global, id: &str) -> Result<i32> {
    let stats = connect(global).await?.stats_container(id).await?;
    if global.json {
        let text = protobuf_json_mapping::print_to_string(&stats);
        return ui::print(
            &text.map_err(|source| crate::call::Error::Reply {
                method: "StatsContainer".to_owned(),
                source,
            })?,
        );
    }
    ui::print(&table(&stats))
}

fn table(stats: &StatsContainerResponse) -> String {
    let cgroup = &stats.cgroup_stats;
    let (cpu, memory, pids) = (&cgroup.cpu_stats, &cgroup.memory_stats, &cgroup.pids_stats);
    let limit = |limit: u64| if limit == 0 { "none".to_owned() } else { limit.to_string() };
    let mut lines = vec![
        format!("cpu time            {:.3} s", cpu.cpu_usage.total_usage as f64 / 1e9),
        format!("throttled           {:.3} s", cpu.throttling_data.throttled_time as f64 / 1e9),
        format!("memory              {} (limit {})", memory.usage.usage, limit(memory.usage.limit)),
        format!("memory, most        {}", memory.usage.max_usage),
        format!("page cache          {}", memory.cache),
        format!("tasks               {} (limit {})", pids.current, limit(pids.limit)),
    ];
    for entry in &cgroup.blkio_stats.io_service_bytes_recursive {
        lines.push(format!("disk {}:{} {:<11} {}", entry.major, entry.minor, entry.op, entry.value));
    }
    for it in &stats.network_stats {
        lines.push(format!("{:<19} received {}, sent {}", it.name, it.rx_bytes, it.tx_bytes));
    }
    lines.join("\n")
}

pub(super) async fn pause(global: &Global, id: &str) -> Result<i32> {
    let request = PauseContainerRequest { container_id: id.to_owned(), ..Default::default() };
    connect(global).await?.pause_container(&request).await?;
    Ok(0)
}

pub(super) async fn resume(global: &Global, id: &str) -> Result<i32> {
    let request = ResumeContainerRequest { container_id: id.to_owned(), ..Default::default() };
    connect(global).await?.resume_container(&request).await?;
    Ok(0)
}

pub(super) async fn update(global: &Global, update: Update) -> Result<i32> {
    let mut resources = LinuxResources::new();
    if update.memory.is_some() || update.memory_swap.is_some() {
        let memory = resources.Memory.mut_or_insert_default();
        memory.Limit = update.memory.unwrap_or(0);
        memory.Swap = update.memory_swap.unwrap_or(0);
    }
    if let Some(limit) = update.pids {
        resources.Pids.mut_or_insert_default().Limit = limit;
    }
    let cpu = resources.CPU.mut_or_insert_default();
    cpu.Shares = update.cpu_shares.unwrap_or(0);
    cpu.Quota = update.cpu_quota.unwrap_or(0);
    cpu.Period = update.cpu_period.unwrap_or(0);
    cpu.Cpus = update.cpus.unwrap_or_default();
    cpu.Mems = update.mems.unwrap_or_default();
    let request = UpdateContainerRequest {
        container_id: update.id,
        resources: Some(resources).into(),
        ..Default::default()
    };
    connect(global).await?.update_container(&request).await?;
    Ok(0)
}

/// One line for each OOM kill, for as long as it is asked for.
pub(super) async fn events(global: &Global, events: Events) -> Result<i32> {
    let agent = connect(global).await?;
    let mut left = events.count;
    while left != Some(0) {
        let container = agent.oom_event().await?;
        ui::print(&if global.json {
            json!({ "event": "oom", "container": container }).to_string()
        } else {
            format!("oom {container}")
        })?;
        left = left.map(|left| left - 1);
    }
    Ok(0)
}

pub(super) async fn metrics(global: &Global) -> Result<i32> {
    let text = connect(global).await?.metrics().await?;
    ui::print(&if global.json { json!({ "metrics": text }).to_string() } else { text.trim_end().to_owned() })
}

pub(super) async fn diagnostics(global: &Global, id: &str) -> Result<i32> {
    let request = GetDiagnosticDataRequest {
        log_type: "termination_log".to_owned(),
        container_id: id.to_owned(),
        ..Default::default()
    };
    let data = connect(global).await?.diagnostic_data(&request).await?;
    ui::print(&if global.json { json!({ "termination_log": data }).to_string() } else { data })
}

pub(super) async fn date(global: &Global, date: Date) -> Result<i32> {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let agent = connect(global).await?;
    // Taken as late as can be: the way to the guest is what the clock will be behind by.
    let time = date.seconds.unwrap_or_else(now);
    let request = SetGuestDateTimeRequest {
        Sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        Usec: time.subsec_micros().into(),
        ..Default::default()
    };
    agent.set_guest_date_time(&request).await?;
    Ok(0)
}

/// As much as the guest's generator has state.
const ENTROPY: usize = 64;

pub(super) async fn reseed(global: &Global) -> Result<i32> {
    use std::io::Read;
    let mut data = vec![0; ENTROPY];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut data));
    read.map_err(|source| Error::Local { action: "read /dev/urandom", source })?;
    let request = ReseedRandomDevRequest { data, ..Default::default() };
    connect(global).await?.reseed(&request).await?;
    Ok(0)
}
