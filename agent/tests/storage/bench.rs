//! A place to try storages in: a mount namespace, a directory and loop devices of the test's own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    rc::Rc,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use berth_agent::{
    hotplug::{Hotplug, Roots, Socket},
    storage::{Storage, StorageError, Storages},
};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

/// How long a device that never comes is waited for here.
pub const PATIENCE: Duration = Duration::from_millis(300);

pub struct Bench {
    pub dir: PathBuf,
    pub storages: Storages,
    hotplug: Rc<Hotplug>,
}

/// Runs `test` on a thread that has a mount namespace of its own, as have the threads it starts.
pub fn on_bench<F: Future<Output = ()>>(test: impl FnOnce(Bench) -> F + Send + 'static) {
    waiting(PATIENCE, test);
}

/// The same, where what is waited for comes.
pub fn on_patient_bench<F: Future<Output = ()>>(test: impl FnOnce(Bench) -> F + Send + 'static) {
    waiting(Duration::from_secs(60), test);
}

fn waiting<F: Future<Output = ()>>(patience: Duration, test: impl FnOnce(Bench) -> F + Send + 'static) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("berth-storage-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let dir = std::env::temp_dir().join(name);
    let thread = std::thread::spawn({
        let dir = dir.clone();
        move || {
            unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace needs root");
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
                .unwrap();
            fs::create_dir_all(&dir).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, async {
                let hotplug = Rc::new(Hotplug::new(Roots::default(), patience));
                let socket = Socket::open().unwrap();
                let listener = Rc::clone(&hotplug);
                tokio::task::spawn_local(async move { listener.listen(socket).await });
                let storages = open(&dir, &hotplug);
                test(Bench { dir, storages, hotplug }).await;
            });
        }
    });
    let outcome = thread.join();
    let _ = fs::remove_dir_all(&dir);
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

fn open(dir: &Path, hotplug: &Rc<Hotplug>) -> Storages {
    let log = slog::Logger::root(slog::Discard, slog::o!());
    Storages::new(Rc::clone(hotplug), &dir.join("state"), log).unwrap()
}

impl Bench {
    /// As the next worker finds it.
    pub fn take_over(&mut self) {
        self.storages = open(&self.dir, &self.hotplug);
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn storage(
        &self,
        driver: &str,
        source: impl AsRef<Path>,
        fstype: &str,
        mount_point: &str,
    ) -> Storage {
        Storage {
            driver: driver.into(),
            source: source.as_ref().display().to_string(),
            fstype: fstype.into(),
            mount_point: self.at(mount_point),
            ..Storage::default()
        }
    }

    /// Must fail and leave the mount table as it was, and no directory either.
    pub async fn refused(&self, storage: Storage) -> StorageError {
        let before = (mounts(), tree(&self.dir));
        let what = format!("{storage:?}");
        let error = self.storages.acquire("c1", vec![storage]).await.expect_err(&what);
        self.storages.release("c1").await.unwrap();
        assert_eq!((mounts(), tree(&self.dir)), before, "{what}: {error}");
        error
    }
}

/// The mount table of this thread's namespace.
pub fn mounts() -> Vec<String> {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    // Ids differ from mount to mount; the rest must not.
    table.lines().map(|line| line.splitn(3, ' ').nth(2).unwrap().to_owned()).collect()
}

fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        found.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            found.extend(tree(&entry.path()));
        }
    }
    found.sort();
    found
}

/// Runs a program that must succeed.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("run {program} (make setup installs it): {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A loop device over a file, detached on drop.
pub struct Loop {
    pub node: String,
    pub file: PathBuf,
}

impl Loop {
    /// A blank one of `mib` MiB.
    pub fn blank(dir: &Path, name: &str, mib: u64) -> Self {
        let file = dir.join(name);
        fs::File::create(&file).unwrap().set_len(mib << 20).unwrap();
        Self::over(file)
    }

    /// Over a file that is there.
    pub fn over(file: PathBuf) -> Self {
        let node = run("losetup", &["--find", "--show", &file.display().to_string()]);
        Self { node, file }
    }

    /// With a file system.
    pub fn formatted(dir: &Path, fstype: &str, mib: u64) -> Self {
        let disk = Self::blank(dir, &format!("{fstype}.img"), mib);
        match fstype {
            "ext4" => run("mkfs.ext4", &["-q", "-F", &disk.node]),
            other => run(&format!("mkfs.{other}"), &["-q", "-f", &disk.node]),
        };
        disk
    }

    /// Makes the device larger.
    pub fn grow(&self, mib: u64) {
        fs::OpenOptions::new().write(true).open(&self.file).unwrap().set_len(mib << 20).unwrap();
        run("losetup", &["--set-capacity", &self.node]);
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.node]).status();
    }
}
