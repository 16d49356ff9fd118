//! The hooks that are run in the container's namespaces, and the wait for those that are not.
//!
//! Whatever one of the former kind has put where, the container's masks cover it, and one of the latter kind has
//! no more rights than the program it comes before, but that there is no seccomp filter yet.

use std::fs::File;

use oci_spec::runtime::ContainerState;

use super::step::At;
use crate::{
    hooks::{self, Hook, HookError, Kind, Problem},
    plan::{Hooks, Process},
    sync::{self, StepError},
    sys::process as sys_process,
};

/// Whether there are any of those that come before the container's tree is `/`.
pub(super) fn precede_the_switch(hooks: &Hooks) -> bool {
    hooks.runtime || !hooks.create_container.is_empty()
}

/// While the paths are still the host's.
pub(super) fn before_the_switch(hooks: &Hooks, sync: &mut File) -> Result<(), StepError> {
    if hooks.runtime && !sync::wait_for_hooks(sync).at("wait for the hooks", "")? {
        // One of them failed, which the maker knows.
        sys_process::exit_now(super::FAILED);
    }
    run(hooks, Kind::CreateContainer, &hooks.create_container, ContainerState::Creating)
}

/// As the user the program will be. A hook without an environment of its own has the program's.
pub(super) fn before_the_program(hooks: &Hooks, process: &Process) -> Result<(), StepError> {
    let with_env = |hook: &Hook| {
        let env = hook.env.clone().unwrap_or_else(|| process.env.clone());
        Hook { env: Some(env), ..hook.clone() }
    };
    let list: Vec<Hook> = hooks.start_container.iter().map(with_env).collect();
    run(hooks, Kind::StartContainer, &list, ContainerState::Created)
}

fn run(hooks: &Hooks, kind: Kind, list: &[Hook], status: ContainerState) -> Result<(), StepError> {
    if list.is_empty() {
        return Ok(());
    }
    // As the container sees it: the specification wants the number that is valid where the hook runs.
    let pid = nix::unistd::getpid().as_raw();
    hooks::run_list(kind, list, &hooks.about.state(status, Some(pid))).map_err(failure)
}

fn failure(error: HookError) -> StepError {
    let HookError { kind, path, problem } = error;
    let shown = path.display();
    match problem {
        Problem::Run(source) => StepError {
            step: format!("run the {} hook", kind.name()),
            path: shown.to_string(),
            errno: source.raw_os_error().unwrap_or(libc::EINVAL),
        },
        problem => StepError {
            step: format!("go on: the {} hook {shown} {problem}", kind.name()),
            path: String::new(),
            errno: libc::ECANCELED,
        },
    }
}
