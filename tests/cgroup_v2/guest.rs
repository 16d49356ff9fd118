//! What runs in the guest. Settings are read back from the kernel's files by plain reads, and their effect is
//! seen from processes in the group.

use std::{
    collections::HashMap,
    fs,
    os::fd::AsFd,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, poll};
use rustjail::cgroup::{Cgroup, CgroupError, CgroupPath, Hierarchies, OomEvents, Resource, Share};

const ROOT: &str = "/sys/fs/cgroup";
const PATIENCE: Duration = Duration::from_secs(60);

struct Group {
    hierarchies: Hierarchies,
    group: Cgroup,
    dir: PathBuf,
}

impl Group {
    fn new(resources: &str) -> Self {
        Self::try_new(resources).unwrap_or_else(|error| panic!("{resources}: {error}"))
    }

    fn try_new(resources: &str) -> Result<Self, CgroupError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        make_room();
        let hierarchies = Hierarchies::detect()?;
        let name = format!("/pod/c{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let path = CgroupPath::parse(Some(name.as_ref()), "unused")?;
        let group = Cgroup::create(&hierarchies, &path, Some(&serde_json::from_str(resources).unwrap()))?;
        Ok(Self { hierarchies, group, dir: PathBuf::from(format!("{ROOT}{name}")) })
    }

    fn update(&self, resources: &str) -> Result<(), CgroupError> {
        self.group.update(&serde_json::from_str(resources).unwrap())
    }

    fn file(&self, name: &str) -> String {
        let path = self.dir.join(name);
        fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            .trim()
            .to_owned()
    }

    /// A shell that is in the group when this returns.
    fn start(&self, script: &str) -> Child {
        let enter = format!("echo 0 > {}/cgroup.procs && echo in && exec sh -c \"$0\"", self.dir.display());
        let mut command = Command::new("sh");
        command.args(["-c", &enter, script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 3]).unwrap();
        child
    }

    fn run(&self, script: &str) -> Output {
        self.start(script).wait_with_output().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.group.destroy(PATIENCE).unwrap();
    }
}

/// A group with processes cannot hand controllers on, so this one goes into a group below.
fn make_room() {
    let own = format!("{ROOT}/test");
    if fs::create_dir(&own).is_ok() {
        fs::write(format!("{own}/cgroup.procs"), "0").unwrap();
    }
}

