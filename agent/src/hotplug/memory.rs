//! Memory that was plugged in and has to be put to use.
//!
//! The kernel can do it by itself as blocks come, and in a guest it is told to; a block that came before, or
//! where it cannot, is brought online by the OnlineCPUMem call.

use std::{fs, io, path::Path};

use nix::libc;

use super::{Result, at, names};

const MEMORY: &str = "devices/system/memory";

/// Has the kernel use new memory as it comes. Kernels without memory hot-plug have nothing to tell.
pub fn online_by_itself(sys: &Path) -> Result<()> {
    let file = sys.join(MEMORY).join("auto_online_blocks");
    match file.exists() {
        true => fs::write(&file, "online").map_err(at("write", &file)),
        false => Ok(()),
    }
}

/// Brings every block online that is not. Takes its time: the kernel builds structures for all of it.
pub fn online(sys: &Path) -> Result<()> {
    let memory = sys.join(MEMORY);
    for block in names(&memory).into_iter().filter(|name| is_block(name)) {
        let switch = memory.join(block).join("online");
        if fs::read_to_string(&switch).is_ok_and(|state| state.trim() == "0") {
            fs::write(&switch, "1").map_err(at("write", &switch))?;
        }
    }
    Ok(())
}

/// Tells the kernel of memory at `addresses` that nothing else tells it of.
pub fn probe(sys: &Path, addresses: &[u64]) -> Result<()> {
    let file = sys.join(MEMORY).join("probe");
    addresses.iter().try_for_each(|address| match fs::write(&file, format!("{address:#X}")) {
        // It is known already.
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        outcome => outcome.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied if !file.exists() => {
                let reason = "this kernel cannot be told of memory (CONFIG_ARCH_MEMORY_PROBE)";
                at("write", &file)(io::Error::new(io::ErrorKind::Unsupported, reason))
            }
            _ => at("write", &file)(error),
        }),
    })
}

fn is_block(name: &str) -> bool {
    name.strip_prefix("memory")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offline_blocks_are_brought_online_and_nothing_else() {
        let sys = std::env::temp_dir().join(format!("berth-memory-{}", std::process::id()));
        let memory = sys.join(MEMORY);
        for (block, state) in [("memory0", "1\n"), ("memory32", "0\n"), ("memoryx", "0\n")] {
            fs::create_dir_all(memory.join(block)).unwrap();
            fs::write(memory.join(block).join("online"), state).unwrap();
        }
        online(&sys).unwrap();
        online_by_itself(&sys).unwrap();
        let state = |block: &str| fs::read_to_string(memory.join(block).join("online")).unwrap();
        assert_eq!([state("memory0"), state("memory32"), state("memoryx")], ["1\n", "1", "0\n"]);
        let error = probe(&sys.join("nowhere"), &[0x1_0000_0000]).unwrap_err().to_string();
        assert!(error.contains("CONFIG_ARCH_MEMORY_PROBE"), "{error}");
        fs::write(memory.join("probe"), "").unwrap();
        probe(&sys, &[0x1_0000_0000]).unwrap();
        assert_eq!(fs::read_to_string(memory.join("probe")).unwrap(), "0x100000000");
        fs::write(memory.join("auto_online_blocks"), "offline\n").unwrap();
        online_by_itself(&sys).unwrap();
        assert_eq!(fs::read_to_string(memory.join("auto_online_blocks")).unwrap(), "online");
        fs::remove_dir_all(sys).unwrap();
    }
}
