//! Memory and swap.
//!
//! The spec's `swap` is v1's: memory and swap together. v2 limits swap alone, so it gets the difference.

use oci_spec::runtime::LinuxMemory;

use super::{
    super::{Cgroup, CgroupError, Controller, dir::Dir, parse},
    Limit,
};

const LIMIT: &str = "memory.limit_in_bytes";
const WITH_SWAP: &str = "memory.memsw.limit_in_bytes";

/// The numbers of a request.
struct Request {
    limit: Option<Limit>,
    swap: Option<Limit>,
    reservation: Option<Limit>,
}

impl Request {
    fn new(memory: &LinuxMemory) -> Result<Self, CgroupError> {
        let limit = Limit::given("memory.limit", memory.limit())?;
        let mut swap = Limit::given("memory.swap", memory.swap())?;
        // "Unlimited" that stayed bounded by an earlier swap limit would not be.
        if limit == Some(Limit::Unlimited) && swap.is_none() {
            swap = Some(Limit::Unlimited);
        }
        if let (Some(limit), Some(Limit::To(total))) = (limit, swap)
            && (limit == Limit::Unlimited || matches!(limit, Limit::To(limit) if limit > total))
        {
            return Err(too_little(total));
        }
        let reservation = Limit::given("memory.reservation", memory.reservation())?;
        Ok(Self { limit, swap, reservation })
    }
}

fn too_little(total: u64) -> CgroupError {
    CgroupError::invalid(
        "memory.swap",
        total,
        "it counts memory and swap together, so it is at least memory.limit",
    )
}

pub(super) fn apply(group: &Cgroup, memory: &LinuxMemory) -> Result<(), CgroupError> {
    let request = Request::new(memory)?;
    let given = request.limit.is_some()
        || request.swap.is_some()
        || request.reservation.is_some()
        || memory.swappiness().is_some()
        || memory.disable_oom_killer() == Some(true)
        || memory.kernel_tcp().is_some_and(|limit| limit != 0);
    match group.find("memory") {
        Some(Controller::V1(dir)) => v1(dir, memory, &request),
        Some(Controller::V2(dir)) => v2(dir, memory, &request),
        None if given => group.controller("memory").map(drop),
        None => Ok(()),
    }
}

fn v1(dir: &Dir, memory: &LinuxMemory, request: &Request) -> Result<(), CgroupError> {
    check_usage(dir, "memory.usage_in_bytes", memory, request)?;
    limits_v1(dir, request)?;
    if let Some(reservation) = request.reservation {
        dir.write("memory.soft_limit_in_bytes", &reservation.v1())?;
    }
    if let Some(limit) = Limit::given("memory.kernelTCP", memory.kernel_tcp())? {
        dir.write("memory.kmem.tcp.limit_in_bytes", &limit.v1())?;
    }
    if let Some(swappiness) = memory.swappiness() {
        if swappiness > 100 {
            return Err(CgroupError::invalid("memory.swappiness", swappiness, "it is a percentage"));
        }
        dir.write("memory.swappiness", &swappiness.to_string())?;
    }
    if let Some(disable) = memory.disable_oom_killer() {
        dir.write("memory.oom_control", if disable { "1" } else { "0" })?;
    }
    Ok(())
}

/// The kernel wants memory <= memory and swap after each of the two writes.
fn limits_v1(dir: &Dir, request: &Request) -> Result<(), CgroupError> {
    let with_swap = request.swap.filter(|swap| dir.has(WITH_SWAP) || swap_is_more(request.limit, *swap));
    let (Some(limit), Some(total)) = (request.limit, with_swap) else {
        let lone = request.limit.map(|limit| (LIMIT, limit)).or(with_swap.map(|total| (WITH_SWAP, total)));
        return lone.map_or(Ok(()), |(file, limit)| dir.write(file, &limit.v1()));
    };
    let present = parse::number(&dir.read(LIMIT)?).unwrap_or(u64::MAX);
    let raised = matches!(total, Limit::Unlimited) || matches!(total, Limit::To(total) if total >= present);
    let mut writes = [(LIMIT, limit), (WITH_SWAP, total)];
    if raised {
        writes.reverse();
    }
    writes.into_iter().try_for_each(|(file, limit)| dir.write(file, &limit.v1()))
}

/// Without swap accounting there is no file to limit swap by. That is as well where no limit was asked for,
/// and where none of it was to be used: a kernel without accounting in a sandbox has no swap.
fn swap_is_more(limit: Option<Limit>, total: Limit) -> bool {
    total != Limit::Unlimited && limit != Some(total)
}

fn v2(dir: &Dir, memory: &LinuxMemory, request: &Request) -> Result<(), CgroupError> {
    if memory.swappiness().is_some() {
        return Err(CgroupError::OnlyV1 { setting: "memory.swappiness" });
    }
    if memory.disable_oom_killer() == Some(true) {
        return Err(CgroupError::OnlyV1 { setting: "memory.disableOOMKiller" });
    }
    if memory.kernel_tcp().is_some_and(|limit| limit != 0) {
        return Err(CgroupError::OnlyV1 { setting: "memory.kernelTCP" });
    }
    check_usage(dir, "memory.current", memory, request)?;
    // Before the limit: lowering that swaps out, up to the limit on swap.
    if let Some(total) = request.swap
        && (dir.has("memory.swap.max") || swap_is_more(request.limit, total))
    {
        let swap = swap_alone(dir, request.limit, total)?;
        dir.write("memory.swap.max", &swap.v2())?;
    }
    if let Some(limit) = request.limit {
        dir.write("memory.max", &limit.v2())?;
    }
    if let Some(reservation) = request.reservation {
        dir.write("memory.low", &reservation.v2())?;
    }
    Ok(())
}

