//! One process of a container: its program, its ids, its privileges.

use std::{os::fd::OwnedFd, path::Path, str::FromStr};

use oci_spec::runtime::{
    Capabilities as Names, LinuxCapabilities, LinuxPersonality, LinuxPersonalityDomain, PosixRlimit,
    PosixRlimitType, Process as Requested, Spec, User,
};

use super::{CompileError, Stdio, ids, labels, scheduling};
use crate::{
    plan::{self, Affinity, Capabilities, Identity, Namespaces, Process, Rlimit, WindowSize, slot},
    seccomp,
};

/// What runc and crun use when the configuration has none.
const DEFAULT_UMASK: u32 = 0o022;

/// `PER_LINUX` and `PER_LINUX32` of `linux/personality.h`.
const PERSONALITIES: [u32; 2] = [0, 8];

/// The process `requested`; what it omits is taken from `defaults`, the container's own process.
pub(super) fn convert(
    requested: &Requested,
    defaults: Option<&Requested>,
    spec: &Spec,
    stdio: Stdio,
    fds: &mut Vec<OwnedFd>,
) -> Result<Process, CompileError> {
    let capabilities = requested.capabilities().as_ref().or(defaults.and_then(|p| p.capabilities().as_ref()));
    let limits = requested.rlimits().as_ref().or(defaults.and_then(|p| p.rlimits().as_ref()));
    let adjustment = requested.oom_score_adj().or(defaults.and_then(Requested::oom_score_adj));
    let scheduler = requested.scheduler().as_ref().or(defaults.and_then(|p| p.scheduler().as_ref()));
    let io_priority = requested.io_priority().as_ref().or(defaults.and_then(|p| p.io_priority().as_ref()));
    let linux = spec.linux().as_ref();
    let seccomp = linux.and_then(|linux| linux.seccomp().as_ref());
    Ok(Process {
        args: args(requested)?,
        env: env(requested)?,
        cwd: cwd(requested.cwd())?,
        identity: identity(requested.user())?,
        umask: requested.user().umask().unwrap_or(DEFAULT_UMASK) & 0o777,
        capabilities: capabilities.map(masks).unwrap_or_default(),
        rlimits: rlimits(limits)?,
        no_new_privileges: requested.no_new_privileges().unwrap_or(false),
        oom_score_adj: adjustment.map(in_oom_range).transpose()?,
        personality: linux.and_then(|linux| linux.personality().as_ref()).map(personality).transpose()?,
        scheduler: scheduler.map(scheduling::scheduler).transpose()?,
        io_priority: io_priority.map(scheduling::io_priority).transpose()?,
        affinity: affinity(requested, defaults)?,
        memory_policy: linux
            .and_then(|linux| linux.memory_policy().as_ref())
            .map(scheduling::memory_policy)
            .transpose()?,
        labels: labels::of_process(requested, defaults)?,
        seccomp: seccomp.map(seccomp::compile).transpose()?,
        stdio: connect(stdio, requested, fds),
    })
}

fn personality(requested: &LinuxPersonality) -> Result<u32, CompileError> {
    if let Some(flag) = requested.flags().iter().flatten().next() {
        return Err(CompileError::invalid(
            "linux.personality.flags",
            flag,
            "is not defined: the specification reserves flags",
        ));
    }
    Ok(match requested.domain() {
        LinuxPersonalityDomain::PerLinux => PERSONALITIES[0],
        LinuxPersonalityDomain::PerLinux32 => PERSONALITIES[1],
    })
}

/// It is about execs only: a container's init runs where its cgroup lets it.
fn affinity(requested: &Requested, defaults: Option<&Requested>) -> Result<Affinity, CompileError> {
    let Some(defaults) = defaults else { return Ok(Affinity::default()) };
    let affinity = requested.exec_cpu_affinity().as_ref().or(defaults.exec_cpu_affinity().as_ref());
    affinity.map_or_else(|| Ok(Affinity::default()), scheduling::affinity)
}

fn args(requested: &Requested) -> Result<Vec<String>, CompileError> {
    let args = requested.args().clone().unwrap_or_default();
    match args.first() {
        None => return Err(CompileError::Missing("process.args")),
        Some(program) if program.is_empty() => {
            return Err(CompileError::invalid("process.args", "", "does not name a program"));
        }
        Some(_) => {}
    }
    without_nul("process.args", &args)?;
    Ok(args)
}

fn env(requested: &Requested) -> Result<Vec<String>, CompileError> {
    let env = requested.env().clone().unwrap_or_default();
    without_nul("process.env", &env)?;
    let malformed = |entry: &&String| entry.find('=').is_none_or(|position| position == 0);
    match env.iter().position(|entry| malformed(&entry)) {
        Some(place) => {
            Err(CompileError::invalid("process.env", entry(place), "is not of the form NAME=value"))
        }
        None => Ok(env),
    }
}

