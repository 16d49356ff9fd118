//! Requests that are nearly right, of every method: each is answered and none ends a process of the agent, hangs it,
//! makes it large or makes it lie afterwards. Row T11. `make mutations` makes a million of each; `MUTATIONS` says
//! how many, or which of them (`100000..200000`), and `MUTATE` of which methods.
//!
//! Some of them are carried out, so the agent runs where that does no harm: see the support library's `confined`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    ops::Range,
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};

use berth::{Agent, Mutator, RawClient, Role, code, until};
use berth_protocols::{
    agent::{
        CreateContainerRequest, ExecProcessRequest, GetMetricsRequest, Metrics, PauseContainerRequest,
        RemoveContainerRequest, ResumeContainerRequest, StartContainerRequest,
    },
    oci,
};
use berthctl::call;
use protobuf::{Message, MessageField, MessageFull, well_known_types::empty::Empty};
use ttrpc::{Code, Request};

/// What there is when a method's requests come, made anew for every [`WINDOW`] of them where it is gone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    NoSandbox,
    Nothing,
    Created,
    Running,
    /// Running, with a terminal.
    Terminal,
    Paused,
    /// The sandbox is destroyed, and the machine has not ended yet.
    Destroyed,
}

use Given::{Created, Destroyed, NoSandbox, Nothing, Paused, Running, Terminal};

/// Requests under way at once.
const WINDOW: usize = 64;
/// After so many requests the container they are about is another.
const CONTAINER: usize = 16 * WINDOW;
/// After so many the agent is another, and the one before has been looked at. Routes and files that were made stay until
/// then, and who takes no replies is cut off after a minute.
const ROUND: usize = 5_000;
/// What the worker may ever have been resident with, in KiB.
const MEMORY: u64 = 256 << 10;
/// A call that waits is not waited for.
const PATIENCE: Duration = Duration::from_millis(5);
/// Stands in a request for the id of the container to be made, of which there is one for each request.
const ID: &str = "m-0000000";

