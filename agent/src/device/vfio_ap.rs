//! Queues of cryptographic adapters (s390x): there once the bus shows them.

use crate::hotplug::{Hotplug, HotplugError, Look, Roots};

use super::{Device, Found, Result, character};

/// The kernel's interface to all queues.
const NODE: &str = "z90crypt";

#[cfg_attr(test, allow(dead_code, reason = "called on s390x only; the look-up is tested"))]
pub(super) async fn find(device: &Device, hotplug: &Hotplug) -> Result<Found> {
    for queue in &device.options {
        hotplug.wait(&format!("the queue {queue}"), |roots| look(roots, queue)).await?;
    }
    let path = hotplug.roots.dev.join(NODE);
    let node = character(&path)
        .map_err(|source| HotplugError::Io { action: "look at", path: path.clone(), source })?
        .ok_or_else(|| device.invalid(format!("has no {} in this guest", path.display())))?;
    Ok(Found { container_path: device.container_path.clone(), node: Some(node), ..Found::default() })
}

/// `AA.DDDD`, adapter and domain in hexadecimal; it counts when it is not taken out of service.
fn look(roots: &Roots, queue: &str) -> std::result::Result<Look<()>, HotplugError> {
    let hexadecimal = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (adapter, domain) = queue
        .split_once('.')
        .filter(|(adapter, domain)| hexadecimal(adapter) && hexadecimal(domain))
        .ok_or(HotplugError::Address {
            address: queue.to_owned(),
            kind: "AP queue",
            problem: "it has to be AA.DDDD",
        })?;
    let file = roots.sys.join(format!("bus/ap/devices/card{adapter}/{adapter}.{domain}/online"));
    Ok(match std::fs::read_to_string(file) {
        Ok(text) if text.trim() == "1" => Look::Found(()),
        Ok(_) => Look::NotYet("it is offline".to_owned()),
        Err(_) => Look::NotYet(format!("card {adapter} has no such queue")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_to_be_in_service() {
        let sys = std::env::temp_dir().join(format!("berth-ap-{}", std::process::id()));
        let queue = sys.join("bus/ap/devices/card03/03.0005");
        std::fs::create_dir_all(&queue).unwrap();
        let roots = Roots { sys: sys.clone(), dev: "/dev".into() };
        assert!(
            matches!(look(&roots, "03.0005").unwrap(), Look::NotYet(text) if text.contains("no such queue"))
        );
        std::fs::write(queue.join("online"), "0\n").unwrap();
        assert!(matches!(look(&roots, "03.0005").unwrap(), Look::NotYet(text) if text.contains("offline")));
        std::fs::write(queue.join("online"), "1\n").unwrap();
        assert_eq!(look(&roots, "03.0005").unwrap(), Look::Found(()));
        assert!(look(&roots, "../x").is_err() && look(&roots, "03").is_err());
        std::fs::remove_dir_all(sys).unwrap();
    }
}
