//! Block devices by the names hosts have for them.
//!
//! A disk counts as there when its node opens: between the directory in sysfs and the `add` event, which comes
//! last, the kernel still scans the disk and an open fails with ENXIO.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{
    libc,
    sys::stat::{major, minor},
};

use super::{Hotplug, HotplugError, Look, Result, Roots, at, names, pci::PciPath};

/// A disk or partition that can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Its node.
    pub node: PathBuf,
    /// Its numbers.
    pub major: u64,
    /// Its numbers.
    pub minor: u64,
}

impl Hotplug {
    /// The virtio disk of a PCI function.
    pub async fn disk_by_pci_path(&self, path: &str) -> Result<Disk> {
        let path: PciPath = path.parse()?;
        self.wait(&format!("the disk at PCI path {path}"), |roots| {
            let function = match path.find(roots) {
                Look::Found(function) => function,
                Look::NotYet(cause) => return Ok(Look::NotYet(cause)),
            };
            below_virtio(&function, roots)
        })
        .await
    }

    /// The disk `/dev/NAME`, or NAME.
    pub async fn disk_by_name(&self, name: &str) -> Result<Disk> {
        let short = name.strip_prefix("/dev/").unwrap_or(name);
        let sound = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        };
        if !short.split('/').all(sound) {
            let problem = "it has to be /dev/NAME";
            return Err(HotplugError::Address { address: name.to_owned(), kind: "device name", problem });
        }
        self.wait(&format!("the device {name}"), |roots| node(roots, short)).await
    }

    /// The disk at SCSI target `id` and unit `lun`, on whatever host adapter.
    pub async fn disk_by_scsi(&self, address: &str) -> Result<Disk> {
        let (id, lun) = scsi_address(address)?;
        self.scan_scsi(id, lun).await?;
        self.wait(&format!("the SCSI disk {address}"), |roots| scsi(roots, id, lun)).await
    }

    /// Not every adapter tells of a new unit by itself; asking does no harm where it does. A scan talks to the
    /// device, so it is not made on the reactor.
    async fn scan_scsi(&self, id: u32, lun: u64) -> Result<()> {
        if matches!(scsi(&self.roots, id, lun)?, Look::Found(_)) {
            return Ok(());
        }
        let hosts = self.roots.sys.join("class/scsi_host");
        let scans = crate::task::blocking(move || {
            names(&hosts).into_iter().try_for_each(|host| {
                let file = hosts.join(host).join("scan");
                fs::write(&file, format!("0 {id} {lun}")).map_err(at("write", &file))
            })
        });
        scans.await.map_err(at("write", "the SCSI hosts' scan files"))?
    }
}

fn below_virtio(function: &Path, roots: &Roots) -> Result<Look<Disk>> {
    let address = super::pci::address(function);
    let Some(virtio) = names(function).into_iter().find(|name| name.starts_with("virtio")) else {
        return Ok(Look::NotYet(format!("no virtio driver is bound to PCI function {address}")));
    };
    match names(&function.join(&virtio).join("block")).first() {
        Some(disk) => node(roots, disk),
        None => Ok(Look::NotYet(format!("{virtio} at PCI function {address} has no disk"))),
    }
}

/// "ID:LUN", in decimal.
pub fn scsi_address(address: &str) -> Result<(u32, u64)> {
    let numbers = address.split_once(':').and_then(|(id, lun)| Some((id.parse().ok()?, lun.parse().ok()?)));
    let problem = "it has to be ID:LUN";
    numbers.ok_or(HotplugError::Address { address: address.to_owned(), kind: "SCSI address", problem })
}

fn scsi(roots: &Roots, id: u32, lun: u64) -> Result<Look<Disk>> {
    let units = roots.sys.join("bus/scsi/devices");
    let suffix = format!(":0:{id}:{lun}");
    let Some(unit) = names(&units).into_iter().find(|unit| unit.ends_with(&suffix)) else {
        return Ok(Look::NotYet(format!("no SCSI host has a unit {id}:{lun}")));
    };
    match names(&units.join(&unit).join("block")).first() {
        Some(disk) => node(roots, disk),
        None => Ok(Look::NotYet(format!("the SCSI unit {unit} has no disk"))),
    }
}

/// The node of the block device `name`, once it opens and is the one sysfs shows.
pub(super) fn node(roots: &Roots, name: &str) -> Result<Look<Disk>> {
    let path = roots.dev.join(name.replace('!', "/"));
    let metadata = match fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Look::NotYet(format!("there is no {}", path.display())));
        }
        Err(error) => return Err(at("look at", path)(error)),
    };
    if !metadata.file_type().is_block_device() {
        return Err(HotplugError::Kind { found: kind_of(&metadata), path, wanted: "a block device" });
    }
    // Nothing is read: NONBLOCK keeps drives without a medium from being waited for.
    match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path) {
        Ok(_opens) => {
            let number = metadata.rdev();
            Ok(Look::Found(Disk { node: path, major: major(number), minor: minor(number) }))
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENOENT | libc::ENODEV)) => {
            Ok(Look::NotYet(format!("{} does not open yet: {error}", path.display())))
        }
        Err(error) => Err(at("open", path)(error)),
    }
}

/// What a file is, in words.
pub fn kind_of(metadata: &fs::Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_file() => "a regular file",
        () if kind.is_block_device() => "a block device",
        () if kind.is_char_device() => "a character device",
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_fifo() => "a FIFO",
        () => "a socket",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(name: &str) -> Roots {
        let root = std::env::temp_dir().join(format!("berth-block-{name}-{}", std::process::id()));
        let roots = Roots { sys: root.join("sys"), dev: root.join("dev") };
        fs::create_dir_all(&roots.sys).unwrap();
        fs::create_dir_all(&roots.dev).unwrap();
        roots
    }

    #[test]
    fn scsi_addresses() {
        assert_eq!(scsi_address("1:0").unwrap(), (1, 0));
        for bad in ["", "1", "1:", ":1", "a:b", "1:2:3", "-1:0"] {
            assert!(scsi_address(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn each_step_on_the_way_to_a_disk_is_told() {
        let roots = tree("steps");
        let function = roots.sys.join("devices/pci0000:00/0000:00:03.0");
        let cause = |look: Result<Look<Disk>>| match look.unwrap() {
            Look::NotYet(cause) => cause,
            Look::Found(disk) => panic!("{disk:?}"),
        };
        fs::create_dir_all(&function).unwrap();
        assert!(
            cause(below_virtio(&function, &roots))
                .contains("no virtio driver is bound to PCI function 0000:00:03.0")
        );
        fs::create_dir_all(function.join("virtio2")).unwrap();
        assert!(
            cause(below_virtio(&function, &roots))
                .contains("virtio2 at PCI function 0000:00:03.0 has no disk")
        );
        fs::create_dir_all(function.join("virtio2/block/vda")).unwrap();
        assert!(cause(below_virtio(&function, &roots)).contains("there is no"));
        fs::write(roots.dev.join("vda"), "").unwrap();
        let error = below_virtio(&function, &roots).unwrap_err().to_string();
        assert!(error.contains("is a regular file, not a block device"), "{error}");
        assert!(cause(scsi(&roots, 1, 2)).contains("no SCSI host has a unit 1:2"));
        fs::create_dir_all(roots.sys.join("bus/scsi/devices/3:0:1:2")).unwrap();
        assert!(cause(scsi(&roots, 1, 2)).contains("has no disk"));
        fs::remove_dir_all(roots.sys.parent().unwrap()).unwrap();
    }
}
