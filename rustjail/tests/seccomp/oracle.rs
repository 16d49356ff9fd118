//! Ours against libseccomp's programs.
//!
//! Profiles are kept to what libseccomp has one meaning for: one entry with conditions for each call, since
//! it joins several into a tree and gets some wrong (2.5.4); one action for each call, since it lets a rule
//! without conditions swallow all others; no default that we soften to ENOSYS; and no conditions on calls
//! of x86 that are also multiplexed, where it drops them.

use std::collections::{HashMap, HashSet};

use oci_spec::runtime::{Arch, LinuxSeccomp, LinuxSeccompAction as Action, LinuxSyscall};
use rustjail::seccomp::{Machine, compile_for};
use serde_json::{Value, json};

use crate::{
    bpf::{Call, answer, run},
    calls::{ABIS, X32_BIT, multiplexed},
    python,
    random::{self, Random},
};

/// The machine libseccomp compiles for here.
fn machine() -> Machine {
    Machine::native().unwrap()
}

/// What this libseccomp is new enough to know: name, architecture, number.
fn known_calls() -> Option<Value> {
    Some(python::run("libseccomp.py", &json!({"profiles": []}))?["numbers"].take())
}

fn comparable_profile(random: &mut Random, known: &Value) -> LinuxSeccomp {
    let mut profile = random.profile();
    if profile.default_action() == Action::ScmpActErrno {
        profile.set_default_errno_ret(Some(libc::ENOSYS as u32));
    }
    let mut actions: HashMap<String, (Action, Option<u32>)> = HashMap::new();
    let mut entries: Vec<LinuxSyscall> = Vec::new();
    let mut seen = HashSet::new();
    for entry in profile.syscalls().iter().flatten() {
        for name in entry.names().iter().filter(|name| known.get(name.as_str()).is_some()) {
            let mut single = entry.clone();
            single.set_names(vec![name.clone()]);
            let is_multiplexed = multiplexed(name).is_some() || matches!(name.as_str(), "socketcall" | "ipc");
            let call = if is_multiplexed { "socketcall" } else { name };
            let own = (entry.action(), entry.errno_ret());
            let (action, errno) = *actions.entry(call.to_owned()).or_insert(own);
            single.set_action(action).set_errno_ret(errno);
            if is_multiplexed {
                single.set_args(None);
            }
            if !seen.insert(name.clone()) {
                continue;
            }
            let mut args = single.args().clone().unwrap_or_default();
            args.sort_by_key(|arg| arg.index());
            args.dedup_by_key(|arg| arg.index());
            single.set_args(Some(args));
            entries.push(single);
        }
    }
    profile.set_syscalls(Some(entries));
    let family = |arch: &Arch| ABIS.iter().any(|(of, _, runs)| of == arch && *runs == machine());
    let archs = profile.architectures().iter().flatten().copied().filter(family).collect();
    profile.set_architectures(Some(archs));
    profile
}

#[test]
fn libseccomp_agrees_on_random_profiles() {
    let numbers = random::numbers();
    let mut random = Random(1);
    let Some(known) = known_calls() else { return };
    let profiles: Vec<LinuxSeccomp> = (0..25).map(|_| comparable_profile(&mut random, &known)).collect();
    let theirs = python::run("libseccomp.py", &json!({"profiles": profiles})).unwrap();
    let mut compared = 0;
    for (profile, theirs) in profiles.iter().zip(theirs["programs"].as_array().unwrap()) {
        let ours = compile_for(profile, machine()).unwrap();
        let theirs = python::from_hex(theirs.as_str().unwrap_or_else(|| panic!("{theirs} for {profile:?}")));
        for call in random::calls(&mut random, profile, &numbers) {
            assert_eq!(answer(&ours, &call), run(&theirs, &call).0, "{call:x?} under {profile:?}");
            compared += 1;
        }
    }
    println!("{compared} calls compared");
    assert!(compared > 100_000);
}

#[test]
fn libseccomp_numbers_every_call_alike() {
    let Some(known) = known_calls() else { return };
    let numbers = known.as_object().unwrap();
    assert!(numbers.len() > 450, "libseccomp knows {} calls", numbers.len());
    for (name, by_arch) in numbers {
        for (arch, audit, machine) in ABIS {
            let profile: LinuxSeccomp = serde_json::from_value(json!({
                "defaultAction": "SCMP_ACT_ALLOW",
                "architectures": [arch],
                "syscalls": [{"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": 99}],
            }))
            .unwrap();
            let filter = compile_for(&profile, machine).unwrap();
            let number = by_arch[arch.to_string()].as_i64().unwrap();
            let denied =
                |number: u32| answer(&filter, &Call { number, audit, args: [0; 6] }) == 0x0005_0000 | 99;
            if number >= 0 {
                assert!(denied(number as u32), "{name} is {number} on {arch}");
            } else if arch != Arch::ScmpArchX86 && !(arch == Arch::ScmpArchArm && name == "sync_file_range2")
            {
                // x86 has numbers of its own for calls that libseccomp first multiplexes, ARM's headers
                // call 341 by both names, and from 424 on x32 has got calls that were once x86_64's alone.
                let base = if arch == Arch::ScmpArchX32 { X32_BIT } else { 0 };
                assert!(!(base..base + 424).any(denied), "{name} is absent on {arch}");
            }
        }
    }
}

#[test]
fn libseccomp_agrees_on_a_large_profile() {
    let mut profile = crate::profiles::typical(&["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]);
    profile.set_default_errno_ret(Some(libc::ENOSYS as u32));
    // What this libseccomp is too old for it would permit nowhere.
    let Some(known) = known_calls() else { return };
    let entries = profile.syscalls().iter().flatten().cloned().map(|mut entry| {
        let names = entry.names().iter().filter(|name| known.get(name.as_str()).is_some()).cloned();
        let names = names.collect();
        entry.set_names(names);
        entry
    });
    let entries = entries.collect();
    profile.set_syscalls(Some(entries));
    let theirs: Value = python::run("libseccomp.py", &json!({"profiles": [profile]})).unwrap();
    let theirs = python::from_hex(theirs["programs"][0].as_str().unwrap());
    let ours = compile_for(&profile, Machine::X86_64).unwrap();
    println!("{} instructions, libseccomp {}", ours.program.len(), theirs.len());
    let mut random = Random(2);
    for call in random::calls(&mut random, &profile, &random::numbers()) {
        assert_eq!(answer(&ours, &call), run(&theirs, &call).0, "{call:x?}");
    }
}
