//! Which CDI devices a container's configuration names.

use std::fmt;

use oci_spec::runtime::Spec;

use crate::device::{DeviceError, Result};

const ANNOTATION: &str = "cdi.k8s.io/";
const VARIABLE: &str = "VISIBLE_CDI_DEVICES=";
/// How the engines mark the container that only holds a pod's namespaces, and which uses no device.
const OF_THE_POD: [(&str, &str); 3] = [
    ("io.kubernetes.cri.container-type", "sandbox"),
    ("io.kubernetes.cri-o.ContainerType", "sandbox"),
    ("io.katacontainers.pkg.oci.container_type", "pod_sandbox"),
];

/// `vendor.com/class=device`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) kind: String,
    /// `None` is every device of the kind.
    pub(super) name: Option<String>,
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind, self.name.as_deref().unwrap_or("all"))
    }
}

/// All of them, each once: those of the annotations in the order of their keys, then those of the environment.
pub(super) fn wanted(spec: &Spec, by_environment: bool) -> Result<Vec<Wanted>> {
    let annotations = spec.annotations().iter().flatten();
    let of_the_pod = |(key, value): (&String, &String)| OF_THE_POD.contains(&(key.as_str(), value.as_str()));
    if annotations.clone().any(of_the_pod) {
        return Ok(Vec::new());
    }
    let mut lists: Vec<(&String, &String)> =
        annotations.filter(|(key, _)| key.starts_with(ANNOTATION)).collect();
    lists.sort_unstable();
    let mut all: Vec<Wanted> = Vec::new();
    for name in lists.into_iter().flat_map(|(_, list)| list.split(',')) {
        let (kind, device) = qualified(name)?;
        all.push(Wanted { kind: kind.to_owned(), name: Some(device.to_owned()) });
    }
    let environment = spec.process().as_ref().and_then(|process| process.env().as_ref());
    let variable = environment.into_iter().flatten().find_map(|entry| entry.strip_prefix(VARIABLE));
    if let Some(value) = variable.filter(|value| by_environment && !value.is_empty()) {
        all.extend(visible(value)?);
    }
    let mut unique: Vec<Wanted> = Vec::new();
    for one in all {
        if !unique.contains(&one) {
            unique.push(one);
        }
    }
    Ok(unique)
}

/// `KIND=DEVICE,DEVICE:KIND=all`; `none` and `void` are no device.
fn visible(value: &str) -> Result<Vec<Wanted>> {
    let mut all = Vec::new();
    for part in value.split(':') {
        let (kind, devices) = qualified(part)?;
        for device in devices.split(',').filter(|device| !matches!(*device, "none" | "void")) {
            let name = (device != "all").then(|| device.to_owned());
            all.push(Wanted { kind: kind.to_owned(), name });
        }
    }
    Ok(all)
}

fn qualified(text: &str) -> Result<(&str, &str)> {
    let text = text.trim();
    let whole = |(kind, device): &(&str, &str)| {
        !device.is_empty()
            && kind.split_once('/').is_some_and(|(vendor, class)| !vendor.is_empty() && !class.is_empty())
    };
    text.split_once('=').filter(whole).ok_or_else(|| DeviceError::Invalid {
        device: format!("{text:?}"),
        problem: "is no name of a CDI device, which is VENDOR/CLASS=DEVICE".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(annotations: &[(&str, &str)], environment: &str) -> Result<Vec<String>> {
        let annotations: std::collections::HashMap<_, _> = annotations.iter().copied().collect();
        let spec = serde_json::json!({
            "ociVersion": "1.2.0",
            "annotations": annotations,
            "process": { "cwd": "/", "user": { "uid": 0, "gid": 0 }, "env": [environment] },
        });
        let spec: Spec = serde_json::from_value(spec).unwrap();
        Ok(wanted(&spec, true)?.iter().map(Wanted::to_string).collect())
    }

    #[test]
    fn annotations_and_the_environment_name_devices_once() {
        let annotations =
            [("cdi.k8s.io/b", "v.com/gpu=1, v.com/gpu=0"), ("cdi.k8s.io/a", "v.com/net=x"), ("other", "=")];
        let variable = "VISIBLE_CDI_DEVICES=v.com/gpu=0,2:v.com/nic=all:v.com/x=none:v.com/y=void";
        assert_eq!(
            names(&annotations, variable).unwrap(),
            ["v.com/net=x", "v.com/gpu=1", "v.com/gpu=0", "v.com/gpu=2", "v.com/nic=all"]
        );
        assert_eq!(names(&[], "VISIBLE_CDI_DEVICES=").unwrap(), [""; 0]);
    }

    #[test]
    fn the_container_of_the_pod_gets_none() {
        for (key, value) in OF_THE_POD {
            assert_eq!(names(&[(key, value), ("cdi.k8s.io/a", "v.com/gpu=0")], "").unwrap(), [""; 0]);
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for name in ["", "gpu=0", "v.com/gpu", "v.com/gpu=", "/gpu=0", "v.com/=0", "v.com/gpu=0,"] {
            let error = names(&[("cdi.k8s.io/a", name)], "").unwrap_err().to_string();
            assert!(error.contains("is no name of a CDI device"), "{name}: {error}");
        }
    }
}
