//! The root file system of a container from an image that the guest unpacks itself.
//!
//! The source names the image: `oci:PATH[:REFERENCE]` with its layout, which an earlier storage may have mounted, or
//! only the reference, as hosts send it. Then the layout is where the driver option `oci_layout` or the
//! sandbox has one. The driver option `image_guest_pull` tells what the container is; of all the host knows about
//! it, only whether it holds a pod's namespaces matters.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;

use super::{Result, Steps, Storage, options};
use crate::storage::{
    error::failed_to,
    image::{Lower, Wanted, be_like},
};

/// Where the sandbox's layout is, unless a storage says otherwise.
const LAYOUT: &str = "/run/kata-containers/layout";
/// As `skopeo` and `podman` name layouts.
const TRANSPORT: &str = "oci:";
/// How engines mark the container that only holds a pod's namespaces.
const TYPES: [&str; 2] = ["io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"];

#[derive(Deserialize)]
struct Pull {
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

/// Which image it is to be.
pub(in crate::storage) fn wanted(storage: &Storage) -> Result<Wanted> {
    if let Some(text) = storage.driver_option("image_guest_pull") {
        let pull: Pull = serde_json::from_str(text)
            .map_err(|error| storage.invalid(format!("has an image_guest_pull that is none: {error}")))?;
        if TYPES.iter().any(|key| pull.metadata.get(*key).is_some_and(|kind| kind == "sandbox")) {
            return Ok(Wanted::Pause);
        }
    }
    let (path, reference) = match storage.source.strip_prefix(TRANSPORT) {
        Some(place) => match place.split_once(':') {
            Some((path, reference)) => (path, Some(reference)),
            None => (place, None),
        },
        None => (storage.driver_option("oci_layout").unwrap_or(LAYOUT), Some(storage.source.as_str())),
    };
    if !Path::new(path).is_absolute() {
        return Err(storage.invalid(format!("has the image layout {path:?}, which is no absolute path")));
    }
    if reference == Some("") {
        return Err(storage.invalid("has an empty reference to an image"));
    }
    Ok(Wanted::InLayout { path: path.into(), reference: reference.map(str::to_owned) })
}

/// Mounts the image's layers, with a place for changes on top.
pub(super) fn place(storage: &Storage, steps: &mut Steps) -> Result<()> {
    let Some(mut image) = steps.record.image.clone() else {
        return Err(storage.invalid("has no image"));
    };
    let mut options = options(storage)?;
    if !options.data.is_empty() {
        return Err(storage.invalid(format!("is an image, for which {:?} is no option", options.data)));
    }
    steps.own_directory(&image.changes)?;
    let failed = || format!("make directories in {}", image.changes.display());
    for (option, name) in [("upperdir", "upper"), ("workdir", "work")] {
        let directory = image.changes.join(name);
        fs::create_dir(&directory).map_err(failed_to(failed))?;
        options.add(&format!("{option}={}", directory.display()));
    }
    if let Some(top) = image.directories.last() {
        be_like(top, &image.changes.join("upper")).map_err(failed_to(failed))?;
    }
    let lower = Lower::open(&image.directories)
        .map_err(failed_to(|| format!("open the layers of the image {:?}", storage.source)))?;
    options.add(&lower.option());
    steps.directory(&storage.mount_point)?;
    steps.mount(Some(Path::new("overlay")), &storage.mount_point, "overlay", &options)?;
    image.look_at(&storage.mount_point)?;
    steps.record.image = Some(image);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(source: &str, driver_options: &[&str]) -> Result<Wanted> {
        let driver_options = driver_options.iter().map(|option| (*option).to_owned()).collect();
        wanted(&Storage { source: source.to_owned(), driver_options, ..Storage::default() })
    }

    #[test]
    fn what_hosts_send() {
        let in_layout = |path: &str, reference: Option<&str>| Wanted::InLayout {
            path: path.into(),
            reference: reference.map(str::to_owned),
        };
        let metadata =
            r#"image_guest_pull={"metadata":{"containerd.io/snapshot/cri.layer-digest":"sha256:00"}}"#;
        let name = "docker.io/library/busybox:1.36";
        assert_eq!(image(name, &[metadata]).unwrap(), in_layout(LAYOUT, Some(name)));
        assert_eq!(image(name, &["oci_layout=/mnt/l"]).unwrap(), in_layout("/mnt/l", Some(name)));
        assert_eq!(image("oci:/mnt/l", &[metadata]).unwrap(), in_layout("/mnt/l", None));
        assert_eq!(image("oci:/mnt/l:a:b", &[]).unwrap(), in_layout("/mnt/l", Some("a:b")));
        let pause = r#"image_guest_pull={"metadata":{"io.kubernetes.cri.container-type":"sandbox"}}"#;
        assert_eq!(image("pause:3.9", &[pause]).unwrap(), Wanted::Pause);
        for (source, options) in
            [("", &[][..]), ("oci:l", &[]), ("oci:", &[]), ("a", &["image_guest_pull={"])]
        {
            assert!(image(source, options).is_err(), "{source:?} {options:?}");
        }
    }
}
