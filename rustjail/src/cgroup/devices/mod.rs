//! Which devices a group may make, read and write.
//!
//! This is a security boundary: without it a container with CAP_MKNOD makes a node for the guest's disk and
//! reads it (CVE-2020-2023). Everything is denied but the nodes every container is given; then the spec's
//! rules apply in their order, each overriding those before it. A spec that begins with "deny all", as most
//! do, still means to keep those nodes. v1 has files for it, v2 a program. Rules that cannot be enforced are
//! an error.

mod program;
mod v1;
mod v2;

use std::fmt;

use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType};

use super::{Cgroup, CgroupError, Controller};

/// Enforces `rules` instead of those that were enforced before.
pub(super) fn enforce(group: &Cgroup, rules: &[LinuxDeviceCgroup]) -> Result<(), CgroupError> {
    let policy = Policy::new(rules)?;
    match (group.find("devices"), &group.unified) {
        (Some(Controller::V1(dir)), _) => v1::enforce(dir, &policy),
        (_, Some(unified)) => v2::enforce(unified.dir(), &policy),
        (_, None) => group.controller("devices").map(drop),
    }
}

/// Enforces the defaults for a container whose spec says nothing of devices, if that is possible here.
pub(super) fn enforce_defaults(group: &Cgroup) -> Result<(), CgroupError> {
    match enforce(group, &[]) {
        Err(CgroupError::NoController { .. } | CgroupError::DeviceFilter { .. }) => Ok(()),
        done => done,
    }
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Kind {
    Block,
    Char,
}

/// A set of the accesses, with the kernel's numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Access(u8);

impl Access {
    const MKNOD: u8 = 1;
    const READ: u8 = 2;
    const WRITE: u8 = 4;
    const ALL: Self = Self(Self::MKNOD | Self::READ | Self::WRITE);
    const LETTERS: [(char, u8); 3] = [('r', Self::READ), ('w', Self::WRITE), ('m', Self::MKNOD)];

    fn parse(letters: &str) -> Option<Self> {
        letters.chars().try_fold(Self(0), |access, letter| {
            let (_, bit) = Self::LETTERS.into_iter().find(|(known, _)| *known == letter)?;
            Some(Self(access.0 | bit))
        })
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Self::LETTERS
            .into_iter()
            .filter(|(_, bit)| self.0 & bit != 0)
            .try_for_each(|(letter, _)| write!(f, "{letter}"))
    }
}

/// Devices of one kind; `None` is every number.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Devices {
    kind: Kind,
    major: Option<u32>,
    minor: Option<u32>,
}

impl Devices {
    fn covers(self, other: Self) -> bool {
        let covers = |own: Option<u32>, other| own.is_none() || own == other;
        self.kind == other.kind && covers(self.major, other.major) && covers(self.minor, other.minor)
    }

    fn overlaps(self, other: Self) -> bool {
        let overlaps =
            |own: Option<u32>, other: Option<u32>| own.is_none() || other.is_none() || own == other;
        self.kind == other.kind && overlaps(self.major, other.major) && overlaps(self.minor, other.minor)
    }
}

/// As the v1 files write it.
impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |number: Option<u32>| number.map_or_else(|| "*".to_owned(), |number| number.to_string());
        let kind = match self.kind {
            Kind::Block => 'b',
            Kind::Char => 'c',
        };
        write!(f, "{kind} {}:{}", number(self.major), number(self.minor))
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Rule {
    allow: bool,
    devices: Devices,
    access: Access,
}

/// What holds for each access: the last rule that speaks of it, else `allow_others`.
#[derive(Debug, Eq, PartialEq)]
struct Policy {
    allow_others: bool,
    rules: Vec<Rule>,
}

/// The nodes every container has, and making (not opening) any: a container's own nodes are made from
/// within its group, by the process that becomes it.
const DEFAULTS: [(Kind, Option<u32>, Option<u32>, Access); 10] = [
    (Kind::Char, None, None, Access(Access::MKNOD)),
    (Kind::Block, None, None, Access(Access::MKNOD)),
    (Kind::Char, Some(1), Some(3), Access::ALL), // null
    (Kind::Char, Some(1), Some(5), Access::ALL), // zero
    (Kind::Char, Some(1), Some(7), Access::ALL), // full
    (Kind::Char, Some(1), Some(8), Access::ALL), // random
    (Kind::Char, Some(1), Some(9), Access::ALL), // urandom
    (Kind::Char, Some(5), Some(0), Access::ALL), // tty
    (Kind::Char, Some(5), Some(2), Access::ALL), // ptmx
    (Kind::Char, Some(136), None, Access::ALL),  // pts
];

