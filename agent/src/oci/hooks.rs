//! `grpc.Hooks`.

use berth_protocols::oci as wire;
use oci_spec::runtime::{Hook, Hooks};

use super::{
    Error, Result,
    parse::{non_empty, non_zero},
};

#[allow(deprecated, reason = "prestart hooks are deprecated, not gone: hosts still send them")]
pub(super) fn hooks(wire: wire::Hooks) -> Result<Hooks> {
    let mut hooks = Hooks::default();
    hooks
        .set_prestart(list(wire.Prestart)?)
        .set_create_runtime(list(wire.CreateRuntime)?)
        .set_create_container(list(wire.CreateContainer)?)
        .set_start_container(list(wire.StartContainer)?)
        .set_poststart(list(wire.Poststart)?)
        .set_poststop(list(wire.Poststop)?);
    Ok(hooks)
}

fn list(wire: Vec<wire::Hook>) -> Result<Option<Vec<Hook>>> {
    Ok(non_empty(wire.into_iter().map(hook).collect::<Result<Vec<_>>>()?))
}

fn hook(wire: wire::Hook) -> Result<Hook> {
    if wire.Timeout < 0 {
        let must = "it must be a positive number of seconds";
        return Err(Error::Range { field: "hooks.timeout", value: wire.Timeout.into(), must });
    }
    let mut hook = Hook::default();
    hook.set_path(wire.Path.into())
        .set_args(non_empty(wire.Args))
        .set_env(non_empty(wire.Env))
        .set_timeout(non_zero(wire.Timeout));
    Ok(hook)
}
