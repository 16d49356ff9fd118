//! One table from what can go wrong in the sandbox to what a host is told.
//!
//! INVALID_ARGUMENT means that the same request will fail in any state of the guest; hosts do not retry it. The
//! texts are the errors' own: those that hosts match on are tested here.

use std::io;

use nix::errno::Errno;

use super::reply::{Code, Status};
#[cfg(feature = "image-pull")]
use crate::storage::ImageError;
use crate::{
    copy, device::DeviceError, guest, hotplug::HotplugError, network, oci, sandbox::Error,
    storage::StorageError, supervisor::LaunchError, swap,
};

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(code(&error), error)
    }
}

impl From<oci::Error> for Status {
    fn from(error: oci::Error) -> Self {
        Self::invalid(error)
    }
}

impl From<guest::Error> for Status {
    fn from(error: guest::Error) -> Self {
        let code = match &error {
            guest::Error::Invalid(_) => Code::InvalidArgument,
            guest::Error::Unsupported { .. } => Code::FailedPrecondition,
            guest::Error::Io { source, .. } => system_code(source),
        };
        Self::new(code, error)
    }
}

impl From<network::Error> for Status {
    fn from(error: network::Error) -> Self {
        Self::new(network_code(&error), error)
    }
}

fn network_code(error: &network::Error) -> Code {
    match error {
        network::Error::LinkNotFound { .. } => Code::NotFound,
        network::Error::Invalid(_) => Code::InvalidArgument,
        network::Error::Kernel { source, .. } if source.errno().is_some_and(is_shortage) => {
            Code::ResourceExhausted
        }
        network::Error::Io { source, .. } => system_code(source),
        network::Error::NoProgram { .. } => Code::FailedPrecondition,
        network::Error::TooLong { .. } => Code::ResourceExhausted,
        network::Error::Kernel { .. }
        | network::Error::Stuck { .. }
        | network::Error::Program { .. }
        | network::Error::Hung { .. } => Code::Internal,
    }
}

impl From<HotplugError> for Status {
    fn from(error: HotplugError) -> Self {
        Self::new(hotplug_code(&error), error)
    }
}

impl From<copy::Error> for Status {
    fn from(error: copy::Error) -> Self {
        let code = match &error {
            copy::Error::Invalid { .. } => Code::InvalidArgument,
            copy::Error::OutOfOrder { .. } | copy::Error::InTheWay { .. } => Code::FailedPrecondition,
            copy::Error::Io { source, .. } => system_code(source),
        };
        Self::new(code, error)
    }
}

impl From<swap::Error> for Status {
    fn from(error: swap::Error) -> Self {
        let code = match &error {
            swap::Error::NoDisk { .. } => Code::InvalidArgument,
            swap::Error::Io { source, .. } => system_code(source),
        };
        Self::new(code, error)
    }
}

fn code(error: &Error) -> Code {
    match error {
        // COMPAT: hosts expect INVALID_ARGUMENT for a container that does not exist, NOT_FOUND for a process.
        Error::UnknownContainer { .. } | Error::InvalidId { .. } | Error::Invalid(_) | Error::Spec(_) => {
            Code::InvalidArgument
        }
        Error::UnknownProcess { .. } => Code::NotFound,
        Error::Exists { .. } => Code::AlreadyExists,
        Error::WrongState { .. }
        | Error::StreamClosed { .. }
        | Error::NoSandboxPidns
        | Error::NoMountSource { .. }
        | Error::Sandbox(_) => Code::FailedPrecondition,
        Error::Step(step) => step_code(Errno::from_raw(step.errno)),
        Error::Launch(LaunchError::Unreachable(_)) => Code::Unavailable,
        Error::Launch(LaunchError::Clone(source)) | Error::Io { source, .. } => system_code(source),
        Error::Storage(error) => storage_code(error),
        Error::Device(DeviceError::Invalid { .. }) => Code::InvalidArgument,
        Error::Device(DeviceError::Missing(error)) | Error::Hotplug(error) => hotplug_code(error),
        Error::Cgroup(_)
        | Error::EventsEnded
        | Error::Hook(_)
        | Error::Died { .. }
        | Error::Timeout { .. } => Code::Internal,
        Error::NoTty => Code::Unavailable,
        #[cfg(feature = "cdh")]
        Error::Hub { source, .. } => hub_code(source),
    }
}

