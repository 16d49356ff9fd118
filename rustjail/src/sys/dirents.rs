//! getdents64(2). Both C libraries read directories into memory of their own, which takes longer than a small
//! directory does.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// As much as one call fills; most directories need two, the second of which finds nothing more.
const ROOM: usize = 4096;

/// Where the kernel puts, in each entry: its length, its type (DT_*), its name, which ends with a NUL.
const LENGTH: usize = 16;
const TYPE: usize = 18;
const NAME: usize = 19;

/// Calls `each` with the name and the type (DT_*) of every entry of `directory`, which is read from where it stands;
/// "." and ".." are among them.
pub fn read(directory: BorrowedFd<'_>, mut each: impl FnMut(&[u8], u8)) -> io::Result<()> {
    let mut buffer = [0_u8; ROOM];
    loop {
        // SAFETY: the kernel writes at most as many bytes as the buffer has.
        let filled = super::check(unsafe {
            libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), buffer.as_mut_ptr(), ROOM)
        });
        let filled = match filled {
            // It has been removed, and nothing is in it.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => 0,
            filled => filled?,
        };
        let mut rest = buffer.get(..filled as usize).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
        while let Some((entry, after)) = split(rest) {
            let name = entry.get(NAME..).and_then(|text| text.split(|byte| *byte == 0).next());
            if let (Some(name), Some(kind)) = (name, entry.get(TYPE)) {
                each(name, *kind);
            }
            rest = after;
        }
    }
}

/// The first entry, and those after it.
fn split(entries: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = entries.get(LENGTH..)?.first_chunk::<2>()?;
    entries.split_at_checked(u16::from_ne_bytes(*length).into()).filter(|(entry, _)| !entry.is_empty())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, os::fd::AsFd};

    use super::*;

    #[test]
    fn everything_in_a_directory_is_told_once() {
        let path = std::env::temp_dir().join(format!("rustjail-dirents-{}", std::process::id()));
        fs::create_dir_all(path.join("below")).unwrap();
        let mut expected = BTreeMap::from([
            (".".to_owned(), libc::DT_DIR),
            ("..".into(), libc::DT_DIR),
            ("below".into(), libc::DT_DIR),
        ]);
        for number in 0..300 {
            let name = format!("{number:0>width$}", width = 1 + number % 60);
            fs::write(path.join(&name), "").unwrap();
            expected.insert(name, libc::DT_REG);
        }
        let mut found = BTreeMap::new();
        read(fs::File::open(&path).unwrap().as_fd(), |name, kind| {
            let twice = found.insert(String::from_utf8(name.to_vec()).unwrap(), kind);
            assert_eq!(twice, None);
        })
        .unwrap();
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(found, expected);
    }

    #[test]
    fn nothing_is_in_a_directory_that_was_removed() {
        let path = std::env::temp_dir().join(format!("rustjail-removed-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let directory = fs::File::open(&path).unwrap();
        fs::remove_dir(&path).unwrap();
        read(directory.as_fd(), |name, _| panic!("{name:?}")).unwrap();
    }

    #[test]
    fn what_is_no_directory_is_an_error() {
        let file = fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(read(file.as_fd(), |_, _| {}).unwrap_err().raw_os_error(), Some(libc::ENOTDIR));
    }
}
