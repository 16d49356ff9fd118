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
