//! The supervisor against init's end of a link and a launcher's, both played by the test.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    thread::JoinHandle,
};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use rustjail::sys::{pidfd, scm};
use tokio::{runtime::Builder, task::LocalSet};

use super::{Exit, Handover, Key, LaunchError, Supervisor};
use crate::{
    init::STORE_CAPACITY,
    link::{FRAME_SIZE, LaunchReply, LaunchRequest, ListenerKind, ToInit, ToWorker},
};

fn pair(flags: SockFlag) -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags | SockFlag::SOCK_CLOEXEC).unwrap()
}

/// Init's end of a link, used without waiting for what is surely there.
struct FakeInit(OwnedFd);

impl FakeInit {
    fn say(&self, message: &ToWorker, fd: Option<BorrowedFd<'_>>) {
        scm::send(self.0.as_fd(), &message.encode(), fd.as_slice()).unwrap();
    }

    /// Everything but pings, up to now.
    fn heard(&self) -> Vec<ToInit> {
        let mut heard = Vec::new();
        let mut frame = [0; FRAME_SIZE];
        while let Ok(received) = scm::receive(self.0.as_fd(), &mut frame) {
            if received.length == 0 {
                break;
            }
            heard.push(ToInit::decode(&frame).unwrap());
        }
        heard.retain(|message| *message != ToInit::Ping);
        heard
    }

    /// A launcher that answers `answers` requests and then dies with or without reading one more.
    fn new_launcher(&self, answers: u64, reads_one_more: bool) -> JoinHandle<()> {
        let (workers, own) = pair(SockFlag::empty());
        // As init does: the worker's end does not block.
        nix::fcntl::fcntl(&workers, nix::fcntl::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
        self.say(&ToWorker::Launcher { pid: 9 }, Some(workers.as_fd()));
        std::thread::spawn(move || {
            let mut packet = [0; 16];
            for _ in 0..answers {
                let received = scm::receive(own.as_fd(), &mut packet).unwrap();
                if received.length == 0 {
                    return;
                }
                let LaunchRequest { id } = LaunchRequest::decode(&packet[..received.length]).unwrap();
                let mut plan = String::new();
                File::from(received.fds.into_iter().next().unwrap()).read_to_string(&mut plan).unwrap();
                let process = pidfd::open(1).unwrap();
                // A reply to a request whose caller is gone comes first.
                let stale = LaunchReply::Failed { id: id.wrapping_sub(1), errno: 1, text: "stale".into() };
                scm::send(own.as_fd(), &stale.encode(), &[]).unwrap();
                let reply = match plan.parse() {
                    Ok(pid) => LaunchReply::Made { id, pid },
                    Err(_) => LaunchReply::Failed { id, errno: libc::ENOMEM, text: plan },
                };
                scm::send(own.as_fd(), &reply.encode(), &[process.as_fd()]).unwrap();
            }
            let mut ready = [nix::poll::PollFd::new(own.as_fd(), nix::poll::PollFlags::POLLIN)];
            nix::poll::poll(&mut ready, nix::poll::PollTimeout::NONE).unwrap();
            if reads_one_more {
                scm::receive(own.as_fd(), &mut packet).unwrap();
            }
        })
    }
}

/// Lets everything else go on for as long as it can.
async fn until_idle() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

fn with_supervisor<F: Future<Output = ()>>(test: impl FnOnce(FakeInit, Supervisor, Handover) -> F) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let (own, theirs) = pair(SockFlag::SOCK_NONBLOCK);
        let init = FakeInit(own);
        let (reader, writer) = io::pipe().unwrap();
        init.say(&ToWorker::Hello { generation: 3, pid1: true }, None);
        init.say(&ToWorker::Stage { name: "mounts".into(), at: 17 }, None);
        init.say(&ToWorker::Listener { kind: ListenerKind::Rpc }, Some(reader.as_fd()));
        init.say(&ToWorker::Stored { key: 9 }, Some(writer.as_fd()));
        init.say(&ToWorker::Ready, None);
        let (supervisor, handover) = Supervisor::connect_over(theirs).await.unwrap();
        test(init, supervisor, handover).await;
    });
}

#[test]
fn the_handover_is_complete() {
    with_supervisor(async |_init, _supervisor, handover| {
        assert_eq!((handover.generation, handover.pid1), (3, true));
        assert_eq!(handover.stages, [("mounts".to_owned(), 17)]);
        assert_eq!(handover.listeners.len(), 1);
        assert!(handover.stored.contains_key(&Key(9)));
    });
}

#[test]
fn a_launch_is_expected_before_and_settled_after() {
    with_supervisor(async |init, supervisor, _| {
        let launcher = init.new_launcher(2, false);
        supervisor.store(Key(1), init.0.as_fd()).unwrap();
        assert_eq!(supervisor.shared.launch(b"77", &[]).await.unwrap().pid, 77);
        let failed = supervisor.shared.launch(b"no memory at all", &[]).await;
        assert!(
            matches!(&failed, Err(LaunchError::Clone(error)) if error.kind() == io::ErrorKind::OutOfMemory)
        );
        assert!(failed.unwrap_err().to_string().ends_with("no memory at all"));
        supervisor.acknowledge(77).unwrap();
        until_idle().await;
        assert_eq!(
            init.heard(),
            [
                ToInit::Store { key: 1 },
                ToInit::Expect,
                ToInit::Settle { pid: Some(77) },
                ToInit::Expect,
                ToInit::Settle { pid: None },
                ToInit::Acknowledge { pid: 77 },
            ]
        );
        drop(supervisor);
        tokio::task::yield_now().await;
        launcher.join().unwrap();
    });
}

