//! Any bytes as the body of a request: decoded or refused, and decoded to the same again from what it is written as.
//! What is in it for a container is converted or refused.
#![no_main]

use berth_agent::{
    oci,
    rpc::decode::{Request, decode},
};
use berth_protocols::agent;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((kind, body)) = data.split_first() else { return };
    match kind % 9 {
        0 => {
            let create = read::<agent::CreateContainerRequest>(body);
            let _ = create.and_then(|request| request.OCI.into_option()).map(oci::spec);
        }
        1 => {
            let exec = read::<agent::ExecProcessRequest>(body);
            let _ = exec.and_then(|request| request.process.into_option()).map(oci::process);
        }
        2 => {
            let update = read::<agent::UpdateContainerRequest>(body);
            let _ = update.and_then(|request| request.resources.into_option()).map(oci::resources);
        }
        3 => drop(read::<agent::CreateSandboxRequest>(body)),
        4 => drop(read::<agent::UpdateInterfaceRequest>(body)),
        5 => drop(read::<agent::UpdateRoutesRequest>(body)),
        6 => drop(read::<agent::AddARPNeighborsRequest>(body)),
        7 => drop(read::<agent::CopyFileRequest>(body)),
        _ => drop(read::<agent::UpdateEphemeralMountsRequest>(body)),
    }
});

fn read<M: Request>(body: &[u8]) -> Option<M> {
    let message = decode::<M>(body).ok()?;
    let again = message.write_to_bytes().expect("what was decoded can be written");
    assert!(M::parse_from_bytes(&again).is_ok_and(|again| again == message));
    Some(message)
}
