//! What a CDI device means for a container's configuration.
//!
//! All of it is worked out on a copy, so a configuration is changed wholly or not at all.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use oci_spec::runtime::{
    Hook, Linux, LinuxDevice, LinuxDeviceCgroup, LinuxDeviceType, LinuxIntelRdt, LinuxNetDevice, Mount,
    Process, Spec, User,
};
use serde::Deserialize;

use crate::device::{DeviceError, Result};

/// `containerEdits`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Edits {
    env: Vec<String>,
    device_nodes: Vec<Node>,
    mounts: Vec<Bind>,
    hooks: Vec<NamedHook>,
    additional_gids: Vec<u32>,
    intel_rdt: Option<LinuxIntelRdt>,
    net_devices: Vec<NetDevice>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Node {
    path: PathBuf,
    host_path: Option<PathBuf>,
    #[serde(rename = "type")]
    kind: Option<LinuxDeviceType>,
    major: i64,
    minor: i64,
    file_mode: Option<u32>,
    permissions: Option<String>,
    uid: Option<u32>,
    gid: Option<u32>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bind {
    host_path: PathBuf,
    container_path: PathBuf,
    #[serde(rename = "type")]
    kind: Option<String>,
    options: Option<Vec<String>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NetDevice {
    host_interface_name: String,
    name: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamedHook {
    hook_name: String,
    #[serde(flatten)]
    hook: Hook,
}

/// Makes `edits` to `spec`, in their order.
pub(super) fn apply(spec: &mut Spec, edits: &[Edits]) -> Result<()> {
    let mut edited = spec.clone();
    edits.iter().try_for_each(|edits| edits.apply(&mut edited))?;
    *spec = edited;
    Ok(())
}

fn invalid(what: impl std::fmt::Debug, problem: &str) -> DeviceError {
    DeviceError::Invalid { device: format!("{what:?} of a CDI description"), problem: problem.to_owned() }
}

impl Edits {
    fn apply(&self, spec: &mut Spec) -> Result<()> {
        let Some(process) = spec.process_mut() else {
            return Err(invalid("containerEdits", "are for a configuration that has no process"));
        };
        self.set_environment(process);
        let user = process.user().clone();
        let mut linux = spec.linux().clone().unwrap_or_default();
        self.add_nodes(&mut linux, &user)?;
        self.add_net_devices(&mut linux)?;
        if self.intel_rdt.is_some() {
            linux.set_intel_rdt(self.intel_rdt.clone());
        }
        spec.set_linux(Some(linux));
        self.add_mounts(spec);
        self.add_hooks(spec)
    }

    /// A variable that is there already gets the new value.
    fn set_environment(&self, process: &mut Process) {
        let mut environment = process.env().clone().unwrap_or_default();
        for entry in &self.env {
            let name = |entry: &str| entry.split('=').next().unwrap_or_default().to_owned();
            match environment.iter_mut().find(|present| name(present) == name(entry)) {
                Some(present) => present.clone_from(entry),
                None => environment.push(entry.clone()),
            }
        }
        let mut user = process.user().clone();
        let mut groups = user.additional_gids().clone().unwrap_or_default();
        // The group 0 is what a driver's program writes for a node of root's, and is not to be handed out.
        let further = self.additional_gids.iter().filter(|group| **group != 0);
        groups.extend(further.filter(|group| !groups.contains(group)).copied().collect::<Vec<_>>());
        if !groups.is_empty() {
            user.set_additional_gids(Some(groups));
        }
        process.set_env(Some(environment)).set_user(user);
    }

    fn add_nodes(&self, linux: &mut Linux, user: &User) -> Result<()> {
        let mut nodes = linux.devices().clone().unwrap_or_default();
        let mut resources = linux.resources().clone().unwrap_or_default();
        let mut rules = resources.devices().clone().unwrap_or_default();
        for node in &self.device_nodes {
            let device = node.device(user)?;
            nodes.retain(|present| present.path() != device.path());
            if device.typ() != LinuxDeviceType::P {
                rules.push(node.rule(&device));
            }
            nodes.push(device);
        }
        resources.set_devices(Some(rules));
        linux.set_devices(Some(nodes)).set_resources(Some(resources));
        Ok(())
    }

    /// Two descriptions may not give one interface two names, or two interfaces one.
    fn add_net_devices(&self, linux: &mut Linux) -> Result<()> {
        if self.net_devices.is_empty() {
            return Ok(());
        }
        let mut all = linux.net_devices().clone().unwrap_or_default();
        for NetDevice { host_interface_name: interface, name } in &self.net_devices {
            let taken = |(other, device): (&String, &LinuxNetDevice)| {
                (other == interface) != (device.name().as_deref().unwrap_or(other) == name)
            };
            if interface.is_empty() || name.is_empty() || all.iter().any(taken) {
                return Err(invalid(interface, "has no name for a network device that is its own"));
            }
            let mut device = LinuxNetDevice::default();
            device.set_name(Some(name.clone()));
            all.insert(interface.clone(), device);
        }
        linux.set_net_devices(Some(all));
        Ok(())
    }

    /// A mount takes the place of one that is there, and comes before those below it.
    fn add_mounts(&self, spec: &mut Spec) {
        let mut mounts = spec.mounts().clone().unwrap_or_default();
        for bind in &self.mounts {
            mounts.retain(|present| present.destination() != &bind.container_path);
            let below = |present: &Mount| present.destination().starts_with(&bind.container_path);
            let place = mounts.iter().position(below).unwrap_or(mounts.len());
            mounts.insert(place, bind.mount());
        }
        spec.set_mounts(Some(mounts));
    }

    #[allow(deprecated, reason = "prestart hooks are deprecated, not gone: descriptions still have them")]
    fn add_hooks(&self, spec: &mut Spec) -> Result<()> {
        if self.hooks.is_empty() {
            return Ok(());
        }
        let mut hooks = spec.hooks().clone().unwrap_or_default();
        for NamedHook { hook_name, hook } in &self.hooks {
            let list = match hook_name.as_str() {
                "prestart" => hooks.prestart_mut(),
                "createRuntime" => hooks.create_runtime_mut(),
                "createContainer" => hooks.create_container_mut(),
                "startContainer" => hooks.start_container_mut(),
                "poststart" => hooks.poststart_mut(),
                "poststop" => hooks.poststop_mut(),
                _ => return Err(invalid(hook_name, "is no time at which a hook is run")),
            };
            list.get_or_insert_default().push(hook.clone());
        }
        spec.set_hooks(Some(hooks));
        Ok(())
    }
}

impl Node {
    /// As described; what is left out is as the guest's own node has it, and owned by the container's user.
    fn device(&self, user: &User) -> Result<LinuxDevice> {
        let (kind, major, minor) = match self.kind {
            Some(kind) if self.major != 0 || kind == LinuxDeviceType::P => (kind, self.major, self.minor),
            asked => {
                let (kind, major, minor) = look(self.host_path.as_ref().unwrap_or(&self.path))?;
                if asked.is_some_and(|asked| asked != kind && asked != LinuxDeviceType::U) {
                    return Err(invalid(&self.path, "is a device of another type in this guest"));
                }
                if self.major == 0 { (kind, major, minor) } else { (kind, self.major, self.minor) }
            }
        };
        let mut device = LinuxDevice::default();
        device
            .set_path(self.path.clone())
            .set_typ(kind)
            .set_major(major)
            .set_minor(minor)
            .set_file_mode(self.file_mode)
            .set_uid(self.uid.or((user.uid() > 0).then_some(user.uid())))
            .set_gid(self.gid.or((user.gid() > 0).then_some(user.gid())));
        Ok(device)
    }

    fn rule(&self, device: &LinuxDevice) -> LinuxDeviceCgroup {
        let mut rule = LinuxDeviceCgroup::default();
        rule.set_allow(true)
            .set_typ(Some(device.typ()))
            .set_major(Some(device.major()))
            .set_minor(Some(device.minor()))
            .set_access(Some(self.permissions.clone().unwrap_or_else(|| "rwm".to_owned())));
        rule
    }
}

fn look(path: &Path) -> Result<(LinuxDeviceType, i64, i64)> {
    let metadata = fs::metadata(path).map_err(|source| {
        let path = path.to_owned();
        crate::hotplug::HotplugError::Io { action: "look at", path, source }
    })?;
    let kind = match metadata.file_type() {
        kind if kind.is_block_device() => LinuxDeviceType::B,
        kind if kind.is_char_device() => LinuxDeviceType::C,
        kind if kind.is_fifo() => LinuxDeviceType::P,
        _ => return Err(invalid(path, "is no device in this guest")),
    };
    let number = metadata.rdev();
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    Ok((kind, major.cast_signed(), minor.cast_signed()))
}

impl Bind {
    fn mount(&self) -> Mount {
        let mut options = self.options.clone().unwrap_or_default();
        if self.kind.is_none() && !options.iter().any(|option| matches!(option.as_str(), "bind" | "rbind")) {
            options.push("rbind".to_owned());
        }
        let mut mount = Mount::default();
        mount
            .set_destination(self.container_path.clone())
            .set_source(Some(self.host_path.clone()))
            .set_typ(self.kind.clone())
            .set_options(Some(options));
        mount
    }
}
