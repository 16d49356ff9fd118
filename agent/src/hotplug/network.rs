//! Network interfaces by PCI path.

use super::{Hotplug, Look, Result, names, pci::PciPath};

impl Hotplug {
    /// The interface of a PCI function: of the virtio device on it, or of the function itself.
    pub async fn interface_by_pci_path(&self, path: &str) -> Result<String> {
        let path: PciPath = path.parse()?;
        self.wait(&format!("the network interface at PCI path {path}"), |roots| {
            let function = match path.find(roots) {
                Look::Found(function) => function,
                Look::NotYet(cause) => return Ok(Look::NotYet(cause)),
            };
            let virtio = names(&function).into_iter().filter(|name| name.starts_with("virtio"));
            let places = virtio.map(|virtio| function.join(virtio)).chain([function.clone()]);
            let interface = places.into_iter().find_map(|place| names(&place.join("net")).into_iter().next());
            Ok(interface.map_or_else(
                || Look::NotYet(format!("PCI function {} has none", super::pci::address(&function))),
                Look::Found,
            ))
        })
        .await
    }
}
