//! What runs in a guest with cgroup v1: limits of huge pages and of RDMA.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use nix::fcntl::{FallocateFlags, fallocate};
use rustjail::cgroup::{Cgroup, CgroupPath, Hierarchies};

const ROOT: &str = "/sys/fs/cgroup";
const PAGE: i64 = 2 << 20;

/// For a process that is started in the group: how many pages it is to ask for, and of which file system.
const PAGES: &str = "BERTH_TEST_PAGES";
const HUGE: &str = "/huge";

fn group(name: &str, resources: &str) -> Cgroup {
    let path = CgroupPath::parse(Some(name.as_ref()), "unused").unwrap();
    let resources = serde_json::from_str(resources).unwrap();
    Cgroup::create(&Hierarchies::detect().unwrap(), &path, Some(&resources)).unwrap()
}

fn file(group: &str, name: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join("hugetlb").join(group).join(name)).unwrap().trim().to_owned()
}

#[test]
#[ignore = "runs in the guest"]
fn a_process_gets_no_more_huge_pages_than_its_limit() {
    if let Ok(pages) = std::env::var(PAGES) {
        return take(pages.parse().unwrap());
    }
    fs::write("/proc/sys/vm/nr_hugepages", "4").unwrap();
    let pages: u32 = fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap().trim().parse().unwrap();
    assert!(pages >= 2, "the guest has memory for {pages} huge pages");
    fs::create_dir(HUGE).unwrap();
    assert!(Command::new("mount").args(["-t", "hugetlbfs", "huge", HUGE]).status().unwrap().success());

    let limits = r#"{"hugepageLimits": [{"pageSize": "2MB", "limit": 2097152}]}"#;
    let group = group("/pages", limits);
    assert_eq!(file("pages", "hugetlb.2MB.limit_in_bytes"), "2097152");
    assert_eq!(file("pages", "hugetlb.2MB.rsvd.limit_in_bytes"), "2097152");
    assert!(takes("1"));
    assert_eq!(group.stats().unwrap().hugetlb["2MB"].limit, 2_097_152);
    assert!(!takes("2"));
    assert!(group.stats().unwrap().hugetlb["2MB"].failures > 0);

    let none = r#"{"hugepageLimits": [{"pageSize": "2MB", "limit": 0}]}"#;
    group.update(&serde_json::from_str(none).unwrap()).unwrap();
    assert_eq!(file("pages", "hugetlb.2MB.limit_in_bytes"), "0");
    assert!(!takes("1"));
    group.destroy(Duration::from_secs(60)).unwrap();
}

/// Whether a process in the group gets so many.
fn takes(pages: &str) -> bool {
    let enter = format!("echo 0 > {ROOT}/hugetlb/pages/cgroup.procs && exec \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &enter, "sh"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "guest_v1::a_process_gets_no_more_huge_pages_than_its_limit", "--ignored"]);
    command.env(PAGES, pages).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
}

fn take(pages: i64) {
    let path = PathBuf::from(HUGE).join("file");
    let taken = fallocate(File::create(&path).unwrap(), FallocateFlags::empty(), 0, pages * PAGE);
    fs::remove_file(path).unwrap();
    taken.unwrap();
}

/// There is no RDMA device here, and the kernel says so: the value comes to the right file, and all else stays.
#[test]
#[ignore = "runs in the guest"]
fn a_limit_for_an_rdma_device_that_is_none_changes_nothing() {
    let group = group("/rdma", r#"{"pids": {"limit": 7}}"#);
    let limits = r#"{"pids": {"limit": 9}, "rdma": {"mlx5_1": {"hcaHandles": 3}}}"#;
    let error = group.update(&serde_json::from_str(limits).unwrap()).unwrap_err().to_string();
    assert!(error.contains("rdma.max") || error.contains("no rdma controller"), "{error}");
    println!("{error}");
    assert_eq!(fs::read_to_string(format!("{ROOT}/pids/rdma/pids.max")).unwrap(), "7\n");
    group.destroy(Duration::from_secs(60)).unwrap();
}
