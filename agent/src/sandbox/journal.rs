//! What a worker writes down so that the next one can go on.
//!
//! One JSON file per container and one for the sandbox, replaced by rename, written before a step that
//! another worker would have to undo and after one it would have to know of. The directory is on a tmpfs
//! (`/run/berth`), so a write does not wait for a disk and is made where it is decided, in line. A file that
//! cannot be read, or is of a newer version, is moved aside and reported; it never stops a worker.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    container::Container,
    guest_hooks::GuestHook,
    memory::Settings,
    process::{Keys, Process, Raw},
    state::State,
};
use crate::{device::PciAddresses, supervisor::Key};

/// Raised when an older worker could not understand what a newer one wrote.
pub(crate) const VERSION: u32 = 1;

/// A container as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    pub(crate) version: u32,
    pub(crate) id: String,
    pub(crate) state: State,
    pub(crate) cgroup: PathBuf,
    pub(crate) defines_pidns: bool,
    #[serde(default)]
    pub(crate) pci: PciAddresses,
    pub(crate) init: ProcessRecord,
    pub(crate) execs: Vec<ProcessRecord>,
    /// OOM kills a host was told of.
    #[serde(default)]
    pub(crate) oom_told: u64,
}

/// A process as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessRecord {
    pub(crate) exec_id: String,
    pub(crate) keys: Keys,
    pub(crate) pid: i32,
    pub(crate) terminal: bool,
    pub(crate) raw: Raw,
    pub(crate) launched: bool,
    pub(crate) exit: Option<i32>,
    pub(crate) waited: bool,
}

/// The sandbox as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SandboxRecord {
    pub(crate) version: u32,
    pub(crate) id: String,
    pub(crate) ipc: Key,
    pub(crate) uts: Key,
    /// /etc/resolv.conf has been covered.
    pub(crate) dns: bool,
    /// What the guest's image has for every container.
    #[serde(default)]
    pub(crate) guest_hooks: Vec<GuestHook>,
}

/// A file that was moved aside.
#[derive(Debug)]
pub(crate) struct Quarantined {
    pub(crate) path: PathBuf,
    pub(crate) reason: String,
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

impl From<&Container> for ContainerRecord {
    fn from(container: &Container) -> Self {
        Self {
            version: VERSION,
            id: container.id.clone(),
            state: container.state(),
            cgroup: container.cgroup_path.as_path().to_owned(),
            defines_pidns: container.defines_pidns,
            pci: container.pci.borrow().clone(),
            init: ProcessRecord::from(&*container.init),
            execs: container.execs.borrow().values().map(|process| ProcessRecord::from(&**process)).collect(),
            oom_told: container.oom_told.get(),
        }
    }
}

impl From<&Process> for ProcessRecord {
    fn from(process: &Process) -> Self {
        Self {
            exec_id: process.exec_id.clone(),
            keys: process.keys,
            pid: process.pid.get(),
            terminal: process.terminal,
            raw: process.raw,
            launched: process.launched.get(),
            exit: process.exit.get(),
            waited: process.waited.get(),
        }
    }
}

/// The state directory.
#[derive(Debug)]
pub(crate) struct Journal {
    root: PathBuf,
}

impl Journal {
    /// Makes the directory where it does not exist; nobody but root may look into it.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        for dir in [root.to_owned(), root.join("journal"), root.join("containers"), root.join("quarantine")] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        }
        Ok(Self { root: root.to_owned() })
    }

    /// Where a container's own files are.
    pub(crate) fn bundle(&self, id: &str) -> PathBuf {
        self.root.join("containers").join(id)
    }

    /// Where the resolv.conf of the sandbox is.
    pub(crate) fn resolv_conf(&self) -> PathBuf {
        self.root.join("resolv.conf")
    }

    pub(crate) fn write_container(&self, container: &Container) -> io::Result<()> {
        self.replace(&self.container_file(&container.id), &ContainerRecord::from(container))
    }

    pub(crate) fn remove_container(&self, id: &str) -> io::Result<()> {
        remove(&self.container_file(id))
    }

    pub(crate) fn write_sandbox(&self, record: &SandboxRecord) -> io::Result<()> {
        self.replace(&self.sandbox_file(), record)
    }

    pub(crate) fn remove_sandbox(&self) -> io::Result<()> {
        remove(&self.sandbox_file())
    }

    pub(crate) fn write_memory(&self, settings: &Settings) -> io::Result<()> {
        self.replace(&self.root.join("memory.json"), &Settings { version: VERSION, ..*settings })
    }

    /// `None` if there is nothing that can be read: the defaults are as good.
    pub(crate) fn read_memory(&self) -> Option<Settings> {
        read(&self.root.join("memory.json")).ok()
    }

