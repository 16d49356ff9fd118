//! The hooks of a container, each kind for whoever runs it.

use std::path::Path;

use oci_spec::runtime::Spec;

use super::CompileError;
use crate::{
    hooks::{self, About, Kind},
    plan::Hooks,
};

/// Checks all of them, so that none is found wrong when its time has come.
pub(super) fn of_container(spec: &Spec, id: &str, bundle: &Path) -> Result<Hooks, CompileError> {
    let has = |kind| hooks::of(spec, kind).map(|list| !list.is_empty());
    for kind in [Kind::Poststart, Kind::Poststop] {
        has(kind)?;
    }
    let runtime = has(Kind::Prestart)? | has(Kind::CreateRuntime)?;
    let create_container = hooks::of(spec, Kind::CreateContainer)?;
    let start_container = hooks::of(spec, Kind::StartContainer)?;
    let about = match (create_container.is_empty(), start_container.is_empty()) {
        (true, true) => About::default(),
        _ => About::new(spec, id, bundle),
    };
    Ok(Hooks { runtime, create_container, start_container, about })
}
