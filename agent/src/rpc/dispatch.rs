//! The method table: `grpc.AgentService` and `grpc.Health` on top of the sandbox.

use super::{
    agent::{Agent, Handler, Method},
    container, control,
    envelope::Request,
    files, guest, hardware, health, memory, network, policy, process,
    reply::{Code, Status},
    sandbox,
    service::{Outcome, Service},
    stdio, volumes,
};

const fn served(name: &'static str, handler: Handler) -> Method {
    Method { name, handler }
}

const HEALTH: [Method; 2] = [served("Check", health::check), served("Version", health::version)];

/// By name, for the binary search.
const AGENT: [Method; 42] = [
    served("AddARPNeighbors", network::add_neighbours),
    served("AddSwap", files::add_swap),
    served("AddSwapPath", files::add_swap_path),
    served("CloseStdin", stdio::close_stdin),
    served("CopyFile", files::copy),
    served("CreateContainer", container::create),
    served("CreateSandbox", sandbox::create),
    served("DestroySandbox", sandbox::destroy),
    served("ExecProcess", process::exec),
    served("GetDiagnosticData", control::diagnostics),
    served("GetGuestDetails", guest::details),
    served("GetIPTables", network::get_iptables),
    served("GetMetrics", guest::metrics),
    served("GetOOMEvent", control::oom_event),
    served("GetVolumeStats", volumes::stats),
    served("ListInterfaces", network::list_interfaces),
    served("ListRoutes", network::list_routes),
    served("MemAgentCompactSet", memory::set_compact),
    served("MemAgentMemcgSet", memory::set_memcg),
    served("MemHotplugByProbe", hardware::probe_memory),
    served("OnlineCPUMem", hardware::online),
    served("PauseContainer", control::pause),
    served("ReadStderr", stdio::read_stderr),
    served("ReadStdout", stdio::read_stdout),
    served("RemoveContainer", container::remove),
    served("RemoveStaleVirtiofsShareMounts", volumes::touch_shared),
    served("ReseedRandomDev", guest::reseed),
    served("ResizeVolume", volumes::resize),
    served("ResumeContainer", control::resume),
    served("SetGuestDateTime", guest::set_date_time),
    served("SetIPTables", network::set_iptables),
    served("SetPolicy", policy::set),
    served("SignalProcess", process::signal),
    served("StartContainer", container::start),
    served("StatsContainer", control::stats),
    served("TtyWinResize", stdio::resize),
    served("UpdateContainer", control::update),
    served("UpdateEphemeralMounts", volumes::update_ephemeral),
    served("UpdateInterface", network::update_interface),
    served("UpdateRoutes", network::update_routes),
    served("WaitProcess", process::wait),
    served("WriteStdin", stdio::write_stdin),
];

/// The row of a method.
fn route(service: &str, name: &str) -> Result<&'static Method, Status> {
    let table = match service {
        "grpc.AgentService" => &AGENT[..],
        "grpc.Health" => &HEALTH[..],
        other => return Err(Status::invalid(format_args!("{other} service does not exist"))),
    };
    let row = table.binary_search_by_key(&name, |method| method.name).ok();
    row.and_then(|row| table.get(row))
        .ok_or_else(|| Status::new(Code::Unimplemented, format_args!("{name} method")))
}

impl Service for Agent {
    fn call(&self, request: &Request<'_>) -> Result<Outcome, Status> {
        let method = route(request.service, request.method)?;
        let gate = if request.service == "grpc.Health" { None } else { self.rules.gate(request) };
        match gate {
            Some(gate) => Ok(Outcome::Gated(gate)),
            None => self.counted(method, request),
        }
    }

    fn permitted(&self, request: &Request<'_>) -> Result<Outcome, Status> {
        let method = route(request.service, request.method)?;
        self.counted(method, request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_has_every_method_of_the_wire() {
        let wire = include_str!("../../../protocols/tests/data/agent-services.csv");
        let mut expected: Vec<&str> = wire
            .lines()
            .filter_map(|line| line.strip_prefix("grpc.AgentService,")?.split(',').next())
            .collect();
        expected.sort_unstable();
        assert_eq!(AGENT.iter().map(|method| method.name).collect::<Vec<_>>(), expected);
        assert!(HEALTH.is_sorted_by_key(|method| method.name));
    }

    #[test]
    fn what_is_not_served_is_said_in_the_words_hosts_know() {
        let refusal =
            |service, method| route(service, method).err().map(|status| (status.code, status.message));
        let no_service = (Code::InvalidArgument, "x.Y service does not exist".to_owned());
        assert_eq!(refusal("x.Y", "Check"), Some(no_service));
        assert_eq!(refusal("grpc.Health", "Nope"), Some((Code::Unimplemented, "Nope method".to_owned())));
        assert_eq!(refusal("grpc.AgentService", "CreateContainer"), None);
        assert_eq!(refusal("grpc.Health", "Check"), None);
    }
}
