//! Device rules in `devices.allow` and `devices.deny`.
//!
//! The v1 controller knows a default and exceptions to it, so an ordered list is first reduced to that.
//! Only the difference to the present exceptions is written: an update never takes away, even for an
//! instant, what stays allowed, and works while there are groups below (which forbid changing the default).

use std::collections::BTreeMap;

use super::{
    super::{CgroupError, dir::Dir},
    Access, Devices, Kind, Policy,
};

type Exceptions = BTreeMap<Devices, Access>;

pub(super) fn enforce(dir: &Dir, policy: &Policy) -> Result<(), CgroupError> {
    let wanted = exceptions(policy)?;
    if policy.allow_others {
        // The list of a group that allows all does not show its exceptions, so they are always written anew.
        dir.write("devices.allow", "a")?;
        return dir
            .write_each("devices.deny", wanted.into_iter().map(|(devices, access)| line(devices, access)));
    }
    let present = match parse(&dir.read("devices.list")?) {
        Some(exceptions) => exceptions,
        None => {
            dir.write("devices.deny", "a")?;
            Exceptions::new()
        }
    };
    let missing_in = |from: &Exceptions, other: &Exceptions| -> Vec<String> {
        from.iter()
            .map(|(devices, access)| {
                (*devices, access.without(other.get(devices).copied().unwrap_or(Access(0))))
            })
            .filter(|(_, access)| !access.is_empty())
            .map(|(devices, access)| line(devices, access))
            .collect()
    };
    dir.write_each("devices.deny", missing_in(&present, &wanted))?;
    dir.write_each("devices.allow", missing_in(&wanted, &present))
}

fn line(devices: Devices, access: Access) -> String {
    format!("{devices} {access}")
}

/// What differs from the default in the end.
fn exceptions(policy: &Policy) -> Result<Exceptions, CgroupError> {
    let mut exceptions = Exceptions::new();
    for rule in &policy.rules {
        if rule.allow != policy.allow_others {
            let access = exceptions.entry(rule.devices).or_insert(Access(0));
            *access = access.or(rule.access);
            continue;
        }
        for (devices, access) in &mut exceptions {
            if !rule.devices.overlaps(*devices) || access.and(rule.access).is_empty() {
                continue;
            }
            if !rule.devices.covers(*devices) {
                let reason =
                    "cgroup v1 cannot take devices out of an earlier, wider rule: write narrower rules";
                return Err(CgroupError::invalid("devices", line(rule.devices, rule.access), reason));
            }
            *access = access.without(rule.access);
        }
        exceptions.retain(|_, access| !access.is_empty());
    }
    Ok(exceptions)
}

/// The exceptions of a group that denies by default; `None` for one that allows by default.
fn parse(list: &str) -> Option<Exceptions> {
    let number = |number: &str| {
        if number == "*" { Some(None) } else { number.parse().ok().map(Some) }
    };
    let mut exceptions = Exceptions::new();
    for line in list.lines() {
        let mut words = line.split_ascii_whitespace();
        let kind = match words.next() {
            Some("a") => return None,
            Some("b") => Kind::Block,
            Some("c") => Kind::Char,
            _ => continue,
        };
        let parsed = words.next().and_then(|numbers| numbers.split_once(':')).and_then(|(major, minor)| {
            let devices = Devices { kind, major: number(major)?, minor: number(minor)? };
            Some((devices, Access::parse(words.next()?)?))
        });
        exceptions.extend(parsed);
    }
    Some(exceptions)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{DEFAULTS, tests::policy},
        *,
    };

    fn reduced(json: &str) -> Vec<String> {
        let exceptions = exceptions(&policy(json).unwrap()).unwrap();
        let defaults: Vec<String> = self::exceptions(&policy("[]").unwrap())
            .unwrap()
            .into_iter()
            .map(|(devices, access)| line(devices, access))
            .collect();
        exceptions
            .into_iter()
            .map(|(devices, access)| line(devices, access))
            .filter(|line| !defaults.contains(line))
            .collect()
    }

    #[test]
    fn ordered_rules_become_exceptions() {
        assert_eq!(exceptions(&policy("[]").unwrap()).unwrap().len(), DEFAULTS.len());
        assert_eq!(
            reduced(
                r#"[{"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rw"},
                        {"allow": true, "type": "b", "major": 8, "access": "r"},
                        {"allow": false, "type": "c", "major": 10, "access": "w"}]"#
            ),
            ["b 8:* r", "c 10:229 r"]
        );
        assert_eq!(
            reduced(
                r#"[{"allow": true}, {"allow": false, "type": "b", "major": 8, "minor": -1, "access": "rw"}]"#
            ),
            ["b 8:* rw"]
        );
    }

    #[test]
    fn a_hole_in_a_wider_rule_is_refused() {
        let policy = policy(
            r#"[{"allow": true, "type": "c", "major": 10, "access": "rw"},
                {"allow": false, "type": "c", "major": 10, "minor": 1, "access": "w"}]"#,
        );
        assert!(matches!(exceptions(&policy.unwrap()), Err(CgroupError::Invalid { setting: "devices", .. })));
    }

    #[test]
    fn lists() {
        assert_eq!(parse("a *:* rwm\n"), None);
        let list = parse("c 1:3 rwm\nb *:* m\nbroken\nc x:1 r\nc 1\n\nc 136:* rw").unwrap();
        let lines: Vec<_> = list.into_iter().map(|(devices, access)| line(devices, access)).collect();
        assert_eq!(lines, ["b *:* m", "c 1:3 rwm", "c 136:* rw"]);
    }
}
