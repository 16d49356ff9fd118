//! Reading files of procfs.
//!
//! They say that they are empty, so whoever reads one without an idea of its length begins with a few bytes and
//! asks again and again, each time for the kernel to write the file anew. Here the first read has room for all of
//! what is usual.

use std::{
    fs::File,
    io::{self, Read},
};

/// Of the longest files that are read on the way of a launch: a process's mounts.
const USUAL: usize = 8 << 10;

/// What is in the file `path`.
pub fn read(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What `/proc/PID/stat` tells of a process, at one moment.
#[derive(Debug, Clone)]
pub struct Stat(Vec<u8>);

impl Stat {
    /// Of the process with this number; an error when there is none.
    pub fn of(pid: i32) -> io::Result<Self> {
        read(&format!("/proc/{pid}/stat")).map(Self)
    }

    /// Of the caller.
    pub fn own() -> io::Result<Self> {
        read("/proc/self/stat").map(Self)
    }

    /// The letter of its state.
    pub fn state(&self) -> Option<u8> {
        self.text(3)?.first().copied()
    }

    /// The field with this `number` in proc_pid_stat(5), which is one after the name.
    pub fn field(&self, number: usize) -> Option<u64> {
        str::from_utf8(self.text(number)?).ok()?.parse().ok()
    }

    /// The name, which is the second, may hold anything, so fields are counted from its last `)`.
    fn text(&self, number: usize) -> Option<&[u8]> {
        let end = self.0.iter().rposition(|byte| *byte == b')')?;
        self.0.get(end + 2..)?.trim_ascii_end().split(|byte| *byte == b' ').nth(number.checked_sub(3)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_forge_the_fields() {
        let stat = |text: &str| Stat(text.into());
        let forged = stat("7 (a) Z (b) S 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 9\n");
        assert_eq!((forged.state(), forged.field(22), forged.field(24)), (Some(b'S'), Some(4242), Some(9)));
        assert_eq!((forged.field(2), forged.field(8), forged.field(25)), (None, None, None));
        for cut in ["", "7 (a", "7 (a)"] {
            assert_eq!((stat(cut).state(), stat(cut).field(22)), (None, None), "{cut}");
        }
    }

    #[test]
    fn a_process_is_told_of_until_it_is_reaped() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        assert_eq!(Stat::of(pid).unwrap().field(4), Some(std::process::id().into()));
        assert_eq!(Stat::own().unwrap().state(), Stat::of(std::process::id() as i32).unwrap().state());
        child.wait().unwrap();
        assert!(Stat::of(pid).is_err());
    }
}
