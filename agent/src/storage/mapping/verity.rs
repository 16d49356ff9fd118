//! Disks whose every block is checked against one hash when it is read (dm-verity).
//!
//! The hash tree lies behind the data on the same disk. Only the root hash is believed; a superblock in front of
//! the tree, which veritysetup(8) writes, comes with the disk and may only fill in what the request leaves open.
//! The kernel looks at nothing before it reads, so the first block is read here: a disk of another image is told
//! before anything is mounted, and what is changed later gives EIO to whoever reads it.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use nix::errno::Errno;

use super::{Place, SECTOR, Target, map};
use crate::storage::{
    error::{Result, StorageError, failed_to},
    steps::Steps,
};

/// The hash functions that are strong enough, with the bytes of what they give.
const ALGORITHMS: [(&str, usize); 3] = [("sha256", 32), ("sha384", 48), ("sha512", 64)];
/// What the kernel takes for a block of data or hashes.
const BLOCKS: std::ops::RangeInclusive<u32> = 512..=4096;
const DEFAULT_BLOCK: u32 = 4096;
const MAX_SALT: usize = 256;
const SIGNATURE: &[u8] = b"verity\0\0";
const SUPERBLOCK: u64 = 512;

/// What a request says of the content of a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::storage) struct Verity {
    /// In hexadecimal.
    pub(in crate::storage) root_hash: String,
    /// Where the data ends and the hashes, or their superblock, begin.
    hash_offset: u64,
    data_block: Option<u32>,
    hash_block: Option<u32>,
    algorithm: Option<&'static str>,
    salt: Option<String>,
    version: Option<u32>,
    bare: bool,
}

/// Everything the kernel wants to know of a tree.
#[derive(Debug, PartialEq, Eq)]
struct Tree {
    version: u32,
    data_block: u32,
    hash_block: u32,
    data_blocks: u64,
    hash_start: u64,
    algorithm: &'static str,
    salt: String,
}

/// Why a disk's hash tree cannot be used, as the end of a sentence that begins with the disk.
#[derive(Debug, thiserror::Error)]
pub enum VerityError {
    /// There is none where it should be.
    #[error("has no dm-verity superblock at byte {0}")]
    NoSuperblock(u64),
    /// It has a number or word that no tree has.
    #[error("has a dm-verity superblock whose {0} is out of bounds")]
    Superblock(&'static str),
    /// The request says something else.
    #[error("has a dm-verity superblock whose {0} is not the one asked for")]
    Different(&'static str),
    /// The data does not end at a block's end before the hashes.
    #[error(
        "has its hashes at byte {hash_offset}, which does not follow whole blocks of {block} bytes of data"
    )]
    Offset {
        /// As in the request.
        hash_offset: u64,
        /// The length of a block.
        block: u32,
    },
    /// The hash is of another length than the function gives.
    #[error("is to have a root hash of {found} bytes, and {algorithm} gives {wanted}")]
    Digest {
        /// The hash function.
        algorithm: &'static str,
        /// What is given.
        found: usize,
        /// What it would be.
        wanted: usize,
    },
    /// It is not what it should be.
    #[error("is not what the root hash {0} stands for: it is another image, or was changed")]
    Changed(String),
}

