//! Updates of live groups: all of one or none of it.

use std::fs;

use rustjail::cgroup::{Cgroup, CgroupError, CgroupPath};

use crate::group::{Group, has_v1};

#[test]
fn a_refused_update_changes_nothing() {
    if !has_v1("memory") {
        return;
    }
    let group = Group::new(
        r#"{"memory": {"limit": 67108864, "swap": 67108864, "reservation": 33554432},
            "cpu": {"quota": 20000, "period": 50000, "shares": 512}, "pids": {"limit": 7}}"#,
    );
    let files = [
        ("memory", "memory.limit_in_bytes"),
        ("memory", "memory.memsw.limit_in_bytes"),
        ("memory", "memory.soft_limit_in_bytes"),
        ("memory", "memory.swappiness"),
        ("cpu", "cpu.cfs_quota_us"),
        ("cpu", "cpu.cfs_period_us"),
        ("cpu", "cpu.shares"),
        ("cpu", "cpu.idle"),
        ("pids", "pids.max"),
    ];
    let held = || files.map(|(controller, file)| group.file(controller, file));
    let before = held();
    for last in [
        r#""unified": {"memory.nonsense": "1"}"#,
        r#""hugepageLimits": [{"pageSize": "3MB", "limit": 1}]"#,
        r#""rdma": {"mlx5_1": {"hcaHandles": 3}}"#,
    ] {
        let error = group
            .update(&format!(
                r#"{{"memory": {{"limit": 134217728, "swap": 268435456, "reservation": 1048576, "swappiness": 3}},
                    "cpu": {{"quota": -1, "period": 100000, "idle": 1}}, "pids": {{"limit": 9}}, {last}}}"#
            ))
            .unwrap_err();
        assert!(!matches!(error, CgroupError::HalfUpdated { .. }), "{error}");
        assert_eq!(held(), before, "{last}");
    }
}

#[test]
fn a_group_below_a_threaded_one_holds_no_container() {
    let group = Group::new("{}");
    let Some(tree) = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .into_iter()
        .find(|tree| fs::metadata(format!("{tree}/{}/cgroup.type", group.path.as_path().display())).is_ok())
    else {
        return;
    };
    let threaded = group.path.as_path().join("threaded");
    fs::create_dir(format!("{tree}/{}", threaded.display())).unwrap();
    fs::write(format!("{tree}/{}/cgroup.type", threaded.display()), "threaded").unwrap();
    let path = CgroupPath::parse(Some(&threaded.join("c1")), "unused").unwrap();
    let error = Cgroup::create(&group.hierarchies, &path, None).unwrap_err();
    assert!(matches!(&error, CgroupError::NotDomain { kind, .. } if kind == "domain invalid"), "{error}");
}