impl Policy {
    fn new(given: &[LinuxDeviceCgroup]) -> Result<Self, CgroupError> {
        let mut policy = Self::all(false);
        for rule in given {
            let invalid = |reason| CgroupError::invalid("devices", rule, reason);
            let kinds: &[Kind] = match rule.typ().unwrap_or(LinuxDeviceType::A) {
                LinuxDeviceType::A => &[Kind::Block, Kind::Char],
                LinuxDeviceType::B => &[Kind::Block],
                LinuxDeviceType::C | LinuxDeviceType::U => &[Kind::Char],
                LinuxDeviceType::P => return Err(invalid("a FIFO is not a device")),
            };
            let major = number(rule.major()).ok_or_else(|| invalid("its major number is out of range"))?;
            let minor = number(rule.minor()).ok_or_else(|| invalid("its minor number is out of range"))?;
            let access = match rule.access().as_deref() {
                None | Some("") => Access::ALL,
                Some(letters) => {
                    Access::parse(letters).ok_or_else(|| invalid("its access is of r, w and m"))?
                }
            };
            if kinds.len() == 2 && major.is_none() && minor.is_none() && access == Access::ALL {
                policy = Self::all(rule.allow());
                continue;
            }
            policy.rules.extend(kinds.iter().map(|kind| Rule {
                allow: rule.allow(),
                devices: Devices { kind: *kind, major, minor },
                access,
            }));
        }
        Ok(policy)
    }

    fn all(allow: bool) -> Self {
        let rule = |(kind, major, minor, access)| Rule {
            allow: true,
            devices: Devices { kind, major, minor },
            access,
        };
        let rules = if allow { Vec::new() } else { DEFAULTS.into_iter().map(rule).collect() };
        Self { allow_others: allow, rules }
    }
}

/// A device number of the spec: absent and negative are every one.
fn number(given: Option<i64>) -> Option<Option<u32>> {
    match given {
        None | Some(..0) => Some(None),
        Some(number) => u32::try_from(number).ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn policy(json: &str) -> Result<Policy, CgroupError> {
        Policy::new(&serde_json::from_str::<Vec<LinuxDeviceCgroup>>(json).unwrap())
    }

    #[test]
    fn deny_all_keeps_the_default_nodes() {
        let defaults = Policy::all(false);
        assert_eq!(policy("[]").unwrap(), defaults);
        assert_eq!(policy(r#"[{"allow": false, "access": "rwm"}]"#).unwrap(), defaults);
        assert_eq!(
            policy(r#"[{"allow": true}, {"allow": false, "type": "a", "major": -1}]"#).unwrap(),
            defaults
        );
        let everything =
            policy(r#"[{"allow": false}, {"allow": true, "type": "a", "access": "rwm"}]"#).unwrap();
        assert_eq!(everything, Policy::all(true));
    }

    #[test]
    fn rules_follow_the_defaults_in_order() {
        let policy = policy(
            r#"[{"allow": true, "type": "b", "major": 8, "minor": 0, "access": "r"},
                {"allow": false, "type": "a", "major": 8, "access": "w"}]"#,
        )
        .unwrap();
        let rule = |allow, kind, minor, access| Rule {
            allow,
            devices: Devices { kind, major: Some(8), minor },
            access: Access(access),
        };
        assert_eq!(
            policy.rules[DEFAULTS.len()..],
            [
                rule(true, Kind::Block, Some(0), Access::READ),
                rule(false, Kind::Block, None, Access::WRITE),
                rule(false, Kind::Char, None, Access::WRITE),
            ]
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for json in [
            r#"[{"allow": true, "type": "p"}]"#,
            r#"[{"allow": true, "type": "c", "access": "rx"}]"#,
            r#"[{"allow": true, "type": "c", "major": 4294967296, "access": "r"}]"#,
        ] {
            assert!(matches!(policy(json), Err(CgroupError::Invalid { .. })), "{json}");
        }
    }
}
