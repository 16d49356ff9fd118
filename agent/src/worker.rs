//! The worker's start: take the hand-over, recover, serve.
//!
//! It serves only when everything an earlier worker left has its place again, so no call sees half of it;
//! connections made meanwhile wait in the listeners' backlog. It ends when the link to init breaks or a listener
//! is lost, and init starts the next one.

use std::{
    io::{self, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::ExitCode,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use slog::Logger;
use tokio::{runtime::Builder, sync::mpsc, task::LocalSet};
use vsock::{VMADDR_CID_HOST, VsockAddr, VsockStream};

#[cfg(feature = "tracing")]
use crate::observe::tracing::{self, Tracer};
use crate::{
    address::Address,
    config::Config,
    console::{self, CONSOLES},
    device::cdi,
    hotplug::{self, Hotplug, Roots},
    observe::{
        log::Log,
        readers::{self, READERS, Readers},
        sink::Sink,
    },
    port,
    rpc::{
        About, Agent,
        gate::Rules,
        server::{Options, Server},
    },
    sandbox::{Parts, Sandbox},
    stdio::raw::Waiting,
    supervisor::{Handover, ListenerKind, Shutdown, Supervisor},
    task,
};

/// Enough for the stack of any call; pool threads come with the work, and go ten seconds after it.
const STACK: usize = 256 << 10;
/// How long the host may take over the notice that the agent serves.
const NOTICE: Duration = Duration::from_secs(5);

/// Serves until init goes away.
pub fn run(config: Config) -> ExitCode {
    let Ok(sink) = Sink::stdout("agent") else { return ExitCode::FAILURE };
    let logs = Log::new(sink, config.log_level, "agent");
    let log = logs.logger();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(task::THREADS)
        .thread_stack_size(STACK)
        .build();
    let ended = runtime.and_then(|runtime| LocalSet::new().block_on(&runtime, serve(config, logs)));
    if let Err(error) = ended {
        slog::error!(log, "the worker ends"; "error" => %error);
    }
    ExitCode::FAILURE
}

/// Ends only with an error: that of the first part without which there is nothing to serve.
async fn serve(config: Config, logs: Log) -> io::Result<()> {
    let log = logs.logger();
    let (supervisor, handover) = Supervisor::connect().await?;
    let Handover { listeners, stored, generation, mut stages, pid1, records } = handover;
    let state_dir = state_dir(&config, pid1);
    let readers = Readers::new(logs.clone(), &state_dir, generation);
    if let Some(records) = records {
        logs.add(readers::writer(&records, "agent")?);
        optional("the log", &log, Rc::clone(&readers).fill(records));
    }
    let supervisor = Rc::new(supervisor);
    let raw = Rc::new(Waiting::default());
    let ready = state_dir.join("ready");
    // An earlier worker's; it is true again in a moment.
    let _none = std::fs::remove_file(&ready);
    let hotplug = Rc::new(Hotplug::new(Roots::default(), config.hotplug_timeout));
    let uevents = hotplug::Socket::open()?;
    if pid1 && let Err(error) = hotplug::memory::online_by_itself(&hotplug.roots.sys) {
        slog::warn!(log, "memory that is plugged in stays unused until OnlineCPUMem"; "error" => %error);
    }
    let parts = Parts {
        supervisor: Rc::clone(&supervisor),
        raw: Rc::clone(&raw),
        hotplug: Rc::clone(&hotplug),
        cdi: cdi::Registry::new(config.cdi_timeout, config.visible_cdi_devices),
        image_patience: config.image_pull_timeout,
        state_dir,
        pipe_size: (config.container_pipe_size > 0).then_some(config.container_pipe_size),
        log: log.clone(),
        #[cfg(feature = "cdh")]
        hub: hub(&config),
        mem_agent: config.mem_agent,
        named: logs.clone(),
    };
    slog::info!(log, "worker started"; "generation" => generation, "stored" => stored.len());
    let sandbox = Rc::new(Sandbox::new(parts).map_err(io::Error::other)?);
    let (ended, mut first_end) = mpsc::unbounded_channel();
    if pid1 {
        let (hotplug, log) = (Rc::clone(&hotplug), log.clone());
        task::spawn(async move { hotplug.drive(log).await });
    }
    essential(&ended, "the link to uevents", async move { hotplug.listen(uevents).await });
    sandbox.recover(stored).await.map_err(io::Error::other)?;

    let dispatcher = Rc::clone(&sandbox);
    essential(&ended, "the link to init", async move { dispatcher.dispatch_exits().await });
    let end = {
        let (supervisor, log) = (Rc::clone(&supervisor), log.clone());
        move || {
            if let Err(error) = supervisor.shutdown(Shutdown::PowerOff) {
                slog::error!(log, "init cannot be asked to end the machine"; "error" => %error);
            }
        }
    };
    let rules = rules(&config, pid1, generation, &log).await?;
    let about = About { pid1, generation, log: logs.clone() };
    let agent = Agent::new(sandbox, about, end).with_rules(rules);
    #[cfg(feature = "tracing")]
    let agent = agent.with_tracer(tracer(&config, &log)?);
    let agent = Rc::new(agent);
    let options = Options { any_cid: config.any_cid, ..Options::default() };
    let server = Rc::new(Server::new(agent, options, log.clone()));
    let parts = Served { server, raw, readers, any_cid: config.any_cid, log: log.clone() };
    for (kind, listener) in listeners {
        parts.listen(kind, listener, &ended);
    }
    if config.debug_console && config.debug_console_port == 0 && pid1 {
        task::spawn(console::on_device(log.clone()));
    }
    stages.push(("serving".to_owned(), now()));
    slog::info!(log, "serving"; "generation" => generation);
    if let Err(error) = std::fs::write(&ready, notice(&stages)) {
        slog::warn!(log, "cannot say that the agent serves"; "path" => %ready.display(), "error" => %error);
    }
    if generation == 0 && config.ready_port != 0 {
        tell_host(config.ready_port, stages, log.clone());
    }
    let (part, error): (&str, io::Error) = match first_end.recv().await {
        Some(end) => end,
        None => ("the worker", io::ErrorKind::UnexpectedEof.into()),
    };
    Err(io::Error::new(error.kind(), format!("{part} is lost: {error}")))
}

/// What calls have to pass.
#[cfg_attr(not(feature = "initdata"), expect(unused_variables, reason = "only a disk is looked for once"))]
async fn rules(config: &Config, pid1: bool, generation: u32, log: &Logger) -> io::Result<Rules> {
    let sequential = config.sequential.unwrap_or_else(is_confidential);
    let kept = state_dir(config, pid1);
    #[cfg(feature = "initdata")]
    let barred = settle_initdata(kept.clone(), pid1, generation, log.clone()).await;
    #[cfg(feature = "policy")]
    let policy =
        Some(Rc::new(crate::policy::Policy::start(&kept, config.policy_file.as_deref(), log.clone())?));
    slog::info!(log, "rules over calls"; "sequential" => sequential, "policy" => cfg!(feature = "policy"));
    Ok(Rules {
        turn: sequential.then(Arc::default),
        #[cfg(feature = "initdata")]
        barred,
        #[cfg(feature = "policy")]
        policy,
    })
}

#[cfg(feature = "cdh")]
fn hub(config: &Config) -> crate::cdh::Hub {
    use crate::config::GuestComponents;
    crate::cdh::Hub {
        socket: crate::cdh::SOCKET.into(),
        expected: matches!(
            config.guest_components,
            GuestComponents::ConfidentialDataHub | GuestComponents::ApiServerRest
        ),
        arrival: config.launch_process_timeout,
        patience: config.cdh_api_timeout,
        pull_patience: config.image_pull_timeout,
        integrity: config.secure_storage_integrity,
    }
}

/// Why nothing may be served, if what is on an initdata disk cannot be used.
#[cfg(feature = "initdata")]
async fn settle_initdata(kept: PathBuf, pid1: bool, generation: u32, log: Logger) -> Option<Rc<str>> {
    let told = log.clone();
    let settle = move || {
        if pid1 {
            // The disk may still be without its driver: first its controller's, then its own. What does not load is
            // told when all devices are looked after.
            for _ in 0..2 {
                let _problems = crate::init::modules::drive(&Roots::default().sys);
            }
        }
        let directory = Path::new(crate::initdata::DIRECTORY);
        crate::initdata::settle(&Roots::default().dev, directory, &kept, generation, &log)
    };
    let settled = task::blocking(settle).await;
    let problem = match settled {
        Ok(Ok(())) => return None,
        Ok(Err(problem)) => problem.to_string(),
        Err(problem) => problem.to_string(),
    };
    slog::error!(told, "nothing is served"; "error" => &problem);
    Some(problem.into())
}

/// Where spans go, if any are made.
#[cfg(feature = "tracing")]
fn tracer(config: &Config, log: &Logger) -> io::Result<Option<Tracer>> {
    let start = || Tracer::start(tracing::place(&config.server_address), log.clone());
    config.tracing.then(start).transpose()
}

/// Whether the guest's memory is hidden from its host: AMD SEV-SNP, Intel TDX or IBM Secure Execution.
fn is_confidential() -> bool {
    const SIGNS: [&str; 3] = ["/dev/sev-guest", "/dev/tdx_guest", "/sys/firmware/uv"];
    SIGNS.iter().any(|sign| Path::new(sign).exists())
}

type Ended = mpsc::UnboundedSender<(&'static str, io::Error)>;

/// Runs a part whose end, by whatever way, is the worker's.
fn essential(ended: &Ended, part: &'static str, work: impl Future<Output = io::Error> + 'static) {
    let ended = ended.clone();
    let work = task::spawn(work);
    task::spawn(async move {
        let error = work.await.unwrap_or_else(io::Error::other);
        // The receiver is gone when another part ended first.
        let _too_late = ended.send((part, error));
    });
}

/// Runs a part that the worker can do without.
fn optional(part: &'static str, log: &Logger, work: impl Future<Output = io::Error> + 'static) {
    let log = log.clone();
    task::spawn(async move {
        let error = work.await;
        slog::error!(log, "served no more"; "part" => part, "error" => %error);
    });
}

/// What there is to be reached from outside.
struct Served {
    server: Rc<Server>,
    raw: Rc<Waiting>,
    readers: Rc<Readers>,
    any_cid: bool,
    log: Logger,
}

impl Served {
    fn listen(&self, kind: ListenerKind, listener: OwnedFd, ended: &Ended) {
        let (any_cid, log) = (self.any_cid, self.log.clone());
        match kind {
            ListenerKind::Rpc => {
                let server = Rc::clone(&self.server);
                essential(ended, "the ttrpc listener", async move {
                    let Err(error) = server.serve(listener).await;
                    error
                });
            }
            ListenerKind::Stdio => {
                let raw = Rc::clone(&self.raw);
                essential(ended, "the stdio listener", async move {
                    raw.serve(listener).await.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())
                });
            }
            ListenerKind::Log => {
                let (readers, rules) = (Rc::clone(&self.readers), port::Rules { any_cid, most: READERS });
                let each = log.clone();
                let handle = move |socket| Rc::clone(&readers).serve(socket, each.clone());
                optional("the log's port", &self.log, port::serve(listener, rules, log, handle));
            }
            ListenerKind::Console => {
                let (rules, each) = (port::Rules { any_cid, most: CONSOLES }, log.clone());
                let handle = move |socket| console::serve(socket, each.clone());
                optional("the debug console", &self.log, port::serve(listener, rules, log, handle));
            }
        }
    }
}

/// `/run/berth` in a guest; elsewhere beside the socket, so that two agents on one machine do not meet.
fn state_dir(config: &Config, pid1: bool) -> PathBuf {
    match (std::env::var_os("BERTH_STATE_DIR"), &config.server_address) {
        (Some(dir), _) => dir.into(),
        (None, Address::Unix(socket)) if !pid1 => {
            let mut name = socket.clone().into_os_string();
            name.push(".state");
            name.into()
        }
        (None, _) => Path::new("/run/berth").to_owned(),
    }
}

/// Nanoseconds on CLOCK_BOOTTIME.
fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// One line of JSON: that the agent serves, and when each stage of the boot was over.
fn notice(stages: &[(String, u64)]) -> String {
    let stages: Vec<_> =
        stages.iter().map(|(name, at)| serde_json::json!({ "name": name, "ns": at })).collect();
    format!("{}\n", serde_json::json!({ "event": "serving", "stages": stages }))
}

/// Dials the host once and writes the notice. Whoever listens there need not poll; if nobody does, nothing is lost.
fn tell_host(port: u32, stages: Vec<(String, u64)>, log: Logger) {
    let line = notice(&stages);
    let tell = move || {
        let told = VsockStream::connect(&VsockAddr::new(VMADDR_CID_HOST, port)).and_then(|mut host| {
            host.set_write_timeout(Some(NOTICE))?;
            host.write_all(line.as_bytes())
        });
        if let Err(error) = told {
            slog::warn!(log, "the host does not take the ready notice"; "port" => port, "error" => %error);
        }
    };
    // It tells of its own failure.
    task::spawn(async move { task::blocking(tell).await });
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::state_dir;
    use crate::config::Config;

    #[test]
    fn two_agents_on_one_machine_have_two_state_directories() {
        let at = |address: &str| Config { server_address: address.parse().unwrap(), ..Config::default() };
        assert_eq!(state_dir(&at("unix:///tmp/a.sock"), false), Path::new("/tmp/a.sock.state"));
        assert_eq!(state_dir(&at("unix:///tmp/a.sock"), true), Path::new("/run/berth"));
        assert_eq!(state_dir(&Config::default(), false), Path::new("/run/berth"));
    }
}
