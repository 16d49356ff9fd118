//! What a new process and its maker say to each other.
//!
//! ```text
//!  maker                         child
//!    |   (clone3)                  |
//!    |-- ENTER + fds ------------->|   only if the plan says so: groups it is to enter
//!    |-- PLACE + fds ------------->|   only if the plan says so: the last of them, which have their limits
//!    |<------------- CONSOLE + fd -|   only with a terminal: the master of its pty
//!    |<------------- HOOKS --------|   only with hooks of the maker's: everything is mounted, the root is not changed
//!    |-- GO ---------------------->|   they have been run
//!    |<------------- READY --------|   init only: everything but execve is done
//!    |-- START ------------------->|   init only, if the plan has it wait
//!    |<----------- LISTENER + n ---|   only with a seccomp agent: the listener is its descriptor n
//!    |-- TAKEN ------------------->|
//!    |<------------- FAILED -------|   at any point: step, path, errno; the child exits
//!    |<------------- end of file --|   execve succeeded (the socket is close-on-exec), or the child died
//! ```
//!
//! ENTER and PLACE may be said at any time, while the child mounts. It enters what it is told to, and with PLACE goes
//! on to what depends on its groups.
//!
//! START stays in the socket until the child is about to act on it: one that was killed before, and whose read
//! the kernel completes all the same, leaves it there, and the maker is told of the unread record.
//!
//! Between READY and START the maker may vanish, if the plan says so: START then comes over a connection to a
//! listening socket of the child, and so does what follows it.
//!
//! Each message is one SEQPACKET record: a tag byte, and for FAILED the errno, the length of the step, the
//! step and the path. The maker trusts nothing of it: a record that is none of these is an error.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::net::UnixListener,
    },
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair},
};

use crate::sys::scm;

const ENTER: u8 = b'E';
const PLACE: u8 = b'P';
const CONSOLE: u8 = b'C';
const HOOKS: u8 = b'H';
const GO: u8 = b'G';
const READY: u8 = b'R';
const FAILED: u8 = b'F';
const START: u8 = b'S';
const LISTENER: u8 = b'L';
const TAKEN: u8 = b'T';

/// The longest record: a FAILED with a path of PATH_MAX and a step that quotes a hook.
const MAX_RECORD: usize = 8 * 1024;

/// One message from the child.
#[derive(Debug)]
pub enum Report {
    /// The master side of the process's terminal.
    Console(OwnedFd),
    /// The namespaces and mounts are made; the child waits for [`hooks_done`] with the root not yet changed.
    Hooks,
    /// The container is created and waits for [`start`].
    Ready,
    /// The child's seccomp filter is in force, and its listener is the child's descriptor of this number. The
    /// child waits for [`listener_taken`].
    Listener(i32),
    /// A step failed; the child is gone or about to be.
    Failed(StepError),
}

/// The step of process creation that failed in the child, and how.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {step}{}{path}: {}", if path.is_empty() { "" } else { " " }, io::Error::from_raw_os_error(*errno))]
pub struct StepError {
    /// What was being done, in words a person can act on.
    pub step: String,
    /// The path or name it was done to; may be empty.
    pub path: String,
    /// The errno of the call that failed.
    pub errno: i32,
}

/// The two ends of a new link: the maker's (non-blocking) and the child's.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (maker, child) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    nix::fcntl::fcntl(&maker, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
    Ok((maker, child))
}

/// The next message from the child; `None` is the end of file. `WouldBlock` when nothing has come yet;
/// `ConnectionReset` from a child that died before it acted on [`start`].
pub fn receive(maker: BorrowedFd<'_>) -> io::Result<Option<Report>> {
    let mut buffer = [0; MAX_RECORD];
    let mut record = match scm::receive(maker, &mut buffer) {
        // Told before what the child had said: that it left something unread. What it said is still there.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
            let record = scm::receive(maker, &mut buffer)?;
            if record.length == 0 {
                return Err(error);
            }
            record
        }
        result => result?,
    };
    if record.length == 0 {
        return Ok(None);
    }
    let bytes = buffer.get(..record.length).unwrap_or_default();
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the child sent a record of no known form");
    match (bytes.split_first(), record.fds.pop()) {
        (Some((&CONSOLE, [])), Some(master)) => Ok(Some(Report::Console(master))),
        (Some((&HOOKS, [])), _) => Ok(Some(Report::Hooks)),
        (Some((&READY, [])), _) => Ok(Some(Report::Ready)),
        (Some((&LISTENER, number)), _) => {
            let number = number.try_into().map_err(|_| malformed())?;
            Ok(Some(Report::Listener(i32::from_ne_bytes(number))))
        }
        (Some((&FAILED, rest)), _) => Ok(Some(Report::Failed(decode(rest).ok_or_else(malformed)?))),
        _ => Err(malformed()),
    }
}

