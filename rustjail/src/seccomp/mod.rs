//! From an OCI seccomp profile to the classic BPF program the kernel runs.
//!
//! ```text
//! LinuxSeccomp --profile--> rules by name --verdict--> verdicts by number --dispatch--> ranges, search
//!                                 ^ table, arch              checks (arguments) --program--> instructions
//! ```
//!
//! [`compile`] is a pure function and takes some tens of microseconds for a profile of 300 calls. The
//! result is small because it is a search over ranges and not a list of calls, and loading one is quick for
//! the same reason. A name nobody knows is an error and not skipped: a misspelt denial would be no denial.
//! A name that only another architecture knows is skipped, since profiles name the calls of all of them.
//! The rest of what the spec leaves open is said where it is decided: the order of rules in `verdict`,
//! calls newer than the profile in `dispatch`, architectures in `arch`.

mod arch;
mod cache;
mod checks;
mod dispatch;
pub mod notify;
mod profile;
mod program;
mod table;
mod verdict;

use std::str::FromStr;

use oci_spec::runtime::LinuxSeccomp;

pub use arch::Machine;
pub use cache::Cache;

/// A compiled profile: what `seccomp(2)` takes.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Filter {
    /// The program, one `struct sock_filter` in 8 native-endian bytes each.
    pub program: Vec<[u8; 8]>,
    /// SECCOMP_FILTER_FLAG_*.
    pub flags: u32,
}

impl Filter {
    /// Whether some calls are decided by an agent, to which the filter's listener has to be handed.
    pub fn notifies(&self) -> bool {
        self.flags & profile::NEW_LISTENER != 0
    }
}

/// Tells compilers apart: it changes with every line of what comes between a profile and its filter. Who keeps filters
/// keeps it with them, and does not use those of another.
pub const REVISION: u64 = {
    let sources = [
        include_str!("arch.rs"),
        include_str!("checks.rs"),
        include_str!("dispatch.rs"),
        include_str!("mod.rs"),
        include_str!("profile.rs"),
        include_str!("program.rs"),
        include_str!("table.rs"),
        include_str!("verdict.rs"),
    ];
    // FNV-1a, of all of them.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut rest = sources.as_slice();
    while let [source, after @ ..] = rest {
        let mut bytes = source.as_bytes();
        while let [byte, others @ ..] = bytes {
            hash = (hash ^ *byte as u64).wrapping_mul(0x100_0000_01b3);
            bytes = others;
        }
        rest = after;
    }
    hash
};

/// What is wrong with a profile.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// A name that neither the spec nor the kernel knows.
    #[error("unknown seccomp {what}: {name:?}")]
    Unknown {
        /// Of what kind.
        what: &'static str,
        /// As the profile has it.
        name: String,
    },
    /// A name of the spec that this runtime cannot serve.
    #[error("seccomp {what} {name} is not supported: {why}")]
    Unsupported {
        /// Of what kind.
        what: &'static str,
        /// As the profile has it.
        name: String,
        /// What stands against it.
        why: &'static str,
    },
    /// Calls that wait for an answer nobody could give.
    #[error("the seccomp profile has actions SCMP_ACT_NOTIFY, but no listenerPath to send them to")]
    NoListener,
    /// The spec wants this refused.
    #[error("seccomp action {action} returns no errno, so errnoRet must be left out")]
    NoErrno {
        /// As the profile has it.
        action: String,
    },
    /// The kernel would take the upper bits for another action, or cut the value.
    #[error("errnoRet {value} of seccomp action {action} is above {limit}")]
    Errno {
        /// As the profile has it.
        action: String,
        /// As the profile has it.
        value: u32,
        /// The largest the kernel returns.
        limit: u32,
    },
    /// Calls have six arguments.
    #[error("seccomp argument index {index} is not one of 0 to 5")]
    Argument {
        /// As the profile has it.
        index: usize,
    },
    /// More than any filter the kernel loads could express.
    #[error("the seccomp profile has more than {limit} rules, counting each name of an entry")]
    TooManyRules {
        /// What is accepted.
        limit: usize,
    },
    /// More than the kernel loads.
    #[error(
        "the seccomp profile needs more than the {limit} BPF instructions the kernel takes: use fewer args"
    )]
    TooLong {
        /// Of the kernel.
        limit: usize,
    },
}

/// Compiles `profile` for this machine, and those other architectures it names that the machine can run.
pub fn compile(profile: &LinuxSeccomp) -> Result<Filter, SeccompError> {
    compile_for(profile, Machine::native()?)
}

/// Compiles `profile` for a machine of another kind.
pub fn compile_for(profile: &LinuxSeccomp, machine: Machine) -> Result<Filter, SeccompError> {
    let profile = profile::Profile::parse(profile)?;
    let program = dispatch::program(&profile, &machine.abis(profile.architectures))?;
    Ok(Filter { program, flags: profile.flags })
}

/// The value a profile calls `name`; `what` is "action", "architecture", "flag" or "operator".
pub fn named<T: FromStr>(what: &'static str, name: &str) -> Result<T, SeccompError> {
    name.parse().map_err(|_| SeccompError::Unknown { what, name: name.to_owned() })
}
