//! The method table: `grpc.AgentService` and `grpc.Health` on top of the sandbox.

use std::{cell::Cell, future::Future, rc::Rc, time::Duration};

use protobuf::Message;

use super::{
    calls::Calls,
    container, control,
    envelope::Request,
    files, guest, hardware, health,
    inflight::Inflight,
    limits::METHOD_CAP,
    memory, network as network_calls,
    policy::{self, Rules},
    process,
    reply::{Code, Reply, Status},
    sandbox as sandbox_calls,
    service::{Answer, Fate, Outcome, Running, Service},
    stdio, volumes,
};
use crate::{
    copy::Copier,
    network::Network,
    observe::{
        log::Log,
        metrics::{Roles, Snapshot},
    },
    sandbox::Sandbox,
};

/// Parses a request, calls the sandbox, makes the reply.
type Handler = fn(&Agent, &Method, &[u8]) -> Result<Outcome, Status>;

/// One row of the table.
pub(super) struct Method {
    pub(super) name: &'static str,
    handler: Handler,
}

const fn served(name: &'static str, handler: Handler) -> Method {
    Method { name, handler }
}

const HEALTH: [Method; 2] = [served("Check", health::check), served("Version", health::version)];

/// By name, for the binary search.
const AGENT: [Method; 42] = [
    served("AddARPNeighbors", network_calls::add_neighbours),
    served("AddSwap", files::add_swap),
    served("AddSwapPath", files::add_swap_path),
    served("CloseStdin", stdio::close_stdin),
    served("CopyFile", files::copy),
    served("CreateContainer", container::create),
    served("CreateSandbox", sandbox_calls::create),
    served("DestroySandbox", sandbox_calls::destroy),
    served("ExecProcess", process::exec),
    served("GetDiagnosticData", control::diagnostics),
    served("GetGuestDetails", guest::details),
    served("GetIPTables", network_calls::get_iptables),
    served("GetMetrics", guest::metrics),
    served("GetOOMEvent", control::oom_event),
    served("GetVolumeStats", volumes::stats),
    served("ListInterfaces", network_calls::list_interfaces),
    served("ListRoutes", network_calls::list_routes),
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
    served("SetIPTables", network_calls::set_iptables),
    served("SetPolicy", policy::set),
    served("SignalProcess", process::signal),
    served("StartContainer", container::start),
    served("StatsContainer", control::stats),
    served("TtyWinResize", stdio::resize),
    served("UpdateContainer", control::update),
    served("UpdateEphemeralMounts", volumes::update_ephemeral),
    served("UpdateInterface", network_calls::update_interface),
    served("UpdateRoutes", network_calls::update_routes),
    served("WaitProcess", process::wait),
    served("WriteStdin", stdio::write_stdin),
];

/// What the worker knows of itself and its guest from its start.
#[derive(Debug)]
pub struct About {
    /// Whether init is process 1 of the machine.
    pub pid1: bool,
    /// Workers before this one.
    pub generation: u32,
    /// What it logs, and loses.
    pub log: Log,
}

/// The service that hosts call.
pub struct Agent {
    pub(super) sandbox: Rc<Sandbox>,
    pub(super) about: About,
    pub(super) network: Rc<Network>,
    pub(super) copier: Rc<Copier>,
    pub(super) end: Rc<dyn Fn()>,
    inflight: Rc<Inflight>,
    calls: Rc<Calls>,
    scrapes: Cell<u64>,
    pub(super) rules: Rules,
    #[cfg(feature = "tracing")]
    tracer: Option<crate::observe::tracing::Tracer>,
}

impl Agent {
    /// `end` asks init to end the machine: it is called once
    /// DestroySandbox has succeeded and its reply has left, or can no longer be sent.
    pub fn new(sandbox: Rc<Sandbox>, about: About, end: impl Fn() + 'static) -> Self {
        Self {
            sandbox,
            about,
            network: Rc::default(),
            copier: Rc::default(),
            end: Rc::new(end),
            inflight: Rc::default(),
            calls: Rc::default(),
            scrapes: Cell::new(0),
            rules: Rules::default(),
            #[cfg(feature = "tracing")]
            tracer: None,
        }
    }

    /// The same, with rules over who may do what and when.
    pub fn with_rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// The same, with a span for each call if there is somewhere to send them.
    #[cfg(feature = "tracing")]
    pub fn with_tracer(self, tracer: Option<crate::observe::tracing::Tracer>) -> Self {
        Self { tracer, ..self }
    }

    /// Everything the worker counts.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.scrapes.set(self.scrapes.get() + 1);
        let roles = Roles {
            worker_restarts: self.about.generation.into(),
            log_lines_dropped: self.about.log.lost(),
            #[cfg(feature = "tracing")]
            spans_dropped: self.tracer.as_ref().map(crate::observe::tracing::Tracer::dropped),
            ..self.sandbox.roles()
        };
        let (census, calls) = (self.sandbox.census(), self.calls.told());
        Snapshot { scrapes: self.scrapes.get(), census, roles, calls }
    }

    /// Has the method's handler answer, and counts how that goes.
    fn counted(&self, method: &'static Method, request: &Request<'_>) -> Result<Outcome, Status> {
        let mut ticket = self.calls.begin(method.name);
        #[cfg(feature = "tracing")]
        {
            let tracer = self.tracer.as_ref();
            ticket.span = tracer.and_then(|tracer| super::span::begin(tracer, method.name, request));
        }
        let outcome = (method.handler)(self, method, request.payload);
        match outcome {
            Ok(Outcome::Later(running)) => {
                let work = ticket.follow(running.work);
                Ok(Outcome::Later(Running { work, ..running }))
            }
            done => {
                ticket.ended(done.as_ref().err().map(|status| status.code));
                done
            }
        }
    }

    /// A call that changes something: it runs to its end, and the same call made again meanwhile joins it.
    pub(super) fn mutate(
        &self,
        method: &Method,
        body: &[u8],
        work: impl Future<Output = Answer> + 'static,
    ) -> Result<Outcome, Status> {
        let (work, first) = self.inflight.join_or(method.name, body, Box::pin(work));
        let fate = if first { Fate::Detached } else { Fate::Tied };
        Ok(Outcome::Later(Running { name: method.name, work, fate, cap: Some(METHOD_CAP) }))
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("about", &self.about).finish_non_exhaustive()
    }
}

/// A call that changes something but is not the same when repeated, such as a write.
pub(super) fn detached(
    method: &Method,
    cap: Option<Duration>,
    work: impl Future<Output = Answer> + 'static,
) -> Result<Outcome, Status> {
    Ok(Outcome::Later(Running { name: method.name, work: Box::pin(work), fate: Fate::Detached, cap }))
}

/// A call that waits or looks, for as long as its client does.
pub(super) fn tied(method: &Method, work: impl Future<Output = Answer> + 'static) -> Result<Outcome, Status> {
    Ok(Outcome::Later(Running { name: method.name, work: Box::pin(work), fate: Fate::Tied, cap: None }))
}

/// A message as a reply.
pub(super) fn encode(message: &impl Message) -> Result<Reply, Status> {
    let bytes = message.write_to_bytes();
    bytes.map(Reply::message).map_err(|error| Status::new(Code::Internal, error))
}

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
