//! The process that `exec` runs: a document of its own, or the container's with changes from the flags.

use std::{fs, os::fd::AsFd, path::PathBuf, str::FromStr};

use oci_spec::runtime::{
    Box as ConsoleSize, BoxBuilder, Capabilities, Capability, LinuxCapabilities, Process, Spec, User,
};

use rustjail::sys::pty;

use crate::{arguments::Arguments, error::Error};

/// What `arguments` ask for, in the container of `spec`.
pub fn requested(spec: &Spec, arguments: &Arguments) -> Result<Process, Error> {
    let process = match arguments.get("process") {
        Some(path) => {
            let text = fs::read(path).map_err(Error::io("read", path))?;
            serde_json::from_slice(&text).map_err(Error::json(path))?
        }
        None => from_flags(spec, arguments)?,
    };
    Ok(process)
}

fn from_flags(spec: &Spec, arguments: &Arguments) -> Result<Process, Error> {
    let command = arguments.operands.get(1..).unwrap_or_default();
    if command.is_empty() {
        return Err(Error::Usage("exec needs a command, or a process document by --process".into()));
    }
    let mut process = spec.process().clone().unwrap_or_default();
    process.set_args(Some(command.to_vec()));
    process.set_terminal(Some(arguments.has("tty")));
    process.set_console_size(own_size());
    if let Some(cwd) = arguments.get("cwd") {
        process.set_cwd(PathBuf::from(cwd));
    }
    let mut env = process.env().clone().unwrap_or_default();
    env.extend(arguments.all("env").map(str::to_owned));
    process.set_env(Some(env));
    if let Some(label) = arguments.get("process-label") {
        process.set_selinux_label(Some(label.to_owned()));
    }
    if let Some(profile) = arguments.get("apparmor") {
        process.set_apparmor_profile(Some(profile.to_owned()));
    }
    if let Some(value) = arguments.get("no-new-privs") {
        process.set_no_new_privileges(Some(value == "true"));
    }
    process.set_user(user(process.user(), arguments)?);
    let added = arguments.all("cap").map(capability).collect::<Result<Vec<_>, _>>()?;
    if !added.is_empty() {
        process.set_capabilities(Some(with(process.capabilities().as_ref(), &added)));
    }
    Ok(process)
}

/// Nothing holds the program until its terminal was given the size of ours, so it begins with that.
fn own_size() -> Option<ConsoleSize> {
    let (rows, columns) = pty::size(std::io::stdin().as_fd()).ok()?;
    BoxBuilder::default().height(rows).width(columns).build().ok()
}

/// `--user UID[:GID]`, digits only: a name would be looked up in an image's file, and half a number understood
/// is the wrong user (CVE-2026-30892).
fn user(default: &User, arguments: &Arguments) -> Result<User, Error> {
    let mut user = default.clone();
    if let Some(given) = arguments.get("user") {
        let (uid, gid) = match given.split_once(':') {
            Some((uid, gid)) => (uid, Some(gid)),
            None => (given, None),
        };
        user.set_uid(id("user", uid)?);
        if let Some(gid) = gid {
            user.set_gid(id("user", gid)?);
        }
    }
    let groups: Vec<u32> =
        arguments.all("additional-gids").map(|gid| id("additional-gids", gid)).collect::<Result<_, _>>()?;
    if !groups.is_empty() {
        let mut all = user.additional_gids().clone().unwrap_or_default();
        all.extend(groups);
        user.set_additional_gids(Some(all));
    }
    Ok(user)
}

fn id(flag: &str, text: &str) -> Result<u32, Error> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|_| digits)
        .ok_or_else(|| Error::Usage(format!("--{flag} {text:?} is not a number from 0 to 4294967295")))
}

fn capability(name: &str) -> Result<Capability, Error> {
    Capability::from_str(name.trim_start_matches("CAP_"))
        .map_err(|_| Error::Usage(format!("--cap {name:?} is not a capability")))
}

/// Every set but the inheritable one, which execve would need a file for (CVE-2022-29162), and the ambient one,
/// which needs that.
fn with(base: Option<&LinuxCapabilities>, added: &[Capability]) -> LinuxCapabilities {
    let mut sets = base.cloned().unwrap_or_default();
    let more = |set: &Option<Capabilities>| {
        let mut set = set.clone().unwrap_or_default();
        set.extend(added.iter().copied());
        Some(set)
    };
    let (bounding, effective, permitted) =
        (more(sets.bounding()), more(sets.effective()), more(sets.permitted()));
    sets.set_bounding(bounding).set_effective(effective).set_permitted(permitted);
    sets
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::commands::exec::FLAGS;

    fn process(line: &str) -> Result<Process, Error> {
        let mut words = line.split(' ').map(Into::into);
        requested(&Spec::default(), &Arguments::parse(&[FLAGS], 2, &mut words)?)
    }

    #[test]
    fn the_user_is_exactly_what_was_asked_for() {
        for (given, uid, gid) in [("1", 1, 0), ("0:5", 0, 5), ("65534:65534", 65534, 65534)] {
            let process = process(&format!("-u {given} c true")).unwrap();
            assert_eq!((process.user().uid(), process.user().gid()), (uid, gid));
        }
        for given in ["", "x", "1:", ":1", "+1", "1x", "-1", "4294967296", "1:2:3", "root"] {
            assert!(process(&format!("--user={given} c true")).is_err(), "{given:?}");
        }
    }

    #[test]
    fn flags_add_to_the_containers_process() {
        let process = process("-e A=b --env C=d --cwd /tmp --cap CAP_CHOWN -g 7 -t c ls -l").unwrap();
        assert_eq!(process.args().as_deref().unwrap(), ["ls", "-l"]);
        assert!(process.env().as_ref().unwrap().ends_with(&["A=b".to_owned(), "C=d".to_owned()]));
        assert_eq!(process.user().additional_gids().as_deref().unwrap(), [7]);
        assert_eq!(process.terminal(), Some(true));
        let sets = process.capabilities().clone().unwrap();
        assert!(sets.effective().clone().unwrap().contains(&Capability::Chown));
        assert!(!sets.inheritable().clone().unwrap_or_default().contains(&Capability::Chown));
    }
}
