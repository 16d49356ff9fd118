//! Disks on the channel subsystem of s390x. Compiled for tests elsewhere, against a recorded sysfs tree.

use super::{Hotplug, HotplugError, Look, Result, Roots, block::Disk, names};

impl Hotplug {
    /// The virtio disk at the bus id `0.<0-3>.<hex>`.
    #[cfg_attr(test, allow(dead_code, reason = "called on s390x only; the look-up is tested"))]
    pub(crate) async fn disk_by_ccw(&self, id: &str) -> Result<Disk> {
        check(id)?;
        self.wait(&format!("the disk at the channel device {id}"), |roots| look(roots, id)).await
    }
}

fn check(id: &str) -> Result<()> {
    let valid = id.split('.').collect::<Vec<_>>();
    let valid = matches!(valid.as_slice(), ["0", "0" | "1" | "2" | "3", device]
        if (1..=4).contains(&device.len()) && device.bytes().all(|byte| byte.is_ascii_hexdigit()));
    match valid {
        true => Ok(()),
        false => Err(HotplugError::Address {
            address: id.to_owned(),
            kind: "channel device",
            problem: "it has to be 0.<0-3>.<hexadecimal>",
        }),
    }
}

/// `css0/<subchannel>/<id>/virtioN/block/NAME`; only the id is known.
fn look(roots: &Roots, id: &str) -> Result<Look<Disk>> {
    let css = roots.sys.join("devices/css0");
    let subchannels = names(&css).into_iter().map(|subchannel| css.join(subchannel).join(id));
    let Some(device) = subchannels.into_iter().find(|device| device.is_dir()) else {
        return Ok(Look::NotYet(format!("no subchannel has the device {id}")));
    };
    let virtio = names(&device).into_iter().filter(|name| name.starts_with("virtio"));
    let disk = virtio.flat_map(|virtio| names(&device.join(virtio).join("block"))).next();
    match disk {
        Some(disk) => super::block::node(roots, &disk),
        None => Ok(Look::NotYet(format!("the channel device {id} has no disk"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_tree_of_a_ccw_guest() {
        let sys = std::env::temp_dir().join(format!("berth-ccw-{}", std::process::id()));
        let roots = Roots { sys: sys.clone(), dev: sys.join("dev") };
        let device = sys.join("devices/css0/0.0.0004/0.0.0005");
        std::fs::create_dir_all(&device).unwrap();
        let cause = |id: &str| match look(&roots, id).unwrap() {
            Look::NotYet(cause) => cause,
            Look::Found(disk) => panic!("{disk:?}"),
        };
        assert!(cause("0.0.0009").contains("no subchannel"));
        assert!(cause("0.0.0005").contains("has no disk"));
        std::fs::create_dir_all(device.join("virtio3/block/vda")).unwrap();
        assert!(cause("0.0.0005").contains("dev/vda"));
        std::fs::remove_dir_all(sys).unwrap();
        for id in ["", "0.0", "1.0.1", "0.4.1", "0.0.12345", "0.0.xx", "0.0.1/../x"] {
            assert!(check(id).is_err(), "{id:?}");
        }
        check("0.3.fFe0").unwrap();
    }
}
