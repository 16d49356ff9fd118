//! What runs inside: the real init and launcher, and a worker that does what the test says.

use std::{
    collections::{HashMap, VecDeque},
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::FileExt, net::UnixListener},
    },
    process::{Command, ExitCode},
};

use berth_agent::{
    address::Address,
    init::{Init, Listener, Program, Story, signals, supervise},
    link::{self, FRAME_SIZE, LaunchReply, LaunchRequest, ListenerKind, ToInit, ToWorker},
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SigSet, kill},
    },
    unistd::Pid,
};
use rustjail::{
    plan::{self, Capabilities, Gate, Identity, Namespaces, Placement, Plan, Process, Slot},
    sync,
    sys::{memfd, scm},
};

use crate::guest::until;

pub fn init(directory: &str) -> ExitCode {
    let mut story = Story::on_stdout().unwrap();
    let address = Address::Unix(format!("{directory}/rpc.sock").into());
    let listener = Listener::open(ListenerKind::Rpc, address).unwrap();
    story.stage("listening");
    let pid1 = std::process::id() == 1;
    if !pid1 {
        prctl::set_child_subreaper(true).unwrap();
    }
    let program = Program::current(vec![directory.to_owned()]).unwrap();
    supervise(Init::new(pid1, story, signals().unwrap(), program, vec![listener]));
    ExitCode::SUCCESS
}

/// Makes children that end at once and never waits for them; tells by a file when all are made.
pub fn storm(count: usize, made: &str) -> ExitCode {
    let own = std::env::current_exe().unwrap();
    for _ in 0..count {
        drop(Command::new(&own).arg("nothing").spawn().unwrap());
    }
    std::fs::write(made, "").unwrap();
    loop {
        std::thread::park();
    }
}

struct Worker {
    link: OwnedFd,
    listener: Option<UnixListener>,
    launcher: Option<OwnedFd>,
    stored: HashMap<u64, OwnedFd>,
    exits: VecDeque<(i32, i32)>,
    generation: u32,
    stages: Vec<String>,
    ready: bool,
}

/// Answers one line to one line.
pub fn worker() -> ExitCode {
    SigSet::empty().thread_set_mask().unwrap();
    let mut worker = Worker {
        link: link::inherited().unwrap(),
        listener: None,
        launcher: None,
        stored: HashMap::new(),
        exits: VecDeque::new(),
        generation: 0,
        stages: Vec::new(),
        ready: false,
    };
    while !worker.ready {
        worker.receive(PollTimeout::NONE);
    }
    let listener = worker.listener.take().unwrap();
    loop {
        let mut files = [
            PollFd::new(worker.link.as_fd(), PollFlags::POLLIN),
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
        ];
        poll(&mut files, PollTimeout::from(1000u16)).unwrap();
        let called = files[1].any() == Some(true);
        worker.receive(PollTimeout::ZERO);
        worker.tell(ToInit::Ping, None);
        if called && let Ok((mut stream, _)) = listener.accept() {
            stream.set_nonblocking(false).unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let answer = worker.answer(line.trim_end());
            // The asker may have gone.
            let _ = writeln!(stream, "{answer}");
        }
    }
}

impl Worker {
    fn tell(&self, message: ToInit, fd: Option<&OwnedFd>) {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        scm::send(self.link.as_fd(), &message.encode(), &fds).unwrap();
    }

    /// Takes everything init has said, waiting as long for the first of it.
    fn receive(&mut self, wait: PollTimeout) {
        let mut files = [PollFd::new(self.link.as_fd(), PollFlags::POLLIN)];
        poll(&mut files, wait).unwrap();
        let mut frame = [0; FRAME_SIZE];
        while let Ok(received) = scm::receive(self.link.as_fd(), &mut frame) {
            if received.length == 0 {
                std::process::abort();
            }
            let fd = received.fds.into_iter().next();
            match ToWorker::decode(&frame).unwrap() {
                ToWorker::Hello { generation, .. } => self.generation = generation,
                ToWorker::Stage { name, .. } => self.stages.push(name),
                ToWorker::Listener { kind: ListenerKind::Rpc } => self.listener = fd.map(UnixListener::from),
                ToWorker::Listener { .. } | ToWorker::Records => {}
                ToWorker::Stored { key } => _ = self.stored.insert(key, fd.unwrap()),
                ToWorker::Launcher { .. } => self.launcher = fd,
                ToWorker::Ready => self.ready = true,
                ToWorker::Exit { pid, status } => self.exits.push_back((pid, status)),
            }
        }
    }