    /// Everything that was written down, and what could not be read.
    pub(crate) fn load(&self) -> io::Result<(Option<SandboxRecord>, Vec<ContainerRecord>, Vec<Quarantined>)> {
        let mut quarantined = Vec::new();
        let mut containers: Vec<ContainerRecord> = Vec::new();
        for entry in fs::read_dir(self.root.join("journal"))? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                // A rename that did not come about.
                remove(&path)?;
                continue;
            }
            let named = |record: &ContainerRecord| path == self.container_file(&record.id);
            match read(&path) {
                Ok(record) if named(&record) => containers.push(record),
                Ok(_) => {
                    quarantined.push(self.quarantine(&path, "its name is not the container's id".to_owned()))
                }
                Err(reason) => quarantined.push(self.quarantine(&path, reason)),
            }
        }
        let path = self.sandbox_file();
        let sandbox = match path.try_exists()?.then(|| read(&path)) {
            Some(Err(reason)) => {
                quarantined.push(self.quarantine(&path, reason));
                None
            }
            Some(Ok(record)) => Some(record),
            None => None,
        };
        Ok((sandbox, containers, quarantined))
    }

    fn quarantine(&self, path: &Path, reason: String) -> Quarantined {
        let aside = self.root.join("quarantine").join(path.file_name().unwrap_or_default());
        let reason = match fs::rename(path, &aside) {
            Ok(()) => reason,
            Err(error) => format!("{reason}; and it cannot be moved to {}: {error}", aside.display()),
        };
        Quarantined { path: aside, reason }
    }

    fn container_file(&self, id: &str) -> PathBuf {
        self.root.join("journal").join(format!("{id}.json"))
    }

    fn sandbox_file(&self) -> PathBuf {
        self.root.join("sandbox.json")
    }

    fn replace(&self, path: &Path, record: &impl Serialize) -> io::Result<()> {
        let fresh = path.with_extension("new");
        fs::write(&fresh, serde_json::to_vec(record)?)?;
        fs::rename(&fresh, path)
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let Versioned { version } = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("it is of version {version}; this agent writes version {VERSION}"));
    }
    serde_json::from_slice(&bytes).map_err(|error| error.to_string())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf, rc::Rc};

    use rustjail::cgroup::CgroupPath;

    use super::{ContainerRecord, Journal, SandboxRecord, VERSION};
    use crate::{
        sandbox::{
            container::Container,
            process::{Keys, Process, Raw},
            state::State,
        },
        supervisor::Key,
    };

    struct Dir(PathBuf);

    impl Drop for Dir {
        fn drop(&mut self) {
            let _gone = fs::remove_dir_all(&self.0);
        }
    }

    fn dir(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("berth-journal-{name}-{}", std::process::id()));
        let _old = fs::remove_dir_all(&path);
        Dir(path)
    }

    fn container(id: &str) -> Rc<Container> {
        let init = Rc::new(Process::new(id, Keys(32), false, Raw::default()));
        init.pid.set(77);
        Container::new(
            id.to_owned(),
            State::Running,
            Default::default(),
            CgroupPath::parse(None, id).unwrap(),
            true,
            init,
        )
    }

    #[test]
    fn what_is_written_is_read_back() {
        let dir = dir("roundtrip");
        let journal = Journal::open(&dir.0).unwrap();
        let c = container("c1.x");
        let exec = Rc::new(Process::new("e1", Keys(48), true, Raw { stdin: true, ..Raw::default() }));
        exec.exit.set(137);
        c.execs.borrow_mut().insert("e1".to_owned(), exec);
        journal.write_container(&c).unwrap();
        let (ipc, uts, guest_hooks) = (Key(1), Key(2), Vec::new());
        let sandbox = SandboxRecord { version: VERSION, id: "s".into(), ipc, uts, dns: true, guest_hooks };
        journal.write_sandbox(&sandbox).unwrap();

        let (read_sandbox, containers, quarantined) = Journal::open(&dir.0).unwrap().load().unwrap();
        assert!(quarantined.is_empty());
        assert_eq!(read_sandbox, Some(sandbox));
        assert_eq!(containers, [ContainerRecord::from(&*c)]);
        assert_eq!(containers[0].execs[0].exit, Some(137));

        journal.remove_container("c1.x").unwrap();
        journal.remove_container("c1.x").unwrap();
        journal.remove_sandbox().unwrap();
        let (sandbox, containers, _) = journal.load().unwrap();
        assert!(sandbox.is_none() && containers.is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_moved_aside_and_the_rest_is_kept() {
        let dir = dir("quarantine");
        let journal = Journal::open(&dir.0).unwrap();
        journal.write_container(&container("good")).unwrap();
        let at = |name: &str| dir.0.join("journal").join(name);
        fs::write(at("cut.json"), br#"{"version":1,"id":"cu"#).unwrap();
        fs::write(at("newer.json"), br#"{"version":99,"shape":"unknown"}"#).unwrap();
        fs::copy(at("good.json"), at("liar.json")).unwrap();
        fs::write(at("good.new"), b"half").unwrap();
        fs::write(dir.0.join("sandbox.json"), b"").unwrap();

        let (sandbox, containers, quarantined) = journal.load().unwrap();
        assert!(sandbox.is_none());
        assert_eq!(containers.iter().map(|c| c.id.as_str()).collect::<Vec<_>>(), ["good"]);
        assert_eq!(quarantined.len(), 4, "{quarantined:?}");
        assert!(quarantined.iter().all(|q| q.path.exists()));
        assert!(quarantined.iter().any(|q| q.reason.contains("version 99")));
        assert!(!at("good.new").exists());
        assert!(journal.load().unwrap().2.is_empty(), "a second load reports nothing again");
    }
}
