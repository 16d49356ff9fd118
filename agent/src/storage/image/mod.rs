//! Images that the guest unpacks itself, out of a layout that it can read (feature `image-pull`).
//!
//! ```text
//!   (absent) --first user--> being made --whole and verified--> there <--users--> there --last user gone--> (absent)
//!                               '--failed: thrown away, told to all who wait for it
//! ```
//!
//! A layer is a directory under the name of its chain: it, and all below it. It is made once, whoever asks for
//! it at the same time, in a directory for what is not whole, and moved into place by rename. Its users are the
//! storages that have it in an overlay. Their records name it, so that the next worker knows which layers are
//! anybody's, and throws away the others.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

mod blob;
pub mod compression;
mod error;
mod layout;
mod process;
pub mod tar;
mod tree;
mod unpack;

pub use error::ImageError;
pub(super) use process::ImageProcess;

use blob::Hashing;
use compression::Unpacked;
use error::{Result, failed_to};
use layout::{Config, Image, Layer};
use tar::Archive;
use tree::Tree;

use super::place;

/// Where the guest's image has what holds a pod's namespaces, as an OCI bundle.
const PAUSE: &str = "/pause_bundle";

/// What a storage has of an image, as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Used {
    /// Names of layers, the lowest first; none of the pause bundle.
    pub(super) layers: Vec<String>,
    /// Where their files are.
    pub(super) directories: Vec<PathBuf>,
    /// What users of the storage change.
    pub(super) changes: PathBuf,
    /// Known once all is mounted.
    pub(super) process: Option<ImageProcess>,
    #[serde(skip)]
    config: Config,
}

/// Which image a storage asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// One of a layout.
    InLayout { path: PathBuf, reference: Option<String> },
    /// The guest's own, for the container that holds a pod's namespaces.
    Pause,
}

/// All layers of this guest.
#[derive(Debug)]
pub(super) struct Images {
    root: PathBuf,
    layers: RefCell<BTreeMap<String, Rc<Shared>>>,
}

/// A layer that somebody uses, or is about to.
#[derive(Debug)]
struct Shared {
    /// One transition at a time.
    turn: Semaphore,
    users: Cell<usize>,
    there: Cell<bool>,
}

