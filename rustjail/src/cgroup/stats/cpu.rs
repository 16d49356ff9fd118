//! CPU time and throttling.

use super::{
    super::{Cgroup, CgroupError, Controller, dir::Dir, parse},
    Pressure, number, text,
};

/// CPU time, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuStats {
    /// All of it.
    pub usage: u64,
    /// In user mode.
    pub user: u64,
    /// In the kernel.
    pub system: u64,
    /// For each CPU; v2 does not say.
    pub per_cpu: Vec<u64>,
    /// For each CPU in user mode; v2 does not say.
    pub per_cpu_user: Vec<u64>,
    /// For each CPU in the kernel; v2 does not say.
    pub per_cpu_system: Vec<u64>,
    /// Bandwidth periods that passed.
    pub periods: u64,
    /// Those in which the quota ran out.
    pub throttled_periods: u64,
    /// Time spent waiting because it had.
    pub throttled: u64,
    /// Periods that used some of the burst.
    pub bursts: u64,
    /// Time used beyond the quota thanks to the burst.
    pub burst: u64,
    /// Tasks that waited for a CPU; v1 alone does not say.
    pub pressure: Option<Pressure>,
}

/// On v1 time is one controller's and throttling another's. `cpu.stat` of cgroup2 gives time without any
/// controller, so a hybrid without cpuacct uses that.
pub(super) fn read(group: &Cgroup) -> Result<Option<CpuStats>, CgroupError> {
    let unified = group.unified.as_ref().map(|unified| unified.dir());
    let (mut cpu, mut known) = match (group.find("cpuacct"), unified) {
        (Some(controller), _) => (cpuacct(controller.dir())?, true),
        (None, Some(dir)) => (cpu_stat(&text(dir, "cpu.stat")?), true),
        (None, None) => (CpuStats::default(), false),
    };
    if let Some(Controller::V1(dir)) = group.find("cpu") {
        throttling_v1(&text(dir, "cpu.stat")?, &mut cpu);
        known = true;
    }
    if let Some(dir) = unified {
        cpu.pressure = Pressure::read(dir, "cpu.pressure")?;
    }
    Ok(known.then_some(cpu))
}

fn cpuacct(dir: &Dir) -> Result<CpuStats, CgroupError> {
    let (per_cpu_user, per_cpu_system) = usage_all(&text(dir, "cpuacct.usage_all")?);
    Ok(CpuStats {
        usage: number(dir, "cpuacct.usage")?,
        user: per_cpu_user.iter().fold(0, |sum, time| sum.saturating_add(*time)),
        system: per_cpu_system.iter().fold(0, |sum, time| sum.saturating_add(*time)),
        per_cpu: parse::list(&text(dir, "cpuacct.usage_percpu")?),
        per_cpu_user,
        per_cpu_system,
        ..CpuStats::default()
    })
}

/// A heading, then `cpu user system` lines.
fn usage_all(text: &str) -> (Vec<u64>, Vec<u64>) {
    text.lines()
        .filter_map(|line| match parse::list(line).as_slice() {
            [_, user, system] => Some((*user, *system)),
            _ => None,
        })
        .unzip()
}

fn throttling_v1(text: &str, cpu: &mut CpuStats) {
    for (key, value) in parse::flat(text) {
        match key {
            "nr_periods" => cpu.periods = value,
            "nr_throttled" => cpu.throttled_periods = value,
            "throttled_time" => cpu.throttled = value,
            "nr_bursts" => cpu.bursts = value,
            "burst_time" => cpu.burst = value,
            _ => {}
        }
    }
}

fn cpu_stat(text: &str) -> CpuStats {
    let mut cpu = CpuStats::default();
    for (key, value) in parse::flat(text) {
        let nanoseconds = value.saturating_mul(1000);
        match key {
            "usage_usec" => cpu.usage = nanoseconds,
            "user_usec" => cpu.user = nanoseconds,
            "system_usec" => cpu.system = nanoseconds,
            "nr_periods" => cpu.periods = value,
            "nr_throttled" => cpu.throttled_periods = value,
            "throttled_usec" => cpu.throttled = nanoseconds,
            "nr_bursts" => cpu.bursts = value,
            "burst_usec" => cpu.burst = nanoseconds,
            _ => {}
        }
    }
    cpu
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_in_nanoseconds() {
        let cpu = cpu_stat(
            "usage_usec 5\nuser_usec 3\nnr_throttled 2\nthrottled_usec 18446744073709551615\nburst_usec 4\n",
        );
        assert_eq!((cpu.usage, cpu.user, cpu.throttled_periods, cpu.throttled), (5000, 3000, 2, u64::MAX));
        assert_eq!(cpu.burst, 4000);
    }

    #[test]
    fn times_of_each_cpu() {
        assert_eq!(usage_all("cpu user system\n0 10 20\n1 30 40\n"), (vec![10, 30], vec![20, 40]));
        assert_eq!(usage_all("cpu user system\n0 10\nx\n"), (vec![], vec![]));
    }

    #[test]
    fn throttling_of_v1() {
        let mut cpu = CpuStats::default();
        throttling_v1(
            "nr_periods 9\nnr_throttled 2\nthrottled_time 77\nnr_bursts 1\nburst_time 5\n",
            &mut cpu,
        );
        assert_eq!((cpu.periods, cpu.throttled_periods, cpu.throttled), (9, 2, 77));
        assert_eq!((cpu.bursts, cpu.burst), (1, 5));
    }
}
