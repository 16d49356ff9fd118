//! The guest's name servers: the host's lines bind-mounted over /etc/resolv.conf, which may be read-only.

use std::{fs, io, path::Path};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::{Error, Result, error::failed_to};

const TARGET: &str = "/etc/resolv.conf";

/// One file out of `lines`; a line break inside one would smuggle in another.
pub(super) fn contents(lines: &[String]) -> Result<String> {
    let mut contents = String::new();
    for line in lines {
        if line.contains(['\n', '\r', '\0']) {
            return Err(Error::Invalid(format!("the DNS line {line:?} has a line break or a NUL in it")));
        }
        contents.push_str(line.trim());
        contents.push('\n');
    }
    Ok(contents)
}

/// Writes `contents` to `file` and covers /etc/resolv.conf with it; answers whether there was one to cover.
pub(super) fn cover(file: &Path, contents: &str) -> Result<bool> {
    if !fs::metadata(TARGET).is_ok_and(|target| target.is_file()) {
        return Ok(false);
    }
    fs::write(file, contents).map_err(failed_to(|| format!("write {}", file.display())))?;
    mount(Some(file), TARGET, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(io::Error::from)
        .map_err(failed_to(|| format!("mount {} on {TARGET}", file.display())))?;
    Ok(true)
}

/// Undoes [`cover`].
pub(super) fn uncover() -> Result<()> {
    umount2(TARGET, MntFlags::MNT_DETACH)
        .map_err(io::Error::from)
        .map_err(failed_to(|| format!("unmount {TARGET}")))
}

#[cfg(test)]
mod tests {
    use super::contents;

    #[test]
    fn lines_are_trimmed_and_cannot_break_out() {
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let good = contents(&lines(&[" nameserver 10.0.0.1 ", "search a b"])).unwrap();
        assert_eq!(good, "nameserver 10.0.0.1\nsearch a b\n");
        assert!(contents(&lines(&["nameserver 1.1.1.1\nnameserver 6.6.6.6"])).is_err());
        assert!(contents(&lines(&["a\0b"])).is_err());
    }
}
