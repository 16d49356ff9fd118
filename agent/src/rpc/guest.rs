//! What the guest is and can do.

use std::{fs, io, path::Path};

use berth_protocols::agent::{
    AgentDetails, GetMetricsRequest, GuestDetailsRequest, GuestDetailsResponse, Metrics,
    ReseedRandomDevRequest, SetGuestDateTimeRequest,
};

use super::{
    agent::{Agent, Method, detached, tied},
    decode::decode,
    limits::METHOD_CAP,
    reply::{Code, Reply, Status, encode},
    service::Outcome,
};
use crate::{device, storage};
use crate::{
    guest::{blocking, clock, entropy},
    observe::metrics,
};

const BLOCK_SIZE: &str = "/sys/devices/system/memory/block_size_bytes";
const PROBE: &str = "/sys/devices/system/memory/probe";

pub(super) fn details(agent: &Agent, _: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: GuestDetailsRequest = decode(body)?;
    let mut reply = GuestDetailsResponse::new();
    if request.mem_block_size {
        reply.mem_block_size_bytes = memory_block_size(Path::new(BLOCK_SIZE))?;
    }
    if request.mem_hotplug_probe {
        reply.support_mem_hotplug_probe = Path::new(PROBE).exists();
    }
    reply.agent_details = Some(AgentDetails {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        init_daemon: agent.about.pid1,
        supports_seccomp: true,
        device_handlers: device::handler_names().map(str::to_owned).collect(),
        storage_handlers: storage::driver_names().map(str::to_owned).collect(),
        extra_features: features().map(str::to_owned).collect(),
        ..Default::default()
    })
    .into();
    Ok(Outcome::Now(encode(&reply)?))
}

/// What this build can do that another may not, by the names hosts know.
fn features() -> impl Iterator<Item = &'static str> {
    let features = [
        ("agent-policy", cfg!(feature = "policy")),
        ("init-data", cfg!(feature = "initdata")),
        ("seccomp", true),
    ];
    features.into_iter().filter_map(|(name, has)| has.then_some(name))
}

/// 0 where the kernel has no memory hotplug.
fn memory_block_size(path: &Path) -> Result<u64, Status> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => {
            return Err(Status::new(Code::Internal, format_args!("cannot read {}: {error}", path.display())));
        }
    };
    u64::from_str_radix(text.trim(), 16).map_err(|_| {
        Status::new(Code::Internal, format_args!("{} is not a number: {text:?}", path.display()))
    })
}

pub(super) fn metrics(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let _: GetMetricsRequest = decode(body)?;
    let snapshot = agent.snapshot();
    tied(method, async move {
        let metrics = blocking(move || Ok(metrics::render(&snapshot))).await?;
        encode(&Metrics { metrics, ..Default::default() })
    })
}

pub(super) fn reseed(_: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: ReseedRandomDevRequest = decode(body)?;
    detached(method, Some(METHOD_CAP), async move {
        blocking(move || entropy::add(&request.data)).await?;
        Ok(Reply::empty())
    })
}

/// Set where it is asked, not on the pool: the time is right only now.
pub(super) fn set_date_time(_: &Agent, _: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: SetGuestDateTimeRequest = decode(body)?;
    clock::set(request.Sec, request.Usec)?;
    Ok(Outcome::Now(Reply::empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_size_is_hexadecimal_and_may_be_missing() {
        let file = std::env::temp_dir().join(format!("berth-block-size-{}", std::process::id()));
        fs::write(&file, "8000000\n").unwrap();
        let read = memory_block_size(&file);
        fs::write(&file, "").unwrap();
        let empty = memory_block_size(&file);
        fs::remove_file(&file).unwrap();
        assert_eq!(read, Ok(128 << 20));
        assert_eq!(empty.map_err(|status| status.code), Err(Code::Internal));
        assert_eq!(memory_block_size(&file), Ok(0));
    }
}
