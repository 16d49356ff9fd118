//! Containers with a terminal: handed over, and driven from ours.

use std::{
    fs::File,
    io::{Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixListener,
    },
    process::{Child, Command},
};

use nix::pty::{OpenptyResult, Winsize, openpty};
use rustjail::sys::{pty, scm};

use crate::jail::{Jail, wait};

fn with_terminal(script: &str) -> Jail {
    let mut jail = Jail::new(script);
    jail.bundle.set("/process/terminal", true.into());
    jail
}

/// Reads from a master until `text` has come.
fn read_until(master: &mut File, text: &str) -> String {
    let mut all = String::new();
    let mut buffer = [0; 1024];
    while !all.contains(text) {
        assert!(crate::jail::readable(master.as_fd()), "nothing after {all:?}, waiting for {text:?}");
        let Ok(count @ 1..) = master.read(&mut buffer) else {
            panic!("the terminal ended after {all:?}, waiting for {text:?}")
        };
        all.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    all
}

#[test]
fn the_console_socket_gets_the_master() {
    let jail = with_terminal("tty; read line; echo got $line; sleep 1000");
    let path = jail.path("console.sock");
    let listener = UnixListener::bind(&path).unwrap();
    jail.ok(&["create", "--console-socket", &path, "c"]);
    let (stream, _) = listener.accept().unwrap();
    let mut received = scm::receive(stream.as_fd(), &mut [0; 64]).unwrap();
    let mut master = File::from(received.fds.pop().unwrap());
    jail.ok(&["start", "c"]);
    read_until(&mut master, "/dev/pts/0");
    master.write_all(b"this\n").unwrap();
    read_until(&mut master, "got this");

    let path = jail.path("exec.sock");
    let listener = UnixListener::bind(&path).unwrap();
    jail.ok(&["exec", "-d", "--tty", "--console-socket", &path, "c", "sh", "-c", "echo over; sleep 1000"]);
    let (stream, _) = listener.accept().unwrap();
    let mut received = scm::receive(stream.as_fd(), &mut [0; 64]).unwrap();
    read_until(&mut File::from(received.fds.pop().unwrap()), "over");
}

#[test]
fn a_terminal_nobody_would_drive_is_refused() {
    let jail = with_terminal("true");
    jail.refused(&["create", "c"], 1, "--console-socket");
    jail.refused(&["run", "--detach", "c"], 1, "--console-socket");
    let jail = Jail::new("true");
    jail.refused(&["create", "--console-socket", "/nonexistent", "c"], 1, "process.terminal");
}

/// The command line on a terminal of its own, which it controls.
fn on_terminal(jail: &Jail, line: &[&str]) -> (File, OwnedFd, Child) {
    let size = Winsize { ws_row: 30, ws_col: 90, ws_xpixel: 0, ws_ypixel: 0 };
    let OpenptyResult { master, slave } = openpty(Some(&size), None).unwrap();
    let own = jail.command(line);
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait"]).arg(own.get_program()).args(own.get_args());
    command.current_dir(&jail.bundle.path);
    let stream = || slave.try_clone().unwrap();
    command.stdin(stream()).stdout(stream()).stderr(stream());
    (master.into(), slave, command.spawn().unwrap())
}

#[test]
fn a_container_is_driven_from_our_terminal() {
    let jail =
        with_terminal("trap 'stty size' WINCH; stty size; while read line; do echo got $line; done; exit 5");
    let (mut master, _slave, mut child) = on_terminal(&jail, &["run", "c"]);
    read_until(&mut master, "30 90");
    master.write_all(b"this\n").unwrap();
    let echoed = read_until(&mut master, "got this");
    // Ours is raw, so what is typed is shown once, by the container's.
    assert_eq!(echoed.matches("this").count(), 2, "{echoed:?}");
    pty::set_size(master.as_fd(), 40, 100).unwrap();
    master.write_all(b"\n").unwrap();
    read_until(&mut master, "40 100");
    // The end of the input, as the container's terminal understands it.
    master.write_all(b"\x04").unwrap();
    assert_eq!(wait(&mut child), 5);
}

#[test]
fn an_exec_is_driven_from_our_terminal_which_is_put_back() {
    let jail = Jail::sleeping();
    jail.ok(&["run", "-d", "c"]);
    let (mut master, slave, mut child) =
        on_terminal(&jail, &["exec", "--tty", "c", "sh", "-c", "stty size; read line; echo got $line"]);
    let before = nix::sys::termios::tcgetattr(&slave).unwrap();
    read_until(&mut master, "30 90");
    master.write_all(b"this\n").unwrap();
    read_until(&mut master, "got this");
    assert_eq!(wait(&mut child), 0);
    let after = nix::sys::termios::tcgetattr(&slave).unwrap();
    assert_eq!(before.control_chars, after.control_chars);
    assert!(after.local_flags.contains(nix::sys::termios::LocalFlags::ECHO));
}
