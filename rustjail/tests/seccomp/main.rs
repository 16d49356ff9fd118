//! What a compiled profile does, by running it: against the profile's plain meaning, against libseccomp,
//! and in the kernel.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod bpf;
mod calls;
mod kernel;
mod naive;
mod oracle;
mod profiles;
mod python;
mod random;

use oci_spec::runtime::{LinuxSeccomp, LinuxSeccompAction, LinuxSeccompFilterFlag};
use rustjail::seccomp::{Filter, Machine, SeccompError, compile, compile_for, named};
use serde_json::json;

use bpf::{Call, answer, run};
use calls::{AUDIT_X86, AUDIT_X86_64, X32_BIT};
use naive::{ENOSYS, KILL_THREAD};

const ALLOW: u32 = 0x7fff_0000;
const EPERM: u32 = 0x0005_0001;

fn profile(json: serde_json::Value) -> LinuxSeccomp {
    serde_json::from_value(json).unwrap()
}

fn x86_64(json: serde_json::Value) -> Result<Filter, SeccompError> {
    compile_for(&profile(json), Machine::X86_64)
}

fn call(number: u32, args: [u64; 6]) -> Call {
    Call { number, audit: AUDIT_X86_64, args }
}

#[test]
fn random_profiles_mean_what_they_say() {
    let numbers = random::numbers();
    for seed in 0..60 {
        let mut random = random::Random(seed);
        let profile = random.profile();
        for machine in [Machine::X86_64, Machine::Aarch64] {
            let filter = compile_for(&profile, machine).unwrap();
            for call in random::calls(&mut random, &profile, &numbers) {
                let expected = naive::evaluate(&profile, machine, &call);
                let got = answer(&filter, &call);
                assert_eq!(got, expected, "seed {seed}: {call:x?} on {machine:?} under {profile:?}");
            }
        }
    }
}

#[test]
fn a_large_profile_is_a_small_and_shallow_program() {
    let all = profiles::typical(&["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]);
    let one = profiles::typical(&["SCMP_ARCH_X86_64"]);
    let (all, one) =
        (compile_for(&all, Machine::X86_64).unwrap(), compile_for(&one, Machine::X86_64).unwrap());
    println!("{} instructions for three architectures, {} for one", all.program.len(), one.program.len());
    assert!(one.program.len() < 150 && all.program.len() < 460);
    let deepest = (0..480).map(|number| run(&one.program, &call(number, [u64::MAX; 6])).1).max();
    assert!(deepest.unwrap() < 20, "{deepest:?} instructions on one path");
}

#[test]
fn a_call_newer_than_the_profile_is_enosys_and_an_older_one_is_not() {
    let filter = x86_64(json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "syscalls": [{"names": ["read", "openat2"], "action": "SCMP_ACT_ALLOW"}],
    }))
    .unwrap();
    assert_eq!(answer(&filter, &call(437, [0; 6])), ALLOW);
    assert_eq!(answer(&filter, &call(435, [0; 6])), EPERM);
    assert_eq!(answer(&filter, &call(438, [0; 6])), ENOSYS);
    assert_eq!(answer(&filter, &call(u32::MAX, [0; 6])), EPERM);
}

#[test]
fn an_architecture_that_is_not_named_is_killed() {
    let filter = x86_64(json!({"defaultAction": "SCMP_ACT_ALLOW"})).unwrap();
    assert_eq!(answer(&filter, &call(0, [0; 6])), ALLOW);
    assert_eq!(answer(&filter, &call(X32_BIT, [0; 6])), KILL_THREAD);
    assert_eq!(answer(&filter, &Call { audit: AUDIT_X86, ..call(3, [0; 6]) }), KILL_THREAD);
}

#[test]
fn a_denial_is_not_lost_to_a_permission_around_it() {
    let denies = json!({"names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": 97,
        "args": [{"index": 0, "value": 38, "op": "SCMP_CMP_EQ"}]});
    let permits = json!({"names": ["socket"], "action": "SCMP_ACT_ALLOW"});
    for entries in [[&denies, &permits], [&permits, &denies]] {
        let filter = x86_64(json!({"defaultAction": "SCMP_ACT_KILL_PROCESS", "syscalls": entries})).unwrap();
        assert_eq!(answer(&filter, &call(41, [38, 0, 0, 0, 0, 0])), 0x0005_0000 | 97);
        assert_eq!(answer(&filter, &call(41, [2, 0, 0, 0, 0, 0])), ALLOW);
    }
}

