//! PCI paths: how a host names a device without knowing the guest's bus numbers.
//!
//! `SS[.F]/SS[.F]/…` in hexadecimal is the slot (and function) on the root bus, on the bus behind that bridge,
//! and so on. A first segment of 20 or more with at least two behind it is no slot, of which there are 32, but
//! the number of a further root complex's bus.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use super::{HotplugError, Look, Roots, names};

const SLOTS: u8 = 0x20;
const FUNCTIONS: u8 = 8;
/// Deeper than any tree of bridges.
const DEPTH: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    device: u8,
    function: u8,
}

/// A parsed PCI path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciPath {
    root_bus: u8,
    slots: Vec<Slot>,
}

impl FromStr for PciPath {
    type Err = HotplugError;

    fn from_str(text: &str) -> Result<Self, HotplugError> {
        let refuse = |problem| HotplugError::Address { address: text.to_owned(), kind: "PCI path", problem };
        let mut segments: Vec<&str> = text.split('/').collect();
        if segments.len() > DEPTH {
            return Err(refuse("it has more than 16 segments"));
        }
        let first = segments.first().and_then(|first| hex(first));
        let root_bus = match first {
            Some(bus) if bus >= SLOTS && segments.len() >= 3 => {
                segments.remove(0);
                bus
            }
            _ => 0,
        };
        let slots: Option<Vec<Slot>> = segments.into_iter().map(slot).collect();
        let slots = slots.ok_or_else(|| {
            refuse("it has to be slots SS[.F] in hexadecimal (00 to 1f, functions 0 to 7), joined by /")
        })?;
        Ok(Self { root_bus, slots })
    }
}

fn hex(digits: &str) -> Option<u8> {
    let plain = (1..=2).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

fn slot(text: &str) -> Option<Slot> {
    let (device, function) = text.split_once('.').unwrap_or((text, "0"));
    let slot = Slot { device: hex(device)?, function: hex(function)? };
    (slot.device < SLOTS && slot.function < FUNCTIONS).then_some(slot)
}

impl fmt::Display for PciPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.root_bus != 0 {
            write!(f, "{:02x}/", self.root_bus)?;
        }
        for (index, slot) in self.slots.iter().enumerate() {
            write!(f, "{}{:02x}", if index > 0 { "/" } else { "" }, slot.device)?;
            if slot.function != 0 {
                write!(f, ".{}", slot.function)?;
            }
        }
        Ok(())
    }
}

impl PciPath {
    /// The function's directory in sysfs, once every bridge on the way is there.
    pub fn find(&self, roots: &Roots) -> Look<PathBuf> {
        let Some(mut directory) = self.root_complex(roots) else {
            return Look::NotYet(format!("there is no PCI root bus {:02x}", self.root_bus));
        };
        let mut bus = format!("0000:{:02x}", self.root_bus);
        let last = self.slots.len().saturating_sub(1);
        for (index, slot) in self.slots.iter().enumerate() {
            let address = format!("{bus}:{:02x}.{}", slot.device, slot.function);
            directory.push(&address);
            if !directory.is_dir() {
                return Look::NotYet(format!("there is no PCI function {address}"));
            }
            if index < last {
                match behind(&directory) {
                    Some(next) => bus = next,
                    None => {
                        return Look::NotYet(format!(
                            "PCI function {address} is no bridge with a bus behind it"
                        ));
                    }
                }
            }
        }
        Look::Found(directory)
    }

    /// On most machines directly below `devices`; on those of a device tree below their host controller.
    fn root_complex(&self, roots: &Roots) -> Option<PathBuf> {
        let name = format!("pci0000:{:02x}", self.root_bus);
        let devices = roots.sys.join("devices");
        let plain = devices.join(&name);
        if plain.is_dir() {
            return Some(plain);
        }
        let platform = devices.join("platform");
        names(&platform)
            .into_iter()
            .map(|controller| platform.join(controller).join(&name))
            .find(|directory| directory.is_dir())
    }
}

/// The bus behind a bridge: as the kernel lists it, else as the addresses of what is on it tell.
fn behind(bridge: &Path) -> Option<String> {
    if let [bus] = names(&bridge.join("pci_bus")).as_slice() {
        return Some(bus.clone());
    }
    names(bridge).into_iter().find_map(|name| {
        let (bus, slot) = name.rsplit_once(':')?;
        (bus.len() == "0000:00".len() && slot.contains('.')).then(|| bus.to_owned())
    })
}

/// The address (`DDDD:BB:SS.F`) of the function at `directory`.
pub fn address(directory: &Path) -> String {
    directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn parsed(text: &str) -> Option<String> {
        text.parse::<PciPath>().ok().map(|path| path.to_string())
    }

    #[test]
    fn the_grammar() {
        for text in ["02", "1f", "02/03", "02.1/03.7", "40/02/03"] {
            assert_eq!(parsed(text).as_deref(), Some(text));
        }
        assert_eq!(parsed("2/A").as_deref(), Some("02/0a"));
        assert_eq!(parsed("2.0").as_deref(), Some("02"));
        let deep = ["01"; 17].join("/");
        for text in
            ["", "/", "02/", "/02", "20", "20/02", "02.8", "02.", "0x2", "+2", "002", "zz", "02/../03", &deep]
        {
            assert_eq!(parsed(text), None, "{text:?}");
        }
    }

    #[test]
    fn bridges_are_followed_by_their_secondary_bus() {
        let sys = std::env::temp_dir().join(format!("berth-pci-{}", std::process::id()));
        let roots = Roots { sys: sys.clone(), dev: "/dev".into() };
        let root = sys.join("devices/pci0000:00");
        let find = |text: &str| text.parse::<PciPath>().unwrap().find(&roots);
        assert_eq!(find("02"), Look::NotYet("there is no PCI root bus 00".into()));
        fs::create_dir_all(root.join("0000:00:02.0/0000:01:00.0/0000:02:03.1")).unwrap();
        fs::create_dir_all(root.join("0000:00:02.0/pci_bus/0000:01")).unwrap();
        fs::create_dir_all(sys.join("devices/platform/4010000000.pcie/pci0000:40/0000:40:02.0/0000:41:03.0"))
            .unwrap();
        assert_eq!(find("02"), Look::Found(root.join("0000:00:02.0")));
        let deep = root.join("0000:00:02.0/0000:01:00.0/0000:02:03.1");
        assert_eq!(find("02/00/03.1"), Look::Found(deep.clone()));
        assert_eq!(address(&deep), "0000:02:03.1");
        assert!(matches!(find("40/02/03"), Look::Found(_)));
        assert_eq!(find("02/05"), Look::NotYet("there is no PCI function 0000:01:05.0".into()));
        assert!(matches!(find("02/00/03.1/00"), Look::NotYet(text) if text.contains("no bridge")));
        fs::remove_dir_all(sys).unwrap();
    }
}
