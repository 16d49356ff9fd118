//! The hooks of a configuration: programs others want run at certain steps of a container's life.
//!
//! ```text
//!  create   namespaces and mounts made -> prestart, createRuntime   (the caller's namespaces)
//!                                      -> createContainer           (the container's; the host's paths)
//!           root changed, READY
//!  start    START                      -> startContainer            (the container's; its paths and user)
//!           execve                     -> poststart                 (the caller's)
//!  delete   container gone             -> poststop                  (the caller's)
//! ```
//!
//! Each gets the container's state on standard input. The hooks of one kind run one after another, and the
//! first that fails ends the step they belong to; only those of poststop are all run. Whoever drives a
//! container calls [`run`] for the kinds in the caller's namespaces; the container's own process runs the rest.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
};

use oci_spec::runtime::{ContainerState, Hook as Requested, Spec, State};
use serde::{Deserialize, Serialize};

mod program;

/// The longest timeout: a year, which any clock can add to now.
const MAX_SECONDS: i64 = 365 * 24 * 60 * 60;

/// When a hook is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Before the root is changed; the older name of [`Kind::CreateRuntime`], whose hooks come after these.
    Prestart,
    /// Before the root is changed.
    CreateRuntime,
    /// After those, still before the root is changed.
    CreateContainer,
    /// Before the program.
    StartContainer,
    /// After the program was started.
    Poststart,
    /// After the container is gone.
    Poststop,
}

impl Kind {
    /// All, in the order of a container's life.
    pub const ALL: [Self; 6] = [
        Self::Prestart,
        Self::CreateRuntime,
        Self::CreateContainer,
        Self::StartContainer,
        Self::Poststart,
        Self::Poststop,
    ];

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prestart => "prestart",
            Self::CreateRuntime => "createRuntime",
            Self::CreateContainer => "createContainer",
            Self::StartContainer => "startContainer",
            Self::Poststart => "poststart",
            Self::Poststop => "poststop",
        }
    }
}

/// One hook, checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// Absolute.
    pub path: PathBuf,
    /// With the name it is called by at its head; empty means its path.
    pub args: Vec<String>,
    /// `NAME=value` each; `None` means that of whoever runs it.
    pub env: Option<Vec<String>>,
    /// How long it may take.
    pub timeout_seconds: Option<u32>,
}

/// Why a hook is no reason to go on.
#[derive(Debug, thiserror::Error)]
#[error("the {} hook {} {problem}", kind.name(), path.display())]
pub struct HookError {
    /// When it was run.
    pub kind: Kind,
    /// Its program.
    pub path: PathBuf,
    /// What came of it.
    pub problem: Problem,
}

/// What came of a hook.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The configuration of it makes no sense.
    #[error("{0}")]
    Invalid(&'static str),
    /// It could not be run.
    #[error("cannot be run: {0}")]
    Run(#[from] io::Error),
    /// It said that something is wrong.
    #[error("failed with {status}{}{output}", if output.is_empty() { "" } else { ": " })]
    Failed {
        /// How it ended.
        status: std::process::ExitStatus,
        /// The beginning of what it wrote.
        output: String,
    },
    /// It was still running when its time was over, and was killed.
    #[error("was killed, because it was not done within {seconds} s")]
    TimedOut {
        /// Its time.
        seconds: u32,
    },
}

/// The hooks of `kind` in `spec`, checked.
pub fn of(spec: &Spec, kind: Kind) -> Result<Vec<Hook>, HookError> {
    let Some(hooks) = spec.hooks() else { return Ok(Vec::new()) };
    #[allow(deprecated, reason = "prestart hooks are deprecated, not gone")]
    let list = match kind {
        Kind::Prestart => hooks.prestart(),
        Kind::CreateRuntime => hooks.create_runtime(),
        Kind::CreateContainer => hooks.create_container(),
        Kind::StartContainer => hooks.start_container(),
        Kind::Poststart => hooks.poststart(),
        Kind::Poststop => hooks.poststop(),
    };
    let check = |requested| check(requested).map_err(|problem| (requested, problem));
    list.iter().flatten().map(check).collect::<Result<_, _>>().map_err(|(requested, problem)| HookError {
        kind,
        path: requested.path().clone(),
        problem: Problem::Invalid(problem),
    })
}

/// Runs the hooks of `kind` in `spec`, which may take as long as they do. The first failure ends it.
pub fn run(spec: &Spec, kind: Kind, state: &State) -> Result<(), HookError> {
    run_list(kind, &of(spec, kind)?, state)
}

/// Runs the poststop hooks of `spec`, all of them whatever comes of each: the container is gone either way, so
/// a failure is for the log.
pub fn run_poststop(spec: &Spec, state: &State) -> Vec<HookError> {
    let kind = Kind::Poststop;
    match of(spec, kind) {
        Err(error) => vec![error],
        Ok(hooks) => {
            hooks.iter().filter_map(|hook| run_list(kind, std::slice::from_ref(hook), state).err()).collect()
        }
    }
}

/// What hooks are told of a container.
pub fn state(spec: &Spec, id: &str, bundle: &Path, status: ContainerState, pid: Option<i32>) -> State {
    let about = About::new(spec, id, bundle);
    about.state(status, pid)
}

/// Runs `hooks`, which are of `kind`, in order.
pub(crate) fn run_list(kind: Kind, hooks: &[Hook], state: &State) -> Result<(), HookError> {
    hooks.iter().try_for_each(|hook| {
        program::run(hook, state).map_err(|problem| HookError { kind, path: hook.path.clone(), problem })
    })
}

/// The part of a container's state that does not change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// `ociVersion` of its configuration.
    pub version: String,
    /// Its name.
    pub id: String,
    /// Where its configuration is.
    pub bundle: PathBuf,
    /// For whoever reads them.
    pub annotations: Vec<(String, String)>,
}

