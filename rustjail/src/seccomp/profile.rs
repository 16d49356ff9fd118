//! A runtime-spec seccomp section as rules: actions are the kernel's return values, every comparison is one
//! of three, and what the kernel would misread is refused.
//!
//! `oci_spec` has already turned names into enums; what remains to go wrong are values: an errno that does
//! not fit the 16 bits the kernel gives it (it would change the action), an errno on an action without one,
//! an argument that no call has. Flags become SECCOMP_FILTER_FLAG_* bits.

use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction as Action, LinuxSeccompArg, LinuxSeccompFilterFlag as Flag,
    LinuxSeccompOperator as Op, LinuxSyscall,
};

use super::{
    SeccompError,
    program::Test,
    table::{self, Row},
};

/// SECCOMP_RET_ERRNO; the low half is the errno.
pub(super) const RET_ERRNO: u32 = 0x0005_0000;
/// SECCOMP_RET_KILL_THREAD, what libseccomp answers to a foreign architecture.
pub(super) const RET_KILL_THREAD: u32 = 0;
const RET_DATA: u32 = 0xffff;
/// SECCOMP_RET_USER_NOTIF.
pub(super) const RET_USER_NOTIF: u32 = 0x7fc0_0000;
/// SECCOMP_FILTER_FLAG_NEW_LISTENER.
pub(super) const NEW_LISTENER: u32 = 1 << 3;
/// The largest errno a system call can return (MAX_ERRNO).
const MAX_ERRNO: u32 = 4095;
/// Names times alternatives, summed over the entries: a bound on what one profile can cost to compile.
/// Real ones have some hundreds.
const MAX_RULES: usize = 1 << 15;

/// A checked profile.
#[derive(Debug)]
pub(super) struct Profile<'a> {
    /// What happens to a call no rule matches.
    pub(super) default: u32,
    pub(super) flags: u32,
    pub(super) architectures: &'a [Arch],
    /// The strictest first, the profile's order among equals.
    pub(super) rules: Vec<Rule>,
}

/// What happens to some calls when all `conditions` hold.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) calls: Vec<&'static Row>,
    pub(super) action: u32,
    pub(super) conditions: Vec<Condition>,
}

/// `(argument & mask) test value`, or its opposite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Condition {
    pub(super) argument: u32,
    pub(super) mask: u64,
    pub(super) test: Test,
    pub(super) value: u64,
    pub(super) negated: bool,
}

impl<'a> Profile<'a> {
    pub(super) fn parse(profile: &'a LinuxSeccomp) -> Result<Self, SeccompError> {
        let mut rules = Vec::new();
        let mut room = MAX_RULES;
        for entry in profile.syscalls().iter().flatten() {
            let action = return_value(entry.action(), entry.errno_ret())?;
            let calls = entry.names().iter().map(|name| call(name)).collect::<Result<Vec<_>, _>>()?;
            let clauses = clauses(entry)?;
            room = room
                .checked_sub(calls.len().saturating_mul(clauses.len()))
                .ok_or(SeccompError::TooManyRules { limit: MAX_RULES })?;
            // One that names no call is no rule, and has not been counted.
            for conditions in clauses.into_iter().filter(|_| !calls.is_empty()) {
                rules.push(Rule { calls: calls.clone(), action, conditions });
            }
        }
        rules.sort_by_key(|rule| precedence(rule.action));
        let default = return_value(profile.default_action(), profile.default_errno_ret())?;
        let notifies = notifies(profile, default)?;
        let flags = profile.flags().iter().flatten();
        Ok(Self {
            default,
            flags: flags
                .map(|flag| flag_bits(*flag, notifies))
                .fold(listener_bit(notifies), |all, bit| all | bit),
            architectures: profile.architectures().as_deref().unwrap_or_default(),
            rules,
        })
    }
}

/// How strict an action is, the strictest least: the order by which the kernel picks one of several
/// filters' answers.
pub(super) fn precedence(action: u32) -> i32 {
    (action & !RET_DATA).cast_signed()
}

fn return_value(action: Action, errno: Option<u32>) -> Result<u32, SeccompError> {
    let limit = match action {
        Action::ScmpActErrno => MAX_ERRNO,
        Action::ScmpActTrace => RET_DATA,
        _ if errno.is_some() => {
            return Err(SeccompError::NoErrno { action: action.to_string() });
        }
        _ => return Ok(action.as_u32(None)),
    };
    match errno {
        Some(value) if value > limit => Err(SeccompError::Errno { action: action.to_string(), value, limit }),
        // Without a value the spec says EPERM, which is what as_u32 takes.
        _ => Ok(action.as_u32(errno)),
    }
}

