//! What a confidential guest rests on, with the real agent and, in the hub's place, a ttrpc server of the test's own:
//! initdata disks, sealed secrets, pulled images. Needs root, and `--features cdh,initdata,policy`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../sandbox/host.rs"]
#[allow(dead_code, reason = "the tests of the sandbox use the rest")]
mod host;
mod hub;
mod initdata;
mod secrets;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "some of it is for other tests")]
mod support;

use host::Host;

/// A document that allows everything, for tests of something else.
const ALLOWING: &str = "package agent_policy\nAllowRequestsFailingPolicy := true\n";

/// An agent under such a document, with `scope` before it and `toml` in its configuration; what is in /run of confidential
/// guests is `run` in its directory.
async fn allowing(toml: &str, scope: &str) -> Host {
    let toml = format!("policy_file = '@DIR@/allow.rego'\n{toml}");
    let scope = format!("printf '{}' > @DIR@/allow.rego\n{RUN}{scope}", ALLOWING.replace('\n', "\\n"));
    Host::start_in(&toml, &scope).await
}

/// /run/confidential-containers is of the agent's own.
const RUN: &str = "mkdir -p @DIR@/run /run/confidential-containers
    mount --bind @DIR@/run /run/confidential-containers\n";