#[cfg(feature = "cdh")]
fn hub_code(error: &crate::cdh::HubError) -> Code {
    use crate::cdh::HubError;
    match error {
        HubError::Unreachable { .. } | HubError::Lost { .. } => Code::Unavailable,
        HubError::Late { .. } | HubError::Malformed { .. } | HubError::Refused { .. } => Code::Internal,
        HubError::Unfit(_) => Code::InvalidArgument,
    }
}

/// A step of the new process failed: the request's fault where it names a program, directory or identity that
/// is not there or not usable.
fn step_code(errno: Errno) -> Code {
    match errno {
        Errno::ENOENT
        | Errno::EACCES
        | Errno::ENOEXEC
        | Errno::ENOTDIR
        | Errno::EISDIR
        | Errno::ELOOP
        | Errno::ENAMETOOLONG
        | Errno::ELIBBAD
        | Errno::E2BIG
        | Errno::EINVAL => Code::InvalidArgument,
        errno if is_shortage(errno) => Code::ResourceExhausted,
        _ => Code::Internal,
    }
}

fn storage_code(error: &StorageError) -> Code {
    match error {
        // COMPAT: hosts expect INTERNAL for a driver that does not exist.
        StorageError::Driver { .. } | StorageError::Program { .. } => Code::Internal,
        StorageError::Invalid { .. } => Code::InvalidArgument,
        StorageError::Unusable { .. } => Code::FailedPrecondition,
        StorageError::Feature { .. } => Code::Unimplemented,
        #[cfg(feature = "image-pull")]
        StorageError::Image(error) => image_code(error),
        StorageError::Conflict { .. } => Code::AlreadyExists,
        StorageError::Device(error) => hotplug_code(error),
        StorageError::Io { source, .. } => system_code(source),
    }
}

#[cfg(feature = "image-pull")]
fn image_code(error: &ImageError) -> Code {
    match error {
        ImageError::Layout { .. }
        | ImageError::Size { .. }
        | ImageError::Digest { .. }
        | ImageError::Entry { .. }
        | ImageError::User { .. } => Code::FailedPrecondition,
        ImageError::Full { .. } => Code::ResourceExhausted,
        ImageError::Late { .. } => Code::DeadlineExceeded,
        ImageError::Archive { .. } | ImageError::Io { .. } => match error.source_error() {
            Some(source) => system_code(source),
            None => Code::FailedPrecondition,
        },
    }
}

fn hotplug_code(error: &HotplugError) -> Code {
    match error {
        // COMPAT: a device that does not come in time is INTERNAL to hosts, whose own deadline is another thing.
        HotplugError::Absent { .. } => Code::Internal,
        HotplugError::Address { .. } | HotplugError::Kind { .. } => Code::InvalidArgument,
        HotplugError::Io { source, .. } => system_code(source),
    }
}

fn system_code(error: &io::Error) -> Code {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno) if is_shortage(errno) => Code::ResourceExhausted,
        _ => Code::Internal,
    }
}

fn is_shortage(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ENOMEM | Errno::ENOSPC | Errno::EMFILE | Errno::ENFILE | Errno::EAGAIN | Errno::EDQUOT
    )
}

#[cfg(test)]
mod tests {
    use rustjail::{cgroup::CgroupError, compile::CompileError, sync::StepError};

    use super::*;
    use crate::sandbox::state::State;

    fn step(errno: Errno) -> Error {
        StepError { step: "exec".into(), path: "/bin/x".into(), errno: errno as i32 }.into()
    }

    fn io(errno: Errno) -> Error {
        Error::Io { action: "read /x".into(), source: errno.into() }
    }

