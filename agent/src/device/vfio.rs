//! PCI functions handed through by the host.
//!
//! `vfio-pci` hands them on: every function of the group is bound to the guest's own vfio-pci driver, and the
//! container gets the group's node. `vfio-pci-gk` leaves them to the guest's kernel, and only the addresses are
//! told. This machine has no IOMMU in a guest, so what sysfs does is a recorded tree in the tests.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::hotplug::{Hotplug, HotplugError, Look, Roots, pci, pci::PciPath};

use super::{Device, Found, Node, PciAddresses, Result, character};

const DRIVER: &str = "vfio-pci";

/// One `HOST=GUEST` of the options.
struct Function {
    host: String,
    guest: PciPath,
}

fn functions(device: &Device) -> Result<Vec<Function>> {
    let mut functions = Vec::new();
    for option in &device.options {
        let pair = option.split_once('=').filter(|(host, _)| is_address(host));
        let (host, guest) = pair.ok_or_else(|| {
            device.invalid(format!("has the option {option:?}, which is no DDDD:BB:SS.F=PCI-PATH"))
        })?;
        // A host that could not tell where it plugged one in says so by an empty path.
        if !guest.is_empty() {
            functions.push(Function { host: host.to_owned(), guest: guest.parse()? });
        }
    }
    Ok(functions)
}

/// `DDDD:BB:SS.F` in hexadecimal.
fn is_address(text: &str) -> bool {
    text.len() == 12
        && text.bytes().enumerate().all(|(index, byte)| match index {
            4 | 7 => byte == b':',
            10 => byte == b'.',
            _ => byte.is_ascii_hexdigit(),
        })
}

pub(super) async fn find_of_guest(device: &Device, hotplug: &Hotplug) -> Result<Found> {
    let mut pci = PciAddresses::new();
    for Function { host, guest } in functions(device)? {
        let directory = function(&guest, hotplug).await?;
        pci.insert(host, pci::address(&directory));
    }
    Ok(Found { pci, companions: infiniband(&hotplug.roots)?, ..Found::default() })
}

async fn function(guest: &PciPath, hotplug: &Hotplug) -> Result<PathBuf> {
    Ok(hotplug.wait(&format!("the PCI function at {guest}"), |roots| Ok(guest.find(roots))).await?)
}

pub(super) async fn find(device: &Device, hotplug: &Hotplug) -> Result<Found> {
    let (mut pci, mut group) = (PciAddresses::new(), None);
    for Function { host, guest } in functions(device)? {
        let directory = function(&guest, hotplug).await?;
        bind(&hotplug.roots, &directory)?;
        let own = group_of(&directory).map_err(at("read", &directory.join("iommu_group")))?;
        let first = group.get_or_insert_with(|| own.clone());
        if *first != own {
            return Err(device.invalid(format!("has functions of the IOMMU groups {first} and {own}")));
        }
        pci.insert(host, pci::address(&directory));
    }
    let Some(group) = group else {
        return Err(device.invalid("has no function in its options"));
    };
    let path = hotplug.roots.dev.join("vfio").join(&group);
    let node = hotplug
        .wait(&format!("the VFIO group {group}"), |_| match character(&path) {
            Ok(Some(node)) => Ok(Look::Found(node)),
            Ok(None) => Ok(Look::NotYet(format!("there is no character device {}", path.display()))),
            Err(error) => Err(at("look at", &path)(error)),
        })
        .await?;
    Ok(Found {
        container_path: device.container_path.clone(),
        new_path: Some(Path::new("/dev/vfio").join(group)),
        node: Some(node),
        companions: infiniband(&hotplug.roots)?,
        pci,
    })
}

/// Gives the function at `directory` to vfio-pci. Repeating it does no harm.
fn bind(roots: &Roots, directory: &Path) -> Result<()> {
    let driver = directory.join("driver");
    if fs::read_link(&driver).is_ok_and(|link| link.ends_with(DRIVER)) {
        return Ok(());
    }
    let address = pci::address(directory);
    write(&directory.join("driver_override"), DRIVER)?;
    if driver.exists() {
        write(&driver.join("unbind"), &address)?;
    }
    write(&roots.sys.join("bus/pci/drivers_probe"), &address)
}

fn write(file: &Path, text: &str) -> Result<()> {
    Ok(fs::write(file, text).map_err(at("write", file))?)
}

