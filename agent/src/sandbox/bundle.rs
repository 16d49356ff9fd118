//! A container's own files: its configuration, as it was when the container was made.
//!
//! Hooks and people expect a `config.json` in the bundle, and a later worker reads back from it what the wire told
//! an earlier one. Only what is asked of a container after its creation is read: understanding all that the
//! specification says would be 150 KiB of the binary.

use std::{collections::HashMap, fs, io, path::Path};

use oci_spec::runtime::{
    Hooks, Linux, LinuxCapabilities, LinuxCpu, LinuxNamespace, LinuxResources, LinuxSeccomp, PosixRlimit,
    Process, Spec,
};
use serde::{Deserialize, de::DeserializeOwned};

const CONFIG: &str = "config.json";

/// What hooks are told, and other containers ask for.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    oci_version: String,
    process: Option<KeptProcess>,
    hooks: Option<Hooks>,
    annotations: Option<HashMap<String, String>>,
    linux: Option<KeptLinux>,
}

/// What an exec takes from its container where its own request says nothing, as far as the wire has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeptProcess {
    capabilities: Option<LinuxCapabilities>,
    rlimits: Option<Vec<PosixRlimit>>,
    oom_score_adj: Option<i32>,
    apparmor_profile: Option<String>,
    selinux_label: Option<String>,
}

/// What an exec enters and is held by, and the CPUs that may yet be plugged.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeptLinux {
    namespaces: Option<Vec<LinuxNamespace>>,
    seccomp: Option<LinuxSeccomp>,
    resources: Option<KeptResources>,
}

#[derive(Deserialize)]
struct KeptResources {
    cpu: Option<KeptCpu>,
}

#[derive(Deserialize)]
struct KeptCpu {
    cpus: Option<String>,
}

impl From<Kept> for Spec {
    fn from(kept: Kept) -> Self {
        let mut spec = Self::default();
        spec.set_version(kept.oci_version)
            .set_root(None)
            .set_mounts(None)
            .set_process(kept.process.map(Process::from))
            .set_hooks(kept.hooks)
            .set_annotations(kept.annotations)
            .set_linux(kept.linux.map(Linux::from));
        spec
    }
}

impl From<KeptProcess> for Process {
    fn from(kept: KeptProcess) -> Self {
        let mut process = Self::default();
        process
            .set_capabilities(kept.capabilities)
            .set_rlimits(kept.rlimits)
            .set_oom_score_adj(kept.oom_score_adj)
            .set_apparmor_profile(kept.apparmor_profile)
            .set_selinux_label(kept.selinux_label);
        process
    }
}

impl From<KeptLinux> for Linux {
    fn from(kept: KeptLinux) -> Self {
        let resources = kept.resources.map(|kept| {
            let mut resources = LinuxResources::default();
            resources.set_cpu(kept.cpu.map(|kept| {
                let mut cpu = LinuxCpu::default();
                cpu.set_cpus(kept.cpus);
                cpu
            }));
            resources
        });
        let mut linux = Self::default();
        linux.set_namespaces(kept.namespaces).set_seccomp(kept.seccomp).set_resources(resources);
        linux
    }
}

/// Makes the bundle, with its configuration.
pub(super) fn write(bundle: &Path, spec: &Spec) -> io::Result<()> {
    fs::create_dir_all(bundle)?;
    fs::write(bundle.join(CONFIG), serde_json::to_vec(spec)?)
}

/// The configuration in the bundle, as far as anything looks at it later.
pub(super) fn read(bundle: &Path) -> io::Result<Spec> {
    parse::<Kept>(bundle).map(Spec::from)
}

/// What `T` has of the configuration in the bundle.
pub(super) fn parse<T: DeserializeOwned>(bundle: &Path) -> io::Result<T> {
    Ok(serde_json::from_slice(&fs::read(bundle.join(CONFIG))?)?)
}

#[cfg(test)]
mod tests {
    use std::process::id;

    use oci_spec::runtime::{Capability, LinuxNamespaceType, LinuxSeccompAction};

    use super::*;

    /// With a value in each field that something looks at later, and no other.
    fn configuration() -> Spec {
        let mut capabilities = LinuxCapabilities::default();
        capabilities.set_bounding(Some([Capability::Chown].into()));
        let mut process = Process::default();
        process
            .set_capabilities(Some(capabilities))
            .set_rlimits(Some(vec![PosixRlimit::default()]))
            .set_oom_score_adj(Some(-5))
            .set_apparmor_profile(Some("profile".to_owned()))
            .set_selinux_label(Some("label".to_owned()));
        let mut seccomp = LinuxSeccomp::default();
        seccomp.set_default_action(LinuxSeccompAction::ScmpActLog);
        let mut namespace = LinuxNamespace::default();
        namespace.set_typ(LinuxNamespaceType::Time);
        let (mut cpu, mut resources) = (LinuxCpu::default(), LinuxResources::default());
        cpu.set_cpus(Some("0-3".to_owned()));
        resources.set_cpu(Some(cpu));
        let mut linux = Linux::default();
        linux.set_namespaces(Some(vec![namespace])).set_seccomp(Some(seccomp)).set_resources(Some(resources));
        let mut spec = Spec::default();
        spec.set_version("1.0.2".to_owned())
            .set_root(None)
            .set_mounts(None)
            .set_process(Some(process))
            .set_hooks(Some(Hooks::default()))
            .set_annotations(Some(HashMap::from([("a".to_owned(), "b".to_owned())])))
            .set_linux(Some(linux));
        spec
    }

    #[test]
    fn what_is_needed_later_is_read() {
        let dir = std::env::temp_dir().join(format!("berth-bundle-{}", id()));
        let spec = configuration();
        write(&dir, &spec).unwrap();
        let again = read(&dir);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(again.unwrap(), spec);
    }
}