impl About {
    pub(crate) fn new(spec: &Spec, id: &str, bundle: &Path) -> Self {
        let annotations = spec.annotations().iter().flatten();
        let mut annotations: Vec<_> = annotations.map(|(key, value)| (key.clone(), value.clone())).collect();
        annotations.sort();
        Self { version: spec.version().clone(), id: id.to_owned(), bundle: bundle.to_owned(), annotations }
    }

    pub(crate) fn state(&self, status: ContainerState, pid: Option<i32>) -> State {
        let mut state = State::default();
        let annotations: HashMap<String, String> = self.annotations.iter().cloned().collect();
        state
            .set_version(self.version.clone())
            .set_id(self.id.clone())
            .set_status(status)
            .set_pid(pid)
            .set_bundle(self.bundle.clone())
            .set_annotations((!annotations.is_empty()).then_some(annotations));
        state
    }
}

fn check(requested: &Requested) -> Result<Hook, &'static str> {
    let (args, env) = (requested.args().clone().unwrap_or_default(), requested.env().clone());
    let has_nul = |text: &String| text.contains('\0');
    if !requested.path().is_absolute() {
        return Err("is not named by an absolute path");
    }
    if requested.path().to_string_lossy().contains('\0')
        || args.iter().any(has_nul)
        || env.iter().flatten().any(has_nul)
    {
        return Err("has a NUL byte in its path, arguments or environment");
    }
    if env.iter().flatten().any(|entry| entry.find('=').is_none_or(|position| position == 0)) {
        return Err("has an environment that is not of the form NAME=value");
    }
    let timeout_seconds = match requested.timeout() {
        None => None,
        Some(seconds @ 1..=MAX_SECONDS) => Some(seconds as u32),
        Some(_) => return Err("has a timeout that is not between a second and a year"),
    };
    Ok(Hook { path: requested.path().clone(), args, env, timeout_seconds })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(hook: serde_json::Value) -> Spec {
        let list = json!([hook]);
        serde_json::from_value(json!({"ociVersion": "1.2.0", "annotations": {"b": "2", "a": "1"}, "hooks": {
            "prestart": list, "createRuntime": list, "createContainer": list,
            "startContainer": list, "poststart": list, "poststop": list,
        }}))
        .unwrap()
    }

    #[test]
    fn every_kind_is_found_in_its_place() {
        let spec = spec(json!({"path": "/bin/x", "args": ["y"], "timeout": 3}));
        for kind in Kind::ALL {
            let [hook] = of(&spec, kind).unwrap().try_into().unwrap();
            assert_eq!((hook.path, hook.timeout_seconds), ("/bin/x".into(), Some(3)), "{kind:?}");
            assert!(of(&Spec::default(), kind).unwrap().is_empty());
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (hook, text) in [
            (json!({"path": "bin/x"}), "the poststop hook bin/x is not named by an absolute path"),
            (json!({"path": "/x", "timeout": 0}), "timeout"),
            (json!({"path": "/x", "timeout": -1}), "timeout"),
            (json!({"path": "/x", "timeout": i64::MAX}), "timeout"),
            (json!({"path": "/x", "args": ["a\0"]}), "NUL"),
            (json!({"path": "/x", "env": ["=b"]}), "NAME=value"),
        ] {
            let error = of(&spec(hook), Kind::Poststop).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn the_state_is_as_the_specification_has_it() {
        let spec = spec(json!({"path": "/x"}));
        let state = state(&spec, "box", Path::new("/b"), ContainerState::Creating, Some(7));
        assert_eq!(
            serde_json::to_value(&state).unwrap(),
            json!({"ociVersion": "1.2.0", "id": "box", "status": "creating", "pid": 7, "bundle": "/b",
                   "annotations": {"a": "1", "b": "2"}})
        );
    }
}
