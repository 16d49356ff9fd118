//! What an image, or a neighbour that shares a volume, does while a container's tree is made: places exchanged with
//! links back and forth as fast as the kernel does it.
//!
//! No container is launched here. A thread compiles a configuration, has the code of the launch build the tree and
//! make it `/` in a mount namespace of this thread's own, looks around there, and comes back. That takes a fraction of
//! a millisecond, so that `make races` tries each of these 10^5 times; `tests/races.rs` tries the same, by the same
//! names, with whole containers.
//!
//! That nothing is lost proves nothing where nothing is at stake. So a careless runtime, which looks at a path and then
//! uses it as others did, has to lose first; and the tries count in which the places were exchanged meanwhile.

mod covers;
mod places;
#[path = "../../../tests/support/race.rs"]
mod race;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::symlink,
    },
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use nix::sched::{CloneFlags, setns, unshare};
use oci_spec::runtime::Spec;
use race::{Swapper, tries};
use serde_json::{Value, json};

use super::{proc::Proc, root};
use crate::{
    compile::{self, ContainerRequest, Stdio},
    sync::StepError,
    sys::mount::{self, Attributes, FileSystem},
};

/// How long to wait for what chance has to bring about.
const PATIENCE: Duration = Duration::from_secs(60);

/// A bundle in a tmpfs that only this thread, and those it makes, see; and beside the root file system a directory that
/// nothing may come to be in.
struct Arena {
    path: PathBuf,
    spec: Value,
    null: File,
    /// The mount namespace the thread came from, and the one that has the tmpfs.
    before: File,
    home: File,
}

/// What became of the tries.
#[derive(Debug, Default)]
struct Tally {
    /// Trees that were made.
    through: u32,
    /// How those failed that were not.
    refused: BTreeMap<String, u32>,
    /// Of both, during how many the places were exchanged.
    hit: u32,
}

impl Tally {
    fn is_telling(&self) -> bool {
        self.through > 0 && self.hit > 0
    }
}

impl Arena {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rustjail-arena-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let before = own_namespace();
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let private = Attributes { propagation: libc::MS_PRIVATE, ..Attributes::default() };
        mount::set_attributes(File::open("/").unwrap().as_fd(), private, true).unwrap();
        let tmpfs = FileSystem::open("tmpfs").unwrap().mount(0).unwrap();
        mount::attach(tmpfs.as_fd(), File::open(&path).unwrap().as_fd()).unwrap();

        let null = File::open("/dev/null").unwrap();
        let arena = Self { path, spec: spec(), null, before, home: own_namespace() };
        for directory in ["bin", "proc", "sys", "dev", "tmp"] {
            arena.directory(&format!("rootfs/{directory}"));
        }
        arena.file("outside/file", "outside\n");
        arena
    }

    fn at(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }

    fn directory(&self, path: &str) {
        fs::create_dir_all(self.at(path)).unwrap();
    }

    fn file(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    fn set(&mut self, pointer: &str, value: Value) -> &mut Self {
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        self.spec.pointer_mut(parent).unwrap()[name] = value;
        self
    }

    /// Has `place` be by turns what it is and a link to `target`.
    fn swap_with_link(&self, place: &str, target: &str) -> Swapper {
        let link = self.at(place).with_file_name("link");
        symlink(target, &link).unwrap();
        Swapper::new(self.at(place), link)
    }

    /// Proof that something can be lost: what `check` found good is what `lost` uses, and that is done until it was
    /// exchanged in between.
    #[track_caller]
    fn loses<T>(&self, check: impl Fn() -> Option<T>, lost: impl Fn(T) -> bool) {
        let (began, mut count) = (Instant::now(), 1_u32);
        while !check().is_some_and(|found| {
            // A machine with one processor gives it to the other side now.
            std::thread::yield_now();
            lost(found)
        }) {
            assert!(began.elapsed() < PATIENCE, "{count} times nothing was lost, with no care taken");
            count += 1;
        }
        eprintln!("lost by a careless runtime in try {count}");
    }

    /// Does `work` in a copy of the mount namespace, of which nothing stays.
    fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let result = work();
        setns(&self.home, CloneFlags::CLONE_NEWNS).unwrap();
        result
    }

    /// Makes the container's tree, in which there are `each` places to lose at, until [`tries`] were made and a
    /// swap fell into one. `beside` looks around when it is built, `inside` when it is `/`.
    #[track_caller]
    fn try_often(&self, swapper: &Swapper, each: u32, beside: impl Fn(), inside: impl Fn()) -> Tally {
        let spec: Spec = serde_json::from_value(self.spec.clone()).unwrap();
        let (tries, began) = (tries(1000), Instant::now());
        let mut tally = Tally::default();
        let mut made = 0;
        while made < tries || !tally.is_telling() && began.elapsed() < PATIENCE {
            let swaps = swapper.swaps();
            match self.make(&spec, &beside, &inside) {
                Ok(()) => {
                    tally.through += 1;
                    made += each;
                }
                Err(error) => {
                    *tally.refused.entry(error).or_default() += 1;
                    made += 1;
                }
            }
            tally.hit += u32::from(swapper.swaps() > swaps);
        }
        eprintln!("{made} tries, {each} to a tree, in {} ms: {tally:?}", began.elapsed().as_millis());
        assert!(tally.is_telling());
        tally
    }

    fn make(&self, spec: &Spec, beside: impl Fn(), inside: impl Fn()) -> Result<(), String> {
        let null = || self.null.try_clone().unwrap().into();
        let launch = compile::container(ContainerRequest {
            id: "race",
            spec,
            bundle: &self.path,
            confined: &[],
            stdio: Stdio::Streams { stdin: null(), stdout: null(), stderr: null() },
            join: Vec::new(),
            placement: None,
            resctrl: None,
            sync: null(),
        });
        let launch = launch.map_err(|error| error.to_string())?;
        let fds: Vec<BorrowedFd<'_>> = launch.fds.iter().map(AsFd::as_fd).collect();
        let (plan, root) = (&launch.plan, launch.plan.root.as_ref().unwrap());
        let walked = self.aside(|| -> Result<(), StepError> {
            let proc = Proc::open_if_needed(plan)?;
            let built = root::build(plan, root, &fds, proc.as_ref(), &mut || Ok(()))?;
            self.assert_untouched();
            beside();
            built.close_and_switch(root, &plan.process.cwd)?;
            inside();
            Ok(())
        });
        walked.map_err(|error| error.to_string())
    }

    /// In sight of the host's tree: nothing was made in the directory outside, and nothing is mounted on it.
    #[track_caller]
    fn assert_untouched(&self) {
        let outside = self.at("outside");
        let names: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["file"]);
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "outside\n");
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        setns(&self.before, CloneFlags::CLONE_NEWNS).unwrap();
        fs::remove_dir(&self.path).unwrap();
    }
}

fn own_namespace() -> File {
    File::open("/proc/thread-self/ns/mnt").unwrap()
}

fn spec() -> Value {
    json!({
        "ociVersion": "1.2.0",
        "root": {"path": "rootfs"},
        "process": {"user": {"uid": 0, "gid": 0}, "args": ["program"], "cwd": "/"},
        "mounts": [],
        "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}]},
    })
}
