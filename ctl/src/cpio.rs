//! Writes a directory as a newc cpio archive, the form in which a kernel takes an initial filesystem.
//!
//! A kernel unpacks archives that follow one another, so a root filesystem is added to an image by appending. File
//! contents are streamed with the size they had when their header was written. Modes, owners, times, devices, fifos,
//! symbolic and hard links are kept; sockets are left out, and extended attributes have no place in the format.

use std::{
    collections::HashMap,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use nix::sys::stat::{SFlag, major, minor};

/// What the kernel wants between two archives is zero bytes up to a multiple of 4; a sector is what cpio itself pads to.
const BLOCK: u64 = 512;

/// Why an archive could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the tree cannot be read.
    #[error("cannot read {path} for the initrd: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// A file changed its size while it was read.
    #[error("{path} shrank while it was copied into the initrd; is something writing to it?")]
    Changed {
        /// Which.
        path: PathBuf,
    },
    /// A file is larger than the format can say.
    #[error("{path} is larger than 4 GiB, which an initrd cannot hold; use a disk")]
    TooLarge {
        /// Which.
        path: PathBuf,
    },
    /// The archive cannot be written.
    #[error("cannot write the initrd: {0}")]
    Write(#[from] io::Error),
}

#[derive(Debug, Default, Clone, Copy)]
struct Header {
    inode: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    links: u32,
    mtime: u32,
    size: u32,
    device: (u64, u64),
}

/// An archive being written. [`Archive::finish`] ends it; without that it is not one.
#[derive(Debug)]
pub struct Archive<W> {
    out: W,
    written: u64,
    inodes: u32,
    /// Where files with more than one name were first met; only these need remembering.
    linked: HashMap<(u64, u64), u32>,
}

impl<W: Write> Archive<W> {
    /// Starts an archive after `written` bytes, which are padded so that the kernel finds it.
    pub fn after(mut out: W, written: u64) -> Result<Self, Error> {
        let padding = written.next_multiple_of(BLOCK) - written;
        io::copy(&mut io::repeat(0).take(padding), &mut out)?;
        Ok(Self { out, written: 0, inodes: 0, linked: HashMap::new() })
    }

    /// Adds an empty directory, and before it the ones above it.
    pub fn directories(&mut self, path: &Path) -> Result<(), Error> {
        let mut above: Vec<_> = path.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
        above.reverse();
        for path in above {
            let inode = self.next_inode();
            let mode = SFlag::S_IFDIR.bits() | 0o755;
            self.header(path, Header { inode, mode, links: 2, ..Header::default() })?;
        }
        Ok(())
    }

    /// Adds `source` and everything in it as `name`, without following symbolic links.
    pub fn tree(&mut self, source: &Path, name: &Path) -> Result<(), Error> {
        // A stack instead of recursion: the depth of a tree is not ours to choose.
        let mut pending = vec![(source.to_owned(), name.to_owned())];
        while let Some((source, name)) = pending.pop() {
            let failed = |error| Error::Read { path: source.clone(), source: error };
            let metadata = fs::symlink_metadata(&source).map_err(failed)?;
            self.entry(&source, &name, &metadata)?;
            if metadata.is_dir() {
                let entries = fs::read_dir(&source).map_err(failed)?;
                let names =
                    entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>();
                let mut names = names.map_err(failed)?;
                // The same tree gives the same archive.
                names.sort_unstable();
                pending.extend(names.iter().rev().map(|entry| (source.join(entry), name.join(entry))));
            }
        }
        Ok(())
    }

    /// Ends the archive and gives the writer back.
    pub fn finish(mut self) -> Result<W, Error> {
        self.header(Path::new("TRAILER!!!"), Header { links: 1, ..Header::default() })?;
        self.pad(BLOCK)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, source: &Path, name: &Path, metadata: &Metadata) -> Result<(), Error> {
        let kind = metadata.file_type();
        if kind.is_socket() {
            return Ok(());
        }
        let (inode, first) = self.inode_of(metadata);
        let mut header = Header {
            inode,
            mode: metadata.mode(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            links: u32::try_from(metadata.nlink()).unwrap_or(u32::MAX),
            // The format ends in 2106.
            mtime: u32::try_from(metadata.mtime().max(0)).unwrap_or(u32::MAX),
            ..Header::default()
        };
        if kind.is_block_device() || kind.is_char_device() {
            header.device = (major(metadata.rdev()), minor(metadata.rdev()));
        }
        let failed = |error| Error::Read { path: source.to_owned(), source: error };
        if kind.is_symlink() {
            let target = fs::read_link(source).map_err(failed)?;
            let target = target.as_os_str().as_bytes();
            header.size = size_of_file(source, target.len() as u64)?;
            self.header(name, header)?;
            self.write(target)?;
        } else if kind.is_file() && first {
            let file =
                OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(source).map_err(failed)?;
            header.size = size_of_file(source, metadata.len())?;
            self.header(name, header)?;
            self.contents(source, file, metadata.len())?;
        } else {
            // A further name of a file: the kernel and cpio know it by its inode and take the first one's contents.
            self.header(name, header)?;
        }
        self.pad(4)
    }

    fn inode_of(&mut self, metadata: &Metadata) -> (u32, bool) {
        if metadata.is_dir() || metadata.nlink() < 2 {
            return (self.next_inode(), true);
        }
        let key = (metadata.dev(), metadata.ino());
        if let Some(inode) = self.linked.get(&key) {
            return (*inode, false);
        }
        let inode = self.next_inode();
        self.linked.insert(key, inode);
        (inode, true)
    }

    fn next_inode(&mut self) -> u32 {
        self.inodes = self.inodes.wrapping_add(1);
        self.inodes
    }

    fn contents(&mut self, source: &Path, file: File, size: u64) -> Result<(), Error> {
        let mut buffer = vec![0; 128 << 10];
        let mut file = file.take(size);
        let mut left = size;
        while left > 0 {
            let got = file
                .read(&mut buffer)
                .map_err(|error| Error::Read { path: source.to_owned(), source: error })?;
            let Some(bytes) = buffer.get(..got).filter(|bytes| !bytes.is_empty()) else {
                return Err(Error::Changed { path: source.to_owned() });
            };
            self.write(bytes)?;
            left -= got as u64;
        }
        Ok(())
    }

    fn header(&mut self, name: &Path, header: Header) -> Result<(), Error> {
        let name = name.as_os_str().as_bytes();
        let Header { inode, mode, uid, gid, links, mtime, size, device: (major, minor) } = header;
        // Device 0:0 for every file: inodes are numbered by us, so they are unique without it.
        let fields = format!(
            "070701{inode:08X}{mode:08X}{uid:08X}{gid:08X}{links:08X}{mtime:08X}{size:08X}{:08X}{:08X}{major:08X}{minor:08X}{:08X}{:08X}",
            0,
            0,
            name.len() + 1,
            0,
        );
        self.write(fields.as_bytes())?;
        self.write(name)?;
        self.write(&[0])?;
        self.pad(4)
    }

    fn pad(&mut self, to: u64) -> Result<(), Error> {
        let missing = self.written.next_multiple_of(to) - self.written;
        self.written += io::copy(&mut io::repeat(0).take(missing), &mut self.out)?;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

fn size_of_file(path: &Path, size: u64) -> Result<u32, Error> {
    u32::try_from(size).map_err(|_| Error::TooLarge { path: path.to_owned() })
}
