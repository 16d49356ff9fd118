//! Rounds of compaction: moving pages together so that free memory comes in large pieces.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    super::{Error, Result, failed_to},
    guest_pressure, is_over,
    settings::Compact,
};

const NODES: &str = "/sys/devices/system/node";
const BUDDIES: &str = "/proc/buddyinfo";
const ACTION: &str = "compact its memory";

/// Refuses where the kernel does not have what it takes.
pub fn supported() -> Result<()> {
    if nodes().is_empty() {
        let missing = format!("{NODES}/node*/compact (CONFIG_COMPACTION)");
        return Err(Error::Unsupported { action: ACTION, missing });
    }
    guest_pressure(ACTION).map(drop)
}

/// The memory nodes' files that start a compaction.
fn nodes() -> Vec<PathBuf> {
    let entries = fs::read_dir(NODES).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().join("compact")).filter(|path| path.exists()).collect()
}

/// What earlier rounds saw.
#[derive(Debug)]
pub struct Rounds {
    at: Instant,
    pressure: u64,
    skipped: u64,
}

impl Rounds {
    /// The first look.
    pub fn begin() -> Result<Self> {
        Ok(Self { at: Instant::now(), pressure: guest_pressure(ACTION)?, skipped: 0 })
    }

    /// One round; whether it compacted anything. Blocking, for as long as the kernel takes over one node.
    pub fn run(&mut self, settings: &Compact) -> Result<bool> {
        let (now, pressure) = (Instant::now(), guest_pressure(ACTION)?);
        let suffered = pressure.saturating_sub(self.pressure);
        let hot = is_over(suffered, now - self.at, settings.period_psi_percent_limit);
        (self.at, self.pressure) = (now, pressure);
        if hot {
            return Ok(false);
        }
        let text = fs::read_to_string(BUDDIES).map_err(failed_to(|| format!("read {BUDDIES}")))?;
        let worth_while = pages_below(&text, settings.compact_order) >= settings.compact_threshold;
        if !worth_while && self.skipped < settings.compact_force_times {
            self.skipped += 1;
            return Ok(false);
        }
        self.skipped = 0;
        compact(settings)?;
        Ok(true)
    }
}

/// Node by node, until it hurts or takes too long.
fn compact(settings: &Compact) -> Result<()> {
    let start = Instant::now();
    let longest = Duration::from_secs(u64::try_from(settings.compact_sec_max).unwrap_or(0));
    for node in nodes() {
        let (begin, before) = (Instant::now(), guest_pressure(ACTION)?);
        write(&node).map_err(failed_to(|| format!("write 1 to {}", node.display())))?;
        let suffered = guest_pressure(ACTION)?.saturating_sub(before);
        let elapsed = begin.elapsed().max(Duration::from_millis(1));
        if is_over(suffered, elapsed, settings.compact_psi_percent_limit) || start.elapsed() >= longest {
            break;
        }
    }
    Ok(())
}

fn write(path: &Path) -> io::Result<()> {
    fs::write(path, "1")
}

/// Free pages in pieces smaller than 2^`order`: `Node 0, zone DMA 1 0 2 ...`, one count for each order from 0.
fn pages_below(text: &str, order: u32) -> u64 {
    let zone = |line: &str| -> u64 {
        let counts = line.split_ascii_whitespace().skip(4).filter_map(|word| word.parse::<u64>().ok());
        (0..order).zip(counts).map(|(order, count)| count.saturating_mul(1 << order)).sum()
    };
    text.lines().map(zone).sum()
}

#[cfg(test)]
mod tests {
    use super::pages_below;

    #[test]
    fn free_pages_in_small_pieces() {
        let text = "Node 0, zone      DMA      1      2      0      4\nNode 0, zone   Normal     10      0      1      1\n";
        assert_eq!(pages_below(text, 0), 0);
        assert_eq!(pages_below(text, 2), 1 + 4 + 10);
        assert_eq!(pages_below(text, 10), 1 + 4 + 32 + 10 + 4 + 8);
        assert_eq!(pages_below("", 9), 0);
    }
}
