//! Every method of the service: what an ordinary call, one for an id that does not exist, one that is no protobuf
//! and one that is made a second time are answered. One table, over a Unix socket and in a VM.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{collections::BTreeSet, time::Duration};

use berth::{Agent, Container, Guest, Vm, deadline, process};
use berth_protocols::agent::ExecProcessRequest;
use berthctl::call;
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
}

const fn row(
    method: &'static str,
    given: Given,
    request: &'static str,
    [ordinary, unknown, repeated]: [Code; 3],
) -> Row {
    Row { method, given, request, ordinary, unknown, repeated }
}

const C: &str = r#"{"container_id":"{id}"}"#;
const INVALID: Code = Code::INVALID_ARGUMENT;
const WAITS: Code = Code::DEADLINE_EXCEEDED;
const STATE: Code = Code::FAILED_PRECONDITION;

/// "SPEC" and "EXEC" stand for requests that are too long to be written here. A method without ids has in
/// `unknown` what it answers to the same request once more.
const TABLE: &[Row] = &[
    row("Check", Nothing, "{}", [Code::OK; 3]),
    row("Version", Nothing, "{}", [Code::OK; 3]),
    row("AddARPNeighbors", Nothing, "{}", [INVALID; 3]),
    row("AddSwap", Nothing, "{}", [INVALID; 3]),
    row("AddSwapPath", Nothing, r#"{"path":"/no/such/disk"}"#, [Code::INTERNAL; 3]),
    row("CloseStdin", Running, C, [Code::OK, INVALID, Code::OK]),
    row("CopyFile", Nothing, r#"{"path":"/etc/passwd"}"#, [INVALID; 3]),
    row("CreateContainer", Nothing, "SPEC", [Code::OK, Code::OK, Code::ALREADY_EXISTS]),
    row("CreateSandbox", Nothing, "{}", [Code::ALREADY_EXISTS; 3]),
    row("ExecProcess", Running, "EXEC", [Code::OK, INVALID, Code::ALREADY_EXISTS]),
    row(
        "GetDiagnosticData",
        Running,
        r#"{"container_id":"{id}","log_type":"termination_log"}"#,
        [Code::OK, INVALID, Code::OK],
    ),
    row("GetGuestDetails", Nothing, r#"{"mem_block_size":true,"mem_hotplug_probe":true}"#, [Code::OK; 3]),
    row("GetIPTables", Nothing, "{}", [Code::OK; 3]),
    row("GetMetrics", Nothing, "{}", [Code::OK; 3]),
    row("GetOOMEvent", Nothing, "{}", [WAITS; 3]),
    row("GetVolumeStats", Nothing, r#"{"volume_guest_path":"/"}"#, [Code::OK; 3]),
    row("ListInterfaces", Nothing, "{}", [Code::OK; 3]),
    row("ListRoutes", Nothing, "{}", [Code::OK; 3]),
    // Values no kernel could meet, since not every one has what these calls need; the VM's test has the rest.
    row("MemAgentCompactSet", Nothing, r#"{"compact_order":99}"#, [INVALID; 3]),
    row("MemAgentMemcgSet", Nothing, r#"{"swappiness_max":201}"#, [INVALID; 3]),
    // No guest has the file it writes, but on two architectures.
    row("MemHotplugByProbe", Nothing, "{}", [Code::OK; 3]),
    row("OnlineCPUMem", Nothing, "{}", [Code::OK; 3]),
    row("PauseContainer", Running, C, [Code::OK, INVALID, STATE]),
    row("ReadStderr", Running, r#"{"container_id":"{id}","len":1}"#, [WAITS, INVALID, WAITS]),
    row("ReadStdout", Running, r#"{"container_id":"{id}","len":1}"#, [WAITS, INVALID, WAITS]),
    row("RemoveContainer", Running, C, [Code::OK, INVALID, INVALID]),
    row("RemoveStaleVirtiofsShareMounts", Nothing, "{}", [Code::OK; 3]),
    row("ReseedRandomDev", Nothing, r#"{"data":"c29tZSBlbnRyb3B5"}"#, [Code::OK; 3]),
    row("ResizeVolume", Nothing, r#"{"volume_guest_path":"relative"}"#, [INVALID; 3]),
    row("ResumeContainer", Paused, C, [Code::OK, INVALID, STATE]),
    // That it sets a clock is seen in the VM, whose clock it may set.
    row("SetGuestDateTime", Nothing, r#"{"Sec":"1","Usec":"1000000"}"#, [INVALID; 3]),
    row("SetIPTables", Nothing, "{}", [Code::OK; 3]),
    // Without the feature.
    row("SetPolicy", Nothing, "{}", [Code::NOT_FOUND; 3]),
    row("SignalProcess", Running, r#"{"container_id":"{id}","signal":0}"#, [Code::OK, INVALID, Code::OK]),
    row("StartContainer", Created, C, [Code::OK, INVALID, STATE]),
    row("StatsContainer", Running, C, [Code::OK, INVALID, Code::OK]),
    row(
        "TtyWinResize",
        Running,
        r#"{"container_id":"{id}","row":1,"column":1}"#,
        [Code::UNAVAILABLE, INVALID, Code::UNAVAILABLE],
    ),
    row(
        "UpdateContainer",
        Running,
        r#"{"container_id":"{id}","resources":{"Pids":{"Limit":"100"}}}"#,
        [Code::OK, INVALID, Code::OK],
    ),
    row("UpdateEphemeralMounts", Nothing, "{}", [Code::OK; 3]),
    row("UpdateInterface", Nothing, "{}", [INVALID; 3]),
    row("UpdateRoutes", Nothing, "{}", [INVALID; 3]),
    row("WaitProcess", Running, C, [WAITS, INVALID, WAITS]),
    row("WriteStdin", Running, r#"{"container_id":"{id}","data":"eA=="}"#, [Code::OK, INVALID, Code::OK]),
    // The last: nobody serves after it.
    row("DestroySandbox", Nothing, "{}", [Code::OK; 3]),
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
    guest: Guest,
    container: &'a dyn Fn(&str, &[&str]) -> Container,
    /// The image of `make image` has no program but the agent.
    has_iptables: bool,
}

impl Service<'_> {
    async fn call(&self, method: &str, payload: Vec<u8>) -> (Code, String) {
        let found = call::methods().into_iter().find(|found| found.name == method).expect("a method");
        let request = Request {
            service: found.service,
            method: found.name,
            payload,
            // A destruction is allowed its time; the others answer at once or wait for what will not come.
            timeout_nano: if method == "DestroySandbox" { 30_000_000_000 } else { 2_000_000_000 },
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
        // After its own success there is no service to ask.
        let cases = cases.into_iter().take(if row.method == "DestroySandbox" { 2 } else { 4 });
        for (case, payload, expected) in cases {
            let lacking = row.method.ends_with("IPTables") && !self.has_iptables && expected == Code::OK;
            let expected = if lacking { STATE } else { expected };
            let (code, text) = self.call(row.method, payload).await;
            if code != expected {
                wrong.push(format!("{} {case}: {code:?} ({text}), not {expected:?}", row.method));
            }
        }
        for id in [id.as_str(), "nobody"] {
            let _not_all_have_one = self.guest.remove(id).await;
        }
        wrong
    }

    async fn check_all(&self) {
        let mut wrong = Vec::new();
        for row in TABLE {
            wrong.extend(self.check(row).await);
        }
        assert_eq!(wrong, [] as [String; 0]);
    }
}

/// Every call is answered, or its connection is closed: none is left waiting.
async fn nothing_hangs_after_destruction(service: &Service<'_>) {
    for row in TABLE {
        let ended = service.call(row.method, service.payload(row, "c1"));
        let (code, text) = tokio::time::timeout(Duration::from_secs(10), ended).await.expect(row.method);
        let told =
            matches!(row.method, "Check" | "Version" | "GetGuestDetails" | "GetMetrics" | "ReseedRandomDev");
        assert!(code != Code::OK || told, "{}: {text}", row.method);
    }
}

#[tokio::test]
async fn over_a_unix_socket() {
    let (agent, guest) = Agent::with_sandbox().await;
    let service = Service { guest, container: &|id, args| agent.container(id, args), has_iptables: true };
    service.check_all().await;
    nothing_hangs_after_destruction(&service).await;
}

#[tokio::test]
async fn in_a_vm() {
    let (vm, guest) = Vm::with_sandbox(&[]).await;
    let service = Service { guest, container: &|id, args| vm.container(id, args), has_iptables: false };
    service.check_all().await;
    nothing_hangs_after_destruction(&service).await;
}