/// Waits until the child will say nothing more: its program runs, or it is gone. What it said can be received then.
/// `false` when `or` became readable first.
pub fn await_end(maker: BorrowedFd<'_>, or: Option<BorrowedFd<'_>>) -> io::Result<bool> {
    // Of no event that is asked for: the end is told all the same, and nothing else.
    let end = PollFd::new(maker, PollFlags::empty());
    let mut fds: Vec<_> = [end].into_iter().chain(or.map(|fd| PollFd::new(fd, PollFlags::POLLIN))).collect();
    loop {
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            result => {
                result?;
                return Ok(fds.first().and_then(PollFd::any).unwrap_or(true));
            }
        }
    }
}

/// Tells a child whose plan has it wait for its groups to enter those of these `tasks` files, as many as there are.
pub fn place(maker: BorrowedFd<'_>, tasks: &[OwnedFd]) -> io::Result<()> {
    let tasks: Vec<_> = tasks.iter().map(AsFd::as_fd).collect();
    scm::send(maker, &[PLACE], &tasks).map(drop)
}

/// Has such a child enter some of its groups, as soon as it is there, but not go on.
pub fn enter(maker: BorrowedFd<'_>, tasks: &[OwnedFd]) -> io::Result<()> {
    let tasks: Vec<_> = tasks.iter().map(AsFd::as_fd).collect();
    scm::send(maker, &[ENTER], &tasks).map(drop)
}

/// What a child hears of its groups.
#[derive(Debug)]
pub(crate) enum Place {
    /// It enters these and waits for more.
    Some(Vec<OwnedFd>),
    /// It enters these and goes on.
    Last(Vec<OwnedFd>),
}