    #[test]
    fn every_error_has_its_code() {
        let id = || "c1".to_owned();
        let invalid_id = Error::InvalidId { kind: "container", id: id(), reason: "too short" };
        let unknown_process = Error::UnknownProcess { container_id: id(), exec_id: "e".into() };
        let wrong_state = Error::WrongState { id: id(), action: "start", state: State::Running };
        let closed = Error::StreamClosed { stream: "stdin", exec_id: id() };
        let cgroup = CgroupError::Io { action: "open", path: "/x".into(), source: Errno::EIO.into() };
        let table = [
            (Error::UnknownContainer { id: id() }, Code::InvalidArgument),
            (invalid_id, Code::InvalidArgument),
            (Error::Invalid("storages".into()), Code::InvalidArgument),
            (CompileError::Missing("root").into(), Code::InvalidArgument),
            (unknown_process, Code::NotFound),
            (Error::Exists { kind: "container", id: id() }, Code::AlreadyExists),
            (wrong_state, Code::FailedPrecondition),
            (closed, Code::FailedPrecondition),
            (Error::NoSandboxPidns, Code::FailedPrecondition),
            (Error::Sandbox("being destroyed"), Code::FailedPrecondition),
            (step(Errno::ENOENT), Code::InvalidArgument),
            (step(Errno::EACCES), Code::InvalidArgument),
            (step(Errno::ENOEXEC), Code::InvalidArgument),
            (step(Errno::ENOTDIR), Code::InvalidArgument),
            (step(Errno::ENOMEM), Code::ResourceExhausted),
            (step(Errno::EIO), Code::Internal),
            (LaunchError::Unreachable(Errno::EPIPE.into()).into(), Code::Unavailable),
            (LaunchError::Clone(Errno::EPERM.into()).into(), Code::Internal),
            (LaunchError::Clone(Errno::EAGAIN.into()).into(), Code::ResourceExhausted),
            (Error::Cgroup(cgroup), Code::Internal),
            (Error::NoTty, Code::Unavailable),
            (io(Errno::ENOSPC), Code::ResourceExhausted),
            (io(Errno::EMFILE), Code::ResourceExhausted),
            (io(Errno::EIO), Code::Internal),
        ];
        for (error, expected) in table {
            let text = error.to_string();
            assert_eq!(Status::from(error).code, expected, "{text}");
        }
    }

    #[test]
    fn network_and_copy_errors_have_theirs() {
        let kernel = |errno| network::Error::Kernel {
            action: "set the route".into(),
            source: network::NetlinkError::Refused { errno, reason: String::new() },
        };
        let missing = network::Error::LinkNotFound { wanted: "Name: eth0".into() };
        let program = network::Error::NoProgram { program: "iptables-save".into(), places: "/sbin".into() };
        let invalid = copy::Error::Invalid { path: "/x".into(), problem: "it is not below /y".into() };
        let early = copy::Error::OutOfOrder { path: "/x".into(), offset: 9, present: 3 };
        let full =
            copy::Error::Io { path: "/x".into(), action: "write".into(), source: Errno::ENOSPC.into() };
        let table: [(Status, Code); 9] = [
            (kernel(Errno::ENETUNREACH).into(), Code::Internal),
            (kernel(Errno::ENOMEM).into(), Code::ResourceExhausted),
            (missing.into(), Code::NotFound),
            (network::Error::Invalid("no".into()).into(), Code::InvalidArgument),
            (program.into(), Code::FailedPrecondition),
            (invalid.into(), Code::InvalidArgument),
            (early.into(), Code::FailedPrecondition),
            (full.into(), Code::ResourceExhausted),
            (swap::Error::NoDisk { path: "/x".into() }.into(), Code::InvalidArgument),
        ];
        for (status, expected) in table {
            assert_eq!(status.code, expected, "{}", status.message);
        }
    }

    #[test]
    fn the_texts_that_hosts_match_on() {
        let status = Status::from(Error::UnknownContainer { id: "c1".into() });
        assert!(status.message.starts_with("Invalid container id"), "{}", status.message);
        assert_eq!(Status::from(Error::NoTty).message, "no tty");
        let missing = network::Error::LinkNotFound { wanted: "Name: eth0".into() };
        assert!(Status::from(missing).message.contains("Link not found"));
    }
}