/// Whether some calls are decided by an agent. The runtime itself makes calls under the filter before that
/// agent can answer, which these rules leave possible.
fn notifies(profile: &LinuxSeccomp, default: u32) -> Result<bool, SeccompError> {
    let unsupported = |what, name: &str, why| SeccompError::Unsupported { what, name: name.to_owned(), why };
    if default == RET_USER_NOTIF {
        let why =
            "the call that hands the listener over would wait for the listener: name the calls to notify of";
        return Err(unsupported("default action", "SCMP_ACT_NOTIFY", why));
    }
    let mut notifies = false;
    for entry in profile.syscalls().iter().flatten().filter(|entry| entry.action() == Action::ScmpActNotify) {
        if entry.names().iter().any(|name| name == "write") {
            let why = "the runtime hands the listener over by it: leave it to another action";
            return Err(unsupported("action SCMP_ACT_NOTIFY for", "write", why));
        }
        notifies = true;
    }
    if notifies && profile.listener_path().is_none() {
        return Err(SeccompError::NoListener);
    }
    Ok(notifies)
}

fn listener_bit(notifies: bool) -> u32 {
    if notifies { NEW_LISTENER } else { 0 }
}

fn flag_bits(flag: Flag, notifies: bool) -> u32 {
    match flag {
        // With a listener the call already answers a descriptor, so that a thread which cannot follow has to
        // be told by ESRCH (SECCOMP_FILTER_FLAG_TSYNC_ESRCH) instead of by its id.
        Flag::SeccompFilterFlagTsync if notifies => 1 | 1 << 4,
        Flag::SeccompFilterFlagTsync => 1,
        Flag::SeccompFilterFlagLog => 1 << 1,
        Flag::SeccompFilterFlagSpecAllow => 1 << 2,
        Flag::SeccompFilterFlagWaitKillableRecv if notifies => 1 << 5,
        // How a notification is waited for: without a listener there is none, and the kernel answers EINVAL.
        Flag::SeccompFilterFlagWaitKillableRecv => 0,
    }
}

fn call(name: &str) -> Result<&'static Row, SeccompError> {
    table::lookup(name).ok_or_else(|| SeccompError::Unknown { what: "syscall", name: name.to_owned() })
}

/// The alternatives of one entry. Its conditions must all hold, unless an argument occurs twice: runc and
/// crun then take each condition for an entry of its own (libseccomp cannot compare one argument twice), and
/// profiles are written to that.
fn clauses(entry: &LinuxSyscall) -> Result<Vec<Vec<Condition>>, SeccompError> {
    let conditions = entry.args().iter().flatten().map(condition).collect::<Result<Vec<_>, _>>()?;
    let repeated = conditions
        .iter()
        .enumerate()
        .any(|(at, one)| conditions.iter().take(at).any(|other| other.argument == one.argument));
    Ok(if repeated { conditions.into_iter().map(|one| vec![one]).collect() } else { vec![conditions] })
}

fn condition(arg: &LinuxSeccompArg) -> Result<Condition, SeccompError> {
    let argument = match u32::try_from(arg.index()) {
        Ok(index @ 0..=5) => index,
        _ => return Err(SeccompError::Argument { index: arg.index() }),
    };
    let (test, negated) = match arg.op() {
        Op::ScmpCmpEq | Op::ScmpCmpMaskedEq => (Test::Equal, false),
        Op::ScmpCmpNe => (Test::Equal, true),
        Op::ScmpCmpGt => (Test::Greater, false),
        Op::ScmpCmpLe => (Test::Greater, true),
        Op::ScmpCmpGe => (Test::GreaterOrEqual, false),
        Op::ScmpCmpLt => (Test::GreaterOrEqual, true),
    };
    let (mask, value) = match arg.op() {
        // libseccomp, which the spec refers to, masks both sides.
        Op::ScmpCmpMaskedEq => (arg.value(), arg.value_two().unwrap_or(0) & arg.value()),
        _ => (u64::MAX, arg.value()),
    };
    Ok(Condition { argument, mask, test, value, negated })
}
