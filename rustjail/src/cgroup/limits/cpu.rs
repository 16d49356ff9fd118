//! CPU time: weight, bandwidth, burst, idle and the v1 realtime budget.

use oci_spec::runtime::LinuxCpu;

use super::{
    super::{Cgroup, CgroupError, Controller, dir::Dir},
    Limit, write_in_any_order,
};

pub(super) fn apply(group: &Cgroup, cpu: &LinuxCpu) -> Result<(), CgroupError> {
    let given = cpu.shares().is_some_and(|shares| shares != 0)
        || cpu.quota().is_some_and(|quota| quota != 0)
        || cpu.period().is_some_and(|period| period != 0)
        || cpu.burst().is_some()
        || cpu.idle().is_some()
        || realtime(cpu);
    if !given {
        return Ok(());
    }
    match group.controller("cpu")? {
        Controller::V1(dir) => v1(dir, cpu),
        Controller::V2(dir) => v2(dir, cpu),
    }
}

fn realtime(cpu: &LinuxCpu) -> bool {
    cpu.realtime_runtime().is_some_and(|runtime| runtime != 0)
        || cpu.realtime_period().is_some_and(|period| period != 0)
}

fn v1(dir: &Dir, cpu: &LinuxCpu) -> Result<(), CgroupError> {
    let mut writes = Vec::new();
    if let Some(period) = cpu.period().filter(|period| *period != 0) {
        writes.push(("cpu.cfs_period_us", period.to_string()));
    }
    if let Some(quota) = Limit::given("cpu.quota", cpu.quota())? {
        writes.push(("cpu.cfs_quota_us", quota.v1()));
    }
    if let Some(burst) = cpu.burst() {
        writes.push(("cpu.cfs_burst_us", burst.to_string()));
    }
    if let Some(period) = cpu.realtime_period().filter(|period| *period != 0) {
        writes.push(("cpu.rt_period_us", period.to_string()));
    }
    if let Some(runtime) = Limit::given("cpu.realtimeRuntime", cpu.realtime_runtime())? {
        writes.push(("cpu.rt_runtime_us", runtime.v1()));
    }
    write_in_any_order(dir, writes)?;
    weight(dir, cpu, "cpu.shares", |shares| shares)
}

fn v2(dir: &Dir, cpu: &LinuxCpu) -> Result<(), CgroupError> {
    if realtime(cpu) {
        return Err(CgroupError::OnlyV1 { setting: "cpu.realtimeRuntime" });
    }
    let mut writes = Vec::new();
    let quota = Limit::given("cpu.quota", cpu.quota())?.map(Limit::v2);
    match (quota, cpu.period().filter(|period| *period != 0)) {
        (Some(quota), Some(period)) => writes.push(("cpu.max", format!("{quota} {period}"))),
        // A lone quota leaves the period as it is; a lone period has to repeat the quota.
        (Some(quota), None) => writes.push(("cpu.max", quota)),
        (None, Some(period)) => {
            let present = dir.read("cpu.max")?;
            let quota = present.split_ascii_whitespace().next().unwrap_or("max");
            writes.push(("cpu.max", format!("{quota} {period}")));
        }
        (None, None) => {}
    }
    if let Some(burst) = cpu.burst() {
        writes.push(("cpu.max.burst", burst.to_string()));
    }
    write_in_any_order(dir, writes)?;
    weight(dir, cpu, "cpu.weight", shares_to_weight)
}

/// An idle group has no other weight than idle: the kernel refuses to set one.
fn weight(dir: &Dir, cpu: &LinuxCpu, file: &str, convert: fn(u64) -> u64) -> Result<(), CgroupError> {
    if let Some(idle) = cpu.idle() {
        dir.write("cpu.idle", &idle.to_string())?;
        if idle == 1 {
            return Ok(());
        }
    }
    match cpu.shares() {
        None | Some(0) => Ok(()),
        Some(shares) => dir.write(file, &convert(shares).to_string()),
    }
}

/// v1 shares (2 to 262144, default 1024) as v2 weight (1 to 10000, default 100), by the curve on which runc
/// and crun agreed in 2025: a parabola in the logarithms through the two ends and the default. The earlier
/// straight line turned the default of 1024 into 39.
pub(in super::super) fn shares_to_weight(shares: u64) -> u64 {
    // As powers of two and of ten, the ends are (1, 0), (18, 4) and the default is (10, 2).
    let log = (shares.clamp(2, 262_144) as f64).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    // Rounded up, but not because of the last bits of a float that should be whole.
    let weight = (10_f64.powf(exponent) - 1e-6).ceil();
    (weight as u64).clamp(1, 10_000)
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::LinuxCpuBuilder;

    use super::{super::fixture::Fixture, *};

    fn fixture() -> Fixture {
        Fixture::new(&[
            ("cpu.max", "max 100000\n"),
            ("cpu.max.burst", ""),
            ("cpu.weight", ""),
            ("cpu.idle", ""),
        ])
    }

    #[test]
    fn shares_become_weight() {
        for (shares, weight) in [(1, 1), (2, 1), (1024, 100), (262_144, 10_000), (u64::MAX, 10_000)] {
            assert_eq!(shares_to_weight(shares), weight, "{shares}");
        }
        assert!((2..262_144).all(|shares| shares_to_weight(shares) <= shares_to_weight(shares + 1)));
    }

    #[test]
    fn v2_files() {
        let files = fixture();
        let cpu = LinuxCpuBuilder::default()
            .shares(1024_u64)
            .quota(50_000)
            .period(200_000_u64)
            .burst(1_000_u64)
            .build();
        v2(&files.dir, &cpu.unwrap()).unwrap();
        assert_eq!(files.text("cpu.max"), "50000 200000");
        assert_eq!(files.text("cpu.max.burst"), "1000");
        assert_eq!(files.text("cpu.weight"), "100");
        assert_eq!(files.text("cpu.idle"), "");
    }

    #[test]
    fn v2_keeps_the_other_half_of_cpu_max() {
        let files = fixture();
        v2(&files.dir, &LinuxCpuBuilder::default().period(250_000_u64).build().unwrap()).unwrap();
        assert_eq!(files.text("cpu.max"), "max 250000\n");
        let files = fixture();
        v2(&files.dir, &LinuxCpuBuilder::default().quota(-1).build().unwrap()).unwrap();
        assert!(files.text("cpu.max").starts_with("max"));
    }

    #[test]
    fn an_idle_group_gets_no_weight() {
        let files = fixture();
        v2(&files.dir, &LinuxCpuBuilder::default().shares(2048_u64).idle(1).build().unwrap()).unwrap();
        assert_eq!((files.text("cpu.idle").as_str(), files.text("cpu.weight").as_str()), ("1", ""));
    }

    #[test]
    fn v2_has_no_realtime() {
        let cpu = LinuxCpuBuilder::default().realtime_runtime(1_000).build().unwrap();
        assert!(matches!(v2(&fixture().dir, &cpu), Err(CgroupError::OnlyV1 { .. })));
    }
}
