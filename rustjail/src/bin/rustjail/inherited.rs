//! Descriptors of the caller's that a container gets too: those of --preserve-fds, and those of socket activation
//! (sd_listen_fds(3)), which are the first of them.

use std::{env, fs};

use oci_spec::runtime::Spec;

use crate::{arguments::Arguments, error::Error};

/// How many there are, from 3 on. To be called before anything is opened: what is open then was the caller's.
pub fn preserved_fds(arguments: &Arguments) -> Result<u32, Error> {
    let asked: u32 = arguments.number("preserve-fds")?.unwrap_or(0);
    let count = asked.saturating_add(listen_fds().unwrap_or(0));
    for number in 3..3_u32.saturating_add(count) {
        let link = format!("/proc/self/fd/{number}");
        fs::symlink_metadata(&link).map_err(Error::io("pass on the descriptor", &link))?;
    }
    Ok(count)
}

/// Tells the init of those of socket activation: they keep their numbers, and it is process 1.
pub fn pass_listen_fds(spec: &mut Spec) {
    if let (Some(count), Some(process)) = (listen_fds(), spec.process_mut()) {
        let mut env = process.env().clone().unwrap_or_default();
        env.extend([format!("LISTEN_FDS={count}"), "LISTEN_PID=1".to_owned()]);
        process.set_env(Some(env));
    }
}

fn listen_fds() -> Option<u32> {
    env::var("LISTEN_FDS").ok()?.parse().ok().filter(|count| *count > 0)
}
