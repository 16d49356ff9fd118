//! GetIPTables and SetIPTables over the real programs of both back ends, in the agent's own network namespace.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;

use berth::{Agent, Guest, code};
use berth_protocols::agent::{GetIPTablesRequest, SetIPTablesRequest};
use ttrpc::{Code, context::with_timeout};

const NFT: &str = "/usr/sbin/xtables-nft-multi";
const LEGACY: &str = "/usr/sbin/xtables-legacy-multi";

/// An agent whose `iptables-*` are of one back end, whichever the machine has chosen.
async fn agent(back_end: &str) -> (Agent, Guest) {
    let agent = Agent::start().await;
    for multi in [NFT, LEGACY] {
        assert!(Path::new(multi).exists(), "{multi} is missing: install iptables (make test does)");
        if multi != back_end {
            let mounted = agent.inside(&["mount", "--bind", back_end, multi]);
            assert!(mounted.status.success(), "{mounted:?}");
        }
    }
    let guest = agent.client().await;
    (agent, guest)
}

async fn set(guest: &Guest, is_ipv6: bool, rules: &[u8]) -> ttrpc::Result<()> {
    let request = SetIPTablesRequest { is_ipv6, data: rules.to_vec(), ..Default::default() };
    guest.agent.set_ip_tables(with_timeout(0), &request).await.map(drop)
}

async fn get(guest: &Guest, is_ipv6: bool) -> String {
    let request = GetIPTablesRequest { is_ipv6, ..Default::default() };
    let reply = guest.agent.get_ip_tables(with_timeout(0), &request).await.unwrap();
    String::from_utf8(reply.data).unwrap()
}

/// Row H8 of the reliability tests: what a host sends is input of one program, and never a command.
async fn rules_come_and_go(back_end: &str) {
    let (agent, guest) = agent(back_end).await;
    for is_ipv6 in [false, true] {
        let rule = format!("-A INPUT -p tcp -m tcp --dport {} -j DROP", if is_ipv6 { 6006 } else { 4004 });
        set(&guest, is_ipv6, format!("*filter\n{rule}\nCOMMIT\n").as_bytes()).await.unwrap();
        let told = get(&guest, is_ipv6).await;
        assert!(told.contains(&rule), "{told}");
        let program = if is_ipv6 { "ip6tables-save" } else { "iptables-save" };
        let seen = String::from_utf8(agent.inside(&[program]).stdout).unwrap();
        assert!(seen.contains(&rule), "{program} does not show it: {seen}");
        // What was told can be set again.
        set(&guest, is_ipv6, told.as_bytes()).await.unwrap();

        for junk in [
            &b"*filter\n-A NOWHERE -j DROP\nCOMMIT\n"[..],
            b"$(touch /tmp/berth-pwned)\n",
            b"\x00\xff\x7fELF",
            b"*filter\n-F\n-A INPUT -j DROP; reboot\nCOMMIT\n",
        ] {
            let (status, message) = code(set(&guest, is_ipv6, junk).await);
            assert_eq!(status, Code::INTERNAL, "{message}");
            assert!(message.contains("exit status: ") && message.contains("tables-restore"), "{message}");
        }
        for program in
            ["--modprobe=/tmp/x", "--mod /tmp/x", "-M /tmp/x", "\"--mo\\dprobe\" /tmp/x", "-wM/tmp/x"]
        {
            let rules = format!("*filter\n-A INPUT -j DROP {program}\nCOMMIT\n");
            let (status, message) = code(set(&guest, is_ipv6, rules.as_bytes()).await);
            assert_eq!(status, Code::INVALID_ARGUMENT, "{message}");
        }
        assert!(get(&guest, is_ipv6).await.contains(&rule), "a refused set changes nothing");
    }
    assert!(!get(&guest, false).await.contains("6006"), "the families are two");
    assert!(!Path::new("/tmp/berth-pwned").exists());
}

#[tokio::test]
async fn rules_of_the_nft_back_end() {
    rules_come_and_go(NFT).await;
}

#[tokio::test]
async fn rules_of_the_legacy_back_end() {
    rules_come_and_go(LEGACY).await;
}

#[tokio::test]
async fn many_rules_and_many_errors_block_nobody() {
    let (_agent, guest) = agent(NFT).await;
    let mut rules = String::from("*filter\n");
    for n in 0..5_000u32 {
        rules += &format!("-A INPUT -s 10.{}.{}.1/32 -j DROP\n", n / 256, n % 256);
    }
    set(&guest, false, (rules + "COMMIT\n").as_bytes()).await.unwrap();
    assert_eq!(get(&guest, false).await.matches("-j DROP").count(), 5_000);
    let (_, message) = code(set(&guest, false, "nonsense\n".repeat(100_000).as_bytes()).await);
    assert!(message.contains("line"), "{message}");
}

#[tokio::test]
async fn an_image_without_iptables_says_so() {
    let agent = Agent::start().await;
    for place in ["/usr/sbin", "/usr/local/sbin"] {
        let hidden = agent.inside(&["mount", "-t", "tmpfs", "none", place]);
        assert!(hidden.status.success(), "{hidden:?}");
    }
    let guest = agent.client().await;
    let (status, message) = code(set(&guest, true, b"*filter\nCOMMIT\n").await);
    assert_eq!(status, Code::FAILED_PRECONDITION, "{message}");
    assert!(message.contains("ip6tables-restore") && message.contains("/usr/sbin"), "{message}");
}
