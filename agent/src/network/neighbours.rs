//! AddARPNeighbors.

use super::{
    Error, Neighbour, Result,
    error::refused,
    find, fits, links,
    netlink::{
        Socket,
        neighbour::{Known, NewNeighbour},
    },
};

pub(super) fn add(socket: &Socket, wanted: &[Neighbour]) -> Result<()> {
    let links = links(socket)?;
    let resolve = |neighbour: &Neighbour| {
        let link = find(&links, &neighbour.device)?;
        fits(link, &neighbour.mac)?;
        Ok(NewNeighbour {
            link: link.index,
            address: neighbour.address,
            mac: neighbour.mac.clone(),
            state: neighbour.state,
            flags: neighbour.flags,
        })
    };
    let wanted = wanted.iter().map(resolve).collect::<Result<Vec<_>>>()?;
    let before = socket.neighbours().map_err(refused(|| "list the neighbours".to_owned()))?;
    for (done, neighbour) in wanted.iter().enumerate() {
        if let Err(error) = socket.set_neighbour(neighbour) {
            let error = refused(|| format!("make the neighbour {} known", neighbour.address))(error);
            let done = wanted.get(..done).unwrap_or_default();
            return Err(undo(socket, &before, done, error));
        }
    }
    Ok(())
}

/// Backwards, and on beyond a step that fails.
fn undo(socket: &Socket, before: &[Known], done: &[NewNeighbour], error: Error) -> Error {
    let mut stuck = None;
    for made in done.iter().rev() {
        let same = |known: &&Known| {
            (known.link, known.address, known.proxy) == (made.link, made.address, made.is_proxy())
        };
        let undone = match before.iter().find(same) {
            Some(known) => socket.restore_neighbour(known),
            None => socket.delete_neighbour(made),
        };
        if let Err(error) = undone {
            stuck.get_or_insert(refused(|| format!("forget the neighbour {}", made.address))(error));
        }
    }
    match stuck {
        Some(undoing) => Error::Stuck { error: Box::new(error), undoing: Box::new(undoing) },
        None => error,
    }
}