/// The child's side: waits for `tasks` files. `None` is the end of file: nobody wants it any more.
pub(crate) fn wait_for_place(child: &File) -> io::Result<Option<Place>> {
    let mut record = [0; 1];
    let received = scm::receive(child.as_fd(), &mut record)?;
    if received.truncated {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok(match (received.length, record) {
        (1, [ENTER]) => Some(Place::Some(received.fds)),
        (1, [PLACE]) => Some(Place::Last(received.fds)),
        _ => None,
    })
}

/// Lets a created container run its program.
pub fn start(maker: BorrowedFd<'_>) -> io::Result<()> {
    scm::send(maker, &[START], &[]).map(drop)
}

/// Lets a process go on whose listener is with the agent.
pub fn listener_taken(maker: BorrowedFd<'_>) -> io::Result<()> {
    scm::send(maker, &[TAKEN], &[]).map(drop)
}

/// The child's side: offers the listener and waits until it was taken. `false` is the end of file.
pub(crate) fn offer_listener(child: &mut File, listener: BorrowedFd<'_>) -> io::Result<bool> {
    let mut record = vec![LISTENER];
    record.extend_from_slice(&listener.as_raw_fd().to_ne_bytes());
    child.write_all(&record)?;
    let mut answer = [0; 1];
    Ok(child.read(&mut answer)? == 1 && answer == [TAKEN])
}

/// Lets a container's creation go on after its prestart and createRuntime hooks.
pub fn hooks_done(maker: BorrowedFd<'_>) -> io::Result<()> {
    scm::send(maker, &[GO], &[]).map(drop)
}

/// The child's side: hands the master of its terminal over.
pub(crate) fn report_console(child: BorrowedFd<'_>, master: OwnedFd) -> io::Result<()> {
    scm::send(child, &[CONSOLE], &[master.as_fd()]).map(drop)
}

/// The child's side: has the maker run its hooks. `false` is the end of file: nobody wants it any more.
pub(crate) fn wait_for_hooks(child: &mut File) -> io::Result<bool> {
    child.write_all(&[HOOKS])?;
    wait_for(child, GO)
}

/// The child's side: everything but execve is done.
pub(crate) fn report_ready(child: &mut File) -> io::Result<()> {
    child.write_all(&[READY])
}

/// The child's side: waits for START. `false` is the end of file: nobody wants it any more.
pub(crate) fn wait_for_start(child: &mut File) -> io::Result<bool> {
    wait_for(child, START)
}

fn wait_for(child: &mut File, answer: u8) -> io::Result<bool> {
    let mut record = [0; 1];
    recv(child.as_raw_fd(), &mut record, MsgFlags::MSG_PEEK)?;
    Ok(child.read(&mut record)? == 1 && record == [answer])
}

/// The child's side: waits for a connection that says START. One that ends without it was somebody's who
/// looked, or who died.
pub(crate) fn accept_start(listener: OwnedFd) -> io::Result<File> {
    let listener = UnixListener::from(listener);
    loop {
        let mut connection = File::from(OwnedFd::from(listener.accept()?.0));
        if matches!(wait_for_start(&mut connection), Ok(true)) {
            return Ok(connection);
        }
    }
}

/// The child's side: tells why it is about to exit. Plain write(2), which a seccomp profile that is already
/// in force lets through more likely than sendmsg(2).
pub(crate) fn report_failure(child: &mut File, error: &StepError) -> io::Result<()> {
    child.write_all(&encode(error))
}

/// The form a failure crosses in, after the tag.
pub(crate) fn encode(error: &StepError) -> Vec<u8> {
    let step = clip(&error.step, 2048);
    let mut record = vec![FAILED];
    record.extend_from_slice(&error.errno.to_ne_bytes());
    record.extend_from_slice(&(step.len() as u16).to_ne_bytes());
    record.extend_from_slice(step.as_bytes());
    record.extend_from_slice(clip(&error.path, libc::PATH_MAX as usize).as_bytes());
    record
}

pub(crate) fn decode(record: &[u8]) -> Option<StepError> {
    let (errno, rest) = record.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let (step, path) = rest.split_at_checked(u16::from_ne_bytes(*length).into())?;
    Some(StepError {
        step: String::from_utf8_lossy(step).into_owned(),
        path: String::from_utf8_lossy(path).into_owned(),
        errno: i32::from_ne_bytes(*errno),
    })
}

/// The longest prefix of `text` that has at most `limit` bytes and ends between characters.
fn clip(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(path: String) -> StepError {
        StepError { step: "mount".into(), path, errno: libc::ENOENT }
    }

    #[test]
    fn every_message_arrives_as_sent() {
        let (maker, child) = pair().unwrap();
        let mut child = File::from(child);
        assert_eq!(receive(maker.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);

        report_console(child.as_fd(), child.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert!(matches!(receive(maker.as_fd()).unwrap(), Some(Report::Console(_))));

        hooks_done(maker.as_fd()).unwrap();
        assert!(wait_for_hooks(&mut child).unwrap());
        assert!(matches!(receive(maker.as_fd()).unwrap(), Some(Report::Hooks)));

        start(maker.as_fd()).unwrap();
        report_ready(&mut child).unwrap();
        assert!(wait_for_start(&mut child).unwrap());
        assert!(matches!(receive(maker.as_fd()).unwrap(), Some(Report::Ready)));

        report_failure(&mut child, &failure("/proc".into())).unwrap();
        match receive(maker.as_fd()).unwrap() {
            Some(Report::Failed(error)) => {
                assert_eq!(error, failure("/proc".into()));
                assert_eq!(error.to_string(), "cannot mount /proc: No such file or directory (os error 2)");
            }
            other => panic!("{other:?}"),
        }
        drop(child);
        assert!(receive(maker.as_fd()).unwrap().is_none());
    }

    #[test]
    fn what_was_said_before_the_end_is_heard_after_it() {
        let (maker, child) = pair().unwrap();
        let mut child = File::from(child);
        report_ready(&mut child).unwrap();
        let mut fds = [PollFd::new(maker.as_fd(), PollFlags::empty())];
        assert_eq!(poll(&mut fds, PollTimeout::ZERO), Ok(0), "what is said is no end");
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"x").unwrap();
        assert!(!await_end(maker.as_fd(), Some(reader.as_fd())).unwrap());
        drop(child);
        assert!(await_end(maker.as_fd(), Some(reader.as_fd())).unwrap());
        assert!(matches!(receive(maker.as_fd()).unwrap(), Some(Report::Ready)));
        assert!(receive(maker.as_fd()).unwrap().is_none());
    }

    #[test]
    fn a_maker_that_is_gone_lets_nothing_start() {
        let (maker, child) = pair().unwrap();
        let mut child = File::from(child);
        drop(maker);
        assert!(!matches!(wait_for_start(&mut child), Ok(true)));
    }

    #[test]
    fn a_path_too_long_is_cut_between_characters() {
        let error = decode(&encode(&failure("ä".repeat(4000)))[1..]).unwrap();
        assert_eq!(error.path, "ä".repeat(2048));
    }

    #[test]
    fn malformed_records_are_errors() {
        let (maker, child) = pair().unwrap();
        for record in [&b"X"[..], b"C", b"F", b"F\0\0\0\0\xff\xff", b"RR", b"S", b"L", b"L\0\0\0\0\0"] {
            scm::send(child.as_fd(), record, &[]).unwrap();
            assert_eq!(receive(maker.as_fd()).unwrap_err().kind(), io::ErrorKind::InvalidData, "{record:?}");
        }
    }
}