fn group_of(directory: &Path) -> io::Result<String> {
    let link = fs::read_link(directory.join("iommu_group"))?;
    Ok(link.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// A function that is an RDMA adapter is used through these; which of them is its own is not to be seen.
fn infiniband(roots: &Roots) -> Result<Vec<Node>> {
    let directory = roots.dev.join("infiniband");
    let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
    let nodes: io::Result<Vec<Option<Node>>> = entries.map(|entry| character(&entry.path())).collect();
    Ok(nodes.map_err(at("look at", &directory))?.into_iter().flatten().collect())
}

fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HotplugError {
    let path = path.to_owned();
    move |source| HotplugError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, time::Duration};

    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;

    /// A sysfs with one function at 00:02.0/01:00.0, bound to another driver, in IOMMU group 7.
    fn tree(name: &str) -> (PathBuf, Hotplug) {
        let root = std::env::temp_dir().join(format!("berth-vfio-{name}-{}", std::process::id()));
        let (sys, dev) = (root.join("sys"), root.join("dev"));
        let function = sys.join("devices/pci0000:00/0000:00:02.0/0000:01:00.0");
        fs::create_dir_all(&function).unwrap();
        fs::create_dir_all(sys.join("bus/pci/drivers/nvme")).unwrap();
        fs::create_dir_all(sys.join("kernel/iommu_groups/7")).unwrap();
        fs::create_dir_all(dev.join("vfio")).unwrap();
        fs::write(function.join("driver_override"), "").unwrap();
        symlink(sys.join("bus/pci/drivers/nvme"), function.join("driver")).unwrap();
        symlink(sys.join("kernel/iommu_groups/7"), function.join("iommu_group")).unwrap();
        (root, Hotplug::new(Roots { sys, dev }, Duration::from_millis(50)))
    }

    fn device(options: &[&str]) -> Device {
        Device {
            id: "vfio0".into(),
            kind: "vfio-pci".into(),
            container_path: "/dev/vfio/33".into(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            ..Device::default()
        }
    }

    #[tokio::test]
    async fn a_function_is_bound_and_its_group_found() {
        let (root, hotplug) = tree("bind");
        let (sys, dev) = (&hotplug.roots.sys, &hotplug.roots.dev);
        mknod(&dev.join("vfio/7"), SFlag::S_IFCHR, Mode::S_IRUSR, makedev(10, 196))
            .expect("mknod needs root");
        let found = find(&device(&["0000:65:00.0=02/00"]), &hotplug).await.unwrap();
        assert_eq!(found.new_path.unwrap(), Path::new("/dev/vfio/7"));
        let node = found.node.unwrap();
        assert_eq!((node.block, node.major, node.minor), (false, 10, 196));
        assert_eq!(found.pci["0000:65:00.0"], "0000:01:00.0");
        let written = |file: &str| fs::read_to_string(sys.join(file)).unwrap();
        assert_eq!(written("devices/pci0000:00/0000:00:02.0/0000:01:00.0/driver_override"), "vfio-pci");
        assert_eq!(written("bus/pci/drivers/nvme/unbind"), "0000:01:00.0");
        assert_eq!(written("bus/pci/drivers_probe"), "0000:01:00.0");
        fs::remove_dir_all(root).unwrap();
    }

    #[tokio::test]
    async fn without_its_node_the_deadline_tells_why() {
        let (root, hotplug) = tree("late");
        let error = find(&device(&["0000:65:00.0=02/00"]), &hotplug).await.unwrap_err().to_string();
        assert!(
            error.contains("the VFIO group 7 did not appear") && error.contains("no character device"),
            "{error}"
        );
        fs::remove_dir_all(root).unwrap();
    }

    #[tokio::test]
    async fn left_to_the_guests_kernel_only_addresses_are_told() {
        let (root, hotplug) = tree("guest");
        let found = find_of_guest(&device(&["0000:65:00.0=02/00", "0000:65:00.1="]), &hotplug).await.unwrap();
        assert_eq!(found.pci.len(), 1);
        assert_eq!((found.node, found.new_path), (None, None));
        for bad in ["65:00.0=02", "0000:65:00.0", "0000:65:00.0=zz"] {
            assert!(find_of_guest(&device(&[bad]), &hotplug).await.is_err(), "{bad}");
        }
        assert!(find(&device(&[]), &hotplug).await.is_err());
        fs::remove_dir_all(root).unwrap();
    }
}
