//! Kernel modules, loaded without modprobe.
//!
//! `modules.dep`, which depmod writes, lists for every module the files it needs, and `modules.softdep` what should be
//! there before or after it though its code does not say so (a checksum's implementation before its users). A kernel that has a module built in,
//! or has no modules at all, needs nothing done. `modules.alias` says which module drives a device or serves a file
//! system. The kernel asks for the latter by running `/sbin/modprobe`, which in Berth's image is this very program.

use std::{
    ffi::CString,
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

/// The driver of NVDIMMs, and the device whose presence says that some may be plugged in. The firmware announces one
/// that is plugged to a driver that is there, and to a later one nothing of it (`acpi_nfit_add` in Linux 6.1): it has
/// to be there before the host is told that the guest is ready.
const FOR_NVDIMMS: (&str, &str) = ("nfit", "/sys/bus/acpi/devices/ACPI0012:00");

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

/// Loads what vsock needs, what has to be there before it has anything to do, and what `asked` names.
pub fn load(asked: &[String]) -> Vec<ModuleError> {
    let library = Library::open();
    let mut problems = Vec::new();
    let (nvdimms, root) = FOR_NVDIMMS;
    let early = Path::new(root).exists().then_some(nvdimms);
    for name in FOR_VSOCK.into_iter().chain(early).chain(asked.iter().map(String::as_str)) {
        match library.request(name, "", DEPTH) {
            Ok(true) => {}
            // Ours may be built in, and so may any other for which the kernel shows a directory.
            Ok(false) if FOR_VSOCK.contains(&name) || early == Some(name) || is_there(name) => {}
            Ok(false) => problems.push(library.lacks(name)),
            Err(error) => problems.push(error),
        }
    }
    problems
}

/// Loads, with `parameters`, the modules that go by `name`: their own, or an alias such as `fs-ext4`. False when there
/// is none.
pub fn request(name: &str, parameters: &str) -> Result<bool, ModuleError> {
    Library::open().request(name, parameters, DEPTH)
}

/// Loads what drives the devices that no driver has yet. What fails is answered, and stops nothing.
pub fn drive(sys: &Path) -> Vec<ModuleError> {
    let library = Library::open();
    let listed = |directory: PathBuf| {
        fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    let devices = listed(sys.join("bus")).flat_map(|bus| listed(bus.join("devices")));
    let idle = devices.filter(|device| !device.join("driver").exists());
    let aliases = idle.filter_map(|device| fs::read_to_string(device.join("modalias")).ok());
    aliases.filter_map(|alias| library.request(alias.trim(), "", DEPTH).err()).collect()
}

/// As `modprobe [-OPTIONS] [--] NAME [PARAMETER]...`; answers its exit status.
pub fn modprobe(arguments: &[String]) -> u8 {
    let mut words = arguments.iter().skip_while(|word| word.starts_with('-'));
    let Some(name) = words.next() else { return 1 };
    let parameters: Vec<&str> = words.map(String::as_str).collect();
    match request(name, &parameters.join(" ")) {
        Ok(true) => 0,
        Ok(false) if is_there(name) => 0,
        Ok(false) => {
            eprintln!("modprobe: there is no kernel module {name}");
            1
        }
        Err(error) => {
            eprintln!("modprobe: {error}");
            1
        }
    }
}

/// Whether the module `name` is loaded, or built in and known by that name.
pub fn is_there(name: &str) -> bool {
    Path::new("/sys/module").join(name.replace('-', "_")).exists()
}

/// Soft dependencies may name each other.
const DEPTH: u8 = 4;

/// What depmod wrote about the modules there are.
struct Library {
    directory: PathBuf,
    dependencies: String,
    aliases: String,
    soft: String,
}

impl Library {
    fn open() -> Self {
        let release = uname().map(|uname| uname.release().to_owned()).unwrap_or_default();
        let directory = Path::new("/lib/modules").join(release);
        let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
        let (dependencies, aliases, soft) =
            (read("modules.dep"), read("modules.alias"), read("modules.softdep"));
        Self { directory, dependencies, aliases, soft }
    }

    fn request(&self, name: &str, parameters: &str, depth: u8) -> Result<bool, ModuleError> {
        let mut found = false;
        for module in aliased(&self.aliases, name).chain([name]) {
            let Some(files) = files(&self.dependencies, module) else { continue };
            found = true;
            self.request_all(soft(&self.soft, module, "pre:"), depth)?;
            let last = files.len().saturating_sub(1);
            for (index, file) in files.iter().enumerate() {
                insert(&self.directory.join(file), if index == last { parameters } else { "" })?;
            }
            self.request_all(soft(&self.soft, module, "post:"), depth)?;
        }
        Ok(found)
    }

    fn request_all<'a>(&self, names: impl Iterator<Item = &'a str>, depth: u8) -> Result<(), ModuleError> {
        let Some(depth) = depth.checked_sub(1) else { return Ok(()) };
        names.into_iter().try_for_each(|name| self.request(name, "", depth).map(drop))
    }

    fn lacks(&self, name: &str) -> ModuleError {
        ModuleError::Missing { name: name.to_owned(), directory: self.directory.clone() }
    }
}

/// The modules that `name` is an alias of.
fn aliased<'a>(table: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let entries = table.lines().filter_map(|line| line.strip_prefix("alias ")?.rsplit_once(' '));
    entries.filter(move |(pattern, _)| matches(pattern.as_bytes(), name.as_bytes())).map(|(_, module)| module)
}

