//! The memory agent. Only what a request has changes anything.

use berth_protocols::agent::{MemAgentCompactConfig, MemAgentMemcgConfig};

use super::{
    agent::{Agent, Method, detached},
    decode::decode,
    limits::METHOD_CAP,
    reply::{Reply, Status},
    service::Outcome,
};
use crate::guest::memory::settings::{Compact, Reclaim};

pub(super) fn set_memcg(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let wish: MemAgentMemcgConfig = decode(body)?;
    let sandbox = agent.sandbox.clone();
    detached(method, Some(METHOD_CAP), async move {
        let change = move |now: Reclaim| Reclaim {
            disabled: wish.disabled.unwrap_or(now.disabled),
            swap: wish.swap.unwrap_or(now.swap),
            swappiness_max: wish.swappiness_max.unwrap_or(now.swappiness_max),
            period_secs: wish.period_secs.unwrap_or(now.period_secs),
            period_psi_percent_limit: wish.period_psi_percent_limit.unwrap_or(now.period_psi_percent_limit),
            eviction_psi_percent_limit: wish
                .eviction_psi_percent_limit
                .unwrap_or(now.eviction_psi_percent_limit),
            eviction_run_aging_count_min: wish
                .eviction_run_aging_count_min
                .unwrap_or(now.eviction_run_aging_count_min),
        };
        sandbox.set_reclaim(change).await?;
        Ok(Reply::empty())
    })
}

pub(super) fn set_compact(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let wish: MemAgentCompactConfig = decode(body)?;
    let sandbox = agent.sandbox.clone();
    detached(method, Some(METHOD_CAP), async move {
        let change = move |now: Compact| Compact {
            disabled: wish.disabled.unwrap_or(now.disabled),
            period_secs: wish.period_secs.unwrap_or(now.period_secs),
            period_psi_percent_limit: wish.period_psi_percent_limit.unwrap_or(now.period_psi_percent_limit),
            compact_psi_percent_limit: wish
                .compact_psi_percent_limit
                .unwrap_or(now.compact_psi_percent_limit),
            compact_sec_max: wish.compact_sec_max.unwrap_or(now.compact_sec_max),
            compact_order: wish.compact_order.unwrap_or(now.compact_order),
            compact_threshold: wish.compact_threshold.unwrap_or(now.compact_threshold),
            compact_force_times: wish.compact_force_times.unwrap_or(now.compact_force_times),
        };
        sandbox.set_compact(change).await?;
        Ok(Reply::empty())
    })
}
