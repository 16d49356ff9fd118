//! Memory as a volume: tmpfs, and huge pages.

use std::{fs, path::Path};

use nix::mount::{MsFlags, mount};

use super::{Result, Steps, Storage, mount_plain, options};
use crate::storage::{error::failed_to, place, undo::Undo};

const POOLS: &str = "/sys/kernel/mm/hugepages";

pub(super) fn place(storage: &Storage, steps: &mut Steps) -> Result<()> {
    let mut options = options(storage)?;
    let group = storage.number("fsgid", 10)?;
    let fstype = if storage.fstype.is_empty() { "tmpfs" } else { storage.fstype.as_str() };
    if fstype == "hugetlbfs" {
        reserve(storage, steps)?;
    } else if let Some(group) = group {
        options.add(&format!("gid={group}"));
    }
    mount_plain(storage, fstype, &options, steps)?;
    if group.is_some() {
        let root = place::open(&storage.mount_point)
            .map_err(failed_to(|| format!("look up {}", storage.mount_point.display())))?;
        super::local::own(&root, &storage.mount_point, None, group)?;
    }
    Ok(())
}

/// Adds as many pages to the pool as the volume's size takes. The kernel gives what it can find, which is less
/// when memory is fragmented.
fn reserve(storage: &Storage, steps: &mut Steps) -> Result<()> {
    let size = |name: &str| {
        let text = storage
            .option(name)
            .ok_or_else(|| storage.invalid(format!("is of huge pages and has no {name}=")))?;
        bytes(text).ok_or_else(|| storage.invalid(format!("has {name}={text:?}, which is no size")))
    };
    let (page, volume) = (size("pagesize")?, size("size")?);
    let pages = volume.checked_div(page).filter(|pages| *pages > 0 && volume.is_multiple_of(page));
    let pages = pages.ok_or_else(|| storage.invalid("has a size that is no multiple of its pagesize"))?;
    let pool = Path::new(POOLS).join(format!("hugepages-{}kB", page >> 10));
    let file = pool.join("nr_hugepages");
    let failed = || format!("add {pages} huge pages to {}", file.display());
    let read = || -> Result<u64> {
        let text = fs::read_to_string(&file).map_err(failed_to(failed))?;
        Ok(text.trim().parse().unwrap_or(0))
    };
    let before = read()?;
    steps.will(Undo::HugePages { pool: pool.clone(), pages })?;
    let wanted = before.saturating_add(pages);
    fs::write(&file, wanted.to_string()).map_err(failed_to(failed))?;
    let after = read()?;
    if after >= wanted {
        return Ok(());
    }
    // The undo gives back all that was asked for, so the pool is first put where it would be after success.
    let got = after.saturating_sub(before);
    steps.record.undo.pop();
    steps.will(Undo::HugePages { pool, pages: got })?;
    Err(storage
        .invalid(format!("needs {pages} huge pages of {} kB and the guest has memory for {got}", page >> 10)))
}

/// A number of bytes, with the suffixes mount(8) knows: K, M, G and Kubernetes' Ki, Mi, Gi.
fn bytes(text: &str) -> Option<u64> {
    let text = text.strip_suffix(['b', 'B']).unwrap_or(text);
    let text = text.strip_suffix('i').unwrap_or(text);
    let (digits, shift) = match text.char_indices().last()? {
        (end, 'k' | 'K') => (text.get(..end)?, 10),
        (end, 'm' | 'M') => (text.get(..end)?, 20),
        (end, 'g' | 'G') => (text.get(..end)?, 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Changes the options of a mounted volume. Without `remount` there is nothing to change.
pub(crate) fn update(storage: &Storage) -> Result<()> {
    let options = options(storage)?;
    if !options.flags.contains(MsFlags::MS_REMOUNT) {
        return Ok(());
    }
    let path = &storage.mount_point;
    let root = place::open(path).map_err(failed_to(|| format!("look up {}", path.display())))?;
    let data = Some(options.data.as_str()).filter(|data| !data.is_empty());
    let fstype = if storage.fstype.is_empty() { "tmpfs" } else { storage.fstype.as_str() };
    mount(None::<&Path>, &place::by_descriptor(&root), Some(fstype), options.flags, data)
        .map_err(failed_to(|| format!("remount {} with the options {:?}", path.display(), options.data)))
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("4096", 4096),
            ("2M", 2 << 20),
            ("2Mi", 2 << 20),
            ("2048KB", 2 << 20),
            ("1GiB", 1 << 30),
            ("0", 0),
        ] {
            assert_eq!(bytes(text), Some(expected), "{text}");
        }
        for text in ["", "M", "-1", "1T", "99999999999G", "i"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
