//! Kernel modules, loaded without modprobe.
//!
//! `modules.dep`, which depmod writes, lists for every module the files it needs. A kernel that has a module built in,
//! or has no modules at all, needs nothing done.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use nix::{
    kmod::{ModuleInitFlags, finit_module},
    sys::utsname::uname,
};

/// What it takes to be reached by the host. The first two are the buses the device may be on.
const FOR_VSOCK: [&str; 3] = ["virtio_pci", "virtio_mmio", "vmw_vsock_virtio_transport"];

/// MODULE_INIT_COMPRESSED_FILE, which nix has no name for: the kernel (5.17, CONFIG_MODULE_DECOMPRESS) unpacks.
const COMPRESSED: ModuleInitFlags = ModuleInitFlags::from_bits_retain(4);

/// Why a module is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// Somebody asked for it by name and it is nowhere.
    #[error("there is no kernel module {name} in {}", directory.display())]
    Missing {
        /// The module.
        name: String,
        /// Where it was looked for.
        directory: PathBuf,
    },
    /// The kernel refused it.
    #[error("cannot load the kernel module {}: {source}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Loads what vsock needs and what `asked` names.
pub fn load(asked: &[String]) -> Vec<ModuleError> {
    let release = uname().map(|uname| uname.release().to_owned()).unwrap_or_default();
    let directory = Path::new("/lib/modules").join(release);
    let index = fs::read_to_string(directory.join("modules.dep")).unwrap_or_default();
    let mut problems = Vec::new();
    for name in FOR_VSOCK.into_iter().chain(asked.iter().map(String::as_str)) {
        match files(&index, name) {
            Some(files) => problems.extend(files.iter().find_map(|file| insert(&directory.join(file)).err())),
            // Those for vsock may be built in, and so may any other for which the kernel shows a directory.
            None if FOR_VSOCK.contains(&name) || Path::new("/sys/module").join(name).exists() => {}
            None => {
                problems.push(ModuleError::Missing { name: name.to_owned(), directory: directory.clone() })
            }
        }
    }
    problems
}

/// The files of a module, in the order of loading.
fn files<'a>(index: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let (file, needed) =
        index.lines().filter_map(|line| line.split_once(':')).find(|(file, _)| same_module(file, name))?;
    let mut files: Vec<&str> = needed.split_whitespace().rev().collect();
    files.push(file);
    Some(files)
}

/// Module names have underscores where their files may have dashes.
fn same_module(file: &str, name: &str) -> bool {
    let base = file.rsplit('/').next().unwrap_or(file);
    let stem = base.split('.').next().unwrap_or(base);
    let plain = |byte: u8| if byte == b'-' { b'_' } else { byte };
    stem.bytes().map(plain).eq(name.bytes().map(plain))
}

fn insert(path: &Path) -> Result<(), ModuleError> {
    let load = |source| ModuleError::Load { path: path.to_owned(), source };
    let file = File::open(path).map_err(load)?;
    let plain = path.extension().is_some_and(|extension| extension == "ko");
    match finit_module(&file, c"", if plain { ModuleInitFlags::empty() } else { COMPRESSED }) {
        Ok(()) | Err(nix::Error::EEXIST) => Ok(()),
        Err(errno) => Err(load(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &str = "kernel/net/vmw_vsock/vsock.ko.xz:\n\
        kernel/net/vmw_vsock/vmw_vsock_virtio_transport.ko.xz: kernel/net/a.ko.xz kernel/net/vmw_vsock/vsock.ko.xz\n\
        kernel/drivers/virtio/virtio-mem.ko: kernel/drivers/virtio/virtio.ko\n";

    #[test]
    fn what_a_module_needs_is_loaded_before_it() {
        assert_eq!(
            files(INDEX, "vmw_vsock_virtio_transport").unwrap(),
            [
                "kernel/net/vmw_vsock/vsock.ko.xz",
                "kernel/net/a.ko.xz",
                "kernel/net/vmw_vsock/vmw_vsock_virtio_transport.ko.xz"
            ]
        );
        assert_eq!(files(INDEX, "virtio_mem").unwrap().last(), Some(&"kernel/drivers/virtio/virtio-mem.ko"));
        assert_eq!(files(INDEX, "virtio"), None);
        assert_eq!(files("", "vsock"), None);
    }
}