/// Resources, and what must be in which files then.
const TABLE: &[(&str, &[(&str, &str)])] = &[
    (r#"{"cpu": {"shares": 2}}"#, &[("cpu.weight", "1")]),
    (r#"{"cpu": {"shares": 1024}}"#, &[("cpu.weight", "100")]),
    (r#"{"cpu": {"shares": 262144}}"#, &[("cpu.weight", "10000")]),
    (r#"{"cpu": {"shares": 0}}"#, &[("cpu.weight", "100")]),
    (r#"{"cpu": {"quota": 50000}}"#, &[("cpu.max", "50000 100000")]),
    (r#"{"cpu": {"quota": 20000, "period": 50000}}"#, &[("cpu.max", "20000 50000")]),
    (r#"{"cpu": {"quota": -1, "period": 50000}}"#, &[("cpu.max", "max 50000")]),
    (r#"{"cpu": {"period": 250000}}"#, &[("cpu.max", "max 250000")]),
    (
        r#"{"cpu": {"quota": 20000, "period": 50000, "burst": 10000}}"#,
        &[("cpu.max", "20000 50000"), ("cpu.max.burst", "10000")],
    ),
    (r#"{"cpu": {"idle": 1, "shares": 4096}}"#, &[("cpu.idle", "1"), ("cpu.weight", "0")]),
    (r#"{"cpu": {"idle": 0, "shares": 1024}}"#, &[("cpu.idle", "0"), ("cpu.weight", "100")]),
    (r#"{"cpu": {"cpus": "0", "mems": "0"}}"#, &[("cpuset.cpus", "0"), ("cpuset.mems", "0")]),
    (r#"{"cpu": {"cpus": "0-1"}}"#, &[("cpuset.cpus.effective", "0-1")]),
    (r#"{"memory": {"limit": 67108864}}"#, &[("memory.max", "67108864"), ("memory.swap.max", "max")]),
    (
        r#"{"memory": {"limit": 67108864, "swap": 67108864}}"#,
        &[("memory.max", "67108864"), ("memory.swap.max", "0")],
    ),
    (
        r#"{"memory": {"limit": 67108864, "swap": 100663296}}"#,
        &[("memory.max", "67108864"), ("memory.swap.max", "33554432")],
    ),
    (r#"{"memory": {"limit": 67108864, "swap": -1}}"#, &[("memory.swap.max", "max")]),
    (r#"{"memory": {"limit": -1, "swap": -1}}"#, &[("memory.max", "max"), ("memory.swap.max", "max")]),
    (r#"{"memory": {"limit": -1}}"#, &[("memory.max", "max"), ("memory.swap.max", "max")]),
    (r#"{"memory": {"reservation": 33554432}}"#, &[("memory.low", "33554432")]),
    (r#"{"memory": {"reservation": -1}}"#, &[("memory.low", "max")]),
    (r#"{"pids": {"limit": 17}}"#, &[("pids.max", "17")]),
    (r#"{"pids": {"limit": -1}}"#, &[("pids.max", "max")]),
    (r#"{"pids": {"limit": 0}}"#, &[("pids.max", "max")]),
    (
        r#"{"hugepageLimits": [{"pageSize": "2MB", "limit": 4194304}]}"#,
        &[("hugetlb.2MB.max", "4194304"), ("hugetlb.2MB.rsvd.max", "4194304")],
    ),
    (r#"{"hugepageLimits": [{"pageSize": "2MB", "limit": 0}]}"#, &[("hugetlb.2MB.max", "0")]),
    (
        r#"{"unified": {"memory.high": "50331648", "memory.min": "4194304", "memory.oom.group": "1",
                        "cpu.weight.nice": "5", "pids.max": "9", "cgroup.max.descendants": "3",
                        "cgroup.max.depth": "2"}}"#,
        &[
            ("memory.high", "50331648"),
            ("memory.min", "4194304"),
            ("memory.oom.group", "1"),
            ("cpu.weight.nice", "5"),
            ("pids.max", "9"),
            ("cgroup.max.descendants", "3"),
            ("cgroup.max.depth", "2"),
        ],
    ),
    // The more specific request wins.
    (r#"{"memory": {"limit": 67108864}, "unified": {"memory.max": "max"}}"#, &[("memory.max", "max")]),
];

#[test]
#[ignore = "runs in the guest"]
fn settings_are_in_the_files_at_creation_and_after_an_update() {
    let live = Group::new("{}");
    let unlimited = r#"{"cpu": {"quota": -1, "burst": 0, "idle": 0}, "memory": {"limit": -1}, "pids": {"limit": -1},
        "unified": {"cpu.max": "max 100000", "cpu.weight": "100", "memory.low": "0", "cpuset.cpus": "", "cpuset.mems": ""}}"#;
    for (resources, files) in TABLE {
        let created = Group::new(resources);
        live.update(unlimited).unwrap_or_else(|error| panic!("before {resources}: {error}"));
        live.update(resources).unwrap_or_else(|error| panic!("update to {resources}: {error}"));
        for (file, expected) in *files {
            assert_eq!(created.file(file), *expected, "{file} created with {resources}");
            assert_eq!(live.file(file), *expected, "{file} updated to {resources}");
        }
    }
}

/// Block devices: what kind there is, and whether weights are served, depends on the kernel's build.
#[test]
#[ignore = "runs in the guest"]
fn block_devices() {
    let load = Command::new("insmod").args(["/loop.ko", "max_loop=1"]).output().unwrap();
    assert!(load.status.success(), "{load:?}");
    let numbers = fs::read_to_string("/sys/block/loop0/dev").expect("the guest has a loop device");
    let numbers = numbers.trim();
    let (major, minor) = numbers.split_once(':').unwrap();
    let device = format!(r#""major": {major}, "minor": {minor}"#);
    let group = Group::new(&format!(
        r#"{{"blockIO": {{"throttleReadBpsDevice": [{{{device}, "rate": 1048576}}],
                          "throttleWriteBpsDevice": [{{{device}, "rate": 2097152}}],
                          "throttleReadIOPSDevice": [{{{device}, "rate": 100}}],
                          "throttleWriteIOPSDevice": [{{{device}, "rate": 200}}]}}}}"#
    ));
    assert_eq!(group.file("io.max"), format!("{numbers} rbps=1048576 wbps=2097152 riops=100 wiops=200"));
    // v1 lifts a limit by 0.
    group
        .update(&format!(r#"{{"blockIO": {{"throttleReadBpsDevice": [{{{device}, "rate": 0}}]}}}}"#))
        .unwrap();
    assert_eq!(group.file("io.max"), format!("{numbers} rbps=max wbps=2097152 riops=100 wiops=200"));
    group
        .update(&format!(r#"{{"unified": {{"io.max": "{numbers} wbps=max riops=max wiops=max"}}}}"#))
        .unwrap();
    assert_eq!(group.file("io.max"), "");
    if group.dir.join("io.latency").exists() {
        group.update(&format!(r#"{{"unified": {{"io.latency": "{numbers} target=75000"}}}}"#)).unwrap();
        assert_eq!(group.file("io.latency"), format!("{numbers} target=75000"));
    }
    let weight = group.update(r#"{"blockIO": {"weight": 1000}}"#);
    if group.dir.join("io.bfq.weight").exists() {
        weight.unwrap();
        assert_eq!(group.file("io.bfq.weight"), "default 1000");
    } else if group.dir.join("io.weight").exists() {
        weight.unwrap();
        assert_eq!(group.file("io.weight"), "default 10000");
    } else {
        assert!(matches!(weight, Err(CgroupError::NoFile { .. })), "{weight:?}");
    }
    assert!(group.group.stats().unwrap().block_io.is_some());
}

#[test]
#[ignore = "runs in the guest"]
fn what_v2_cannot_express_is_refused_and_nothing_changes() {
    let group = Group::new(r#"{"memory": {"limit": 67108864, "swap": 67108864}, "pids": {"limit": 7}}"#);
    for (refused, text) in [
        (r#""memory": {"limit": 134217728, "swappiness": 10}"#, "memory.swappiness cannot be expressed"),
        (r#""memory": {"limit": 134217728, "disableOOMKiller": true}"#, "disableOOMKiller cannot be"),
        (r#""cpu": {"realtimeRuntime": 1000}"#, "cpu.realtimeRuntime cannot be expressed"),
        (r#""blockIO": {"leafWeight": 100}"#, "blockIO.leafWeight cannot be expressed"),
        (r#""network": {"classID": 5}"#, "no net_cls controller"),
        (r#""unified": {"memory.nonsense": "1"}"#, "memory.nonsense does not exist"),
        (r#""unified": {"cgroup.procs": "1"}"#, "the runtime's to write"),
        (r#""memory": {"limit": 1000000, "swap": 1000}"#, "at least memory.limit"),
        (r#""rdma": {"mlx5_1": {"hcaHandles": 3}}"#, "rdma"),
        (r#""cpu": {"cpus": "700"}"#, "cpuset.cpus"),
    ] {
        let error = group.update(&format!(r#"{{"pids": {{"limit": 9}}, {refused}}}"#)).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        let limits = [("memory.max", "67108864"), ("memory.swap.max", "0"), ("pids.max", "7")];
        limits.iter().for_each(|(file, held)| assert_eq!(group.file(file), *held, "{file} after {refused}"));
    }
    let error = Group::try_new(r#"{"cpu": {"cpus": "700"}}"#).err().expect("no such CPU");
    assert!(error.to_string().contains("cpuset.cpus"), "{error}");
}

#[test]
#[ignore = "runs in the guest"]
fn live_memory_limits_go_up_and_down() {
    let group = Group::new(r#"{"memory": {"limit": 67108864, "swap": 67108864}}"#);
    let child = group.start("exec sleep 1000");
    for (limit, total) in
        [(268_435_456_i64, 268_435_456_i64), (33_554_432, 67_108_864), (-1, -1), (33_554_432, 33_554_432)]
    {
        group.update(&format!(r#"{{"memory": {{"limit": {limit}, "swap": {total}}}}}"#)).unwrap();
        let shown = |value: i64| if value < 0 { "max".to_owned() } else { value.to_string() };
        assert_eq!(group.file("memory.max"), shown(limit));
        assert_eq!(group.file("memory.swap.max"), shown(if total < 0 { -1 } else { total - limit }));
    }
    // Swap alone counts from the present limit.
    group.update(r#"{"memory": {"swap": 41943040}}"#).unwrap();
    assert_eq!(group.file("memory.swap.max"), "8388608");
    group.group.kill().unwrap();
    drop(child);
}

/// Counts kills until there were `wanted`; each look must have been announced.
fn await_kills(events: &mut OomEvents, wanted: u64) {
    let deadline = Instant::now() + PATIENCE;
    let mut kills = 0;
    while kills < wanted {
        assert!(Instant::now() < deadline, "{kills} of {wanted} kills");
        if poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], 1000_u16) == Ok(1) {
            kills += events.take().unwrap();
        }
    }
    assert_eq!(kills, wanted);
}

#[test]
#[ignore = "runs in the guest"]
fn every_oom_kill_counts() {
    let group = Group::new(r#"{"memory": {"limit": 16777216, "swap": 16777216}}"#);
    let mut events = group.group.oom_events(0).unwrap().unwrap();
    assert_eq!(poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], 0_u8), Ok(0));
    let hog = "sh -c 'x=a; while :; do x=$x$x; done'";
    assert_eq!(group.run(&format!("{hog}; exit $?")).status.code(), Some(137));
    await_kills(&mut events, 1);
    // Several in one wake-up.
    assert_eq!(group.run(&format!("for i in 1 2 3 4 5; do {hog}; done; exit 0")).status.code(), Some(0));
    await_kills(&mut events, 5);
    assert_eq!(poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], 0_u8), Ok(0));
    let memory = group.group.stats().unwrap().memory.unwrap();
    assert_eq!((memory.oom_kills, memory.memory.limit), (6, 16_777_216));
    assert!(memory.memory.failures > 0 && memory.memory.max_usage > 8 << 20, "{memory:?}");

    // Killed together when asked to be: the shell and its child.
    group.update(r#"{"unified": {"memory.oom.group": "1"}}"#).unwrap();
    assert_eq!(group.run(&format!("{hog}; exit 0")).status.code(), None);
    // The kernel counts the one it chose again with the group.
    await_kills(&mut events, 3);
}

#[test]
#[ignore = "runs in the guest"]
fn limits_are_felt() {
    let group = Group::new(r#"{"pids": {"limit": 5}, "cpu": {"quota": 20000, "period": 100000}}"#);
    let output = group.run("for i in 1 2 3 4 5 6 7 8; do sleep 100 >/dev/null 2>&1 & done");
    assert!(String::from_utf8_lossy(&output.stderr).contains("fork"), "{output:?}");
    assert!(group.group.stats().unwrap().pids.unwrap().failures > 0);
    group.group.kill().unwrap();
    assert!(group.group.wait_until_empty(PATIENCE).unwrap());

    assert_eq!(group.run("i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done").status.code(), Some(0));
    let cpu = group.group.stats().unwrap().cpu.unwrap();
    assert!(cpu.usage > 0 && cpu.user > 0 && cpu.periods > 0, "{cpu:?}");
    assert!(cpu.throttled_periods > 0 && cpu.throttled > 0, "{cpu:?}");

    group.update(r#"{"cpu": {"cpus": "1", "quota": -1}, "pids": {"limit": -1}}"#).unwrap();
    let output = group.run("grep Cpus_allowed_list /proc/self/status");
    assert_eq!(String::from_utf8_lossy(&output.stdout).split_whitespace().last(), Some("1"));
}

#[test]
#[ignore = "runs in the guest"]
fn devices_are_guarded_by_a_program() {
    let node = "/tmp/kmsg";
    assert!(Command::new("mknod").args([node, "c", "1", "11"]).status().unwrap().success());
    let group = Group::new(r#"{"devices": [{"allow": false, "access": "rwm"}]}"#);
    let opens = |file: &str| group.run(&format!("exec 3<>{file}")).status.success();
    assert!(opens("/dev/null") && !opens(node));
    group
        .update(
            r#"{"devices": [{"allow": false, "access": "rwm"},
                            {"allow": true, "type": "c", "major": 1, "minor": 11, "access": "rw"}]}"#,
        )
        .unwrap();
    assert!(opens("/dev/null") && opens(node));
    group.update(r#"{"devices": []}"#).unwrap();
    assert!(!opens(node));
}

#[test]
#[ignore = "runs in the guest"]
fn a_group_is_frozen_watched_nested_and_killed() {
    let group = Group::new("{}");
    let mut child = group.start("while :; do :; done");
    let (stall, window) = (Duration::from_millis(10), Duration::from_millis(500));
    if let Some(trigger) = group.group.pressure_trigger(Resource::Cpu, Share::Some, stall, window).unwrap() {
        let others: Vec<Child> = (0..5).map(|_| group.start("while :; do :; done")).collect();
        assert_eq!(poll(&mut [PollFd::new(trigger.as_fd(), PollFlags::POLLPRI)], 60_000_u16), Ok(1));
        assert!(group.group.stats().unwrap().cpu.unwrap().pressure.unwrap().some.total > 0);
        drop(others);
    }
    group.group.freeze().unwrap();
    assert!(group.file("cgroup.events").contains("frozen 1"));
    assert!(group.group.frozen().unwrap());
    group.group.thaw().unwrap();
    assert!(group.file("cgroup.events").contains("frozen 0"));

    // What a workload that manages groups itself does: everything into leaves, controllers handed on.
    let leaf = group.dir.join("init");
    fs::create_dir(&leaf).unwrap();
    for pid in group.group.pids().unwrap() {
        let _ = fs::write(leaf.join("cgroup.procs"), pid.to_string());
    }
    fs::write(group.dir.join("cgroup.subtree_control"), "+memory +pids +cpu").unwrap();
    assert!(!group.group.pids().unwrap().is_empty());
    let into = group.group.placement().unwrap().into.unwrap();
    let into = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&into))).unwrap();
    assert!(into.ends_with("init"), "{}", into.display());
    group.update(r#"{"memory": {"limit": 268435456}}"#).unwrap();
    group.group.destroy(PATIENCE).unwrap();
    assert_eq!(child.wait().unwrap().code(), None);
    assert!(!group.dir.exists());
    assert!(!group.dir.parent().unwrap().exists() || Cgroup::open(&group.hierarchies, &path("/pod")).is_ok());
}

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(Some(text.as_ref()), "unused").unwrap()
}

#[test]
#[ignore = "runs in the guest"]
fn statistics_agree_with_the_files() {
    let group = Group::new(r#"{"memory": {"limit": 67108864}, "pids": {"limit": 30}}"#);
    let child = group.start("cat /bin/busybox > /tmp/copy; echo done; exec sleep 1000");
    let mut first = child;
    std::io::Read::read_exact(first.stdout.as_mut().unwrap(), &mut [0; 5]).unwrap();
    group.group.freeze().unwrap();
    let stats = group.group.stats().unwrap();
    let keyed = |file: &str| -> HashMap<String, u64> {
        let text = group.file(file);
        let pair =
            |line: &str| line.split_once(' ').map(|(key, value)| (key.to_owned(), value.parse().unwrap()));
        text.lines().filter_map(pair).collect()
    };
    let (cpu, memory, pids) = (stats.cpu.unwrap(), stats.memory.unwrap(), stats.pids.unwrap());
    assert_eq!(cpu.usage, keyed("cpu.stat")["usage_usec"] * 1000);
    assert_eq!((pids.current, pids.limit), (group.file("pids.current").parse().unwrap(), 30));
    assert_eq!(memory.detail.len(), keyed("memory.stat").len());
    assert!(memory.hierarchical && memory.cache > 0 && memory.memory.usage > 0 && memory.kernel.usage > 0);
    assert_eq!(memory.with_swap.usage, memory.memory.usage + memory.swap.usage);
    assert_eq!(memory.memory.max_usage.to_string(), group.file("memory.peak"));
    assert_eq!(stats.hugetlb["2MB"].limit, u64::MAX);
    group.group.thaw().unwrap();
}
