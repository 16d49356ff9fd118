//! Hooks that the guest's image brings, for every container of the sandbox.
//!
//! CreateSandbox names a directory with one directory for each kind of hook. It is looked through once, then, and what
//! was found is in the sandbox's journal: a file that appears later, in a guest whose containers may write to the
//! image, is nobody's hook. They run after those of the container's own configuration, and count like them: one
//! that fails fails its step.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use oci_spec::runtime::{Hook, Hooks, Spec};
use rustjail::hooks::Kind;
use serde::{Deserialize, Serialize};

use super::{Error, Result, error::failed_to};

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GuestHook {
    kind: Kind,
    path: PathBuf,
}

/// The programs in `root`'s directories, those of one kind in the order of their names. A directory that is not there
/// has none; a symbolic link is none.
pub(super) fn find(root: &Path) -> Result<Vec<GuestHook>> {
    if !root.is_absolute() {
        let text = format!("guest_hook_path {root:?} is not an absolute path");
        return Err(Error::Invalid(text));
    }
    let mut found = Vec::new();
    for kind in Kind::ALL {
        let dir = root.join(kind.name());
        let mut programs = programs(&dir).map_err(failed_to(|| format!("read {}", dir.display())))?;
        programs.sort_unstable();
        found.extend(programs.into_iter().map(|path| GuestHook { kind, path }));
    }
    Ok(found)
}

fn programs(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let mut programs = Vec::new();
    for entry in entries {
        let entry = entry?;
        let is_program = entry.file_type()?.is_file() && entry.metadata()?.permissions().mode() & 0o111 != 0;
        programs.extend(is_program.then(|| entry.path()));
    }
    Ok(programs)
}

/// Adds `hooks` to those of `spec`.
#[allow(deprecated, reason = "prestart hooks are deprecated, not gone: images have them")]
pub(super) fn add(hooks: &[GuestHook], spec: &mut Spec) {
    if hooks.is_empty() {
        return;
    }
    let mut all = spec.hooks().clone().unwrap_or_default();
    for GuestHook { kind, path } in hooks {
        let list: fn(&mut Hooks) -> &mut Option<Vec<Hook>> = match kind {
            Kind::Prestart => Hooks::prestart_mut,
            Kind::CreateRuntime => Hooks::create_runtime_mut,
            Kind::CreateContainer => Hooks::create_container_mut,
            Kind::StartContainer => Hooks::start_container_mut,
            Kind::Poststart => Hooks::poststart_mut,
            Kind::Poststop => Hooks::poststop_mut,
        };
        list(&mut all).get_or_insert_default().push(hook(*kind, path));
    }
    spec.set_hooks(Some(all));
}

/// COMPAT: it is told its name and what kind of hook it is run as.
fn hook(kind: Kind, path: &Path) -> Hook {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut hook = Hook::default();
    hook.set_path(path.to_owned()).set_args(Some(vec![name, kind.name().to_owned()]));
    hook
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn programs_are_found_in_order_and_come_after_the_containers_own() {
        let root = std::env::temp_dir().join(format!("berth-guest-hooks-{}", std::process::id()));
        for (name, mode) in [
            ("prestart/20-b", 0o755),
            ("prestart/10-a", 0o700),
            ("prestart/30-text", 0o644),
            ("poststop/x", 0o755),
        ] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        symlink("/bin/true", root.join("prestart/00-link")).unwrap();
        fs::create_dir(root.join("prestart/05-directory")).unwrap();
        let found = find(&root);
        let nothing = find(&root.join("nothing")).unwrap();
        fs::remove_dir_all(&root).unwrap();

        let mut own = Hook::default();
        own.set_path("/own".into());
        let mut hooks = Hooks::default();
        hooks.set_poststop(Some(vec![own]));
        let mut spec = Spec::default();
        spec.set_hooks(Some(hooks));
        add(&found.unwrap(), &mut spec);
        let of = |kind| -> Vec<_> {
            let hooks = rustjail::hooks::of(&spec, kind).unwrap();
            hooks.into_iter().map(|hook| (hook.path, hook.args)).collect()
        };
        let guest = |name: &str, kind: &str| {
            let path = root.join(kind).join(name);
            (path, vec![name.to_owned(), kind.to_owned()])
        };
        assert_eq!(of(Kind::Prestart), [guest("10-a", "prestart"), guest("20-b", "prestart")]);
        assert_eq!(of(Kind::Poststop), [("/own".into(), Vec::new()), guest("x", "poststop")]);
        assert!(of(Kind::Poststart).is_empty());

        let mut plain = Spec::default();
        plain.set_hooks(None);
        add(&nothing, &mut plain);
        assert!(plain.hooks().is_none(), "nothing is added where there is nothing");
        assert!(matches!(find(Path::new("hooks")), Err(Error::Invalid(_))));
    }
}
