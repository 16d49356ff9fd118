//! `launch::spawn` from a single-threaded process, which cargo's own test harness is not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt,
    },
};

use oci_spec::runtime::{Process, Spec};
use rustjail::{
    compile::{self, ContainerRequest, ExecRequest, NamespaceKind, Stdio},
    launch::{Launch, Parent, SpawnError, Spawned, spawn},
    plan::slot,
    sync::{self, Report},
    sys::{
        clone::{Cloned, clone3},
        pidfd::{self, Exit},
        process::exit_now,
    },
};
use serde_json::json;
use support::Bundle;

const CASES: &[(&str, fn())] = &[
    ("a_sibling_is_reaped_by_the_launchers_parent", a_sibling_is_reaped_by_the_launchers_parent),
    ("a_created_container_holds_nothing_and_cannot_be_traced", a_created_container_holds_nothing),
    ("a_container_that_nobody_starts_ends", a_container_that_nobody_starts_ends),
    ("an_init_killed_before_it_acts_on_its_start_is_told", an_init_killed_before_it_acts_on_its_start),
    ("a_launcher_stays_in_its_own_pid_namespace", a_launcher_stays_in_its_own_pid_namespace),
    ("a_pid_namespace_is_shared_by_descriptor", a_pid_namespace_is_shared_by_descriptor),
    ("an_ended_container_cannot_be_joined", an_ended_container_cannot_be_joined),
    ("a_child_that_cannot_be_mapped_is_not_left_behind", a_child_that_cannot_be_mapped_is_not_left_behind),
    ("a_cgroup_is_entered_through_tasks", a_cgroup_is_entered_through_tasks),
    ("a_cgroup_that_comes_later_is_entered_before_the_program", a_cgroup_that_comes_later_is_entered),
    ("a_process_whose_cgroup_never_comes_ends", a_process_whose_cgroup_never_comes_ends),
    (
        "a_failure_is_heard_though_the_cgroup_was_not_taken",
        a_failure_is_heard_though_the_cgroup_was_not_taken,
    ),
    ("an_init_takes_no_other_program_for_its_binary", an_init_takes_no_other_program_for_its_binary),
];

