//! Any bytes as the OCI configuration of a CreateContainer request: converted or refused.
#![no_main]

use berth_protocols::oci::Spec;
use libfuzzer_sys::fuzz_target;
use protobuf::Message;

fuzz_target!(|data: &[u8]| {
    if let Ok(wire) = Spec::parse_from_bytes(data) {
        let _ = berth_agent::oci::spec(wire);
    }
});