    fn answer(&mut self, request: &str) -> String {
        let (verb, rest) = request.split_once(' ').unwrap_or((request, ""));
        match verb {
            "generation" => self.generation.to_string(),
            "stages" => self.stages.join(" "),
            "launch" => self.launch(rest, |_| {}),
            // The process is gone before init hears whose it was.
            "launch_late" => self.launch(rest, |pid| {
                until("its end", || (kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH)).then_some(()));
            }),
            "store" => {
                let (key, text) = rest.split_once(' ').unwrap();
                let file = memfd::sealed("stored", text.as_bytes()).unwrap();
                self.tell(ToInit::Store { key: key.parse().unwrap() }, Some(&file));
                "stored".into()
            }
            "last_words" => {
                self.launch("exit 7", |_| {});
                let mut files = [PollFd::new(self.link.as_fd(), PollFlags::POLLIN)];
                poll(&mut files, PollTimeout::NONE).unwrap();
                let (unread, text) = rest.split_once(' ').unwrap();
                std::fs::write(unread, "").unwrap();
                until("init to be stopped", || {
                    std::fs::read_to_string("/proc/1/status").unwrap().contains("stop").then_some(())
                });
                let file = memfd::sealed("stored", text.as_bytes()).unwrap();
                self.tell(ToInit::Store { key: 9 }, Some(&file));
                std::process::abort()
            }
            "forget" => {
                self.tell(ToInit::Forget { first: rest.parse().unwrap(), which: 1 }, None);
                "forgotten".into()
            }
            "stored" => self.stored.get(&rest.parse().unwrap()).map_or("nothing".into(), |fd| {
                let mut text = [0; 64];
                let length = File::from(fd.try_clone().unwrap()).read_at(&mut text, 0).unwrap();
                String::from_utf8(text[..length].to_vec()).unwrap()
            }),
            "next_exit" => {
                // Whoever waits says so, or init takes it for dead.
                while self.exits.is_empty() {
                    self.receive(PollTimeout::from(1000u16));
                    self.tell(ToInit::Ping, None);
                }
                let (pid, status) = self.exits.pop_front().unwrap();
                format!("{pid} {status}")
            }
            "acknowledge" => {
                self.tell(ToInit::Acknowledge { pid: rest.parse().unwrap() }, None);
                "acknowledged".into()
            }
            "garbage" => {
                for number in 0..2_000_u32 {
                    let junk: Vec<u8> = (1..number % 200 + 2).map(|byte| (byte * number) as u8).collect();
                    while scm::send(self.link.as_fd(), &junk, &[]).is_err() {
                        let mut files = [PollFd::new(self.link.as_fd(), PollFlags::POLLOUT)];
                        poll(&mut files, PollTimeout::NONE).unwrap();
                    }
                }
                "sent".into()
            }
            "hang" => loop {
                std::thread::park();
            },
            "overflow" => overflow(0).to_string(),
            "shutdown" => {
                self.tell(ToInit::Shutdown, None);
                "ending".into()
            }
            _ => "unknown".into(),
        }
    }

    fn launch(&mut self, command: &str, before_settling: impl FnOnce(i32)) -> String {
        let (maker, child) = sync::pair().unwrap();
        let null = OwnedFd::from(OpenOptions::new().read(true).write(true).open("/dev/null").unwrap());
        let plan = memfd::sealed("plan", &shell(command).to_bytes().unwrap()).unwrap();
        let fds = [plan.as_fd(), null.as_fd(), child.as_fd()];
        self.tell(ToInit::Expect, None);
        let request = LaunchRequest { id: 1 }.encode();
        // A launcher that the test killed is found dead once, and its successor awaited.
        for _ in 0..10 {
            let Some(launcher) = &self.launcher else {
                self.receive(PollTimeout::NONE);
                continue;
            };
            let mut packet = [0; 512];
            let reply = scm::send(launcher.as_fd(), &request, &fds)
                .and_then(|_| scm::receive(launcher.as_fd(), &mut packet));
            match reply.map(|received| LaunchReply::decode(&packet[..received.length])) {
                Ok(Some(LaunchReply::Made { pid, .. })) => {
                    drop(child);
                    let mut ready = [PollFd::new(maker.as_fd(), PollFlags::POLLIN)];
                    poll(&mut ready, PollTimeout::NONE).unwrap();
                    assert!(matches!(sync::receive(maker.as_fd()), Ok(None)), "no program was run");
                    before_settling(pid);
                    self.tell(ToInit::Settle { pid: Some(pid) }, None);
                    return pid.to_string();
                }
                Ok(Some(LaunchReply::Failed { text, .. })) => return text,
                _ => self.launcher = None,
            }
        }
        self.tell(ToInit::Settle { pid: None }, None);
        "failed".into()
    }
}

/// A process in no namespace or cgroup of its own.
fn shell(command: &str) -> Plan {
    let all = (1 << 41) - 1;
    let capabilities =
        Capabilities { bounding: all, effective: all, inheritable: 0, permitted: all, ambient: 0 };
    Plan {
        namespaces: Namespaces::default(),
        placement: Placement::default(),
        root: None,
        process: Process {
            args: vec!["/bin/sh".into(), "-c".into(), command.into()],
            env: vec!["PATH=/usr/bin:/bin".into()],
            cwd: "/".into(),
            identity: Identity::default(),
            umask: 0o022,
            capabilities,
            rlimits: Vec::new(),
            no_new_privileges: false,
            oom_score_adj: None,
            personality: None,
            scheduler: None,
            io_priority: None,
            affinity: Default::default(),
            memory_policy: None,
            labels: Default::default(),
            seccomp: None,
            stdio: plan::Stdio::Streams([Slot(0); 3]),
        },
        gate: Gate::Open,
        keep_keyring: false,
        preserved_fds: 0,
        binary: None,
        sync: Slot(1),
    }
}

#[allow(unconditional_recursion)]
fn overflow(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 64]);
    overflow(depth + 1) + frame[7]
}
