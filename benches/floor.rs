//! The least the kernel takes for the container that `benches/report` launches: a control group in every
//! hierarchy, one clone3 with the same namespaces, the same mounts, devices, masks and pivot_root, an exec of
//! the same program, its reaping, and the removal of the group. It checks nothing and reports nothing.
//!
//! `berth-floor ROOTFS CGROUP` repeats that for every byte on its standard input, and answers each by one.
//! `berth-floor ROOTFS CGROUP PID` does the least for an exec instead: into the namespaces of the process PID
//! and the groups that are there already, and the same program. With `once` after all that it is done at once, and only then.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    env,
    ffi::CString,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{OpenOptionsExt, symlink},
    },
    path::{Path, PathBuf},
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, setns},
    sys::stat::{Mode, SFlag, makedev, mknod},
    unistd::{chdir, execve, fchdir, pivot_root},
};
use rustjail::sys::{
    clone::{Cloned, clone3},
    pidfd,
    process::exit_now,
};

const NEW: i32 = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

fn main() {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    let once = arguments.pop_if(|last| last == "once").is_some();
    let rootfs = PathBuf::from(&arguments[0]);
    let groups = hierarchies(arguments[1].trim_start_matches('/'));
    let joined = arguments.get(2).map(|pid| pidfd::open(pid.parse().expect("a pid")).expect("a process"));
    let work = || match &joined {
        Some(init) => exec(init, &groups),
        None => container(&rootfs, &groups),
    };
    if once {
        return work();
    }
    let mut order = [0];
    while io::stdin().read_exact(&mut order).is_ok() {
        work();
        io::stdout().write_all(&order).and_then(|()| io::stdout().flush()).expect("answer");
    }
}

/// The group's directory in every v1 hierarchy.
fn hierarchies(group: &str) -> Vec<PathBuf> {
    let roots = fs::read_dir("/sys/fs/cgroup").expect("control groups").flatten();
    roots
        .map(|root| root.path())
        .filter(|root| root.join("tasks").exists())
        .map(|root| root.join(group))
        .collect()
}

fn container(rootfs: &Path, groups: &[PathBuf]) {
    for group in groups {
        fs::create_dir_all(group).expect("create a group");
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let Ok(parent) = fs::read_to_string(group.join("..").join(file)) else {
                continue;
            };
            fs::write(group.join(file), parent).expect("fill the cpuset");
        }
    }
    let mut tasks = open_tasks(groups);
    match clone3(NEW as u64, None, false).expect("clone3") {
        Cloned::Parent(_, child) => reap(&child),
        Cloned::Child => {
            child(rootfs, &mut tasks);
            exit_now(1);
        }
    }
    for group in groups {
        while fs::remove_dir(group).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            std::hint::spin_loop();
        }
    }
}

fn open_tasks(groups: &[PathBuf]) -> Vec<File> {
    groups
        .iter()
        .map(|group| OpenOptions::new().write(true).custom_flags(libc::O_CLOEXEC).open(group.join("tasks")))
        .collect::<Result<_, _>>()
        .expect("open tasks")
}

fn reap(child: &OwnedFd) {
    let exit = pidfd::wait(child.as_fd()).expect("reap");
    assert_eq!(exit, pidfd::Exit::Code(0), "the floor's process failed");
}

fn exec(init: &OwnedFd, groups: &[PathBuf]) {
    let mut tasks = open_tasks(groups);
    let own = pidfd::open(std::process::id() as i32).expect("a pidfd of this process");
    setns(init, CloneFlags::CLONE_NEWPID).expect("join the PID namespace");
    match clone3(0, None, false).expect("clone3") {
        Cloned::Parent(_, child) => {
            setns(&own, CloneFlags::CLONE_NEWPID).expect("return to the PID namespace");
            reap(&child);
        }
        Cloned::Child => {
            join(&mut tasks);
            let others = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
            setns(init, others).expect("join the namespaces");
            execute();
            exit_now(1);
        }
    }
}

fn join(tasks: &mut [File]) {
    for file in tasks {
        file.write_all(b"0").expect("join a group");
    }
}

fn execute() {
    let path = CString::new("/bin/true").expect("a path");
    let environment = CString::new("PATH=/bin").expect("a variable");
    let _ = execve(&path, &[&path], &[&environment]);
}

fn child(rootfs: &Path, tasks: &mut [File]) {
    join(tasks);
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>).expect("slave");
    mount(Some(rootfs), rootfs, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .expect("bind");
    chdir(rootfs).expect("enter the rootfs");
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC | MsFlags::MS_NODEV;
    let mounts = [
        ("proc", "proc", quiet, ""),
        ("dev", "tmpfs", MsFlags::MS_NOSUID | MsFlags::MS_STRICTATIME, "mode=755,size=65536k"),
        ("dev/pts", "devpts", MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"),
        ("dev/shm", "tmpfs", quiet, "mode=1777,size=65536k"),
        ("dev/mqueue", "mqueue", quiet, ""),
        ("sys", "sysfs", quiet | MsFlags::MS_RDONLY, ""),
    ];
    for (target, kind, flags, data) in mounts {
        let _ = fs::create_dir(target);
        mount(Some(kind), target, Some(kind), flags, Some(data)).expect(target);
    }
    devices();
    masks();
    pivot();
    execute();
}

fn devices() {
    let nodes =
        [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
    for (name, major, minor) in nodes {
        let path = Path::new("dev").join(name);
        mknod(&path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(major, minor)).expect("mknod");
    }
    let links = [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")];
    for (name, suffix) in links {
        symlink(format!("/proc/self/fd{suffix}"), Path::new("dev").join(name)).expect("link");
    }
    symlink("pts/ptmx", "dev/ptmx").expect("link ptmx");
}

fn masks() {
    for path in ["proc/kcore", "proc/keys"].into_iter().filter(|path| Path::new(path).exists()) {
        mount(Some("dev/null"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect(path);
    }
    for path in ["proc/scsi", "sys/firmware"] {
        if Path::new(path).exists() {
            mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::MS_RDONLY, None::<&str>).expect(path);
        }
    }
    for path in ["proc/sys", "proc/irq", "proc/bus"] {
        if Path::new(path).exists() {
            mount(Some(path), path, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
                .expect(path);
            let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
            mount(None::<&str>, path, None::<&str>, flags, None::<&str>).expect(path);
        }
    }
}

fn pivot() {
    let old = File::open("/").expect("open the old root");
    pivot_root(".", ".").expect("pivot_root");
    fchdir(&old).expect("return to the old root");
    umount2(".", MntFlags::MNT_DETACH).expect("leave the old root");
    chdir("/").expect("enter the new root");
}