impl Images {
    /// Keeps its layers beneath `root`.
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root, layers: RefCell::default() }
    }

    /// Takes over the layers of an earlier worker: those in `used` have users, the others go.
    pub(super) async fn recover(&self, used: &[Used]) -> Result<()> {
        for name in used.iter().flat_map(|used| &used.layers) {
            let layer = self.shared(name);
            layer.users.update(|users| users + 1);
            layer.there.set(true);
        }
        let known: Vec<String> = self.layers.borrow().keys().cloned().collect();
        let root = self.root.clone();
        blocking(move || sweep(&root, &known)).await
    }

    /// Makes all layers of an image that are not there yet, and uses all of them. The caller gives them back by
    /// [`Images::release`].
    pub(super) async fn acquire(&self, wanted: Wanted, sequence: u64, patience: Duration) -> Result<Used> {
        let until = Instant::now() + patience;
        let mut used = Used {
            layers: Vec::new(),
            directories: Vec::new(),
            changes: self.root.join("changes").join(sequence.to_string()),
            process: None,
            config: Config::default(),
        };
        let image = match wanted {
            Wanted::Pause => {
                let bundle = Path::new(PAUSE);
                used.directories.push(bundle.join("rootfs"));
                used.process = Some(blocking(|| process::of_bundle(bundle)).await?);
                return Ok(used);
            }
            Wanted::InLayout { path, reference } => {
                blocking(move || layout::open(&path, reference.as_deref(), until)).await?
            }
        };
        used.config = image.config.clone();
        let image = Arc::new(image);
        for (index, layer) in image.layers.iter().enumerate() {
            let name = layer.chain.hex();
            used.layers.push(name.clone());
            used.directories.push(self.directory(&name));
            let made = self.use_layer(&name, Making { image: &image, index, until }, &used).await;
            if let Err(error) = made {
                self.release(&used).await?;
                return Err(match error {
                    error if error.is_full() => ImageError::Full { path: self.root.clone() },
                    _ if Instant::now() > until => ImageError::Late { seconds: patience.as_secs() },
                    error => error,
                });
            }
        }
        Ok(used)
    }

    /// One more user, who may be the one that makes it.
    async fn use_layer(&self, name: &str, making: Making<'_>, used: &Used) -> Result<()> {
        let shared = self.shared(name);
        shared.users.update(|users| users + 1);
        let _turn = shared.turn.acquire().await.map_err(io::Error::other).map_err(failed_to(waiting))?;
        if shared.there.get() {
            return Ok(());
        }
        let (root, image, name) = (self.root.clone(), Arc::clone(making.image), name.to_owned());
        let (below, Making { index, until, .. }) = (used.directories.clone(), making);
        blocking(move || {
            let below = below.split_last().map_or(&[][..], |(_, below)| below);
            make(&root, &name, &image, index, below, until)
        })
        .await?;
        shared.there.set(true);
        Ok(())
    }

    /// Ends the use of layers; those that nobody else uses go, the highest first.
    pub(super) async fn release(&self, used: &Used) -> Result<()> {
        let mut first = Ok(());
        for name in used.layers.iter().rev() {
            first = first.and(self.release_one(name).await);
        }
        first
    }

    async fn release_one(&self, name: &str) -> Result<()> {
        let shared = self.shared(name);
        shared.users.update(|users| users.saturating_sub(1));
        let _turn = shared.turn.acquire().await.map_err(io::Error::other).map_err(failed_to(waiting))?;
        if shared.users.get() > 0 {
            return Ok(());
        }
        let directory = self.directory(name);
        if shared.there.replace(false) {
            blocking(move || remove(&directory)).await?;
        }
        // Somebody may have come meanwhile and waits for our turn to end.
        if shared.users.get() == 0 {
            self.layers.borrow_mut().remove(name);
        }
        Ok(())
    }

    fn shared(&self, name: &str) -> Rc<Shared> {
        let fresh =
            || Rc::new(Shared { turn: Semaphore::new(1), users: Cell::new(0), there: Cell::new(false) });
        Rc::clone(self.layers.borrow_mut().entry(name.to_owned()).or_insert_with(fresh))
    }

    fn directory(&self, name: &str) -> PathBuf {
        self.root.join("layers").join(name)
    }
}

#[derive(Clone, Copy)]
struct Making<'a> {
    image: &'a Arc<Image>,
    index: usize,
    until: Instant,
}

fn waiting() -> String {
    "wait for a layer".to_owned()
}

/// Makes one layer over those `below` it, the lowest first.
fn make(
    root: &Path,
    name: &str,
    image: &Image,
    index: usize,
    below: &[PathBuf],
    until: Instant,
) -> Result<()> {
    let Some(layer) = image.layers.get(index) else { return Ok(()) };
    let fresh = root.join("fresh").join(name);
    remove(&fresh)?;
    let outcome = make_fresh(&fresh, layer, image, below, until).and_then(|()| {
        let whole = root.join("layers").join(name);
        let moved =
            fs::create_dir_all(root.join("layers")).and_then(|()| fs::rename(fresh.join("files"), &whole));
        moved.map_err(failed_to(|| format!("move a layer to {}", whole.display())))
    });
    // What could not be tidied up harms nobody, and the next worker does it.
    let _later = remove(&fresh);
    outcome
}

fn make_fresh(fresh: &Path, layer: &Layer, image: &Image, below: &[PathBuf], until: Instant) -> Result<()> {
    let made = ["files", "work", "merged"].iter().try_for_each(|name| fs::create_dir_all(fresh.join(name)));
    made.map_err(failed_to(|| format!("make {}", fresh.display())))?;
    let outcome = fill(fresh, layer, image, below, until);
    let merged = fresh.join("merged");
    outcome.and(unmount(&merged).map_err(failed_to(|| format!("unmount {}", merged.display()))))
}

