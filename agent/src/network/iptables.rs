//! GetIPTables and SetIPTables: the guest image's own iptables programs, of either back end.
//!
//! They are run with fixed arguments and no shell; what the host sends is only ever their standard input. All three
//! streams are memory files, so neither side can block the other, and whoever fills them fills no pipe. A restore is
//! atomic for each table in it, which is what the programs promise: of several tables, those before the one that is
//! wrong are in force.

use std::{
    fs::File,
    io,
    os::{
        fd::AsFd,
        unix::{fs::FileExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::memfd::{MFdFlags, memfd_create},
};
use rustjail::sys::{memfd, pidfd};

use super::{Error, Result, error::failed_to};

/// Where an image may have them, first the usual place.
const PLACES: [&str; 5] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin"];
/// The distribution's choice first, then each back end by its own name.
const BACK_ENDS: [&str; 3] = ["", "-nft", "-legacy"];
/// Seconds that a restore waits for another's to finish.
const LOCK: &str = "5";
/// For the lock and for 4 MiB of rules on an emulated CPU.
const PATIENCE: Duration = Duration::from_secs(60);
/// What fits into a reply, with room for the envelope.
const PRINTED_MAX: u64 = (4 << 20) - 1024;
/// Of an error text.
const STDERR_MAX: u64 = 1 << 10;

/// Which of the two packet filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// iptables.
    V4,
    /// ip6tables.
    V6,
}

pub(super) fn save(family: Family) -> Result<Vec<u8>> {
    run(family, "save", &[], &[])
}

pub(super) fn restore(family: Family, rules: &[u8]) -> Result<Vec<u8>> {
    if names_a_program(rules) {
        let text = "SetIPTables: a rule names a program to run (-M, --modprobe)";
        return Err(Error::Invalid(text.to_owned()));
    }
    run(family, "restore", &["--wait", LOCK], rules)
}

/// Whether a rule has the one option by which iptables runs another program: it would be the host's choice, and run
/// as root outside of every container. Quotes and escapes are left out of the look, so a comment may be taken for it.
fn names_a_program(rules: &[u8]) -> bool {
    let bare: Vec<u8> = rules.iter().copied().filter(|byte| !b"\"'\\".contains(byte)).collect();
    bare.split(u8::is_ascii_whitespace).any(|word| match word {
        // Long options may be cut short; this is as short as it can be told from --match.
        [b'-', b'-', b'm', b'o', ..] => true,
        [b'-', b'-', ..] => false,
        [b'-', letters @ ..] => {
            letters.iter().take_while(|byte| byte.is_ascii_alphabetic()).any(|byte| *byte == b'M')
        }
        _ => false,
    })
}

fn run(family: Family, action: &str, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>> {
    let path = find(family, action)?;
    let program = path.display().to_string();
    let act = |what: &'static str| {
        let program = program.clone();
        failed_to(move || format!("{what} {program}"))
    };
    let stdin = memfd::sealed("iptables-in", input).map_err(act("make the input of"))?;
    let stdout = scratch("iptables-out").map_err(act("make the output of"))?;
    let stderr = scratch("iptables-err").map_err(act("make the output of"))?;
    let copy = |file: &File| file.try_clone().map(Stdio::from).map_err(act("make the output of"));
    let mut child = Command::new(&path)
        .args(arguments)
        .env_clear()
        .env("PATH", PLACES.join(":"))
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::from(stdin))
        .stdout(copy(&stdout)?)
        .stderr(copy(&stderr)?)
        .spawn()
        .map_err(act("run"))?;
    let status = wait(&mut child).map_err(act("wait for"))?;
    let status = status.ok_or_else(|| Error::Hung { program: program.clone(), patience: PATIENCE })?;
    if !status.success() {
        let said = read(&stderr, STDERR_MAX).map_err(act("read the errors of"))?;
        let stderr = String::from_utf8_lossy(&said).trim().to_owned();
        return Err(Error::Program { program, status, stderr });
    }
    let length = stdout.metadata().map_err(act("read the output of"))?.len();
    if length > PRINTED_MAX {
        return Err(Error::TooLong { program, length, limit: PRINTED_MAX });
    }
    read(&stdout, PRINTED_MAX).map_err(act("read the output of"))
}

fn find(family: Family, action: &str) -> Result<PathBuf> {
    let tool = match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    };
    let names = BACK_ENDS.map(|back_end| format!("{tool}{back_end}-{action}"));
    let candidates = names.iter().flat_map(|name| PLACES.map(|place| Path::new(place).join(name)));
    let found = candidates.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| Error::NoProgram { program: format!("{tool}-{action}"), places: PLACES.join(", ") })
}

fn scratch(name: &str) -> io::Result<File> {
    Ok(memfd_create(name, MFdFlags::MFD_CLOEXEC).map(File::from)?)
}

/// `None` if it had to be killed.
fn wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let process = pidfd::open(child.id().cast_signed())?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], timeout) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(0) => {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            Ok(_) => return child.wait().map(Some),
        }
    }
}

/// The first `most` bytes; the program's own position in the file does not matter.
fn read(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len().min(most);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
