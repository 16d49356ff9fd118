//! Every method of the service: what an ordinary call, one for an id that does not exist, one that is no protobuf,
//! one that is made a second time and one after DestroySandbox are answered. One table, over a Unix socket and in a VM.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeSet;

use berth::{Agent, Container, Guest, Mutator, RawClient, Vm, deadline, process, until};
use berth_protocols::agent::{ExecProcessRequest, GetMetricsRequest};
use berthctl::{address::Address, call};
use protobuf::Message;
use ttrpc::{Code, proto::Request};

/// What a container is in when the row's call is made; its id is `{id}` in the request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    Nothing,
    Created,
    Running,
    Paused,
}

use Given::{Created, Nothing, Paused, Running};

/// What a method answers: a code, OK among them.
struct Row {
    method: &'static str,
    given: Given,
    request: &'static str,
    ordinary: Code,
    /// With `{id}` an id that does not exist.
    unknown: Code,
    repeated: Code,
    /// When the sandbox is destroyed and the machine has not ended yet.
    destroyed: Code,
}

const fn row(
    method: &'static str,
    given: Given,
    request: &'static str,
    [ordinary, unknown, repeated, destroyed]: [Code; 4],
) -> Row {
    Row { method, given, request, ordinary, unknown, repeated, destroyed }
}

const C: &str = r#"{"container_id":"{id}"}"#;
const INVALID: Code = Code::INVALID_ARGUMENT;
const WAITS: Code = Code::DEADLINE_EXCEEDED;
const STATE: Code = Code::FAILED_PRECONDITION;

