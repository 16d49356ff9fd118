//! The shapes of the request messages that are decoded: `agent.proto` and `oci.proto`, reduced to what matters
//! for [`decode`](super::decode). A test holds every line against the generated descriptors.

use std::mem::size_of;

use berth_protocols::{agent, health, oci, types};

use super::{
    decode::{
        Kind::{self, Message, Packed},
        Request, Shape,
    },
    limits::ROUTES_FLOOR,
};

macro_rules! requests {
    ($($message:ty = $shape:expr $(, floor $floor:expr)?;)*) => {
        $(impl Request for $message {
            const SHAPE: &'static Shape = &$shape;
            $(const FLOOR: usize = $floor;)?
        })*

        #[cfg(test)]
        fn all() -> Vec<(protobuf::reflect::MessageDescriptor, &'static Shape)> {
            vec![$((<$message as protobuf::MessageFull>::descriptor(), <$message>::SHAPE)),*]
        }
    };
}

requests! {
    health::CheckRequest = flat(1);
    agent::GuestDetailsRequest = flat(2);
    agent::CreateSandboxRequest = CREATE_SANDBOX;
    agent::DestroySandboxRequest = flat(0);
    agent::CreateContainerRequest = CREATE_CONTAINER;
    agent::StartContainerRequest = flat(1);
    agent::RemoveContainerRequest = flat(2);
    agent::ExecProcessRequest = EXEC_PROCESS;
    agent::SignalProcessRequest = flat(3);
    agent::WaitProcessRequest = flat(2);
    agent::WriteStreamRequest = flat(3);
    agent::ReadStreamRequest = flat(3);
    agent::CloseStdinRequest = flat(2);
    agent::TtyWinResizeRequest = flat(4);
    agent::UpdateContainerRequest = UPDATE_CONTAINER;
    agent::PauseContainerRequest = flat(1);
    agent::ResumeContainerRequest = flat(1);
    agent::StatsContainerRequest = flat(1);
    agent::GetOOMEventRequest = flat(0);
    agent::GetDiagnosticDataRequest = flat(2);
    agent::GetMetricsRequest = flat(0);
    agent::ReseedRandomDevRequest = flat(2);
    agent::SetGuestDateTimeRequest = flat(2);
    agent::MemAgentMemcgConfig = flat(7);
    agent::MemAgentCompactConfig = flat(8);
    agent::OnlineCPUMemRequest = flat(3);
    agent::MemHotplugByProbeRequest = Shape { last: 1, fields: &[(1, Packed)] };
    agent::VolumeStatsRequest = flat(1);
    agent::ResizeVolumeRequest = flat(2);
    agent::UpdateEphemeralMountsRequest =
        Shape { last: 1, fields: &[(1, message::<agent::Storage>(&STORAGE))] };
    agent::RemoveStaleVirtiofsShareMountsRequest = flat(0);
    agent::UpdateInterfaceRequest = UPDATE_INTERFACE;
    agent::UpdateRoutesRequest = UPDATE_ROUTES, floor ROUTES_FLOOR;
    agent::AddARPNeighborsRequest = ADD_NEIGHBOURS;
    agent::ListInterfacesRequest = flat(0);
    agent::ListRoutesRequest = flat(0);
    agent::GetIPTablesRequest = flat(1);
    agent::SetIPTablesRequest = flat(2);
    agent::CopyFileRequest = flat(8);
    agent::AddSwapRequest = Shape { last: 1, fields: &[(1, Packed)] };
    agent::AddSwapPathRequest = flat(1);
}

/// Only numbers and strings, up to field `last`.
const fn flat(last: u32) -> Shape {
    Shape { last, fields: &[] }
}

const fn message<T>(shape: &'static Shape) -> Kind {
    Message(shape, size_of::<T>())
}

/// An entry of a map<string, string>: key, value and the hash table's share.
const MAP: Kind = Message(&flat(2), 64);

const CREATE_SANDBOX: Shape = Shape {
    last: 7,
    fields: &[(3, message::<agent::Storage>(&STORAGE)), (7, message::<agent::KernelModule>(&flat(2)))],
};

const CREATE_CONTAINER: Shape = Shape {
    last: 11,
    fields: &[
        (3, message::<agent::StringUser>(&flat(3))),
        (4, message::<agent::Device>(&flat(5))),
        (5, message::<agent::Storage>(&STORAGE)),
        (6, message::<oci::Spec>(&SPEC)),
        (8, message::<agent::SharedMount>(&flat(5))),
    ],
};

const EXEC_PROCESS: Shape = Shape {
    last: 7,
    fields: &[(3, message::<agent::StringUser>(&flat(3))), (4, message::<oci::Process>(&PROCESS))],
};

const UPDATE_CONTAINER: Shape = Shape { last: 2, fields: &[(2, message::<oci::LinuxResources>(&RESOURCES))] };
const UPDATE_INTERFACE: Shape = Shape { last: 1, fields: &[(1, message::<types::Interface>(&INTERFACE))] };
const INTERFACE: Shape = Shape { last: 8, fields: &[(3, message::<types::IPAddress>(&flat(3)))] };

const UPDATE_ROUTES: Shape = Shape { last: 1, fields: &[(1, message::<agent::Routes>(&ROUTES))] };
const ROUTES: Shape = Shape { last: 1, fields: &[(1, message::<types::Route>(&flat(8)))] };

