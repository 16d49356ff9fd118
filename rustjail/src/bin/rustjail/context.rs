//! What the global flags say.

use std::path::PathBuf;

use crate::{
    arguments::{Arguments, Flag, switch, value},
    error::Error,
    log::Log,
};

/// runc's, as far as they mean something here.
pub const FLAGS: &[Flag] = &[
    value(&["root"], "directory of the containers' state (default /run/rustjail)"),
    value(&["log"], "file that errors are written to, instead of standard error"),
    value(&["log-format"], "text (default) or json"),
    switch(&["debug"], "tell what is done, too"),
    switch(&["systemd-cgroup"], "make control groups through systemd: cgroupsPath is slice:prefix:name"),
    value(&["rootless"], "true, false or auto (default): whether failing to make control groups is an error"),
    value(&["criu"], "taken and ignored, as runc does"),
    switch(&["help", "h"], "show this"),
    switch(&["version", "v"], "show the version"),
];

/// What every command needs.
#[derive(Debug)]
pub struct Context {
    /// Where the containers' state is.
    pub root: PathBuf,
    /// Where errors go.
    pub log: Log,
    /// Without privileges; control groups are then a matter of luck.
    pub rootless: bool,
    /// Control groups are systemd's.
    pub systemd_cgroup: bool,
}

impl Context {
    /// Reads the global flags.
    pub fn new(global: &Arguments) -> Result<Self, Error> {
        let log = Log::new(global.get("log"), global.get("log-format"), global.has("debug"))?;
        let unprivileged = !nix::unistd::geteuid().is_root();
        let rootless = match global.get("rootless") {
            None | Some("auto") => unprivileged,
            Some("true") => true,
            Some("false") => false,
            Some(other) => {
                return Err(Error::Usage(format!("--rootless {other:?} is not true, false or auto")));
            }
        };
        let root = global.get("root").map(PathBuf::from).unwrap_or_else(|| default_root(unprivileged));
        Ok(Self {
            root: std::path::absolute(&root).map_err(Error::io("find", &root))?,
            log,
            rootless,
            systemd_cgroup: global.has("systemd-cgroup"),
        })
    }
}

fn default_root(unprivileged: bool) -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|_| unprivileged) {
        Some(own) => PathBuf::from(own).join("rustjail"),
        None => "/run/rustjail".into(),
    }
}