impl Verity {
    /// Takes the value of one option, named by what follows `X-kata.dmverity`; else says what it should be, or
    /// nothing where no such option exists.
    pub(in crate::storage) fn set(
        &mut self,
        option: &str,
        value: &str,
    ) -> std::result::Result<(), Option<&'static str>> {
        let block =
            || value.parse().ok().filter(|size: &u32| BLOCKS.contains(size) && size.is_power_of_two());
        const BLOCK: Option<&str> = Some("512, 1024, 2048 or 4096");
        match option {
            ".roothash" => self.root_hash = hex(value, 64).ok_or(Some("a hash in hexadecimal"))?,
            ".hashoffset" => {
                let offset = value.parse().ok().filter(|offset| *offset > 0);
                self.hash_offset = offset.ok_or(Some("a number of bytes, 1 or more"))?;
            }
            ".blocksize" => self.data_block = Some(block().ok_or(BLOCK)?),
            ".hashsize" => self.hash_block = Some(block().ok_or(BLOCK)?),
            ".algorithm" => {
                self.algorithm = Some(algorithm(value).ok_or(Some("sha256, sha384 or sha512"))?.0);
            }
            ".salt" if ["", "-"].contains(&value) => self.salt = Some(String::new()),
            ".salt" => self.salt = Some(hex(value, MAX_SALT).ok_or(Some("up to 256 bytes in hexadecimal"))?),
            ".hashtype" => {
                let version = value.parse().ok().filter(|version| *version <= 1);
                self.version = Some(version.ok_or(Some("0 or 1"))?);
            }
            ".no-superblock" => self.bare = value.parse().map_err(|_| Some("true or false"))?,
            _ => return Err(None),
        }
        Ok(())
    }

    /// Puts the check over `disk`; answers the node to read instead, whose beginning is right.
    pub(in crate::storage) fn check(&self, disk: &Path, steps: &mut Steps) -> Result<PathBuf> {
        let unusable =
            |problem| StorageError::Unusable { device: disk.to_owned(), problem: Box::new(problem) };
        let mut superblock = [0; SUPERBLOCK as usize];
        if !self.bare {
            let read =
                File::open(disk).and_then(|disk| disk.read_exact_at(&mut superblock, self.hash_offset));
            match read {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                read => read.map_err(failed_to(|| format!("read the superblock of {}", disk.display())))?,
            }
        }
        let tree = self.tree(&superblock).map_err(|error| unusable(error.into()))?;
        let place = Place::of(disk)?;
        let salt = if tree.salt.is_empty() { "-" } else { &tree.salt };
        let parameters = format!(
            "{} {number} {number} {} {} {} {} {} {} {salt}",
            tree.version,
            tree.data_block,
            tree.hash_block,
            tree.data_blocks,
            tree.hash_start,
            tree.algorithm,
            self.root_hash,
            number = place.number,
        );
        let sectors = tree.data_blocks * u64::from(tree.data_block) / SECTOR;
        let target = Target { kind: "verity", sectors, parameters, read_only: true };
        let name = format!("berth-verity-{}-{}", place.label(), steps.record.sequence);
        let node = map(disk, &name, target, steps)?;
        let first = File::open(&node).and_then(|mut node| node.read_exact(&mut [0; SECTOR as usize]));
        match first {
            Err(error) if error.raw_os_error() == Some(Errno::EIO as i32) => {
                Err(unusable(VerityError::Changed(self.root_hash.clone()).into()))
            }
            first => {
                first.map_err(failed_to(|| format!("read the first block of {}", disk.display())))?;
                Ok(node)
            }
        }
    }

    fn tree(&self, superblock: &[u8]) -> std::result::Result<Tree, VerityError> {
        let mut tree = match self.bare {
            true => Tree {
                version: self.version.unwrap_or(1),
                data_block: self.data_block.unwrap_or(DEFAULT_BLOCK),
                hash_block: self.hash_block.unwrap_or(DEFAULT_BLOCK),
                data_blocks: 0,
                hash_start: 0,
                algorithm: self.algorithm.unwrap_or("sha256"),
                salt: self.salt.clone().unwrap_or_default(),
            },
            false => self.read(superblock)?,
        };
        let wanted = algorithm(tree.algorithm).map_or(0, |(_, length)| length);
        if self.root_hash.len() != wanted * 2 {
            let found = self.root_hash.len() / 2;
            return Err(VerityError::Digest { algorithm: tree.algorithm, found, wanted });
        }
        let misplaced = |block| Err(VerityError::Offset { hash_offset: self.hash_offset, block });
        let (data, hash) = (u64::from(tree.data_block), u64::from(tree.hash_block));
        let before = self.hash_offset / data;
        if self.bare {
            if !self.hash_offset.is_multiple_of(data) || before == 0 {
                return misplaced(tree.data_block);
            }
            if !self.hash_offset.is_multiple_of(hash) {
                return misplaced(tree.hash_block);
            }
            tree.data_blocks = before;
            tree.hash_start = self.hash_offset / hash;
        } else {
            if tree.data_blocks == 0 || tree.data_blocks > before {
                return Err(VerityError::Superblock("number of blocks"));
            }
            tree.hash_start = self.hash_offset.saturating_add(SUPERBLOCK).div_ceil(hash);
        }
        Ok(tree)
    }

    /// What a superblock says, where the request does not say otherwise.
    fn read(&self, superblock: &[u8]) -> std::result::Result<Tree, VerityError> {
        let bytes = |at: usize, length: usize| superblock.get(at..at + length).unwrap_or_default();
        let number = |at| bytes(at, 4).try_into().map_or(0, u32::from_le_bytes);
        if !superblock.starts_with(SIGNATURE) || number(8) != 1 {
            return Err(VerityError::NoSuperblock(self.hash_offset));
        }
        let block = |at, what| {
            let size = number(at);
            let fits = BLOCKS.contains(&size) && size.is_power_of_two();
            if fits { Ok(size) } else { Err(VerityError::Superblock(what)) }
        };
        let name = bytes(32, 32).split(|byte| *byte == 0).next().unwrap_or_default();
        let (algorithm, _) =
            str::from_utf8(name).ok().and_then(algorithm).ok_or(VerityError::Superblock("hash function"))?;
        let salt = usize::from(u16::from_le_bytes(bytes(80, 2).try_into().unwrap_or_default()));
        let tree = Tree {
            version: number(12),
            data_block: block(64, "data block size")?,
            hash_block: block(68, "hash block size")?,
            data_blocks: bytes(72, 8).try_into().map_or(0, u64::from_le_bytes),
            hash_start: 0,
            algorithm,
            salt: match salt {
                0..=MAX_SALT => bytes(88, salt).iter().map(|byte| format!("{byte:02x}")).collect(),
                _ => return Err(VerityError::Superblock("salt")),
            },
        };
        if tree.version > 1 {
            return Err(VerityError::Superblock("version"));
        }
        let differs = |what| Err(VerityError::Different(what));
        match () {
            () if self.version.is_some_and(|asked| asked != tree.version) => differs("version"),
            () if self.data_block.is_some_and(|asked| asked != tree.data_block) => differs("data block size"),
            () if self.hash_block.is_some_and(|asked| asked != tree.hash_block) => differs("hash block size"),
            () if self.algorithm.is_some_and(|asked| asked != tree.algorithm) => differs("hash function"),
            () if self.salt.as_ref().is_some_and(|asked| *asked != tree.salt) => differs("salt"),
            () => Ok(tree),
        }
    }
}