fn without_nul(field: &'static str, texts: &[String]) -> Result<(), CompileError> {
    match texts.iter().position(|text| text.contains('\0')) {
        Some(place) => Err(CompileError::invalid(field, entry(place), "has a NUL byte in it")),
        None => Ok(()),
    }
}

/// Names an entry without repeating it: arguments and environments hold secrets, errors are logged.
fn entry(place: usize) -> String {
    format!("entry {}", place + 1)
}

fn cwd(path: &Path) -> Result<std::path::PathBuf, CompileError> {
    let text = path.to_string_lossy();
    let problem = match () {
        () if text.contains('\0') => "has a NUL byte in it",
        () if !path.is_absolute() => "is not absolute",
        () => return Ok(path.to_owned()),
    };
    Err(CompileError::invalid("process.cwd", text, problem))
}

fn identity(user: &User) -> Result<Identity, CompileError> {
    let groups = user.additional_gids().clone().unwrap_or_default();
    let ids = [("process.user.uid", user.uid()), ("process.user.gid", user.gid())];
    let all = ids.into_iter().chain(groups.iter().map(|gid| ("process.user.additionalGids", *gid)));
    // -1 tells setresuid to leave an id as it is: the process would stay root (CVE-2024-40635).
    match all.into_iter().find(|(_, id)| *id == u32::MAX) {
        Some((field, id)) => Err(CompileError::Id { field, id }),
        None => Ok(Identity { uid: user.uid(), gid: user.gid(), groups, keep_groups: false }),
    }
}

/// An error if the user or a group of `process` is nobody in the user namespace that is made for it.
pub(super) fn belongs(process: &Process, namespaces: &Namespaces) -> Result<(), CompileError> {
    if namespaces.uid_map.is_empty() {
        return Ok(());
    }
    let Identity { uid, gid, groups, .. } = &process.identity;
    let mut ids = vec![
        ("process.user.uid", *uid, &namespaces.uid_map),
        ("process.user.gid", *gid, &namespaces.gid_map),
    ];
    ids.extend(groups.iter().map(|group| ("process.user.additionalGids", *group, &namespaces.gid_map)));
    match ids.into_iter().find(|(_, id, map)| !ids::contains(map, *id)) {
        Some((field, id, _)) => {
            Err(CompileError::invalid(field, id, "is not mapped in the container's user namespace"))
        }
        None => Ok(()),
    }
}

fn masks(capabilities: &LinuxCapabilities) -> Capabilities {
    Capabilities {
        bounding: mask(capabilities.bounding()),
        effective: mask(capabilities.effective()),
        inheritable: mask(capabilities.inheritable()),
        permitted: mask(capabilities.permitted()),
        ambient: mask(capabilities.ambient()),
    }
}

fn mask(names: &Option<Names>) -> u64 {
    names.iter().flatten().fold(0, |mask, name| {
        let known = caps::Capability::from_str(&format!("CAP_{name}"));
        known.map_or(mask, |capability| mask | 1 << capability.index())
    })
}

fn rlimits(limits: Option<&Vec<PosixRlimit>>) -> Result<Vec<Rlimit>, CompileError> {
    let mut converted: Vec<Rlimit> = Vec::new();
    for limit in limits.into_iter().flatten() {
        let rlimit = Rlimit { resource: resource(limit.typ()), soft: limit.soft(), hard: limit.hard() };
        let name = limit.typ().to_string();
        if rlimit.soft > rlimit.hard {
            return Err(CompileError::invalid(
                "process.rlimits",
                name,
                "has a soft limit above its hard limit",
            ));
        }
        if converted.iter().any(|other| other.resource == rlimit.resource) {
            return Err(CompileError::invalid("process.rlimits", name, "is listed twice"));
        }
        converted.push(rlimit);
    }
    Ok(converted)
}

#[allow(clippy::unnecessary_cast, reason = "RLIMIT_* are unsigned in glibc and signed in musl")]
fn resource(kind: PosixRlimitType) -> u32 {
    let number = match kind {
        PosixRlimitType::RlimitCpu => libc::RLIMIT_CPU,
        PosixRlimitType::RlimitFsize => libc::RLIMIT_FSIZE,
        PosixRlimitType::RlimitData => libc::RLIMIT_DATA,
        PosixRlimitType::RlimitStack => libc::RLIMIT_STACK,
        PosixRlimitType::RlimitCore => libc::RLIMIT_CORE,
        PosixRlimitType::RlimitRss => libc::RLIMIT_RSS,
        PosixRlimitType::RlimitNproc => libc::RLIMIT_NPROC,
        PosixRlimitType::RlimitNofile => libc::RLIMIT_NOFILE,
        PosixRlimitType::RlimitMemlock => libc::RLIMIT_MEMLOCK,
        PosixRlimitType::RlimitAs => libc::RLIMIT_AS,
        PosixRlimitType::RlimitLocks => libc::RLIMIT_LOCKS,
        PosixRlimitType::RlimitSigpending => libc::RLIMIT_SIGPENDING,
        PosixRlimitType::RlimitMsgqueue => libc::RLIMIT_MSGQUEUE,
        PosixRlimitType::RlimitNice => libc::RLIMIT_NICE,
        PosixRlimitType::RlimitRtprio => libc::RLIMIT_RTPRIO,
        PosixRlimitType::RlimitRttime => libc::RLIMIT_RTTIME,
    };
    number as u32
}