/// The part of `total` that is swap, given the new memory limit or else the present one.
fn swap_alone(dir: &Dir, limit: Option<Limit>, total: Limit) -> Result<Limit, CgroupError> {
    let Limit::To(total) = total else {
        return Ok(Limit::Unlimited);
    };
    let limit = match limit {
        Some(Limit::To(limit)) => limit,
        Some(Limit::Unlimited) => u64::MAX,
        None => parse::number(&dir.read("memory.max")?).unwrap_or(u64::MAX),
    };
    total.checked_sub(limit).map(Limit::To).ok_or_else(|| too_little(total))
}

fn check_usage(dir: &Dir, file: &str, memory: &LinuxMemory, request: &Request) -> Result<(), CgroupError> {
    if let (Some(true), Some(Limit::To(limit))) = (memory.check_before_update(), request.limit) {
        let usage = parse::number(&dir.read(file)?).unwrap_or(0);
        if limit < usage {
            return Err(CgroupError::BelowUsage { limit, usage });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::LinuxMemoryBuilder;

    use super::{super::fixture::Fixture, *};

    fn fixture() -> Fixture {
        Fixture::new(&[
            ("memory.max", "max\n"),
            ("memory.swap.max", "untouched"),
            ("memory.low", "untouched"),
            ("memory.current", "4096\n"),
        ])
    }

    fn apply(files: &Fixture, memory: LinuxMemoryBuilder) -> Result<(), CgroupError> {
        let memory = memory.build().unwrap();
        v2(&files.dir, &memory, &Request::new(&memory)?)
    }

    #[test]
    fn v2_swap_is_what_is_above_the_limit() {
        let files = fixture();
        apply(&files, LinuxMemoryBuilder::default().limit(1000).swap(1500).reservation(10)).unwrap();
        assert_eq!(files.text("memory.max"), "1000");
        assert_eq!(files.text("memory.swap.max").get(..3), Some("500"));
        assert!(files.text("memory.low").starts_with("10"));
    }

    #[test]
    fn v2_unlimited() {
        let files = fixture();
        apply(&files, LinuxMemoryBuilder::default().limit(-1)).unwrap();
        assert!(files.text("memory.swap.max").starts_with("max"));
        let files = fixture();
        apply(&files, LinuxMemoryBuilder::default().limit(1000)).unwrap();
        assert_eq!(files.text("memory.swap.max"), "untouched");
    }

    #[test]
    fn v2_swap_alone_counts_from_the_present_limit() {
        let files = Fixture::new(&[("memory.max", "1000\n"), ("memory.swap.max", "")]);
        apply(&files, LinuxMemoryBuilder::default().swap(1200)).unwrap();
        assert_eq!(files.text("memory.swap.max"), "200");
        assert!(matches!(
            apply(&fixture(), LinuxMemoryBuilder::default().swap(1200)),
            Err(CgroupError::Invalid { setting: "memory.swap", .. })
        ));
    }

    #[test]
    fn swap_below_the_limit_is_refused() {
        for memory in [
            LinuxMemoryBuilder::default().limit(1000).swap(999),
            LinuxMemoryBuilder::default().limit(-1).swap(999),
        ] {
            assert!(matches!(apply(&fixture(), memory), Err(CgroupError::Invalid { .. })));
        }
    }

    #[test]
    fn without_swap_accounting_only_real_swap_is_an_error() {
        let files = Fixture::new(&[("memory.max", "")]);
        apply(&files, LinuxMemoryBuilder::default().limit(1000).swap(1000)).unwrap();
        apply(&files, LinuxMemoryBuilder::default().limit(1000).swap(-1)).unwrap();
        let error = apply(&files, LinuxMemoryBuilder::default().limit(1000).swap(2000)).unwrap_err();
        assert!(matches!(error, CgroupError::NoFile { .. }), "{error}");
    }

    #[test]
    fn v2_checks_usage_when_asked_and_refuses_what_is_v1_only() {
        let low = LinuxMemoryBuilder::default().limit(4095).check_before_update(true);
        assert!(matches!(apply(&fixture(), low), Err(CgroupError::BelowUsage { limit: 4095, usage: 4096 })));
        apply(&fixture(), LinuxMemoryBuilder::default().limit(4096).check_before_update(true)).unwrap();
        for memory in [
            LinuxMemoryBuilder::default().swappiness(10_u64),
            LinuxMemoryBuilder::default().disable_oom_killer(true),
            LinuxMemoryBuilder::default().kernel_tcp(10),
        ] {
            assert!(matches!(apply(&fixture(), memory), Err(CgroupError::OnlyV1 { .. })));
        }
        apply(&fixture(), LinuxMemoryBuilder::default().disable_oom_killer(false)).unwrap();
    }
}