fn main() {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let chosen: Vec<_> = CASES.iter().filter(|(name, _)| name.contains(&filter)).collect();
    println!("\nrunning {} tests", chosen.len());
    let mut failed = 0;
    for (name, case) in &chosen {
        let result = std::panic::catch_unwind(case);
        failed += usize::from(result.is_err());
        println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {} passed; {failed} failed; 0 ignored", chosen.len() - failed);
    assert_eq!(failed, 0);
}

/// The container of `bundle` with the descriptors that let it be followed.
struct Container {
    bundle: Bundle,
    spec: Spec,
    maker: OwnedFd,
    output: io::PipeReader,
}

impl Container {
    fn compile(bundle: Bundle, join: Vec<(NamespaceKind, OwnedFd)>) -> (Self, Launch) {
        let spec: Spec = serde_json::from_value(bundle.spec.clone()).unwrap();
        let (maker, child) = blocking_pair();
        let (output, stdio) = piped();
        let request = ContainerRequest {
            id: "test",
            resctrl: None,
            spec: &spec,
            bundle: &bundle.path,
            stdio,
            confined: &[],
            join,
            placement: None,
            sync: child,
        };
        let launch = compile::container(request).unwrap();
        (Self { bundle, spec, maker, output }, launch)
    }

    fn create(bundle: Bundle) -> (Self, Spawned) {
        let (container, launch) = Self::compile(bundle, Vec::new());
        let spawned = go(launch, Parent::Caller).unwrap();
        container.expect_ready();
        (container, spawned)
    }

    fn expect_ready(&self) {
        match sync::receive(self.maker.as_fd()).unwrap() {
            Some(Report::Ready) => {}
            other => panic!("{other:?}"),
        }
    }

    fn start(&self) {
        sync::start(self.maker.as_fd()).unwrap();
        assert!(sync::receive(self.maker.as_fd()).unwrap().is_none());
    }

    fn text(mut self) -> String {
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        text.trim_end().to_owned()
    }
}

fn exec(
    container: &Container,
    init: BorrowedFd<'_>,
    script: &str,
) -> Result<(Spawned, io::PipeReader), SpawnError> {
    let process: Process = serde_json::from_value(support::process(script)).unwrap();
    let (maker, child) = blocking_pair();
    let (output, stdio) = piped();
    let request = ExecRequest {
        resctrl: None,
        process: &process,
        spec: &container.spec,
        init,
        stdio,
        placement: None,
        sync: child,
    };
    let spawned = go(compile::exec(request).unwrap(), Parent::Caller)?;
    assert!(sync::receive(maker.as_fd()).unwrap().is_none());
    Ok((spawned, output))
}

fn go(launch: Launch, parent: Parent) -> Result<Spawned, SpawnError> {
    let fds: Vec<BorrowedFd<'_>> = launch.fds.iter().map(AsFd::as_fd).collect();
    spawn(&launch.plan, &fds, parent)
}

fn blocking_pair() -> (OwnedFd, OwnedFd) {
    let (maker, child) = sync::pair().unwrap();
    nix::fcntl::fcntl(&maker, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    (maker, child)
}

fn piped() -> (io::PipeReader, Stdio) {
    let (output, write) = io::pipe().unwrap();
    let stdout = write.try_clone().unwrap().into();
    (output, Stdio::Streams { stdin: File::open("/dev/null").unwrap().into(), stdout, stderr: write.into() })
}

fn a_sibling_is_reaped_by_the_launchers_parent() {
    let (container, launch) = Container::compile(Bundle::new("exit 7"), Vec::new());
    let (mut pids, mut report) = io::pipe().unwrap();
    let Cloned::Parent(_, launcher) = clone3(0, None, false).unwrap() else {
        let pid = go(launch, Parent::Sibling).unwrap().pid;
        report.write_all(&pid.to_ne_bytes()).unwrap();
        exit_now(0)
    };
    drop((launch, report));
    container.expect_ready();
    assert_eq!(pidfd::wait(launcher.as_fd()).unwrap(), Exit::Code(0));
    let mut pid = [0; 4];
    pids.read_exact(&mut pid).unwrap();
    let init = pidfd::open(i32::from_ne_bytes(pid)).unwrap();
    container.start();
    assert_eq!(pidfd::wait(init.as_fd()).unwrap(), Exit::Code(7));
}

fn a_created_container_holds_nothing() {
    let leaked = nix::fcntl::fcntl(io::stderr(), nix::fcntl::FcntlArg::F_DUPFD(40)).unwrap();
    assert!(leaked >= 40, "a descriptor that is not close-on-exec");
    let mut bundle = Bundle::new("ls /proc/self/fd");
    bundle.set("/process/user", json!({"uid": 33, "gid": 33}));
    let (container, init) = Container::create(bundle);
    let proc = format!("/proc/{}", init.pid);
    // The standard streams and the socket of `sync`.
    assert_eq!(fs::read_dir(format!("{proc}/fd")).unwrap().count(), 4);
    let exe = fs::symlink_metadata(format!("{proc}/exe")).unwrap();
    assert_eq!(exe.uid(), 0, "dumpable: its own user could open the agent's program");
    container.start();
    assert_eq!(pidfd::wait(init.pidfd.as_fd()).unwrap(), Exit::Code(0));
    assert_eq!(container.text(), "0\n1\n2\n3");
}

fn an_init_killed_before_it_acts_on_its_start() {
    let (container, spawned) = Container::create(Bundle::new("touch /tmp/ran"));
    let init = nix::unistd::Pid::from_raw(spawned.pid);
    pidfd::signal(spawned.pidfd.as_fd(), libc::SIGSTOP).unwrap();
    let stopped = nix::sys::wait::WaitPidFlag::WUNTRACED;
    nix::sys::wait::waitpid(init, Some(stopped)).unwrap();
    sync::start(container.maker.as_fd()).unwrap();
    pidfd::signal(spawned.pidfd.as_fd(), libc::SIGKILL).unwrap();
    let told = sync::receive(container.maker.as_fd()).unwrap_err();
    assert_eq!(told.kind(), io::ErrorKind::ConnectionReset);
    pidfd::wait(spawned.pidfd.as_fd()).unwrap();
    assert!(!container.bundle.rootfs().join("tmp/ran").exists());
}

fn a_container_that_nobody_starts_ends() {
    let (container, init) = Container::create(Bundle::new("echo started"));
    let Container { maker, mut output, bundle: _bundle, .. } = container;
    drop(maker);
    assert_eq!(pidfd::wait(init.pidfd.as_fd()).unwrap(), Exit::Code(255));
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert_eq!(text, "");
}

fn a_launcher_stays_in_its_own_pid_namespace() {
    let (container, init) = Container::create(Bundle::new("sleep 60"));
    container.start();
    for _ in 0..3 {
        let (process, mut output) =
            exec(&container, init.pidfd.as_fd(), "readlink /proc/self/ns/pid; echo $PPID").unwrap();
        assert_eq!(pidfd::wait(process.pidfd.as_fd()).unwrap(), Exit::Code(0));
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        let inside = fs::read_link(format!("/proc/{}/ns/pid", init.pid)).unwrap();
        assert_eq!(text, format!("{}\n0\n", inside.display()));
        let ours = fs::read_link("/proc/self/ns/pid").unwrap();
        assert_eq!(fs::read_link("/proc/self/ns/pid_for_children").unwrap(), ours);
    }
    pidfd::signal(init.pidfd.as_fd(), libc::SIGKILL).unwrap();
    assert_eq!(pidfd::wait(init.pidfd.as_fd()).unwrap(), Exit::Signal(libc::SIGKILL));
}

fn a_pid_namespace_is_shared_by_descriptor() {
    let (first, init) = Container::create(Bundle::new("sleep 60"));
    first.start();
    let namespace = || File::open(format!("/proc/{}/ns/pid", init.pid)).unwrap().into();
    for join in [namespace(), init.pidfd.try_clone().unwrap()] {
        let bundle = Bundle::new("cat /proc/1/comm; readlink /proc/self/ns/uts");
        let (second, launch) = Container::compile(bundle, vec![(NamespaceKind::Pid, join)]);
        let spawned = go(launch, Parent::Caller).unwrap();
        second.expect_ready();
        second.start();
        assert_eq!(pidfd::wait(spawned.pidfd.as_fd()).unwrap(), Exit::Code(0));
        let text = second.text();
        let (comm, uts) = text.split_once('\n').unwrap();
        assert_eq!(comm, "sleep");
        assert_ne!(uts, fs::read_link(format!("/proc/{}/ns/uts", init.pid)).unwrap().to_str().unwrap());
    }
    pidfd::signal(init.pidfd.as_fd(), libc::SIGKILL).unwrap();
    pidfd::wait(init.pidfd.as_fd()).unwrap();
}

fn an_ended_container_cannot_be_joined() {
    let (container, init) = Container::create(Bundle::new("true"));
    let namespace = File::open(format!("/proc/{}/ns/pid", init.pid)).unwrap().into();
    container.start();
    pidfd::wait(init.pidfd.as_fd()).unwrap();
    let error = exec(&container, init.pidfd.as_fd(), "true").unwrap_err();
    assert!(matches!(error, SpawnError::PidNamespaceGone(_)), "{error}");

    // By the namespace itself, which outlives its last process.
    let (_second, launch) = Container::compile(Bundle::new("true"), vec![(NamespaceKind::Pid, namespace)]);
    let error = go(launch, Parent::Caller).unwrap_err();
    assert!(matches!(error, SpawnError::PidNamespaceGone(_)), "{error}");

    // And the launcher is none the worse.
    let (third, init) = Container::create(Bundle::new("echo fine"));
    third.start();
    pidfd::wait(init.pidfd.as_fd()).unwrap();
    assert_eq!(third.text(), "fine");
}

fn a_child_that_cannot_be_mapped_is_not_left_behind() {
    let mut bundle = Bundle::new("true");
    bundle.set("/linux/namespaces/-", json!({"type": "user"}));
    let map = json!([{"containerID": 0, "hostID": 0, "size": 10}]);
    bundle.set("/linux/uidMappings", map.clone()).set("/linux/gidMappings", map);
    let (_container, mut launch) = Container::compile(bundle, Vec::new());
    // Twice the same range, which the compiler does not let through.
    let range = launch.plan.namespaces.uid_map[0];
    launch.plan.namespaces.uid_map.push(range);
    let error = go(launch, Parent::Caller).unwrap_err();
    assert!(matches!(error, SpawnError::Setting { file: "uid_map", .. }), "{error}");
    let children = fs::read_to_string("/proc/thread-self/children").unwrap();
    assert_eq!(children, "", "still there");
}

/// A group of the pids hierarchy, where there is one.
struct Group(String);

impl Group {
    fn new(name: &str) -> Option<Self> {
        if !fs::exists("/sys/fs/cgroup/pids/tasks").unwrap() {
            println!("skipped: no v1 hierarchy");
            return None;
        }
        let path = format!("/sys/fs/cgroup/pids/rustjail-test-{name}-{}", std::process::id());
        fs::create_dir(&path).unwrap();
        Some(Self(path))
    }

    fn tasks(&self) -> OwnedFd {
        fs::OpenOptions::new().write(true).open(format!("{}/tasks", self.0)).unwrap().into()
    }

    fn processes(&self) -> String {
        fs::read_to_string(format!("{}/cgroup.procs", self.0)).unwrap().trim().to_owned()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn a_cgroup_is_entered_through_tasks() {
    let Some(group) = Group::new("born") else { return };
    let bundle = Bundle::new("grep :pids: /proc/self/cgroup; cat");
    let (mut container, mut launch) = Container::compile(bundle, Vec::new());
    launch.plan.placement.tasks.push(rustjail::plan::slot(&mut launch.fds, group.tasks()));
    let init = go(launch, Parent::Caller).unwrap();
    container.expect_ready();
    let inside = group.processes();
    container.start();
    pidfd::wait(init.pidfd.as_fd()).unwrap();
    let mut text = String::new();
    container.output.read_to_string(&mut text).unwrap();
    assert_eq!(inside, init.pid.to_string());
    // Its cgroup namespace was made after it was placed.
    assert!(text.trim_end().ends_with(":pids:/"), "{text}");
}

fn a_cgroup_that_comes_later_is_entered() {
    let Some(group) = Group::new("later") else { return };
    let (container, mut launch) =
        Container::compile(Bundle::new("grep :pids: /proc/self/cgroup"), Vec::new());
    launch.plan.placement.more = true;
    let init = go(launch, Parent::Caller).unwrap();
    // It can say nothing before it has its groups, and is in none.
    let mut said = [nix::poll::PollFd::new(container.maker.as_fd(), nix::poll::PollFlags::POLLIN)];
    assert_eq!(nix::poll::poll(&mut said, 100_u8).unwrap(), 0);
    assert_eq!(group.processes(), "");
    sync::enter(container.maker.as_fd(), &[group.tasks()]).unwrap();
    // There it waits for the limits, or for more.
    assert!((0..100).any(|_| {
        assert_eq!(nix::poll::poll(&mut said, 100_u8).unwrap(), 0);
        group.processes() == init.pid.to_string()
    }));
    sync::place(container.maker.as_fd(), &[]).unwrap();
    container.expect_ready();
    assert_eq!(group.processes(), init.pid.to_string());
    container.start();
    pidfd::wait(init.pidfd.as_fd()).unwrap();
    let text = container.text();
    assert!(text.ends_with(":pids:/"), "{text}");
}

fn a_process_whose_cgroup_never_comes_ends() {
    let (container, mut launch) = Container::compile(Bundle::new("true"), Vec::new());
    launch.plan.placement.more = true;
    let init = go(launch, Parent::Caller).unwrap();
    drop(container.maker);
    assert_eq!(pidfd::wait(init.pidfd.as_fd()).unwrap(), Exit::Code(255));
}

fn a_failure_is_heard_though_the_cgroup_was_not_taken() {
    let mut bundle = Bundle::new("true");
    let mounts = bundle.spec["mounts"].as_array_mut().unwrap();
    mounts.push(json!({"destination": "/tmp", "type": "tmpfs", "source": "x", "options": ["size=nonsense"]}));
    let (container, mut launch) = Container::compile(bundle, Vec::new());
    launch.plan.placement.more = true;
    sync::place(container.maker.as_fd(), &[]).unwrap();
    let init = go(launch, Parent::Caller).unwrap();
    // It is gone, and has left the message unread, which the kernel tells before what it has said.
    assert_eq!(pidfd::wait(init.pidfd.as_fd()).unwrap(), Exit::Code(255));
    match sync::receive(container.maker.as_fd()).unwrap() {
        Some(Report::Failed(step)) => assert_eq!((step.path.as_str(), step.errno), ("/tmp", libc::EINVAL)),
        other => panic!("{other:?}"),
    }
    assert!(sync::receive(container.maker.as_fd()).unwrap().is_none());
}

/// Mapped in place of the one that runs it would be anything; and from the same mount it would be no better protected.
fn an_init_takes_no_other_program_for_its_binary() {
    for (file, errno) in [("/bin/busybox", libc::EINVAL), ("/proc/self/exe", libc::EBUSY)] {
        let (container, mut launch) = Container::compile(Bundle::new("true"), Vec::new());
        launch.plan.binary = Some(slot(&mut launch.fds, File::open(file).unwrap().into()));
        let init = go(launch, Parent::Caller).unwrap();
        match sync::receive(container.maker.as_fd()).unwrap() {
            Some(Report::Failed(step)) => {
                assert_eq!((step.path.as_str(), step.errno), ("/proc/self/exe", errno))
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(pidfd::wait(init.pidfd.as_fd()).unwrap(), Exit::Code(255));
    }
}
