//! `grpc.Linux`: namespaces, id mappings, devices and paths.

use berth_protocols::oci as wire;
use oci_spec::runtime::{
    Linux, LinuxDevice, LinuxDeviceType, LinuxIdMapping, LinuxIdMappingBuilder, LinuxIntelRdt,
    LinuxNamespace, LinuxNamespaceType,
};

use super::{
    Error, Result,
    parse::{built, name, non_empty, non_zero, text},
    resources::resources,
    seccomp::seccomp,
};

pub(super) fn linux(wire: wire::Linux) -> Result<Linux> {
    let mut linux = Linux::default();
    linux
        .set_uid_mappings(mappings(&wire.UIDMappings)?)
        .set_gid_mappings(mappings(&wire.GIDMappings)?)
        .set_sysctl(non_empty(wire.Sysctl))
        .set_resources(wire.Resources.into_option().map(resources).transpose()?)
        .set_cgroups_path(text(wire.CgroupsPath))
        .set_namespaces(Some(wire.Namespaces.into_iter().map(namespace).collect::<Result<_>>()?))
        .set_devices(non_empty(wire.Devices.into_iter().map(device).collect::<Result<Vec<_>>>()?))
        .set_seccomp(wire.Seccomp.into_option().map(seccomp).transpose()?)
        .set_rootfs_propagation(text(wire.RootfsPropagation))
        .set_masked_paths(Some(wire.MaskedPaths))
        .set_readonly_paths(Some(wire.ReadonlyPaths))
        .set_mount_label(text(wire.MountLabel))
        .set_intel_rdt(wire.IntelRdt.into_option().map(intel_rdt));
    Ok(linux)
}

fn mappings(wire: &[wire::LinuxIDMapping]) -> Result<Option<Vec<LinuxIdMapping>>> {
    let mapping = |wire: &wire::LinuxIDMapping| {
        let builder = LinuxIdMappingBuilder::default().host_id(wire.HostID).container_id(wire.ContainerID);
        built("id mapping", builder.size(wire.Size).build())
    };
    Ok(non_empty(wire.iter().map(mapping).collect::<Result<Vec<_>>>()?))
}

fn namespace(wire: wire::LinuxNamespace) -> Result<LinuxNamespace> {
    let kind = LinuxNamespaceType::try_from(wire.Type.as_str())
        .map_err(|_| Error::Unknown { what: "namespace", value: wire.Type })?;
    let mut namespace = LinuxNamespace::default();
    namespace.set_typ(kind).set_path(text(wire.Path));
    Ok(namespace)
}

/// A node that is to be made, so it has a type, and "all" is none.
fn device(wire: wire::LinuxDevice) -> Result<LinuxDevice> {
    let kind: LinuxDeviceType = name("device type", &wire.Type)?;
    if kind == LinuxDeviceType::A {
        return Err(Error::Unknown { what: "device type", value: wire.Type });
    }
    for (field, value) in [("linux.devices.major", wire.Major), ("linux.devices.minor", wire.Minor)] {
        if value < 0 {
            return Err(Error::Range {
                field,
                value: value.into(),
                must: "a device to be made has a number",
            });
        }
    }
    let mut device = LinuxDevice::default();
    device
        .set_path(wire.Path.into())
        .set_typ(kind)
        .set_major(wire.Major)
        .set_minor(wire.Minor)
        .set_file_mode(non_zero(wire.FileMode))
        .set_uid(Some(wire.UID))
        .set_gid(Some(wire.GID));
    Ok(device)
}

fn intel_rdt(wire: wire::LinuxIntelRdt) -> LinuxIntelRdt {
    let mut rdt = LinuxIntelRdt::default();
    rdt.set_l3_cache_schema(text(wire.L3CacheSchema));
    rdt
}
