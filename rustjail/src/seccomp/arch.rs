//! Which system call interfaces a filter must tell apart, and how.
//!
//! The kernel tells a filter the audit architecture of each call. An [`Abi`] is one way of numbering calls;
//! two of them, x86_64 and x32, share an audit architecture and differ in one bit of the number. A machine
//! runs its own ABI and those of its family; a profile may name any other, but no task here can ever make
//! such a call, so those names are accepted and add nothing to the program. A call of an ABI that the
//! machine can run and the profile does not name is killed.

use oci_spec::runtime::Arch;

use super::SeccompError;

/// Marks an x32 call in the number of an x86_64 one.
pub(super) const X32_BIT: u32 = 0x4000_0000;

/// A way of numbering system calls; the value is its column in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Abi {
    X86_64,
    X86,
    X32,
    Aarch64,
    Arm,
}

impl Abi {
    /// AUDIT_ARCH_*, as `seccomp_data.arch` has it.
    pub(super) fn audit(self) -> u32 {
        match self {
            Abi::X86_64 | Abi::X32 => 0xc000_003e,
            Abi::X86 => 0x4000_0003,
            Abi::Aarch64 => 0xc000_00b7,
            Abi::Arm => 0x4000_0028,
        }
    }

    /// What is added to every number of the table.
    pub(super) fn bit(self) -> u32 {
        if self == Abi::X32 { X32_BIT } else { 0 }
    }

    /// Whether arguments are compared as 32-bit values. A 64-bit task that enters by `int 0x80` leaves what
    /// it likes in the upper halves, which the kernel then ignores: a filter must ignore them too.
    pub(super) fn is_32bit(self) -> bool {
        matches!(self, Abi::X86 | Abi::X32 | Abi::Arm)
    }

    /// The numbers where calls newer than a profile can appear: since Linux 5.1 every architecture gives a
    /// new call the same number, counting from 424. x32 has old calls of its own from 512 on, ARM from
    /// 0xf0000; -1 is a call that a tracer has cancelled.
    pub(super) fn new_calls(self) -> (u32, u32) {
        match self {
            Abi::X86_64 => (424, X32_BIT - 1),
            Abi::X32 => (X32_BIT | 424, X32_BIT | 511),
            Abi::Arm => (424, 0xe_ffff),
            Abi::X86 | Abi::Aarch64 => (424, u32::MAX - 1),
        }
    }

    /// The call that also reaches `name`, and the first argument that selects it: 32-bit x86 has had the
    /// socket and System V IPC calls as sub-functions of two, and its C libraries still use those.
    /// `number` is that of its own, if it has one: the old calls have, and are not sub-functions.
    pub(super) fn multiplexed(self, name: &str, number: Option<u32>) -> Option<(u32, u8)> {
        if self != Abi::X86 || number.is_some_and(|number| number < FIRST_DEMULTIPLEXED) {
            return None;
        }
        let at = MULTIPLEXED.binary_search_by(|call| call.0.cmp(name)).ok()?;
        MULTIPLEXED.get(at).map(|(_, number, code)| (*number, *code))
    }
}

/// Most sub-functions of 32-bit x86 are calls of their own too by now: recvmmsg since Linux 2.6.33, which has this
/// number, the others later.
const FIRST_DEMULTIPLEXED: u32 = 337;

/// The sub-functions of socketcall (102) and ipc (117) of 32-bit x86, sorted by name.
#[rustfmt::skip]
static MULTIPLEXED: &[(&str, u32, u8)] = &[
    ("accept", 102, 5), ("accept4", 102, 18), ("bind", 102, 2), ("connect", 102, 3),
    ("getpeername", 102, 7), ("getsockname", 102, 6), ("getsockopt", 102, 15), ("listen", 102, 4),
    ("msgctl", 117, 14), ("msgget", 117, 13), ("msgrcv", 117, 12), ("msgsnd", 117, 11),
    ("recv", 102, 10), ("recvfrom", 102, 12), ("recvmmsg", 102, 19), ("recvmsg", 102, 17),
    ("semctl", 117, 3), ("semget", 117, 2), ("semop", 117, 1), ("semtimedop", 117, 4),
    ("send", 102, 9), ("sendmmsg", 102, 20), ("sendmsg", 102, 16), ("sendto", 102, 11),
    ("setsockopt", 102, 14), ("shmat", 117, 21), ("shmctl", 117, 24), ("shmdt", 117, 22),
    ("shmget", 117, 23), ("shutdown", 102, 13), ("socket", 102, 1), ("socketpair", 102, 8),
];

/// The kind of machine the filter is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// Runs x86_64, and x86 and x32 where a profile names them.
    X86_64,
    /// Runs aarch64, and arm where a profile names it.
    Aarch64,
}

impl Machine {
    /// The machine this program was built for.
    pub fn native() -> Result<Self, SeccompError> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Machine::X86_64),
            "aarch64" => Ok(Machine::Aarch64),
            other => Err(SeccompError::Unsupported {
                what: "architecture",
                name: other.to_owned(),
                why: "filters can be made for x86_64 and aarch64 machines",
            }),
        }
    }

    /// The ABIs to filter, its own first: the native one belongs to every filter, named or not, because the
    /// process that loads it is native.
    pub(super) fn abis(self, named: &[Arch]) -> Vec<Abi> {
        let family: &[(Abi, Arch)] = match self {
            Machine::X86_64 => &[(Abi::X86, Arch::ScmpArchX86), (Abi::X32, Arch::ScmpArchX32)],
            Machine::Aarch64 => &[(Abi::Arm, Arch::ScmpArchArm)],
        };
        let native = match self {
            Machine::X86_64 => Abi::X86_64,
            Machine::Aarch64 => Abi::Aarch64,
        };
        let others = family.iter().filter(|(_, arch)| named.contains(arch)).map(|(abi, _)| *abi);
        std::iter::once(native).chain(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::table, *};

    #[test]
    fn multiplexed_calls_are_sorted() {
        assert!(MULTIPLEXED.is_sorted_by(|one, next| one.0 < next.0));
    }

    #[test]
    fn multiplexed_calls_have_no_old_number() {
        for (name, number, code) in MULTIPLEXED {
            let own = table::number(table::lookup(name).unwrap(), Abi::X86);
            assert_eq!(Abi::X86.multiplexed(name, own), Some((*number, *code)), "{name}");
        }
    }
}
