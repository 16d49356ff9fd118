//! Block devices.

use super::{
    super::{Cgroup, CgroupError, dir::Dir, parse},
    Pressure, text,
};

/// A number for one device and operation ("Read", "Write", "Discard" ...).
#[derive(Clone, Debug, PartialEq)]
pub struct BlockIoEntry {
    /// Major device number.
    pub major: u64,
    /// Minor device number.
    pub minor: u64,
    /// What was done; empty in a table that does not tell operations apart.
    pub operation: String,
    /// How much, or how often.
    pub value: u64,
}

/// Block devices. v2 has the first two tables; v1 has the others where the scheduler is BFQ built with its
/// statistics (or, before Linux 5.0, CFQ).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockIoStats {
    /// Bytes moved.
    pub bytes: Vec<BlockIoEntry>,
    /// Requests made.
    pub requests: Vec<BlockIoEntry>,
    /// Requests that wait now.
    pub queued: Vec<BlockIoEntry>,
    /// Nanoseconds from dispatch to completion.
    pub service_time: Vec<BlockIoEntry>,
    /// Nanoseconds spent waiting for the scheduler.
    pub wait_time: Vec<BlockIoEntry>,
    /// Requests merged into others.
    pub merged: Vec<BlockIoEntry>,
    /// Milliseconds of the disk's time, without operations.
    pub time: Vec<BlockIoEntry>,
    /// Sectors moved, without operations.
    pub sectors: Vec<BlockIoEntry>,
    /// Tasks that waited for a device; v1 alone does not say.
    pub pressure: Option<Pressure>,
}

pub(super) fn read(group: &Cgroup) -> Result<Option<BlockIoStats>, CgroupError> {
    let mut stats = match (group.find("io"), group.find("blkio")) {
        (Some(controller), _) => io_stat(&text(controller.dir(), "io.stat")?),
        (_, Some(controller)) => v1(controller.dir())?,
        (None, None) => return Ok(None),
    };
    if let Some(unified) = &group.unified {
        stats.pressure = Pressure::read(unified.dir(), "io.pressure")?;
    }
    Ok(Some(stats))
}

fn v1(dir: &Dir) -> Result<BlockIoStats, CgroupError> {
    // Every request passes the throttling layer; what BFQ scheduled is a part of it.
    let throttled = |name: &str| Ok(entries(&text(dir, &format!("blkio.throttle.{name}"))?));
    let scheduled = |name: &str| -> Result<Vec<BlockIoEntry>, CgroupError> {
        let bfq = dir.read_if_any(&format!("blkio.bfq.{name}"))?;
        Ok(entries(&match bfq {
            Some(text) => text,
            None => text(dir, &format!("blkio.{name}"))?,
        }))
    };
    Ok(BlockIoStats {
        bytes: throttled("io_service_bytes_recursive")?,
        requests: throttled("io_serviced_recursive")?,
        queued: scheduled("io_queued_recursive")?,
        service_time: scheduled("io_service_time_recursive")?,
        wait_time: scheduled("io_wait_time_recursive")?,
        merged: scheduled("io_merged_recursive")?,
        time: scheduled("time_recursive")?,
        sectors: scheduled("sectors_recursive")?,
        pressure: None,
    })
}

/// `8:0 Read 4096`, or `8:0 4096` in a table without operations. The last line, `Total 4096`, is of no device.
fn entries(text: &str) -> Vec<BlockIoEntry> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (major, minor) = parse::device(words.next()?)?;
            let word = words.next()?;
            let (operation, value) = match words.next() {
                Some(value) => (word, value),
                None => ("", word),
            };
            Some(BlockIoEntry { major, minor, operation: operation.to_owned(), value: value.parse().ok()? })
        })
        .collect()
}

/// `8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0`.
fn io_stat(text: &str) -> BlockIoStats {
    let mut stats = BlockIoStats::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some((major, minor)) = words.next().and_then(parse::device) else {
            continue;
        };
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let (list, operation) = match key {
                "rbytes" => (&mut stats.bytes, "Read"),
                "wbytes" => (&mut stats.bytes, "Write"),
                "dbytes" => (&mut stats.bytes, "Discard"),
                "rios" => (&mut stats.requests, "Read"),
                "wios" => (&mut stats.requests, "Write"),
                "dios" => (&mut stats.requests, "Discard"),
                _ => continue,
            };
            if let Ok(value) = value.parse() {
                list.push(BlockIoEntry { major, minor, operation: operation.to_owned(), value });
            }
        }
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(operation: &str, value: u64) -> BlockIoEntry {
        BlockIoEntry { major: 8, minor: 0, operation: operation.to_owned(), value }
    }

    #[test]
    fn tables_of_both_versions() {
        let v1 = "8:0 Read 4096\n8:0 Write 0\n8:0 Total 4096\nTotal 4096\n";
        assert_eq!(entries(v1), [entry("Read", 4096), entry("Write", 0), entry("Total", 4096)]);
        assert_eq!(entries("8:0 12\nTotal 12\n"), [entry("", 12)]);
        let v2 = io_stat("8:0 rbytes=4096 rios=2 wbytes=x cost.usage=3\n8:16\n\n:: rbytes=1\n");
        assert_eq!((v2.bytes, v2.requests), (vec![entry("Read", 4096)], vec![entry("Read", 2)]));
    }

    /// Whatever is cut off or damaged, the parsers give what is left.
    #[test]
    fn damaged_files() {
        let text = "8:0 rbytes=4096 wbytes=1 rios=2\n8:0 Read 12\nusage_usec 5\nTotal 3\n";
        for end in 0..=text.len() {
            for damage in [None, Some('\u{fffd}'), Some('\0'), Some('=')] {
                let mut part = text[..end].to_owned();
                part.extend(damage);
                let _ = (entries(&part), io_stat(&part));
            }
        }
        let huge = "8:0 rbytes=1\n".repeat(100_000);
        assert_eq!(io_stat(&huge).bytes.len(), 100_000);
    }
}
