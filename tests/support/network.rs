//! The network namespace of an agent, looked at and changed by iproute2.

use std::process::{Command, Output};

use crate::{Agent, Role};

impl Agent {
    /// Runs a program in the agent's namespaces.
    pub fn inside(&self, arguments: &[&str]) -> Output {
        let init = self.role(Role::Init).to_string();
        let mut command = Command::new("nsenter");
        command.args(["--target", &init, "--net", "--mount", "--pid", "--"]).args(arguments);
        command.output().expect("run nsenter (package util-linux)")
    }

    /// `ip` with these arguments, which must succeed.
    pub fn ip(&self, arguments: &str) -> String {
        let mut all = vec!["ip"];
        all.extend(arguments.split_whitespace());
        let output = self.inside(&all);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {arguments}: {stderr}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// What `ip -json` prints.
    pub fn ip_json(&self, arguments: &str) -> serde_json::Value {
        let text = self.ip(&format!("-json {arguments}"));
        if text.trim().is_empty() {
            return serde_json::Value::Array(Vec::new());
        }
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("ip -json {arguments}: {error}: {text}"))
    }

    /// Everything UpdateInterface, UpdateRoutes and AddARPNeighbors can change, for a comparison. Without what
    /// passes by itself: lifetimes, counters, neighbours that are being looked for, addresses and routes that the
    /// kernel makes for a link that comes up.
    pub fn network_state(&self) -> String {
        let links =
            self.ip("-details -oneline link show").lines().map(without_qdisc).collect::<Vec<_>>().join("\n");
        let addresses = self.ip("-oneline address show");
        let addresses: Vec<&str> = addresses.lines().filter(|line| !line.contains("scope link")).collect();
        let mut routes = self.ip("route show table main") + &self.ip("-6 route show table main");
        routes = routes.lines().filter(|line| !line.starts_with("fe80::")).collect::<Vec<_>>().join("\n");
        let neighbours = self.ip("neighbour show nud permanent");
        format!("{links}\n{}\n{routes}\n{neighbours}", addresses.join("\n"))
    }
}

/// The name, addresses, MTU and flags of `ip -oneline link`.
fn without_qdisc(line: &str) -> String {
    let up = if line.contains("UP") { "up" } else { "down" };
    let arp = if line.contains("NOARP") { "noarp" } else { "arp" };
    let words: Vec<&str> = line.split_whitespace().collect();
    let after = |word: &str| words.iter().position(|other| *other == word).and_then(|at| words.get(at + 1));
    format!("{:?} {:?} {:?} {up} {arp}", words.get(1), after("mtu"), after("link/ether"))
}
