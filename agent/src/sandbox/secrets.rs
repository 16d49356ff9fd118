//! What a container gets from the confidential data hub: its secrets, the root file system that the hub pulled, and an
//! encrypted place for images.
//!
//! Whatever the hub refuses fails CreateContainer: a container that starts with a sealed secret in the place of an
//! open one fails later and says less.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use oci_spec::runtime::{LinuxDeviceType, Mount, Spec};

use super::{Core, Error, Result, blocking, container::Container, error::failed_to};
use crate::{
    cdh::{HubError, SEALED, volume},
    storage::Storage,
};

/// COMPAT: a disk of this name is for pulled images, and this is where the hub looks for one.
const TRUSTED_STORE: (&str, &str) = ("/dev/trusted_store", "/run/kata-containers/image/");
/// COMPAT: volumes whose sealed files are unsealed are mounted below this.
const SEALED_VOLUMES: &str = "/sealed";
/// What of a container's bundle the hub fills.
const IMAGE: &str = "image";

impl Core {
    /// Has the hub mount the disk for images, where the container brings one.
    pub(super) async fn mount_trusted_store(&self, spec: &Spec) -> Result<()> {
        let devices = spec.linux().as_ref().and_then(|linux| linux.devices().as_ref());
        let disk = devices
            .into_iter()
            .flatten()
            .find(|device| device.path() == Path::new(TRUSTED_STORE.0) && device.typ() == LinuxDeviceType::B);
        let Some(disk) = disk.filter(|_| self.hub.expected) else { return Ok(()) };
        let mounted = self.hub.mount_scratch((disk.major(), disk.minor()), TRUSTED_STORE.1).await;
        mounted.map_err(|source| hub_failed("mount the encrypted store of images", source))
    }

    /// Has the hub pull the images that `storages` name; its root file systems are mounted like anything that is
    /// in the guest already. Where there is no hub the storages' own driver serves them.
    pub(super) async fn pull_images(
        &self,
        container: &Container,
        mut storages: Vec<Storage>,
    ) -> Result<Vec<Storage>> {
        for storage in storages.iter_mut().filter(|storage| is_for_hub(storage)) {
            if !self.hub.is_there().await {
                break;
            }
            let bundle = self.journal.bundle(&container.id).join(IMAGE);
            let made = bundle.clone();
            blocking(move || {
                fs::create_dir_all(&made).map_err(failed_to(|| format!("make {}", made.display())))
            })
            .await?;
            let image = &storage.source;
            let pulled = self.hub.pull(image, &bundle).await;
            let rootfs = pulled.map_err(|source| hub_failed(format!("pull the image {image}"), source))?;
            slog::info!(self.log, "image pulled"; "container" => &container.id, "image" => image);
            *storage = Storage {
                driver: "bind".to_owned(),
                source: rootfs.display().to_string(),
                options: vec!["rbind".to_owned()],
                mount_point: storage.mount_point.clone(),
                ..Storage::default()
            };
        }
        Ok(storages)
    }

    /// Unseals what of `spec` is sealed: files are mounted over, the environment is answered with its secrets in it,
    /// and stays out of the configuration on disk. `None` if none is sealed.
    pub(super) async fn unseal(&self, container: &Container, spec: &mut Spec) -> Result<Option<Vec<String>>> {
        if !self.hub.expected {
            return Ok(None);
        }
        self.unseal_volumes(container, spec).await?;
        let environment = spec.process().as_ref().and_then(|process| process.env().as_ref());
        let is_sealed = |entry: &String| value(entry).starts_with(SEALED);
        let Some(sealed) = environment.filter(|entries| entries.iter().any(is_sealed)) else {
            return Ok(None);
        };
        let mut unsealed = Vec::with_capacity(sealed.len());
        for entry in sealed {
            unsealed.push(match entry.split_once('=') {
                Some((name, value)) if value.starts_with(SEALED) => {
                    let text = self.hub.unseal_text(value).await;
                    let what = || format!("unseal the environment variable {name}");
                    format!("{name}={}", text.map_err(|source| hub_failed(what(), source))?)
                }
                _ => entry.clone(),
            });
        }
        Ok(Some(unsealed))
    }

    async fn unseal_volumes(&self, container: &Container, spec: &mut Spec) -> Result<()> {
        let secrets = self.journal.bundle(&container.id).join("secrets");
        let mounts = spec.mounts().iter().flatten();
        let volumes: Vec<(PathBuf, PathBuf)> = mounts
            .filter(|mount| mount.destination().starts_with(SEALED_VOLUMES))
            .filter_map(|mount| Some((mount.source().clone()?, mount.destination().clone())))
            .collect();
        let mut over = Vec::new();
        for (source, destination) in volumes {
            let look = move || {
                let cannot = failed_to(|| format!("look for sealed secrets in {}", source.display()));
                volume::sealed_files(&source).map_err(cannot)
            };
            let files = blocking(look).await?;
            for file in files {
                // A name that is empty adds nothing but a slash.
                let place: PathBuf = destination.join(&file.name).components().collect();
                let what = || format!("unseal the file {}", place.display());
                let plaintext = self.hub.unseal(&file.sealed).await;
                let plaintext = plaintext.map_err(|source| hub_failed(what(), source))?;
                let path = secrets.join(over.len().to_string());
                let kept = path.clone();
                blocking(move || {
                    let cannot = failed_to(|| format!("write {}", kept.display()));
                    file.keep(&plaintext, &kept).map_err(cannot)
                })
                .await?;
                over.push(read_only(path, place));
            }
        }
        if !over.is_empty() {
            spec.mounts_mut().get_or_insert_default().extend(over);
        }
        Ok(())
    }
}

fn value(entry: &str) -> &str {
    entry.split_once('=').map_or("", |(_, value)| value)
}

fn read_only(source: PathBuf, destination: PathBuf) -> Mount {
    let mut mount = Mount::default();
    let options = ["bind", "ro", "nosuid", "nodev", "noexec"].map(str::to_owned).to_vec();
    mount
        .set_source(Some(source))
        .set_destination(destination)
        .set_typ(Some("bind".to_owned()))
        .set_options(Some(options));
    mount
}

/// A reference to an image that is in no layout of the guest's, and not the one that only holds a pod's namespaces.
fn is_for_hub(storage: &Storage) -> bool {
    let has = |text: &str| storage.driver_options.iter().any(|option| option.contains(text));
    storage.driver == "image_guest_pull"
        && !storage.source.starts_with("oci:")
        && !has("oci_layout=")
        && !has(r#"container-type":"sandbox""#)
        && !has(r#"ContainerType":"sandbox""#)
}

fn hub_failed(what: impl Into<String>, source: HubError) -> Error {
    Error::Hub { what: what.into(), source }
}

/// Takes down what the hub mounted in `bundle`, so that the bundle can go.
pub(super) fn let_go_of_image(bundle: &Path) -> io::Result<()> {
    use nix::{
        errno::Errno,
        mount::{MntFlags, umount2},
    };
    match umount2(&bundle.join(IMAGE).join("rootfs"), MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        // There is nothing, or nothing mounted.
        Ok(()) | Err(Errno::ENOENT | Errno::EINVAL) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