/// A request with as much in it as there may be, so that there is something to be wrong. SPEC and EXEC are too long
/// to stand here.
const TABLE: &[(&str, Given, &str)] = &[
    ("Check", Nothing, r#"{"service":"grpc.AgentService"}"#),
    ("Version", Nothing, r#"{"service":"grpc.AgentService"}"#),
    (
        "AddARPNeighbors",
        Nothing,
        r#"{"neighbors":{"ARPNeighbors":[{"toIPAddress":{"address":"10.1.0.2","mask":"24"},"device":"lo","lladdr":"02:00:00:00:00:01","state":128,"flags":2}]}}"#,
    ),
    ("AddSwap", Nothing, r#"{"PCIPath":[2,3]}"#),
    ("AddSwapPath", Nothing, r#"{"path":"/dev/null"}"#),
    ("CloseStdin", Running, r#"{"container_id":"c1","exec_id":"c1"}"#),
    (
        "CopyFile",
        Nothing,
        r#"{"path":"/run/kata-containers/shared/containers/dir/file","file_size":"8","file_mode":33188,"dir_mode":493,"uid":1,"gid":1,"data":"YWJjZGVmZ2g="}"#,
    ),
    (
        "CopyFile",
        Nothing,
        r#"{"path":"/run/kata-containers/shared/containers/dir/link","file_size":"8","file_mode":41471,"dir_mode":493,"data":"Li4vLi4vLi4="}"#,
    ),
    ("CreateContainer", Nothing, "SPEC"),
    (
        "CreateSandbox",
        NoSandbox,
        r#"{"hostname":"host","dns":["nameserver 10.0.0.1","search x"],"sandbox_id":"s1","sandbox_pidns":true,
            "guest_hook_path":"/usr/hooks","storages":[
            {"driver":"ephemeral","fstype":"tmpfs","source":"shm","options":["size=64k"],"mount_point":"/run/kata-containers/sandbox/shm"},
            {"driver":"local","fstype":"local","source":"local","options":["mode=0777"],"mount_point":"/run/kata-containers/sandbox/local"},
            {"driver":"virtio-fs","fstype":"virtiofs","source":"nothing","mount_point":"/run/kata-containers/shared"},
            {"driver":"blk","fstype":"ext4","source":"02","mount_point":"/run/disk"},
            {"driver":"scsi","fstype":"xfs","source":"0:0","mount_point":"/run/scsi"}]}"#,
    ),
    ("ExecProcess", Running, "EXEC"),
    ("GetDiagnosticData", Running, r#"{"container_id":"c1","log_type":"termination_log"}"#),
    ("GetGuestDetails", Nothing, r#"{"mem_block_size":true,"mem_hotplug_probe":true}"#),
    ("GetIPTables", Nothing, r#"{"is_ipv6":true}"#),
    ("GetMetrics", Nothing, "{}"),
    ("GetOOMEvent", Nothing, "{}"),
    ("GetVolumeStats", Nothing, r#"{"volume_guest_path":"/run/kata-containers"}"#),
    ("ListInterfaces", Nothing, "{}"),
    ("ListRoutes", Nothing, "{}"),
    (
        "MemAgentCompactSet",
        Nothing,
        r#"{"disabled":false,"period_secs":"600","period_psi_percent_limit":1,"compact_psi_percent_limit":5,"compact_sec_max":"10","compact_order":9,"compact_threshold":"0","compact_force_times":"1"}"#,
    ),
    (
        "MemAgentMemcgSet",
        Nothing,
        r#"{"disabled":false,"swap":true,"swappiness_max":50,"period_secs":"600","period_psi_percent_limit":1,"eviction_psi_percent_limit":1,"eviction_run_aging_count_min":"3"}"#,
    ),
    ("MemHotplugByProbe", Nothing, r#"{"memHotplugProbeAddr":["4294967296","8589934592"]}"#),
    ("OnlineCPUMem", Nothing, r#"{"wait":true,"nb_cpus":1,"cpu_only":true}"#),
    ("PauseContainer", Running, r#"{"container_id":"c1"}"#),
    ("ReadStderr", Running, r#"{"container_id":"c1","exec_id":"c1","len":4096}"#),
    ("ReadStdout", Running, r#"{"container_id":"c1","exec_id":"c1","len":4096}"#),
    ("RemoveContainer", Running, r#"{"container_id":"c1","timeout":5}"#),
    ("RemoveStaleVirtiofsShareMounts", Nothing, "{}"),
    ("ReseedRandomDev", Nothing, r#"{"data":"c29tZSBlbnRyb3B5"}"#),
    ("ResizeVolume", Nothing, r#"{"volume_guest_path":"/run/kata-containers","size":"1048576"}"#),
    ("ResumeContainer", Paused, r#"{"container_id":"c1"}"#),
    ("SetGuestDateTime", Nothing, r#"{"Sec":"1700000000","Usec":"500000"}"#),
    ("SetIPTables", Nothing, r#"{"data":"KmZpbHRlcgo6SU5QVVQgQUNDRVBUIFswOjBdCkNPTU1JVAo="}"#),
    (
        "SetPolicy",
        Nothing,
        r#"{"policy":"package agent_policy\ndefault AllowRequestsFailingPolicy := true"}"#,
    ),
    ("SignalProcess", Running, r#"{"container_id":"c1","exec_id":"c1","signal":28}"#),
    ("StartContainer", Created, r#"{"container_id":"c1"}"#),
    ("StatsContainer", Running, r#"{"container_id":"c1"}"#),
    ("TtyWinResize", Terminal, r#"{"container_id":"c1","exec_id":"c1","row":24,"column":80}"#),
    (
        "UpdateContainer",
        Running,
        r#"{"container_id":"c1","resources":{"Pids":{"Limit":"1000"},"Memory":{"Limit":"268435456","Reservation":"134217728","Swap":"-1"},
            "CPU":{"Shares":"512","Quota":"50000","Period":"100000","Cpus":"0-1","Mems":"0"},"BlockIO":{"Weight":500},
            "Devices":[{"Allow":true,"Type":"c","Major":"1","Minor":"3","Access":"rwm"}]}}"#,
    ),
    (
        "UpdateEphemeralMounts",
        Nothing,
        r#"{"storages":[{"driver":"ephemeral","fstype":"tmpfs","source":"tmpfs","options":["remount","size=64k","fsgid=1"],"mount_point":"/run/kata-containers"}]}"#,
    ),
    (
        "UpdateInterface",
        Nothing,
        r#"{"interface":{"device":"lo","name":"lo","IPAddresses":[{"address":"10.1.0.1","mask":"24"},{"family":"v6","address":"fd00::1","mask":"64"}],"mtu":"65536","hwAddr":"00:00:00:00:00:00","type":"veth","raw_flags":128}}"#,
    ),
    (
        "UpdateRoutes",
        Nothing,
        r#"{"routes":{"Routes":[{"dest":"10.2.0.0/16","device":"lo","scope":253,"mtu":1400},{"dest":"fd01::/64","device":"lo","family":"v6"}]}}"#,
    ),
    ("WaitProcess", Running, r#"{"container_id":"c1","exec_id":"c1"}"#),
    ("WriteStdin", Running, r#"{"container_id":"c1","exec_id":"c1","data":"c29tZSB0ZXh0Cg=="}"#),
    ("DestroySandbox", Destroyed, "{}"),
];

#[test]
fn every_method_is_there() {
    let rows: BTreeSet<&str> = TABLE.iter().map(|(method, ..)| *method).collect();
    let methods = call::methods();
    assert_eq!(rows, methods.iter().map(|method| method.name.as_str()).collect());
}

/// Which of each method's, of which every one has a seed of its own.
fn numbers() -> Range<usize> {
    let number = |text: &str| text.parse().expect("MUTATIONS is a number, or two with .. between");
    let asked = env::var("MUTATIONS").unwrap_or_else(|_| "300".into());
    asked.split_once("..").map_or_else(|| 0..number(&asked), |(from, to)| number(from)..number(to))
}

fn wanted(method: &str) -> bool {
    env::var("MUTATE").map_or(true, |names| names.split(',').any(|name| name == method))
}

/// One agent, for one round of one row.
struct Victim {
    agent: Agent,
    client: RawClient,
    given: Given,
    asked: usize,
    /// Answers, by their codes.
    codes: BTreeMap<String, usize>,
    slowest: Duration,
}

impl Victim {
    async fn new(given: Given) -> Self {
        let agent = Agent::confined("hotplug_timeout = { secs = 0, nanos = 1000000 }\n").await;
        let guest = agent.client().await;
        if given != NoSandbox {
            guest.create_sandbox("victim").await.unwrap();
            guest.create(&agent.container("bystander", &["cat"])).await.unwrap();
            guest.start("bystander").await.unwrap();
        }
        let client = RawClient::connect(&agent.socket()).unwrap();
        client.stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { agent, client, given, asked: 0, codes: BTreeMap::new(), slowest: Duration::ZERO }
    }

    /// The clock is the machine's, whatever the namespaces.
    fn assert_harmless(&self) {
        const SYS_TIME: u64 = 1 << 25;
        for role in [Role::Init, Role::Worker, Role::Launcher] {
            let bounding = self.status(role, "CapBnd:");
            let bounding = u64::from_str_radix(&bounding, 16).unwrap();
            assert_eq!(bounding & SYS_TIME, 0, "{role:?} could set the clock");
        }
        let device = |path: &str| fs::metadata(path).unwrap().dev();
        let root = format!("/proc/{}/root", self.agent.role(Role::Init));
        assert_ne!(device(&root), device("/"), "the root is the machine's");
    }

    fn status(&self, role: Role, field: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.agent.role(role))).unwrap();
        status.lines().find_map(|line| line.strip_prefix(field)).expect("a field").trim().to_owned()
    }

    /// A call of which it does not matter whether it is refused.
    fn attempt(&mut self, method: &str, request: &impl Message) {
        let _it_may_be_so_already = self.client.agent::<Empty>(method, request);
    }

    fn prepare(&mut self) {
        let container_id = || "c1".to_owned();
        let remove = RemoveContainerRequest { container_id: container_id(), ..Default::default() };
        if self.given == Created || self.asked.is_multiple_of(CONTAINER) {
            self.attempt("RemoveContainer", &remove);
        }
        if matches!(self.given, Created | Running | Terminal | Paused) {
            let container = self.agent.shell("c1", "exec cat > /dev/null");
            let container = if self.given == Terminal { container.terminal() } else { container };
            self.attempt("CreateContainer", &container.request);
        }
        if matches!(self.given, Running | Terminal | Paused) {
            let start = StartContainerRequest { container_id: container_id(), ..Default::default() };
            self.attempt("StartContainer", &start);
        }
        let resume = ResumeContainerRequest { container_id: container_id(), ..Default::default() };
        let pause = PauseContainerRequest { container_id: container_id(), ..Default::default() };
        match self.given {
            Running => self.attempt("ResumeContainer", &resume),
            Paused => self.attempt("PauseContainer", &pause),
            _ => {}
        }
    }

    /// Sends so many requests and hears all answers; says whether one was carried out.
    fn window(&mut self, method: &call::Method, mutator: &mut Mutator, count: usize) -> bool {
        let waits = matches!(&*method.name, "GetOOMEvent" | "ReadStderr" | "ReadStdout" | "WaitProcess");
        let (mut frames, mut sent, mut good) = (Vec::new(), BTreeMap::new(), Vec::new());
        for _ in 0..count {
            let mut payload = mutator.next_request();
            rename(&mut payload, self.asked);
            self.asked += 1;
            let request = Request {
                service: method.service.clone(),
                method: method.name.clone(),
                payload,
                timeout_nano: if waits { PATIENCE } else { Duration::from_secs(60) }.as_nanos() as i64,
                ..Default::default()
            };
            let frame = self.client.frame_of(&request).unwrap();
            let stream = u32::from_be_bytes(frame[4..8].try_into().unwrap());
            frames.extend(frame);
            sent.insert(stream, request.payload);
        }
        let begun = Instant::now();
        std::io::Write::write_all(&mut self.client.stream, &frames).unwrap();
        for _ in 0..count {
            let answer = self.client.receive_with_id();
            let (stream, response) = answer.unwrap_or_else(|error| {
                panic!("{}: {error} with these unanswered: {}", method.name, hex(&sent))
            });
            let payload = sent.remove(&stream).expect("one answer to each request");
            let status = response.status();
            let known = status.code.enum_value().expect("a code");
            let ours = status.message.contains("an error in the agent itself")
                || status.message.contains("bug in Berth");
            let late = known == Code::DEADLINE_EXCEEDED && !waits;
            assert!(
                !ours && !late && known != Code::UNKNOWN,
                "{}: {status:?} to {payload:02x?}",
                method.name
            );
            *self.codes.entry(format!("{known:?}")).or_default() += 1;
            if known == Code::OK {
                good.push(payload);
            }
        }
        self.slowest = self.slowest.max(begun.elapsed());
        if method.name == "CreateContainer" {
            self.remove(&good);
        }
        !good.is_empty()
    }

    /// Removes what was made, whose ids may be others than were meant.
    fn remove(&mut self, made: &[Vec<u8>]) {
        for payload in made {
            let request = CreateContainerRequest::parse_from_bytes(payload).expect("what was carried out");
            let remove = RemoveContainerRequest { container_id: request.container_id, ..Default::default() };
            self.client.send("grpc.AgentService", "RemoveContainer", &remove).unwrap();
        }
        for _ in made {
            assert_eq!(self.client.receive().unwrap().status().code, Code::OK.into());
        }
    }

    /// Destroys the sandbox for a client that takes no replies.
    async fn destroy(&mut self) -> RawClient {
        let mut stuck = RawClient::connect(&self.agent.socket()).unwrap();
        stuck.destroy_unheard().unwrap();
        let done = "berth_rpc_duration_seconds_count{method=\"DestroySandbox\"} 1\n";
        until("the destruction", async || self.metrics().contains(done)).await;
        stuck
    }

    fn metrics(&mut self) -> String {
        self.client.agent::<Metrics>("GetMetrics", &GetMetricsRequest::new()).unwrap().metrics
    }

    /// Whether everything is still as it says.
    async fn examine(mut self, method: &str) {
        for role in [Role::Init, Role::Worker, Role::Launcher] {
            let most: u64 = self.status(role, "VmHWM:").trim_end_matches(" kB").parse().unwrap();
            assert!(most < MEMORY, "{method}: {role:?} was {most} KiB large");
        }
        let metrics = self.metrics();
        for role in ["worker", "launcher"] {
            let none = format!("berth_role_restarts_total{{role=\"{role}\"}} 0\n");
            assert!(metrics.contains(&none), "{method}: a {role} has died");
        }
        let guest = self.agent.client().await;
        match self.given {
            Destroyed => {
                assert_eq!(
                    code(guest.create(&self.agent.container("c2", &["true"])).await).0,
                    Code::FAILED_PRECONDITION
                );
                return;
            }
            // One request may have had the good luck to be right.
            NoSandbox => _ = guest.create_sandbox("victim").await,
            _ => {
                self.attempt(
                    "ResumeContainer",
                    &ResumeContainerRequest { container_id: "c1".into(), ..Default::default() },
                );
                guest.write("bystander", "", b"alive\n").await.unwrap();
                assert_eq!(guest.read_until("bystander", "", "\n").await, "alive\n", "{method}");
            }
        }
        let output = guest.run(&self.agent.container("after", &["echo", "x"])).await;
        assert_eq!((output.status, output.stdout.as_str()), (0, "x\n"), "{method}");
    }
}

/// Gives the container that a request would make an id of its own.
fn rename(payload: &mut [u8], number: usize) {
    let id = format!("m-{:07}", number % 10_000_000);
    while let Some(at) = payload.windows(ID.len()).position(|part| part == ID.as_bytes()) {
        if number == 0 {
            return;
        }
        payload[at..at + ID.len()].copy_from_slice(id.as_bytes());
    }
}

fn hex(sent: &BTreeMap<u32, Vec<u8>>) -> String {
    sent.values().map(|payload| format!("\n{payload:02x?}")).collect()
}

fn sound(agent: &Agent, method: &call::Method, request: &str) -> Vec<u8> {
    match request {
        "SPEC" => rich(agent).write_to_bytes().unwrap(),
        "EXEC" => ExecProcessRequest {
            container_id: "c1".into(),
            exec_id: ID.into(),
            process: MessageField::some(berth::process(&["true"])),
            ..Default::default()
        }
        .write_to_bytes()
        .unwrap(),
        json => {
            let message = protobuf_json_mapping::parse_dyn_from_str(&method.input, json);
            message.unwrap_or_else(|error| panic!("{}: {error}", method.name)).write_to_bytes_dyn().unwrap()
        }
    }
}

/// A container with something of everything that this machine has.
fn rich(agent: &Agent) -> CreateContainerRequest {
    let mut container = agent.container(ID, &["true"]);
    container.request.storages = from_json::<CreateContainerRequest>(
        r#"{"storages":[
            {"driver":"ephemeral","fstype":"tmpfs","source":"shm","options":["size=64k"],"mount_point":"/run/kata-containers/sandbox/m"},
            {"driver":"bind","fstype":"bind","source":"/etc","options":["bind","ro"],"mount_point":"/run/kata-containers/m-0000000"}]}"#,
    )
    .storages;
    container.spec().Hostname = "m".into();
    container
        .spec()
        .Annotations
        .insert("io.katacontainers.pkg.oci.container_type".into(), "pod_container".into());
    container.process().OOMScoreAdj = 100;
    container.process().Rlimits =
        from_json::<oci::Process>(r#"{"Rlimits":[{"Type":"RLIMIT_NOFILE","Hard":"64","Soft":"64"}]}"#)
            .Rlimits;
    let linux: oci::Linux = from_json(
        r#"{"Resources":{"Memory":{"Limit":"67108864"},"CPU":{"Shares":"512"},"Pids":{"Limit":"100"},
                "Devices":[{"Allow":false,"Access":"rwm"},{"Allow":true,"Type":"c","Major":"1","Minor":"3","Access":"rw"}]},
            "Devices":[{"Path":"/dev/other","Type":"c","Major":"1","Minor":"3","FileMode":438}],
            "Seccomp":{"DefaultAction":"SCMP_ACT_ALLOW","Architectures":["SCMP_ARCH_X86_64"],
                "Syscalls":[{"Names":["reboot","kexec_load"],"Action":"SCMP_ACT_ERRNO","Args":[{"Index":"0","Value":"1","Op":"SCMP_CMP_EQ"}]}]}}"#,
    );
    container.linux().Sysctl.insert("kernel.shmmax".into(), "4096".into());
    container.linux().Resources = linux.Resources;
    container.linux().Devices = linux.Devices;
    container.linux().Seccomp = linux.Seccomp;
    container.request
}

fn from_json<T: MessageFull>(json: &str) -> T {
    protobuf_json_mapping::parse_from_str(json).unwrap()
}

async fn round(method: &call::Method, row: &(&str, Given, &str), seed: u64, count: usize) -> (usize, Report) {
    let (_, given, request) = *row;
    let mut victim = Victim::new(given).await;
    victim.assert_harmless();
    let mut mutator = Mutator::new(&sound(&victim.agent, method, request), seed);
    let stuck = if given == Destroyed { Some(victim.destroy().await) } else { None };
    while victim.asked < count {
        victim.prepare();
        // While one is carried out, others for the same sandbox are not looked at.
        let window = if given == NoSandbox { 4 } else { WINDOW };
        let next = window.min(count - victim.asked);
        // Where one is right, there is a sandbox from then on.
        if victim.window(method, &mut mutator, next) && given == NoSandbox {
            break;
        }
    }
    let told = (victim.asked, Report { codes: std::mem::take(&mut victim.codes), slowest: victim.slowest });
    victim.examine(&method.name).await;
    drop(stuck);
    told
}

/// How a method's requests were answered.
#[derive(Default)]
struct Report {
    codes: BTreeMap<String, usize>,
    slowest: Duration,
}

#[tokio::test]
async fn t11_nearly_right_requests_are_answered_and_do_no_harm() {
    let numbers = numbers();
    for method in call::methods().iter().filter(|method| wanted(&method.name)) {
        let rows: Vec<_> = TABLE.iter().filter(|(name, ..)| *name == method.name).collect();
        let (mut done, mut all, begun) = (numbers.start, Report::default(), Instant::now());
        while done < numbers.end {
            let row = rows[(done / ROUND) % rows.len()];
            let (asked, report) = round(method, row, done as u64, (numbers.end - done).min(ROUND)).await;
            done += asked;
            all.slowest = all.slowest.max(report.slowest);
            report.codes.into_iter().for_each(|(code, count)| *all.codes.entry(code).or_default() += count);
        }
        let asked = done - numbers.start;
        let per_second = asked as f64 / begun.elapsed().as_secs_f64();
        println!(
            "{:31} {asked} at {per_second:.0}/s, {WINDOW} at most in {:?}: {:?}",
            method.name, all.slowest, all.codes
        );
    }
}