const ADD_NEIGHBOURS: Shape = Shape { last: 1, fields: &[(1, message::<agent::ARPNeighbors>(&NEIGHBOURS))] };
const NEIGHBOURS: Shape = Shape { last: 1, fields: &[(1, message::<types::ARPNeighbor>(&NEIGHBOUR))] };
const NEIGHBOUR: Shape = Shape { last: 5, fields: &[(1, message::<types::IPAddress>(&flat(3)))] };

const STORAGE: Shape = Shape { last: 8, fields: &[(7, message::<agent::FSGroup>(&flat(3)))] };

const SPEC: Shape = Shape {
    last: 10,
    fields: &[
        (2, message::<oci::Process>(&PROCESS)),
        (3, message::<oci::Root>(&flat(2))),
        (5, message::<oci::Mount>(&flat(4))),
        (6, message::<oci::Hooks>(&HOOKS)),
        (7, MAP),
        (8, message::<oci::Linux>(&LINUX)),
        (9, message::<oci::Solaris>(&flat(1))),
        (10, message::<oci::Windows>(&flat(1))),
    ],
};

const PROCESS: Shape = Shape {
    last: 12,
    fields: &[
        (2, message::<oci::Box>(&flat(2))),
        (3, message::<oci::User>(&Shape { last: 4, fields: &[(3, Packed)] })),
        (7, message::<oci::LinuxCapabilities>(&flat(5))),
        (8, message::<oci::POSIXRlimit>(&flat(3))),
    ],
};

const HOOKS: Shape =
    Shape { last: 6, fields: &[(1, HOOK), (2, HOOK), (3, HOOK), (4, HOOK), (5, HOOK), (6, HOOK)] };
const HOOK: Kind = message::<oci::Hook>(&flat(4));

const LINUX: Shape = Shape {
    last: 13,
    fields: &[
        (1, message::<oci::LinuxIDMapping>(&flat(3))),
        (2, message::<oci::LinuxIDMapping>(&flat(3))),
        (3, MAP),
        (4, message::<oci::LinuxResources>(&RESOURCES)),
        (6, message::<oci::LinuxNamespace>(&flat(2))),
        (7, message::<oci::LinuxDevice>(&flat(7))),
        (8, message::<oci::LinuxSeccomp>(&SECCOMP)),
        (13, message::<oci::LinuxIntelRdt>(&flat(1))),
    ],
};

const RESOURCES: Shape = Shape {
    last: 7,
    fields: &[
        (1, message::<oci::LinuxDeviceCgroup>(&flat(5))),
        (2, message::<oci::LinuxMemory>(&flat(7))),
        (3, message::<oci::LinuxCPU>(&flat(7))),
        (4, message::<oci::LinuxPids>(&flat(1))),
        (5, message::<oci::LinuxBlockIO>(&BLOCK_IO)),
        (6, message::<oci::LinuxHugepageLimit>(&flat(2))),
        (7, message::<oci::LinuxNetwork>(&NETWORK)),
    ],
};

const BLOCK_IO: Shape = Shape {
    last: 7,
    fields: &[
        (3, message::<oci::LinuxWeightDevice>(&flat(4))),
        (4, THROTTLE),
        (5, THROTTLE),
        (6, THROTTLE),
        (7, THROTTLE),
    ],
};
const THROTTLE: Kind = message::<oci::LinuxThrottleDevice>(&flat(3));

const NETWORK: Shape = Shape { last: 2, fields: &[(2, message::<oci::LinuxInterfacePriority>(&flat(2)))] };

const SECCOMP: Shape = Shape { last: 4, fields: &[(4, message::<oci::LinuxSyscall>(&SYSCALL))] };
const SYSCALL: Shape = Shape { last: 4, fields: &[(4, message::<oci::LinuxSeccompArg>(&flat(4)))] };

#[cfg(test)]
mod tests {
    use protobuf::reflect::{MessageDescriptor, RuntimeFieldType, RuntimeType};

    use super::*;

    fn compare(message: &MessageDescriptor, shape: &Shape) {
        let name = message.full_name();
        assert_eq!(
            shape.last,
            message.fields().map(|field| field.number() as u32).max().unwrap_or(0),
            "{name}"
        );
        let mut special = 0;
        for field in message.fields() {
            let kind = shape.fields.iter().find(|(number, _)| *number == field.number() as u32);
            let at = format!("{name}.{}", field.name());
            match (field.runtime_field_type(), kind) {
                (RuntimeFieldType::Singular(RuntimeType::Message(inner)), Some((_, Message(shape, _))))
                | (RuntimeFieldType::Repeated(RuntimeType::Message(inner)), Some((_, Message(shape, _)))) => {
                    compare(&inner, shape);
                }
                (RuntimeFieldType::Map(_, RuntimeType::String), Some((_, Message(shape, _)))) => {
                    assert_eq!(shape.last, 2, "{at}");
                }
                (RuntimeFieldType::Singular(kind), None) => {
                    assert!(!matches!(kind, RuntimeType::Message(_)), "{at} has no shape");
                    continue;
                }
                (RuntimeFieldType::Repeated(RuntimeType::String | RuntimeType::VecU8), None) => continue,
                (RuntimeFieldType::Repeated(_), Some((_, Packed))) => {}
                (_, kind) => panic!("{at} is not {kind:?}"),
            }
            special += 1;
        }
        assert_eq!(special, shape.fields.len(), "{name} has lines for fields that do not exist");
    }

    #[test]
    fn every_shape_is_that_of_its_message() {
        for (message, shape) in all() {
            compare(&message, shape);
        }
    }
}
