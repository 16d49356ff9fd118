//! Turns `protocols/protos/*.proto` into Rust for the `protocols` crate, which names this file as its
//! build script. Parsing is done in Rust, so no `protoc` has to be installed.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use ttrpc_codegen::{Codegen, Customize, ProtobufCustomize};

const FILES: [&str; 6] = ["agent", "confidential_data_hub", "csi", "health", "oci", "types"];
const SERVICES: [&str; 3] = ["agent", "confidential_data_hub", "health"];

fn main() -> io::Result<()> {
    // Asked for at run time: compiled in, it would name another checkout once a target directory is copied.
    let protos = directory("CARGO_MANIFEST_DIR")?.join("protos");
    println!("cargo:rerun-if-changed={}", protos.display());

    Codegen::new()
        .include(&protos)
        .inputs(FILES.map(|name| protos.join(format!("{name}.proto"))))
        .rust_protobuf()
        .rust_protobuf_customize(ProtobufCustomize::default().gen_mod_rs(false))
        .customize(Customize { async_all: true, ..Customize::default() })
        .run()?;

    // Generated files carry inner attributes, which only a `mod` item may load.
    let out = directory("OUT_DIR")?;
    write_modules(&out.join("messages.rs"), &FILES.map(String::from))?;
    write_modules(&out.join("services.rs"), &SERVICES.map(|name| format!("{name}_ttrpc")))
}

/// A directory that cargo tells its build scripts.
fn directory(variable: &str) -> io::Result<PathBuf> {
    env::var_os(variable)
        .map(PathBuf::from)
        .ok_or_else(|| io::Error::other(format!("cargo set no {variable}")))
}

fn write_modules(path: &Path, names: &[String]) -> io::Result<()> {
    let lines: String = names.iter().map(|name| format!("pub mod {name};\n")).collect();
    fs::write(path, lines)
}
