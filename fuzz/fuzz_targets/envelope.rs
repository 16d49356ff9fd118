//! Any bytes as the body of a ttrpc request: parsed or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = berth_agent::rpc::envelope::parse(data);
});
