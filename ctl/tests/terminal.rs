//! The user's terminal, through a pty: raw while attached, as it was after any end.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::{
    fs::File,
    io::Read,
    os::fd::{AsFd, OwnedFd},
    process::Stdio,
    time::Duration,
};

use nix::{
    pty::{OpenptyResult, Winsize, openpty},
    sys::{
        signal::{Signal, kill},
        termios::{LocalFlags, Termios, tcgetattr},
    },
    unistd::Pid,
};
use support::Served;
use tokio::{
    process::Child,
    time::{sleep, timeout},
};

struct Terminal {
    master: OwnedFd,
    slave: OwnedFd,
    before: Termios,
}

fn terminal() -> Terminal {
    let size = Winsize { ws_row: 33, ws_col: 111, ws_xpixel: 0, ws_ypixel: 0 };
    let OpenptyResult { master, slave } = openpty(&size, None).unwrap();
    let before = tcgetattr(&slave).unwrap();
    assert!(before.local_flags.contains(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG));
    Terminal { master, slave, before }
}

impl Terminal {
    fn end(&self) -> Stdio {
        self.slave.as_fd().try_clone_to_owned().unwrap().into()
    }

    fn attach(&self, served: &Served, arguments: &[&str]) -> Child {
        let mut command = served.berthctl(arguments);
        command.stdin(self.end()).stdout(self.end()).stderr(self.end()).spawn().unwrap()
    }

    async fn is_raw(&self) {
        let raw = async {
            while tcgetattr(&self.slave).unwrap().local_flags.contains(LocalFlags::ICANON) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(10), raw).await.expect("the terminal becomes raw");
    }

    fn is_as_before(&self) {
        assert_eq!(tcgetattr(&self.slave).unwrap(), self.before);
    }
}

async fn end_of(child: &mut Child) -> Option<i32> {
    timeout(Duration::from_secs(20), child.wait()).await.expect("berthctl ends").unwrap().code()
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().unwrap().cast_signed()), signal).unwrap();
}

#[tokio::test]
async fn restored_after_a_normal_end_and_sized_like_ours() {
    let (served, terminal) = (Served::new().await, terminal());
    let mut child = terminal.attach(&served, &["exec", "-t", "-i", "--exec", "p1", "box", "sleep"]);
    terminal.is_raw().await;
    served.run(&["kill", "box", "--exec", "p1", "TERM"], b"").await;
    assert_eq!(end_of(&mut child).await, Some(143));
    terminal.is_as_before();
    let state = served.fake.state.lock().unwrap();
    assert_eq!(state.sizes[0], (33, 111));
    let process = &state.executed[0].process;
    assert!(process.Terminal && process.ConsoleSize.Width == 111);
}

#[tokio::test]
async fn a_control_character_is_the_guests_business() {
    let (served, terminal) = (Served::new().await, terminal());
    let mut child = terminal.attach(&served, &["exec", "-ti", "box", "cat"]);
    terminal.is_raw().await;
    nix::unistd::write(&terminal.master, b"\x03\x1a\n").unwrap();
    let mut echoed = [0; 3];
    let mut master = File::from(terminal.master.as_fd().try_clone_to_owned().unwrap());
    let read = tokio::task::spawn_blocking(move || master.read_exact(&mut echoed).map(|()| echoed));
    assert_eq!(&timeout(Duration::from_secs(10), read).await.unwrap().unwrap().unwrap(), b"\x03\x1a\n");
    assert!(served.fake.state.lock().unwrap().signals.is_empty());
    signal(&child, Signal::SIGHUP);
    assert_eq!(end_of(&mut child).await, Some(129));
    terminal.is_as_before();
}

#[tokio::test]
async fn restored_when_a_second_signal_ends_us() {
    let (served, terminal) = (Served::new().await, terminal());
    let mut child = terminal.attach(&served, &["exec", "-ti", "box", "cat"]);
    terminal.is_raw().await;
    signal(&child, Signal::SIGTERM);
    let forwarded = async {
        while served.fake.state.lock().unwrap().signals.is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), forwarded).await.expect("the first signal goes to the process");
    signal(&child, Signal::SIGTERM);
    assert_eq!(end_of(&mut child).await, Some(143));
    terminal.is_as_before();
}

#[test]
fn restored_by_a_panic() {
    let terminal = terminal();
    // In a process of its own: the guard acts on standard input.
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "panics_in_raw_mode", "--nocapture"]);
    let status = command.stdin(terminal.end()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert!(!status.success());
    terminal.is_as_before();
}

#[test]
#[ignore = "the body of restored_by_a_panic"]
fn panics_in_raw_mode() {
    let raw = berthctl::terminal::RawMode::enter().unwrap();
    assert!(raw.is_some());
    assert!(!tcgetattr(std::io::stdin()).unwrap().local_flags.contains(LocalFlags::ICANON));
    panic!("on purpose");
}