#[test]
fn a_launch_that_was_never_read_is_done_by_the_next_launcher() {
    with_supervisor(async |init, supervisor, _| {
        let first = init.new_launcher(1, false);
        assert_eq!(supervisor.shared.launch(b"5", &[]).await.unwrap().pid, 5);
        let shared = Rc::clone(&supervisor.shared);
        let launch = crate::task::spawn(async move { shared.launch(b"6", &[]).await });
        while !first.is_finished() {
            tokio::task::yield_now().await;
        }
        let _second = init.new_launcher(1, false);
        assert_eq!(launch.await.unwrap().unwrap().pid, 6);
        assert_eq!(init.heard().last(), Some(&ToInit::Settle { pid: Some(6) }));
    });
}

#[test]
fn a_launch_that_was_under_way_is_not_done_twice() {
    with_supervisor(async |init, supervisor, _| {
        let _dying = init.new_launcher(0, true);
        let result = supervisor.shared.launch(b"6", &[]).await;
        assert!(matches!(result, Err(LaunchError::Unreachable(_))), "{result:?}");
        assert_eq!(init.heard(), [ToInit::Expect, ToInit::Settle { pid: None }]);
        let _next = init.new_launcher(1, false);
        assert_eq!(supervisor.shared.launch(b"7", &[]).await.unwrap().pid, 7);
    });
}

#[test]
fn exits_come_in_order_and_the_end_of_init_is_an_error() {
    with_supervisor(async |init, supervisor, _| {
        for status in 0..100 {
            init.say(&ToWorker::Exit { pid: 4, status }, None);
        }
        drop(init);
        for status in 0..100 {
            assert_eq!(supervisor.next_exit().await.unwrap(), Exit { pid: 4, status });
        }
        assert!(supervisor.next_exit().await.is_err());
        assert!(supervisor.acknowledge(4).is_err());
    });
}

#[test]
fn what_init_does_not_read_at_once_is_sent_in_order_later() {
    with_supervisor(async |init, supervisor, _| {
        for key in 0..2_000 {
            supervisor.store(Key(key), init.0.as_fd()).unwrap();
        }
        let mut heard = Vec::new();
        while heard.len() < 2_000 {
            heard.extend(init.heard());
            tokio::task::yield_now().await;
        }
        let sent: Vec<ToInit> = (0..2_000).map(|key| ToInit::Store { key }).collect();
        assert_eq!(heard, sent);
    });
}

#[test]
fn what_a_process_gets_is_stored_before_it_is_asked_for() {
    with_supervisor(async |init, supervisor, _| {
        let launcher = init.new_launcher(1, false);
        supervisor.store_for_launch(Key(16), init.0.as_fd()).unwrap();
        supervisor.store_for_launch(Key(17), init.0.as_fd()).unwrap();
        assert_eq!(init.heard(), []);
        assert_eq!(supervisor.shared.launch(b"77", &[]).await.unwrap().pid, 77);
        let stores = [ToInit::Store { key: 16 }, ToInit::Store { key: 17 }];
        assert_eq!(init.heard(), [&stores[..], &[ToInit::Expect, ToInit::Settle { pid: Some(77) }]].concat());
        drop(supervisor);
        until_idle().await;
        launcher.join().unwrap();
    });
}

#[test]
fn what_is_forgotten_together_is_told_together_and_after_what_is_being_done() {
    with_supervisor(async |init, supervisor, _| {
        for key in [16, 18, 47, 48, 19] {
            supervisor.forget(Key(key)).unwrap();
        }
        supervisor.acknowledge(7).unwrap();
        tokio::task::spawn_local(async {}).await.unwrap();
        assert_eq!(init.heard(), []);
        until_idle().await;
        let sent = [
            ToInit::Forget { first: 16, which: 1 | 1 << 2 | 1 << 31 },
            ToInit::Forget { first: 48, which: 1 },
            ToInit::Forget { first: 19, which: 1 },
            ToInit::Acknowledge { pid: 7 },
        ];
        assert_eq!(init.heard(), sent);
    });
}

#[test]
fn the_store_has_an_end() {
    with_supervisor(async |init, supervisor, _| {
        supervisor.shared.keys.borrow_mut().extend((0..STORE_CAPACITY as u64).map(Key));
        let full = supervisor.store(Key(u64::MAX), init.0.as_fd()).unwrap_err();
        assert_eq!(full.raw_os_error(), Some(libc::ENFILE));
        supervisor.store(Key(0), init.0.as_fd()).unwrap();
        supervisor.forget(Key(1)).unwrap();
        supervisor.store(Key(u64::MAX), init.0.as_fd()).unwrap();
    });
}
