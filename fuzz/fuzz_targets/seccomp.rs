//! Any seccomp profile: compiled into a program the kernel would accept in length, or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use oci_spec::runtime::LinuxSeccomp;

fuzz_target!(|data: &[u8]| {
    let Ok(profile) = serde_json::from_slice::<LinuxSeccomp>(data) else { return };
    if let Ok(filter) = rustjail::seccomp::compile(&profile) {
        assert!(filter.program.len() <= 4096);
    }
});