#[test]
fn targets_beyond_the_reach_of_a_jump_are_reached() {
    // 800 distinct values: one chain far longer than a conditional jump, left at both ends.
    let entry = |value: u64| {
        json!({"names": ["ioctl"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1 + value % 3,
            "args": [{"index": 1, "value": value << 32 | value, "op": "SCMP_CMP_EQ"}]})
    };
    let entries: Vec<_> = (0..800).map(entry).collect();
    let filter = x86_64(json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": entries})).unwrap();
    for value in 0..800 {
        let expected = 0x0005_0000 | (1 + value % 3) as u32;
        assert_eq!(answer(&filter, &call(16, [0, value << 32 | value, 0, 0, 0, 0])), expected);
        assert_eq!(answer(&filter, &call(16, [0, value + 1, 0, 0, 0, 0])), ALLOW);
    }
    let entries: Vec<_> = (0..1200).map(entry).collect();
    let error = x86_64(json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": entries})).unwrap_err();
    assert!(matches!(error, SeccompError::TooLong { limit: 4096, .. }), "{error}");
}

#[test]
fn a_profile_cannot_multiply_itself() {
    let args: Vec<_> =
        (0..2000).map(|value| json!({"index": 0, "value": value, "op": "SCMP_CMP_EQ"})).collect();
    let names = vec!["read"; 2000];
    let entry = json!({"names": names, "action": "SCMP_ACT_ALLOW", "args": args});
    let error = x86_64(json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [entry]})).unwrap_err();
    assert!(matches!(error, SeccompError::TooManyRules { .. }), "{error}");
}

#[test]
fn a_listener_needs_somewhere_to_go_and_brings_its_flags() {
    let profile = |flags: serde_json::Value, action: &str| {
        json!({
            "defaultAction": "SCMP_ACT_ALLOW", "flags": flags, "listenerPath": "/run/agent",
            "syscalls": [{"names": ["mkdir"], "action": action}],
        })
    };
    let flags = json!([
        "SECCOMP_FILTER_FLAG_TSYNC",
        "SECCOMP_FILTER_FLAG_LOG",
        "SECCOMP_FILTER_FLAG_SPEC_ALLOW",
        "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV",
    ]);
    let of = |flags, action| x86_64(profile(flags, action)).unwrap();
    assert_eq!(of(json!([]), "SCMP_ACT_NOTIFY").flags, 0b00_1000);
    assert_eq!(of(flags.clone(), "SCMP_ACT_NOTIFY").flags, 0b11_1111);
    assert_eq!(of(flags, "SCMP_ACT_KILL").flags, 0b00_0111);
    assert!(of(json!([]), "SCMP_ACT_NOTIFY").notifies() && !of(json!([]), "SCMP_ACT_KILL").notifies());
    let error = x86_64(json!({"defaultAction": "SCMP_ACT_NOTIFY", "listenerPath": "/x"})).unwrap_err();
    assert!(error.to_string().contains("default action SCMP_ACT_NOTIFY"), "{error}");
}

#[test]
fn what_is_wrong_is_named() {
    let with = |entry: serde_json::Value| {
        x86_64(json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [entry]})).unwrap_err().to_string()
    };
    assert_eq!(
        with(json!({"names": ["frobnicate"], "action": "SCMP_ACT_ERRNO"})),
        "unknown seccomp syscall: \"frobnicate\""
    );
    assert!(with(json!({"names": ["read"], "action": "SCMP_ACT_NOTIFY"})).contains("no listenerPath"));
    assert!(with(json!({"names": ["mkdir", "write"], "action": "SCMP_ACT_NOTIFY"})).contains("write"));
    assert!(
        with(json!({"names": ["read"], "action": "SCMP_ACT_KILL", "errnoRet": 1})).contains("SCMP_ACT_KILL ")
    );
    assert!(with(json!({"names": ["read"], "action": "SCMP_ACT_ERRNO", "errnoRet": 4096})).contains("4096"));
    let args = json!([{"index": 6, "value": 0, "op": "SCMP_CMP_EQ"}]);
    assert!(with(json!({"names": ["read"], "action": "SCMP_ACT_KILL", "args": args})).contains("index 6"));
    let unknown = named::<LinuxSeccompAction>("action", "SCMP_ACT_SHRUG").unwrap_err();
    assert_eq!(unknown.to_string(), "unknown seccomp action: \"SCMP_ACT_SHRUG\"");
    assert_eq!(
        named::<LinuxSeccompAction>("action", "SCMP_ACT_LOG").unwrap(),
        LinuxSeccompAction::ScmpActLog
    );
}

#[test]
fn a_name_of_another_architecture_adds_nothing() {
    let filter = |names: &[&str]| {
        x86_64(
            json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": names, "action": "SCMP_ACT_ALLOW"}]}),
        )
    };
    assert_eq!(filter(&["read", "s390_sthyi", "set_tls", "mmap2"]).unwrap(), filter(&["read"]).unwrap());
}

#[test]
fn flags_become_bits() {
    use LinuxSeccompFilterFlag as Flag;
    let mut profile = profile(json!({"defaultAction": "SCMP_ACT_ALLOW"}));
    for (flags, bits) in [
        (vec![], 0),
        (vec![Flag::SeccompFilterFlagTsync], 1),
        (vec![Flag::SeccompFilterFlagLog, Flag::SeccompFilterFlagSpecAllow], 6),
        (vec![Flag::SeccompFilterFlagWaitKillableRecv], 0),
    ] {
        profile.set_flags(Some(flags));
        assert_eq!(compile(&profile).unwrap().flags, bits);
    }
}
