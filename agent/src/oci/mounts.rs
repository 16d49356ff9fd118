//! `grpc.Root` and `grpc.Mount`.

use berth_protocols::oci as wire;
use oci_spec::runtime::{Mount, Root};

use super::parse::{non_empty, text};

pub(super) fn root(wire: wire::Root) -> Root {
    let mut root = Root::default();
    root.set_path(wire.Path.into()).set_readonly(Some(wire.Readonly));
    root
}

pub(super) fn mount(wire: wire::Mount) -> Mount {
    let mut mount = Mount::default();
    mount
        .set_destination(wire.destination.into())
        .set_typ(text(wire.type_))
        .set_source(text(wire.source))
        .set_options(non_empty(wire.options));
    mount
}
