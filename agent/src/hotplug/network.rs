//! Network interfaces by PCI path.

use std::{fs, path::Path};

use super::{Hotplug, Look, Result, names, pci::PciPath};

impl Hotplug {
    /// The interface of a PCI function: of the virtio device on it, or of the function itself. Its index, because
    /// its name can be another's by the time it is used.
    pub async fn interface_by_pci_path(&self, path: &str) -> Result<u32> {
        let path: PciPath = path.parse()?;
        self.wait(&format!("the network interface at PCI path {path}"), |roots| {
            let function = match path.find(roots) {
                Look::Found(function) => function,
                Look::NotYet(cause) => return Ok(Look::NotYet(cause)),
            };
            let virtio = names(&function).into_iter().filter(|name| name.starts_with("virtio"));
            let places = virtio.map(|virtio| function.join(virtio)).chain([function.clone()]);
            let interface = places.into_iter().find_map(|place| index_in(&place.join("net")));
            Ok(interface.map_or_else(
                || Look::NotYet(format!("PCI function {} has none", super::pci::address(&function))),
                Look::Found,
            ))
        })
        .await
    }
}

fn index_in(directory: &Path) -> Option<u32> {
    let name = names(directory).into_iter().next()?;
    fs::read_to_string(directory.join(name).join("ifindex")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hotplug::Roots;

    #[tokio::test]
    async fn an_interface_is_found_below_its_function_or_the_virtio_device_on_it() {
        let sys = std::env::temp_dir().join(format!("berth-net-{}", std::process::id()));
        let root = sys.join("devices/pci0000:00");
        for (place, index) in [("0000:00:03.0/virtio1/net/eth0", "7\n"), ("0000:00:04.0/net/ens4", "12\n")] {
            fs::create_dir_all(root.join(place)).unwrap();
            fs::write(root.join(place).join("ifindex"), index).unwrap();
        }
        fs::create_dir_all(root.join("0000:00:05.0/virtio2/block/vda")).unwrap();
        let hotplug = Hotplug::new(Roots { sys: sys.clone(), dev: "/dev".into() }, Duration::ZERO);
        let found = |path| hotplug.interface_by_pci_path(path);
        assert_eq!(found("03").await.unwrap(), 7);
        assert_eq!(found("04").await.unwrap(), 12);
        let text = found("05").await.unwrap_err().to_string();
        assert!(text.contains("PCI function 0000:00:05.0 has none"), "{text}");
        assert!(found("99").await.is_err());
        fs::remove_dir_all(sys).unwrap();
    }
}