/// What `softdep NAME pre: A B post: C` wants loaded at `place`, `pre:` or `post:`.
fn soft<'a>(table: &'a str, module: &str, place: &str) -> impl Iterator<Item = &'a str> {
    let line = table.lines().find_map(|line| {
        let (name, rest) = line.strip_prefix("softdep ")?.split_once(' ')?;
        same_module(name, module).then_some(rest)
    });
    let words = line.unwrap_or_default().split_once(place).map_or("", |(_, words)| words);
    words.split_whitespace().take_while(|word| !word.ends_with(':'))
}

/// A shell pattern of `*`, `?` and plain letters, of which '-' and '_' are the same. Linear: the last star is the
/// only one ever gone back to.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let plain = |byte: u8| if byte == b'-' { b'_' } else { byte };
    let (mut at, mut seen, mut star) = (0, 0, None);
    while let Some(&letter) = text.get(seen) {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(&wanted) if wanted == b'?' || plain(wanted) == plain(letter) => {
                at += 1;
                seen += 1;
            }
            _ => match star {
                Some((place, taken)) => {
                    star = Some((place, taken + 1));
                    (at, seen) = (place + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(at).all(|letter| *letter == b'*')
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

fn insert(path: &Path, parameters: &str) -> Result<(), ModuleError> {
    let load = |source| ModuleError::Load { path: path.to_owned(), source };
    let file = File::open(path).map_err(load)?;
    let plain = path.extension().is_some_and(|extension| extension == "ko");
    let parameters = CString::new(parameters).map_err(|_| load(io::ErrorKind::InvalidInput.into()))?;
    match finit_module(&file, &parameters, if plain { ModuleInitFlags::empty() } else { COMPRESSED }) {
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
    fn aliases_are_shell_patterns() {
        const ALIASES: &str =
            "# comment\nalias fs-ext4 ext4\nalias virtio:d00000002v* virtio_blk\nalias pci:v*d*sv?x a-b\n";
        let of = |name| aliased(ALIASES, name).collect::<Vec<_>>();
        assert_eq!(of("fs-ext4"), ["ext4"]);
        assert_eq!(of("fs_ext4"), ["ext4"]);
        assert_eq!(of("virtio:d00000002v00001AF4"), ["virtio_blk"]);
        assert_eq!(of("virtio:d00000003v00001AF4"), [""; 0]);
        assert_eq!(of("pci:v1d2sv3x"), ["a-b"]);
        assert_eq!(of("pci:v1d2sv33x"), [""; 0]);
        assert_eq!(of(""), [""; 0]);
        assert!(matches(b"*", b"") && matches(b"a*b*c", b"axxbyyc") && !matches(b"a*b", b"axxbc"));
        let many = [b'a'; 5000];
        assert!(!matches(b"*a*a*a*a*a*a*a*b", &many));
    }

    #[test]
    fn soft_dependencies_have_their_places() {
        const SOFT: &str =
            "# made by depmod\nsoftdep libcrc32c pre: crc32c other post: late\nsoftdep a-b post: x\n";
        let of = |name, place| soft(SOFT, name, place).collect::<Vec<_>>();
        assert_eq!(of("libcrc32c", "pre:"), ["crc32c", "other"]);
        assert_eq!(of("libcrc32c", "post:"), ["late"]);
        assert_eq!(of("a_b", "pre:"), [""; 0]);
        assert_eq!(of("a_b", "post:"), ["x"]);
        assert_eq!(of("none", "pre:"), [""; 0]);
    }

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
