//! The bytes of requests that are being read or handled, over all connections and on each.
//!
//! A frame is charged before its body is read or its handler runs, and the charge lives until the handler has
//! ended. When the budget is used up, connections are simply not read: the kernel's socket buffers then push
//! back on the peer.

use std::{
    cell::Cell,
    rc::{Rc, Weak},
};

use tokio::sync::Notify;

use super::limits::{Limits, SMALL_FRAME, SMALL_RESERVE};

/// One account of bytes in use.
#[derive(Debug, Default)]
pub(super) struct Account(Cell<usize>);

impl Account {
    /// Small frames may overdraw by the reserve; a single frame always fits an empty account.
    fn has_room(&self, bytes: usize, limit: usize) -> bool {
        let reserve = if bytes <= SMALL_FRAME { SMALL_RESERVE } else { 0 };
        self.0.get() == 0 || self.0.get().saturating_add(bytes) <= limit.saturating_add(reserve)
    }
}

/// The account over all connections.
#[derive(Debug, Default)]
pub(super) struct Budget {
    total: Account,
    /// Readers that wait for room, of whatever kind, are told to look again.
    pub(super) room: Notify,
}

impl Budget {
    /// Takes `bytes` from the total and from `connection`, if both have room.
    pub(super) fn charge(
        self: &Rc<Self>,
        connection: &Rc<Account>,
        bytes: usize,
        limits: &Limits,
    ) -> Option<Charge> {
        if !self.total.has_room(bytes, limits.total_bytes)
            || !connection.has_room(bytes, limits.connection_bytes)
        {
            return None;
        }
        self.total.0.update(|used| used + bytes);
        connection.0.update(|used| used + bytes);
        Some(Charge { bytes, connection: Rc::downgrade(connection), budget: self.clone() })
    }
}

/// Bytes in use; given back when dropped.
#[derive(Debug)]
pub(super) struct Charge {
    bytes: usize,
    connection: Weak<Account>,
    budget: Rc<Budget>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.total.0.update(|used| used - self.bytes);
        if let Some(connection) = self.connection.upgrade() {
            connection.0.update(|used| used - self.bytes);
        }
        self.budget.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_stops_at_the_limit_and_small_frames_go_on_into_the_reserve() {
        let (budget, connection) = (Rc::new(Budget::default()), Rc::new(Account::default()));
        let limits = Limits { connection_bytes: 2 << 20, total_bytes: 3 << 20, ..Limits::default() };
        let bulk = |account: &Rc<Account>| budget.charge(account, 1 << 20, &limits);

        let held = [bulk(&connection).unwrap(), bulk(&connection).unwrap()];
        assert!(bulk(&connection).is_none(), "the connection's own limit");
        let other = Rc::new(Account::default());
        let third = bulk(&other).unwrap();
        assert!(bulk(&other).is_none(), "the total");
        let ping = budget.charge(&connection, 100, &limits).unwrap();
        drop((held, third, ping));
        assert_eq!((budget.total.0.get(), connection.0.get(), other.0.get()), (0, 0, 0));
        assert!(budget.charge(&connection, 4 << 20, &limits).is_some(), "one frame always fits");
    }
}