fn fill(fresh: &Path, layer: &Layer, image: &Image, below: &[PathBuf], until: Instant) -> Result<()> {
    let tree = open_tree(fresh, below).map_err(failed_to(|| format!("open {}", fresh.display())))?;
    let blob = image.blobs.stream(layer.blob, layer.size)?;
    let archive = Unpacked::new(io::BufReader::with_capacity(64 << 10, blob), layer.compression);
    let mut archive = Hashing::new(archive, until);
    unpack::unpack(&mut Archive::new(&mut archive), &tree, layer.blob)?;
    let archive = archive.finish(layer.diff)?;
    // What a decoder did not need of the blob is part of it all the same.
    archive.into_packed().into_inner().finish(layer.blob).map(drop)
}

/// The tree that a layer is put into: for the lowest its own directory, for the others an overlay. It stays mounted
/// where it is for as long: in a mount that nothing leads to the kernel resolves no `..` beneath a root (EAGAIN).
fn open_tree(fresh: &Path, below: &[PathBuf]) -> io::Result<Tree> {
    let upper = fresh.join("files");
    let files = place::open(&upper)?;
    let Some(next) = below.last() else { return Ok(Tree::new(files, None)) };
    be_like(next, &upper)?;
    let lower = Lower::open(below)?;
    let (merged, work) = (fresh.join("merged"), fresh.join("work"));
    // Nothing of it is wanted after a crash, so it need not be on the disk by any time.
    let options =
        format!("{},upperdir={},workdir={},volatile", lower.option(), upper.display(), work.display());
    mount(Some("overlay"), &merged, Some("overlay"), MsFlags::empty(), Some(options.as_str()))?;
    Ok(Tree::new(place::open(&merged)?, Some(files)))
}

/// An overlay's root is as that of its upper directory is.
pub(super) fn be_like(model: &Path, directory: &Path) -> io::Result<()> {
    let model = fs::metadata(model)?;
    std::os::unix::fs::chown(directory, Some(model.uid()), Some(model.gid()))?;
    fs::set_permissions(directory, model.permissions())?;
    let times = fs::FileTimes::new().set_accessed(model.accessed()?).set_modified(model.modified()?);
    fs::File::open(directory)?.set_times(times)
}

/// Layers as an overlay's option names them: by descriptors, because a hundred of their paths are longer than the
/// page that mount(2) takes.
pub(super) struct Lower(Vec<OwnedFd>);

impl Lower {
    /// The lowest first.
    pub(super) fn open(directories: &[PathBuf]) -> io::Result<Self> {
        Ok(Self(directories.iter().map(|path| place::open(path)).collect::<io::Result<_>>()?))
    }

    pub(super) fn option(&self) -> String {
        let path = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
        format!("lowerdir={}", self.0.iter().rev().map(path).collect::<Vec<_>>().join(":"))
    }
}

impl Used {
    /// Looks at the image's files, which are at `root` by now, for what its process needs of them.
    pub(super) fn look_at(&mut self, root: &Path) -> Result<()> {
        if self.process.is_none() {
            let root = place::open(root).map_err(failed_to(|| format!("open {}", root.display())))?;
            self.process = Some(ImageProcess::new(self.config.clone(), &root)?);
        }
        Ok(())
    }
}

/// Takes away all but the layers `known`.
fn sweep(root: &Path, known: &[String]) -> Result<()> {
    for (kind, keep) in [("fresh", &[][..]), ("layers", known)] {
        for entry in fs::read_dir(root.join(kind)).into_iter().flatten().flatten() {
            if !keep.iter().any(|name| entry.file_name() == name.as_str()) {
                remove(&entry.path())?;
            }
        }
    }
    Ok(())
}

/// If it is mounted.
fn unmount(path: &Path) -> io::Result<()> {
    match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// With all that is in it, and without a mount that a killed worker left there.
fn remove(path: &Path) -> Result<()> {
    unmount(&path.join("merged")).map_err(failed_to(|| format!("unmount what is in {}", path.display())))?;
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed_to(|| format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    crate::task::blocking(work).await.map_err(failed_to(|| "finish work on the pool".to_owned())).flatten()
}
