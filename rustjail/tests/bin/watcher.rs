//! Looks, from inside a container, at every process that comes into it, until it is a program of the container's:
//! `rustjail-test-watcher DIRECTORY [once]`.
//!
//! What was to be seen of a process that was the runtime's still is a line in `DIRECTORY/caught`, with `once` the only
//! one; `DIRECTORY/refused` has how often the kernel let nothing be seen of one. Each look is taken again and again,
//! from the process's first instant to its end, and is so made that it finds nothing in the container's own programs.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    path::Path,
    process::ExitCode,
};

use rustjail::sys::pidfd;

/// What the container's own programs are.
const PROGRAM: &str = "/bin/busybox";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((directory, rest)) = arguments.split_first() else { return ExitCode::FAILURE };
    match watch(Path::new(directory), !rest.is_empty()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn watch(directory: &Path, once: bool) -> io::Result<()> {
    let mut caught = File::create(directory.join("caught"))?;
    let count = File::create(directory.join("refused"))?;
    let (own, mut refused) = (std::process::id() as i32, 0_u64);
    loop {
        let numbers =
            fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        for pid in numbers.filter(|pid: &i32| *pid != 1 && *pid != own) {
            let Ok(process) = pidfd::open(pid) else { continue };
            // For as long as it lives.
            while let Ok(exe) = look(pid, process.as_fd(), &mut caught) {
                if once && caught.metadata()?.len() > 0 {
                    return Ok(());
                }
                if exe == Exe::Refused {
                    refused += 1;
                    count.write_all_at(format!("{refused:20}").as_bytes(), 0)?;
                }
            }
        }
    }
}

#[derive(PartialEq, Eq)]
enum Exe {
    Seen,
    Refused,
}

/// All that the kernel asks the right to trace for, but for `environ` and `maps`: those it shows to CAP_SYS_ADMIN and
/// CAP_PERFMON too, by now. An error when the process is gone.
fn look(pid: i32, process: BorrowedFd<'_>, caught: &mut File) -> io::Result<Exe> {
    let place = format!("/proc/{pid}");
    for number in 3..8 {
        if pidfd::take_fd(process, number).is_ok() {
            writeln!(caught, "{pid} descriptor {number}")?;
        }
    }
    // Their numbers are for whoever owns the directory to see, what they refer to is not.
    for entry in fs::read_dir(format!("{place}/fd")).into_iter().flatten().flatten() {
        let is_standard = ["0", "1", "2"].map(OsStr::new).contains(&entry.file_name().as_os_str());
        if let (false, Ok(path)) = (is_standard, fs::read_link(entry.path())) {
            writeln!(caught, "{pid} {} {}", entry.path().display(), path.display())?;
        }
    }
    for link in ["cwd", "root"] {
        if fs::read_link(format!("{place}/{link}")).is_ok_and(|path| path != Path::new("/")) {
            writeln!(caught, "{pid} {link}")?;
        }
    }
    match fs::read_link(format!("{place}/exe")) {
        Ok(path) if path != Path::new(PROGRAM) => {
            writeln!(caught, "{pid} exe {}", path.display())?;
            Ok(Exe::Seen)
        }
        Ok(_) => Ok(Exe::Seen),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Exe::Refused),
        Err(error) => Err(error),
    }
}