fn in_oom_range(adjustment: i32) -> Result<i32, CompileError> {
    match adjustment {
        -1000..=1000 => Ok(adjustment),
        _ => Err(CompileError::invalid("process.oomScoreAdj", adjustment, "is not between -1000 and 1000")),
    }
}

fn connect(stdio: Stdio, requested: &Requested, fds: &mut Vec<OwnedFd>) -> plan::Stdio {
    match stdio {
        Stdio::Streams { stdin, stdout, stderr } => {
            plan::Stdio::Streams([stdin, stdout, stderr].map(|stream| slot(fds, stream)))
        }
        Stdio::Terminal => plan::Stdio::Terminal(requested.console_size().map(|size| WindowSize {
            rows: size.height().try_into().unwrap_or(u16::MAX),
            columns: size.width().try_into().unwrap_or(u16::MAX),
        })),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use oci_spec::runtime::{Capability, PosixRlimitBuilder, ProcessBuilder, UserBuilder};

    use super::*;

    fn process() -> ProcessBuilder {
        ProcessBuilder::default().args(vec!["sh".to_owned()]).cwd("/").env(Vec::<String>::new())
    }

    fn compile(requested: Requested) -> Result<Process, CompileError> {
        convert(&requested, None, &Spec::default(), Stdio::Terminal, &mut Vec::new())
    }

    #[test]
    fn reserved_ids_are_refused_and_their_neighbours_are_not() {
        for (uid, gid, more) in [(u32::MAX, 0, 0), (0, u32::MAX, 0), (0, 0, u32::MAX)] {
            let user = UserBuilder::default().uid(uid).gid(gid).additional_gids(vec![more]).build().unwrap();
            assert!(matches!(compile(process().user(user).build().unwrap()), Err(CompileError::Id { .. })));
        }
        for uid in [0, 1, 65534, i32::MAX as u32, u32::MAX - 1] {
            let user = UserBuilder::default().uid(uid).build().unwrap();
            assert_eq!(compile(process().user(user).build().unwrap()).unwrap().identity.uid, uid);
        }
    }

    #[test]
    fn malformed_texts_are_refused() {
        for env in ["NAME", "=x", "A=b\0c"] {
            assert!(compile(process().env(vec![env.to_owned()]).build().unwrap()).is_err(), "{env:?}");
        }
        for args in [vec![], vec![String::new()], vec!["a\0b".to_owned()]] {
            assert!(compile(process().args(args).build().unwrap()).is_err());
        }
        for cwd in ["", "relative", "/a\0b"] {
            assert!(compile(process().cwd(cwd).build().unwrap()).is_err(), "{cwd:?}");
        }
    }

    #[test]
    fn capabilities_become_the_kernels_bits() {
        let names: Names =
            HashSet::from([Capability::Chown, Capability::SysAdmin, Capability::CheckpointRestore]);
        assert_eq!(mask(&Some(names)), 1 | 1 << 21 | 1 << 40);
        assert_eq!(mask(&None), 0);
    }

    #[test]
    fn every_capability_of_the_spec_has_a_bit() {
        for capability in caps::all() {
            let name = capability.to_string();
            let spec = Capability::from_str(name.trim_start_matches("CAP_")).unwrap();
            assert_eq!(mask(&Some(HashSet::from([spec]))), 1 << capability.index(), "{name}");
        }
    }

    #[test]
    fn contradictory_limits_are_refused() {
        let limit = |soft, hard| {
            PosixRlimitBuilder::default()
                .typ(PosixRlimitType::RlimitNofile)
                .soft(soft)
                .hard(hard)
                .build()
                .unwrap()
        };
        assert!(compile(process().rlimits(vec![limit(2_u64, 1_u64)]).build().unwrap()).is_err());
        assert!(compile(process().rlimits(vec![limit(1, 1), limit(1, 1)]).build().unwrap()).is_err());
        assert_eq!(
            compile(process().rlimits(vec![limit(1, 2)]).build().unwrap()).unwrap().rlimits,
            [Rlimit { resource: resource(PosixRlimitType::RlimitNofile), soft: 1, hard: 2 }]
        );
        assert!(compile(process().oom_score_adj(1001).build().unwrap()).is_err());
    }
}
