//! Filters at work: each probe is a child that loads the program and makes one call.

use rustjail::seccomp::{Filter, Machine, compile};
use serde_json::{Value, json};

use crate::{calls::X32_BIT, profile, profiles, python};

fn probe(filter: &Filter, probes: &[Value]) -> Option<Vec<Value>> {
    let request =
        json!({"program": python::to_hex(&filter.program), "flags": filter.flags, "probes": probes});
    let answer = python::run("load.py", &request)?;
    Some(answer.as_array().unwrap().clone())
}

fn call(number: libc::c_long, args: &[u64]) -> Value {
    json!({"number": number, "args": args})
}

fn errno(answer: &Value) -> i64 {
    answer["errno"].as_i64().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn the_kernel_loads_a_large_profile_and_obeys_it() {
    let native = if Machine::native().unwrap() == Machine::X86_64 {
        ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"].as_slice()
    } else {
        ["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"].as_slice()
    };
    let filter = compile(&profiles::typical(native)).unwrap();
    let vsock = [libc::AF_VSOCK as u64, libc::SOCK_STREAM as u64, 0];
    let unix = [libc::AF_UNIX as u64, libc::SOCK_STREAM as u64, 0];
    let calls = [
        call(libc::SYS_getppid, &[]),
        call(libc::SYS_mount, &[]),
        call(libc::SYS_socket, &vsock),
        call(libc::SYS_socket, &unix),
        call(libc::SYS_personality, &[0xffff_ffff]),
        call(libc::SYS_personality, &[0x40_0000]),
        call(libc::SYS_clone3, &[]),
        call(libc::SYS_unshare, &[0]),
        call(1000, &[]),
    ];
    let Some(answers) = probe(&filter, &calls) else {
        return;
    };
    let got: Vec<i64> = answers.iter().map(errno).collect();
    let (eperm, enosys) = (i64::from(libc::EPERM), i64::from(libc::ENOSYS));
    assert_eq!(got, [0, eperm, eperm, 0, 0, eperm, enosys, eperm, enosys]);
}

#[test]
fn every_action_is_the_kernels() {
    let with = |entry: Value| {
        compile(&profile(json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [entry]}))).unwrap()
    };
    let of = |action: &str| json!({"names": ["getppid"], "action": action});
    let probe_one =
        |filter: &Filter| probe(filter, &[call(libc::SYS_getppid, &[])]).map(|answers| answers[0].clone());
    for action in ["SCMP_ACT_KILL", "SCMP_ACT_KILL_THREAD", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_TRAP"] {
        let Some(answer) = probe_one(&with(of(action))) else {
            return;
        };
        assert_eq!(answer["signal"], "SIGSYS", "{action}: {answer}");
    }
    // Without a tracer the kernel answers ENOSYS.
    assert_eq!(errno(&probe_one(&with(of("SCMP_ACT_TRACE"))).unwrap()), i64::from(libc::ENOSYS));
    assert!(probe_one(&with(of("SCMP_ACT_LOG"))).unwrap()["value"].as_i64().unwrap() > 0);
    let errno_13 = json!({"names": ["getppid"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13});
    assert_eq!(errno(&probe_one(&with(errno_13)).unwrap()), 13);
}

#[test]
fn every_flag_is_the_kernels() {
    let flags = ["TSYNC", "LOG", "SPEC_ALLOW", "WAIT_KILLABLE_RECV"]
        .map(|flag| format!("SECCOMP_FILTER_FLAG_{flag}"));
    let filter = compile(&profile(json!({"defaultAction": "SCMP_ACT_ALLOW", "flags": flags}))).unwrap();
    let Some(answers) = probe(&filter, &[call(libc::SYS_getppid, &[])]) else {
        return;
    };
    assert_eq!(errno(&answers[0]), 0);
}

#[test]
fn comparisons_see_all_64_bits() {
    let value = 0x1_0000_0000u64;
    for (op, below, same, above) in
        [("LT", 1, 0, 0), ("LE", 1, 1, 0), ("EQ", 0, 1, 0), ("NE", 1, 0, 1), ("GE", 0, 1, 1), ("GT", 0, 0, 1)]
    {
        let args = json!([{"index": 1, "value": value, "op": format!("SCMP_CMP_{op}")}]);
        let entry = json!({"names": ["getppid"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "args": args});
        let filter =
            compile(&profile(json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [entry]}))).unwrap();
        let calls = [value - 1, value, value + 1].map(|arg| call(libc::SYS_getppid, &[0, arg]));
        let Some(answers) = probe(&filter, &calls) else {
            return;
        };
        assert_eq!(answers.iter().map(errno).collect::<Vec<_>>(), [below, same, above], "{op}");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn other_ways_into_the_kernel_are_filtered_or_closed() {
    let names = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"];
    let entry = json!({"names": ["getppid"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13});
    let filter = |archs: &[&str]| {
        compile(&profile(
            json!({"defaultAction": "SCMP_ACT_ALLOW", "architectures": archs, "syscalls": [entry]}),
        ))
        .unwrap()
    };
    let getppid_32 = json!({"number": 64, "args": [0], "int80": true});
    let x32 = call(libc::c_long::from(X32_BIT) | libc::SYS_getpid, &[]);
    let probes = [getppid_32, x32];
    let Some(open) = probe(&filter(&names), &probes) else {
        return;
    };
    assert_eq!(open[1]["signal"], "SIGSYS", "x32 is not in the list");
    if open[0]["signal"] == "SIGSEGV" {
        println!("skipped the 32-bit half: this kernel has no 32-bit emulation");
        return;
    }
    assert_eq!(errno(&open[0]), 13);
    assert_eq!(
        probe(&filter(&names[..1]), &probes).unwrap()[0]["signal"],
        "SIGSYS",
        "x86 is not in the list"
    );
}