/// "SPEC" and "EXEC" stand for requests that are too long to be written here. A method without ids has in
/// `unknown` what it answers to the same request once more.
const TABLE: &[Row] = &[
    row("Check", Nothing, "{}", [Code::OK; 4]),
    row("Version", Nothing, "{}", [Code::OK; 4]),
    row("AddARPNeighbors", Nothing, "{}", [INVALID; 4]),
    row("AddSwap", Nothing, "{}", [INVALID; 4]),
    row("AddSwapPath", Nothing, r#"{"path":"/no/such/disk"}"#, [Code::INTERNAL; 4]),
    row("CloseStdin", Running, C, [Code::OK, INVALID, Code::OK, INVALID]),
    row("CopyFile", Nothing, r#"{"path":"/etc/passwd"}"#, [INVALID; 4]),
    row("CreateContainer", Nothing, "SPEC", [Code::OK, Code::OK, Code::ALREADY_EXISTS, STATE]),
    row(
        "CreateSandbox",
        Nothing,
        "{}",
        [Code::ALREADY_EXISTS, Code::ALREADY_EXISTS, Code::ALREADY_EXISTS, STATE],
    ),
    row("ExecProcess", Running, "EXEC", [Code::OK, INVALID, Code::ALREADY_EXISTS, INVALID]),
    row(
        "GetDiagnosticData",
        Running,
        r#"{"container_id":"{id}","log_type":"termination_log"}"#,
        [Code::OK, INVALID, Code::OK, INVALID],
    ),
    row("GetGuestDetails", Nothing, r#"{"mem_block_size":true,"mem_hotplug_probe":true}"#, [Code::OK; 4]),
    row("GetIPTables", Nothing, "{}", [Code::OK; 4]),
    row("GetMetrics", Nothing, "{}", [Code::OK; 4]),
    row("GetOOMEvent", Nothing, "{}", [WAITS, WAITS, WAITS, Code::INTERNAL]),
    row("GetVolumeStats", Nothing, r#"{"volume_guest_path":"/"}"#, [Code::OK; 4]),
    row("ListInterfaces", Nothing, "{}", [Code::OK; 4]),
    row("ListRoutes", Nothing, "{}", [Code::OK; 4]),
    // Values no kernel could meet, since not every one has what these calls need; the VM's test has the rest.
    row("MemAgentCompactSet", Nothing, r#"{"compact_order":99}"#, [INVALID; 4]),
    row("MemAgentMemcgSet", Nothing, r#"{"swappiness_max":201}"#, [INVALID; 4]),
    // No guest has the file it writes, but on two architectures.
    row("MemHotplugByProbe", Nothing, "{}", [Code::OK; 4]),
    row("OnlineCPUMem", Nothing, "{}", [Code::OK; 4]),
    row("PauseContainer", Running, C, [Code::OK, INVALID, STATE, INVALID]),
    row("ReadStderr", Running, r#"{"container_id":"{id}","len":1}"#, [WAITS, INVALID, WAITS, INVALID]),
    row("ReadStdout", Running, r#"{"container_id":"{id}","len":1}"#, [WAITS, INVALID, WAITS, INVALID]),
    row("RemoveContainer", Running, C, [Code::OK, INVALID, INVALID, INVALID]),
    row("RemoveStaleVirtiofsShareMounts", Nothing, "{}", [Code::OK; 4]),
    row("ReseedRandomDev", Nothing, r#"{"data":"c29tZSBlbnRyb3B5"}"#, [Code::OK; 4]),
    row("ResizeVolume", Nothing, r#"{"volume_guest_path":"relative"}"#, [INVALID; 4]),
    row("ResumeContainer", Paused, C, [Code::OK, INVALID, STATE, INVALID]),
    // That it sets a clock is seen in the VM, whose clock it may set.
    row("SetGuestDateTime", Nothing, r#"{"Sec":"1","Usec":"1000000"}"#, [INVALID; 4]),
    row("SetIPTables", Nothing, "{}", [Code::OK; 4]),
    // Without the feature.
    row("SetPolicy", Nothing, "{}", [Code::NOT_FOUND; 4]),
    row(
        "SignalProcess",
        Running,
        r#"{"container_id":"{id}","signal":0}"#,
        [Code::OK, INVALID, Code::OK, INVALID],
    ),
    row("StartContainer", Created, C, [Code::OK, INVALID, STATE, INVALID]),
    row("StatsContainer", Running, C, [Code::OK, INVALID, Code::OK, INVALID]),
    row(
        "TtyWinResize",
        Running,
        r#"{"container_id":"{id}","row":1,"column":1}"#,
        [Code::UNAVAILABLE, INVALID, Code::UNAVAILABLE, INVALID],
    ),
    row(
        "UpdateContainer",
        Running,
        r#"{"container_id":"{id}","resources":{"Pids":{"Limit":"100"}}}"#,
        [Code::OK, INVALID, Code::OK, INVALID],
    ),
    row("UpdateEphemeralMounts", Nothing, "{}", [Code::OK; 4]),
    row("UpdateInterface", Nothing, "{}", [INVALID; 4]),
    row("UpdateRoutes", Nothing, "{}", [INVALID; 4]),
    row("WaitProcess", Running, C, [WAITS, INVALID, WAITS, INVALID]),
    row(
        "WriteStdin",
        Running,
        r#"{"container_id":"{id}","data":"eA=="}"#,
        [Code::OK, INVALID, Code::OK, INVALID],
    ),
    // The last; see [`Service::destroy`].
    row("DestroySandbox", Nothing, "{}", [Code::OK, Code::OK, STATE, STATE]),
];

#[test]
fn the_table_has_every_method_once() {
    let rows: Vec<&str> = TABLE.iter().map(|row| row.method).collect();
    let methods: Vec<String> = call::methods().into_iter().map(|method| method.name).collect();
    let unique: BTreeSet<&str> = rows.iter().copied().collect();
    assert_eq!(unique.len(), rows.len());
    assert_eq!(unique, methods.iter().map(String::as_str).collect());
}

/// Where the rows are tried.
struct Service<'a> {
    address: Address,
    guest: Guest,
    container: &'a dyn Fn(&str, &[&str]) -> Container,
    /// The image of `make image` has no program but the agent.
    has_iptables: bool,
}

impl Service<'_> {
    async fn call(&self, method: &str, payload: Vec<u8>, expected: Code) -> (Code, String) {
        let found = call::methods().into_iter().find(|found| found.name == method).expect("a method");
        let request = Request {
            service: found.service,
            method: found.name,
            payload,
            // They answer at once or wait for what will not come.
            timeout_nano: if expected == WAITS { 500_000_000 } else { 60_000_000_000 },
            ..Default::default()
        };
        match deadline(self.guest.client.request(request)).await {
            Ok(_) => (Code::OK, String::new()),
            Err(ttrpc::Error::RpcStatus(status)) => (status.code(), status.message),
            Err(error) if error.to_string().contains("deadline") => (WAITS, error.to_string()),
            Err(error) => (Code::UNKNOWN, error.to_string()),
        }
    }

    fn payload(&self, row: &Row, id: &str) -> Vec<u8> {
        match row.request {
            "SPEC" => (self.container)(id, &["sleep", "1000"]).request.write_to_bytes().unwrap(),
            "EXEC" => {
                let exec = ExecProcessRequest {
                    container_id: id.into(),
                    exec_id: "e1".into(),
                    process: Some(process(&["sleep", "1000"])).into(),
                    ..Default::default()
                };
                exec.write_to_bytes().unwrap()
            }
            json => {
                let found = call::methods().into_iter().find(|found| found.name == row.method).unwrap();
                let json = json.replace("{id}", id);
                let message = protobuf_json_mapping::parse_dyn_from_str(&found.input, &json).unwrap();
                message.write_to_bytes_dyn().unwrap()
            }
        }
    }

    async fn prepare(&self, given: Given, id: &str) {
        if given != Nothing {
            self.guest.create(&(self.container)(id, &["sleep", "1000"])).await.unwrap();
        }
        if matches!(given, Running | Paused) {
            self.guest.start(id).await.unwrap();
        }
        if given == Paused {
            self.guest.pause(id).await.unwrap();
        }
    }

    /// What is not as the table says.
    async fn check(&self, row: &Row) -> Vec<String> {
        let id = format!("c-{}", row.method);
        self.prepare(row.given, &id).await;
        let served = !matches!(row.ordinary, Code::UNIMPLEMENTED | Code::NOT_FOUND);
        let garbage = if served { INVALID } else { row.ordinary };
        let nobody = self.payload(row, "nobody");
        let known = self.payload(row, &id);
        let mut wrong = Vec::new();
        let cases = [
            ("malformed", vec![0xff, 0xff, 0xff], garbage),
            ("unknown id", nobody, row.unknown),
            ("ordinary", known.clone(), row.ordinary),
            ("repeated", known, row.repeated),
        ];
        let cases = cases.into_iter().take(if row.method == "DestroySandbox" { 1 } else { 4 });
        for (case, payload, expected) in cases {
            wrong.extend(self.verdict(row.method, case, payload, expected).await);
        }
        for id in [id.as_str(), "nobody"] {
            let _not_all_have_one = self.guest.remove(id).await;
        }
        wrong
    }

    async fn verdict(&self, method: &str, case: &str, payload: Vec<u8>, expected: Code) -> Option<String> {
        let lacking = method.ends_with("IPTables") && !self.has_iptables && expected == Code::OK;
        let expected = if lacking { STATE } else { expected };
        let (code, text) = self.call(method, payload, expected).await;
        (code != expected).then(|| format!("{method} {case}: {code:?} ({text}), not {expected:?}"))
    }

    async fn check_all(&self) {
        let mut wrong = Vec::new();
        for row in TABLE {
            wrong.extend(self.check(row).await);
        }
        let (mut stuck, replies) = self.destroy().await;
        for row in TABLE {
            let payload = self.payload(row, "c1");
            wrong.extend(self.verdict(row.method, "after DestroySandbox", payload, row.destroyed).await);
        }
        assert_eq!(wrong, [] as [String; 0]);
        // The last of these replies is that of DestroySandbox, and then the machine ends.
        for _ in 0..=replies {
            assert_eq!(stuck.receive().unwrap().status().code(), Code::OK);
        }
    }

    /// Requests that are nearly right: each is answered, whatever with, and by the same worker as before.
    async fn mutate_all(&self) {
        let restarts = "berth_role_restarts_total{role=\"worker\"} 0\n";
        self.prepare(Running, "c1").await;
        for row in TABLE.iter().filter(|row| row.method != "DestroySandbox") {
            let mut mutator = Mutator::new(&self.payload(row, "c1"), 1);
            for _ in 0..MUTATIONS {
                let (code, text) = self.call(row.method, mutator.next_request(), WAITS).await;
                assert_ne!(code, Code::UNKNOWN, "{}: {text}", row.method);
            }
        }
        assert!(self.metrics().await.contains(restarts), "the worker has died");
        let _it_may_be_gone = self.guest.remove("c1").await;
    }

    /// Destroys the sandbox for a client that takes no replies. The machine ends only when the reply is out, so until
    /// that client reads there is time to ask what is answered now.
    async fn destroy(&self) -> (RawClient, usize) {
        let stream = self.address.connect().await.unwrap().into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        let mut stuck = RawClient::over(stream);
        let destructions = self.done("DestroySandbox").await;
        let replies = stuck.destroy_unheard().unwrap();
        until("the destruction", async || self.done("DestroySandbox").await > destructions).await;
        (stuck, replies)
    }

    /// How many calls of `method` are over.
    async fn done(&self, method: &str) -> usize {
        let sample = format!("berth_rpc_duration_seconds_count{{method=\"{method}\"}} ");
        let text = self.metrics().await;
        text.lines().find_map(|line| line.strip_prefix(&sample)).map_or(0, |count| count.parse().unwrap())
    }

    async fn metrics(&self) -> String {
        let context = ttrpc::context::with_timeout(0);
        deadline(self.guest.agent.get_metrics(context, &GetMetricsRequest::new())).await.unwrap().metrics
    }
}

/// Of each method's request.
const MUTATIONS: usize = 30;

#[tokio::test]
async fn over_a_unix_socket() {
    let (agent, guest) = Agent::with_sandbox().await;
    let address = format!("unix://{}", agent.socket().display()).parse().unwrap();
    let container = |id: &str, args: &[&str]| agent.container(id, args);
    let service = Service { address, guest, container: &container, has_iptables: true };
    service.check_all().await;
    drop(service);
    agent.ended();
}

#[tokio::test]
async fn in_a_vm() {
    let (mut vm, guest) = Vm::with_sandbox(&[]).await;
    let address = vm.running.address().clone();
    let container = |id: &str, args: &[&str]| vm.container(id, args);
    let service = Service { address, guest, container: &container, has_iptables: false };
    // Here a mutated request cannot set the clock of the machine that runs the tests.
    service.mutate_all().await;
    service.check_all().await;
    drop(service);
    vm.ended().await;
}

/// What hosts of earlier versions may still call.
#[tokio::test]
async fn methods_that_were_taken_out_of_the_protocol_are_unimplemented() {
    let agent = Agent::start().await;
    let mut client = RawClient::connect(&agent.socket()).unwrap();
    for method in ["ListProcesses", "StartTracing", "StopTracing", "PullImage"] {
        client.send("grpc.AgentService", method, &GetMetricsRequest::new()).unwrap();
        let status = client.receive().unwrap().status().clone();
        assert_eq!((status.code(), status.message), (Code::UNIMPLEMENTED, format!("{method} method")));
    }
}
