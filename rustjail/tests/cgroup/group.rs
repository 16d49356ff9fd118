//! A group of its own for one test, in which commands are started as the launcher would.

use std::{
    fs,
    os::fd::AsRawFd,
    path::Path,
    process::{Child, Command, Output, Stdio, id},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use oci_spec::runtime::LinuxResources;
use rustjail::cgroup::{Cgroup, CgroupError, CgroupPath, Hierarchies};

/// A group of its own for one test.
pub struct Group {
    pub hierarchies: Hierarchies,
    pub path: CgroupPath,
    pub group: Cgroup,
}

impl Group {
    pub fn new(resources: &str) -> Self {
        Self::try_new(resources).unwrap()
    }

    pub fn try_new(resources: &str) -> Result<Self, CgroupError> {
        let hierarchies = Hierarchies::detect()?;
        let path = unique();
        let resources: LinuxResources = serde_json::from_str(resources).unwrap();
        let group = Cgroup::create(&hierarchies, &path, Some(&resources))?;
        Ok(Self { hierarchies, path, group })
    }

    pub fn update(&self, resources: &str) -> Result<(), CgroupError> {
        self.group.update(&serde_json::from_str(resources).unwrap())
    }

    /// Starts a command in the group, in the way the launcher does: born into the cgroup2 directory, then
    /// writing "0" to each v1 `tasks` file.
    pub fn start(&self, command: &str) -> Child {
        const SCRIPT: &str = r#"
            my ($into, $command, @tasks) = @ARGV;
            my ($flags, $fd) = (0, 0);
            if ($into) { opendir(DIR, $into) or die "opendir: $!"; ($flags, $fd) = (0x200000000, fileno(DIR)); }
            my $arguments = pack("Q11", $flags, 0, 0, 0, 17, 0, 0, 0, 0, 0, $fd);
            my $pid = syscall(435, $arguments, 88);
            die "clone3: $!" if $pid < 0;
            if ($pid == 0) {
                for (@tasks) { open(F, ">", $_) or die "$_: $!"; syswrite(F, "0") or die "$_: $!"; close(F); }
                exec("/bin/sh", "-c", $command);
            }
            waitpid($pid, 0);
            exit(($? & 127) ? 128 + ($? & 127) : $? >> 8);
        "#;
        let placement = self.group.placement().unwrap();
        let path = |fd: &dyn AsRawFd| format!("/proc/{}/fd/{}", id(), fd.as_raw_fd());
        let child = Command::new("perl")
            .args(["-e", SCRIPT, &placement.into.as_ref().map_or(String::new(), |fd| path(fd))])
            .arg(format!("echo started; {command}"))
            .args(placement.tasks.iter().map(|fd| path(fd)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = child;
        // The descriptors must stay open until the child has used them.
        let mut line = [0; 8];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap_or_else(|_| {
            let mut errors = String::new();
            std::io::Read::read_to_string(child.stderr.as_mut().unwrap(), &mut errors).unwrap();
            panic!("not placed: {errors}");
        });
        child
    }

    pub fn run(&self, command: &str) -> Output {
        self.start(command).wait_with_output().unwrap()
    }

    /// A file of the group, in the hierarchy of a controller.
    pub fn file(&self, controller: &str, file: &str) -> String {
        let path = Path::new("/sys/fs/cgroup").join(controller).join(self.path.as_path()).join(file);
        fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            .trim()
            .to_owned()
    }

    pub fn wait_until_empty(&self) {
        let empty = self.group.wait_until_empty(Duration::from_secs(30)).unwrap();
        assert!(empty, "processes left: {:?}", self.group.pids());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.group.thaw();
        if let Err(error) = self.group.destroy(Duration::from_secs(30)) {
            eprintln!("{} could not be removed: {error}", self.path);
        }
    }
}

pub fn unique() -> CgroupPath {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("berth-test-{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed));
    CgroupPath::parse(Some(&Path::new("/").join(name)), "unused").unwrap()
}

/// Whether the machine has the v1 controller, as a hybrid one does.
pub fn has_v1(controller: &str) -> bool {
    Path::new("/sys/fs/cgroup").join(controller).join("tasks").exists()
}
