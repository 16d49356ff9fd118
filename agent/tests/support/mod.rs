//! Waiting for what nothing tells of from outside: by looking again, for up to a minute.

use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(2);

/// Until `happened`.
pub async fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        tokio::time::sleep(PAUSE).await;
    }
}
