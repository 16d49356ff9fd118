//! The other side of a race, and how often one is run.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

/// Exchanges two places without a moment in which one is missing, until dropped.
pub struct Swapper {
    over: Arc<AtomicBool>,
    swaps: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Swapper {
    pub fn new(one: PathBuf, other: PathBuf) -> Self {
        let (over, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, count) = (Arc::clone(&over), Arc::clone(&swaps));
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                // EBUSY while something is mounted on one of them in this mount namespace, which nothing is.
                renameat2(AT_FDCWD, &one, AT_FDCWD, &other, RenameFlags::RENAME_EXCHANGE).unwrap();
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { over, swaps, thread: Some(thread) }
    }

    /// How often they were exchanged so far.
    pub fn swaps(&self) -> u64 {
        self.swaps.load(Ordering::Relaxed)
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        assert!(std::thread::panicking() || self.swaps() > 0);
    }
}

/// How often a race is tried: as often as `make races` says, or `usual` with the other tests.
pub fn tries(usual: u32) -> u32 {
    std::env::var("RUSTJAIL_TRIES").map_or(usual, |tries| tries.parse().expect("RUSTJAIL_TRIES is a number"))
}
