//! What a guest boots from: the kernel and initial filesystem `make image` built, and a bundle added to the latter.

use std::{
    env,
    fs::File,
    io::{self, BufWriter},
    path::{Path, PathBuf},
};

use super::{Error, workdir::WorkDir};
use crate::cpio::Archive;

/// Where bundles are in the guest.
const BUNDLES: &str = "bundles";

/// The default directory: `BERTH_IMAGE_DIR`, or where `make image` puts its results.
pub fn directory() -> PathBuf {
    env::var_os("BERTH_IMAGE_DIR").map_or_else(|| "build/image".into(), PathBuf::from)
}

/// `given`, or `name` in the default directory; it must exist.
pub fn locate(given: Option<&Path>, name: &str, what: &'static str) -> Result<PathBuf, Error> {
    let path = given.map_or_else(|| directory().join(name), Path::to_owned);
    if path.exists() { Ok(path) } else { Err(Error::NoImage { what, path }) }
}

/// Where the root filesystem of the bundle `id` is in the guest.
pub fn guest_rootfs(id: &str) -> String {
    format!("/{BUNDLES}/{id}/rootfs")
}

/// Writes `initrd` followed by `rootfs` as the bundle `id` into `dir`. Takes as long as copying the files does.
pub fn with_bundle(initrd: &Path, rootfs: &Path, id: &str, dir: &WorkDir) -> Result<PathBuf, Error> {
    let failed = |path: &Path, doing: &str, source| Error::Io {
        action: format!("{doing} {}", path.display()),
        source,
    };
    let path = dir.join("initrd.cpio");
    let mut base = File::open(initrd).map_err(|source| failed(initrd, "read", source))?;
    let mut file = File::create(&path).map_err(|source| failed(&path, "write", source))?;
    let size = io::copy(&mut base, &mut file).map_err(|source| failed(&path, "write", source))?;

    let mut archive = Archive::after(BufWriter::with_capacity(256 << 10, file), size)?;
    let bundle = Path::new(BUNDLES).join(id);
    archive.directories(&bundle)?;
    archive.tree(rootfs, &bundle.join("rootfs"))?;
    archive.finish()?;
    Ok(path)
}
