//! Files and swap that hosts bring into the guest.

use std::path::PathBuf;

use berth_protocols::agent::{AddSwapPathRequest, AddSwapRequest, CopyFileRequest};

use super::{
    agent::{Agent, Method},
    decode::decode,
    reply::{Reply, Status},
    service::Outcome,
};
use crate::{copy::Piece, swap};

pub(super) fn copy(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: CopyFileRequest = decode(body)?;
    let piece = Piece {
        path: request.path,
        size: request.file_size,
        mode: request.file_mode,
        dir_mode: request.dir_mode,
        uid: request.uid,
        gid: request.gid,
        offset: request.offset,
        data: request.data,
    };
    let copier = agent.copier.clone();
    agent.mutate(method, body, async move {
        copier.copy(piece).await?;
        Ok(Reply::empty())
    })
}

pub(super) fn add_swap(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: AddSwapRequest = decode(body)?;
    let path = pci_path(&request.PCIPath);
    let hotplug = agent.sandbox.hotplug();
    agent.mutate(method, body, async move {
        let disk = hotplug.disk_by_pci_path(&path).await?;
        swap::add(disk.node).await?;
        Ok(Reply::empty())
    })
}

/// Slots on the root bus and behind each other, function 0 of all of them.
fn pci_path(slots: &[u32]) -> String {
    let slots: Vec<String> = slots.iter().map(|slot| format!("{slot:02x}")).collect();
    slots.join("/")
}

pub(super) fn add_swap_path(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: AddSwapPathRequest = decode(body)?;
    agent.mutate(method, body, async move {
        swap::add(PathBuf::from(request.path)).await?;
        Ok(Reply::empty())
    })
}

#[cfg(test)]
mod tests {
    use super::pci_path;
    use crate::hotplug::pci::PciPath;

    #[test]
    fn slots_make_a_pci_path() {
        assert_eq!(pci_path(&[2]), "02");
        assert_eq!(pci_path(&[0x1f, 0, 10]), "1f/00/0a");
        for slots in [&[][..], &[32], &[u32::MAX, 1]] {
            assert!(pci_path(slots).parse::<PciPath>().is_err(), "{slots:?}");
        }
    }
}
