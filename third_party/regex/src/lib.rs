//! `regex-lite` under the name of `regex`.
//!
//! oci-spec checks one field, `execCPUAffinity`, by a pattern of digits and commas, and so brings the whole
//! engine with its Unicode tables into whatever reads a configuration: about 0.8 MB of the `rustjail` command. The
//! agent reads none that has the field. This crate takes its place through `[patch.crates-io]`. Code generators of the build use it too; their patterns are as simple.

pub use regex_lite::*;