fn algorithm(name: &str) -> Option<(&'static str, usize)> {
    ALGORITHMS.into_iter().find(|(known, _)| *known == name)
}

/// `text` in small letters, when it is up to `longest` bytes in hexadecimal.
fn hex(text: &str, longest: usize) -> Option<String> {
    let bytes = text.len() / 2;
    let fits = text.len().is_multiple_of(2) && (1..=longest).contains(&bytes);
    (fits && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA256: &str = "00112233445566778899AABBCCDDEEFF00112233445566778899aabbccddeeff";

    fn verity(options: &[(&str, &str)]) -> std::result::Result<Verity, Option<&'static str>> {
        let mut verity = Verity::default();
        for (option, value) in [(".roothash", SHA256), (".hashoffset", "8192")].iter().chain(options) {
            verity.set(option, value)?;
        }
        Ok(verity)
    }

    fn superblock() -> Vec<u8> {
        let mut block = vec![0; SUPERBLOCK as usize];
        let fields: [(usize, &[u8]); 9] = [
            (0, SIGNATURE),
            (8, &1_u32.to_le_bytes()),
            (12, &1_u32.to_le_bytes()),
            (32, b"sha256"),
            (64, &4096_u32.to_le_bytes()),
            (68, &1024_u32.to_le_bytes()),
            (72, &2_u64.to_le_bytes()),
            (80, &2_u16.to_le_bytes()),
            (88, &[0xab, 0xcd]),
        ];
        for (at, bytes) in fields {
            block[at..at + bytes.len()].copy_from_slice(bytes);
        }
        block
    }

    #[test]
    fn a_bare_tree_is_what_the_options_say() {
        let tree = verity(&[(".no-superblock", "true")]).unwrap().tree(&[]).unwrap();
        let wanted = Tree {
            version: 1,
            data_block: 4096,
            hash_block: 4096,
            data_blocks: 2,
            hash_start: 2,
            algorithm: "sha256",
            salt: String::new(),
        };
        assert_eq!(tree, wanted);
        let options = [
            (".no-superblock", "true"),
            (".blocksize", "1024"),
            (".hashsize", "512"),
            (".salt", "ABCD"),
            (".hashtype", "0"),
            (".algorithm", "sha256"),
        ];
        let tree = verity(&options).unwrap().tree(&[]).unwrap();
        assert_eq!((tree.version, tree.data_blocks, tree.hash_start, &*tree.salt), (0, 8, 16, "abcd"));
    }

    #[test]
    fn a_superblock_fills_in_what_is_left_open_and_nothing_else() {
        let tree = verity(&[]).unwrap().tree(&superblock()).unwrap();
        assert_eq!((tree.data_block, tree.hash_block, tree.data_blocks, tree.hash_start), (4096, 1024, 2, 9));
        assert_eq!((tree.algorithm, &*tree.salt), ("sha256", "abcd"));
        let same = [(".salt", "abcd"), (".blocksize", "4096"), (".hashsize", "1024"), (".hashtype", "1")];
        assert!(verity(&same).unwrap().tree(&superblock()).is_ok());
        for other in [(".salt", "-"), (".salt", "abce"), (".blocksize", "512"), (".hashsize", "4096")] {
            let error = verity(&[other]).unwrap().tree(&superblock()).unwrap_err().to_string();
            assert!(error.contains("is not the one asked for"), "{error}");
        }
        assert!(verity(&[(".hashtype", "0")]).unwrap().tree(&superblock()).is_err());
    }

    #[test]
    fn a_superblock_out_of_bounds_is_refused() {
        let numbers: [(usize, &[u8]); 9] = [
            (0, b"luks"),
            (8, &[2]),
            (12, &[2]),
            (32, b"sha1\0\0\0"),
            (64, &[1]),
            (68, &0x8000_u32.to_le_bytes()),
            (72, &3_u64.to_le_bytes()),
            (72, &0_u64.to_le_bytes()),
            (80, &257_u16.to_le_bytes()),
        ];
        for (at, bytes) in numbers {
            let mut block = superblock();
            block[at..at + bytes.len()].copy_from_slice(bytes);
            assert!(verity(&[]).unwrap().tree(&block).is_err(), "{bytes:?} at {at}");
        }
        for length in [0, 8, 79, 100] {
            let _no_panic = verity(&[]).unwrap().tree(&superblock()[..length]);
        }
        assert!(verity(&[]).unwrap().tree(&[]).unwrap_err().to_string().contains("no dm-verity superblock"));
    }

    #[test]
    fn values_no_kernel_takes_are_refused() {
        for (option, value) in [
            (".roothash", ""),
            (".roothash", "0"),
            (".roothash", "zz"),
            (".roothash", "00 11"),
            (".hashoffset", "0"),
            (".hashoffset", "-1"),
            (".blocksize", "0"),
            (".blocksize", "8192"),
            (".hashsize", "1000"),
            (".algorithm", "sha1"),
            (".algorithm", "sha256 x"),
            (".salt", "0"),
            (".salt", "00 x"),
            (".hashtype", "2"),
            (".no-superblock", "yes"),
        ] {
            assert!(verity(&[(option, value)]).unwrap_err().is_some(), "{option}={value}");
        }
        assert_eq!(verity(&[(".rootHash", "00")]), Err(None));
        let bare = |options: &[(&'static str, &'static str)]| {
            let options: Vec<_> = options.iter().copied().chain([(".no-superblock", "true")]).collect();
            verity(&options).unwrap().tree(&[]).unwrap_err().to_string()
        };
        assert!(bare(&[(".algorithm", "sha512")]).contains("root hash of 32 bytes, and sha512 gives 64"));
        assert!(bare(&[(".hashoffset", "4097")]).contains("byte 4097"));
        assert!(bare(&[(".hashoffset", "512")]).contains("whole blocks of 4096"));
    }
}
