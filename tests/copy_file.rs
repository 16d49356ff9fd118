//! CopyFile from a host's side: what arrives, what is refused, and that nothing outside the shared tree is touched.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use berth::{Agent, Guest, RawClient, Role, code};
use berth_protocols::agent::CopyFileRequest;
use protobuf::well_known_types::empty::Empty;
use ttrpc::{Code, context::with_timeout};

const ROOT: &str = "/run/kata-containers/shared/containers";
const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const LINK: u32 = 0o120_000;

fn request(path: &str, mode: u32, data: &[u8]) -> CopyFileRequest {
    CopyFileRequest {
        path: format!("{ROOT}/{path}"),
        file_size: data.len() as i64,
        file_mode: mode,
        dir_mode: 0o750,
        data: data.to_vec(),
        ..Default::default()
    }
}

async fn copy(guest: &Guest, request: &CopyFileRequest) -> ttrpc::Result<()> {
    guest.agent.copy_file(with_timeout(0), request).await.map(drop)
}

/// One piece of a file of `size` bytes.
fn piece(path: &str, size: usize, offset: usize, data: &[u8]) -> CopyFileRequest {
    CopyFileRequest { file_size: size as i64, offset: offset as i64, ..request(path, FILE | 0o644, data) }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Every path below `dir` with what it is and holds.
fn snapshot(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, metadata) = (entry.path(), entry.metadata().unwrap());
        let content = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        let line = format!("{:o} {}:{} {content:?}", metadata.mode(), metadata.uid(), metadata.gid());
        all.insert(path.clone(), line);
        if metadata.is_dir() {
            all.extend(snapshot(&path));
        }
    }
    all
}

#[tokio::test]
async fn files_directories_and_links_arrive() {
    let agent = Agent::start().await;
    let (guest, shared) = (agent.client().await, agent.shared());
    let mut wanted = request("c1/conf/app.conf", FILE | 0o4640, b"hello");
    (wanted.uid, wanted.gid) = (1000, 2000);
    copy(&guest, &wanted).await.unwrap();
    let file = shared.join("c1/conf/app.conf");
    assert_eq!(fs::read(&file).unwrap(), b"hello");
    let metadata = fs::metadata(&file).unwrap();
    assert_eq!((mode(&file), metadata.uid(), metadata.gid()), (0o4640, 1000, 2000));
    let parent = fs::metadata(shared.join("c1/conf")).unwrap();
    assert_eq!((mode(&shared.join("c1")), mode(&shared.join("c1/conf"))), (0o750, 0o750));
    assert_eq!((parent.uid(), parent.gid()), (1000, 2000), "the immediate parent too");
    assert_eq!(fs::metadata(&shared).unwrap().uid(), 0, "never the tree itself");

    copy(&guest, &request("c1/empty", 0o600, b"")).await.unwrap();
    assert_eq!(fs::read(shared.join("c1/empty")).unwrap(), b"");
    copy(&guest, &request("c1/dir", DIRECTORY | 0o2711, b"")).await.unwrap();
    assert_eq!(mode(&shared.join("c1/dir")), 0o2711);
    copy(&guest, &request("c1/dir/inner", FILE | 0o600, b"x")).await.unwrap();
    copy(&guest, &request("c1/dir", DIRECTORY | 0o755, b"")).await.unwrap();
    assert!(shared.join("c1/dir/inner").exists(), "a directory that is there is kept");
    for target in ["../anything", "/etc/passwd", "dir"] {
        let mut link = request("c1/link", LINK | 0o777, target.as_bytes());
        link.uid = 77;
        copy(&guest, &link).await.unwrap();
        assert_eq!(fs::read_link(shared.join("c1/link")).unwrap(), Path::new(target));
        assert_eq!(fs::symlink_metadata(shared.join("c1/link")).unwrap().uid(), 77);
    }
    // A link makes way for a file, and a file for a directory; a directory with something in it for nothing.
    copy(&guest, &request("c1/link", FILE | 0o644, b"file")).await.unwrap();
    assert!(fs::symlink_metadata(shared.join("c1/link")).unwrap().is_file());
    copy(&guest, &request("c1/link", DIRECTORY | 0o755, b"")).await.unwrap();
    assert!(fs::symlink_metadata(shared.join("c1/link")).unwrap().is_dir());
    for mode in [FILE | 0o644, LINK | 0o777] {
        let (status, message) = code(copy(&guest, &request("c1/dir", mode, b"f")).await);
        assert_eq!(status, Code::FAILED_PRECONDITION, "{message}");
    }
    assert!(shared.join("c1/dir/inner").exists());
    let left: Vec<_> =
        snapshot(&shared).into_keys().filter(|path| path.to_string_lossy().contains("berth-part")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn pieces_make_a_file_and_only_in_order() {
    let agent = Agent::start().await;
    let (guest, shared) = (agent.client().await, agent.shared());
    let target = shared.join("c1/big");
    copy(&guest, &request("c1/big", FILE | 0o600, b"the old one")).await.unwrap();
    copy(&guest, &piece("c1/big", 9, 0, b"abc")).await.unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"the old one", "until the last piece is there");
    let (status, message) = code(copy(&guest, &piece("c1/big", 9, 6, b"ghi")).await);
    assert_eq!(status, Code::FAILED_PRECONDITION, "a last piece that is early: {message}");
    assert_eq!(fs::read(&target).unwrap(), b"the old one");

    // The copy goes on after the agent, and the connection, were lost, from any point that was reached.
    copy(&guest, &piece("c1/big", 9, 3, b"xyz")).await.unwrap();
    agent.replace(Role::Worker, nix::sys::signal::Signal::SIGKILL).await;
    let guest = agent.client().await;
    copy(&guest, &piece("c1/big", 9, 3, b"def")).await.unwrap();
    copy(&guest, &piece("c1/big", 9, 6, b"ghi")).await.unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"abcdefghi");
    let (status, _) = code(copy(&guest, &piece("c1/big", 9, 6, b"ghi")).await);
    assert_eq!(status, Code::FAILED_PRECONDITION, "there is nothing to go on with");

    // Names that differ only in what follows the dot, and one that starts anew.
    for (name, text) in [("a.crt", b"CRT1"), ("a.key", b"KEY1")] {
        copy(&guest, &piece(&format!("c1/{name}"), 8, 0, text)).await.unwrap();
    }
    copy(&guest, &piece("c1/a.crt", 8, 0, b"CRT2")).await.unwrap();
    for (name, text) in [("a.key", b"KEY9"), ("a.crt", b"CRT9")] {
        copy(&guest, &piece(&format!("c1/{name}"), 8, 4, text)).await.unwrap();
    }
    assert_eq!(fs::read(shared.join("c1/a.crt")).unwrap(), b"CRT2CRT9");
    assert_eq!(fs::read(shared.join("c1/a.key")).unwrap(), b"KEY1KEY9");
}

#[tokio::test]
async fn pieces_sent_ahead_are_written_in_the_order_they_came() {
    let agent = Agent::start().await;
    let (guest, shared) = (agent.client().await, agent.shared());
    let pieces: Vec<_> = (0..64).map(|n| piece("c1/f", 64 << 10, n << 10, &[n as u8; 1 << 10])).collect();
    let mut running = tokio::task::JoinSet::new();
    for piece in pieces {
        let guest = guest.clone();
        running.spawn(async move { copy(&guest, &piece).await });
        // Sent before the next is made.
        tokio::task::yield_now().await;
    }
    for result in running.join_all().await {
        result.unwrap();
    }
    let bytes = fs::read(shared.join("c1/f")).unwrap();
    assert!(bytes.chunks(1 << 10).enumerate().all(|(n, chunk)| chunk.iter().all(|byte| *byte == n as u8)));
}

#[tokio::test]
async fn what_may_not_be_copied_is_refused() {
    let agent = Agent::start().await;
    let (guest, shared) = (agent.client().await, agent.shared());
    copy(&guest, &request("c1/keep", FILE | 0o644, b"kept")).await.unwrap();
    let before = snapshot(&shared);
    let long = "n".repeat(300);
    let mut cases: Vec<CopyFileRequest> =
        ["", ".", "..", "../x", "c1/../../x", "c1/..", "c1/a\0b", "c1/.keep.berth-part"]
            .map(|path| request(path, FILE | 0o644, b"x"))
            .to_vec();
    for path in [
        "/etc/berth-must-not-exist",
        "relative",
        "",
        "/",
        "/run/kata-containers/x",
        "/run/kata-containers/shared/containersX/x",
    ] {
        cases.push(CopyFileRequest { path: path.into(), ..request("x", FILE | 0o644, b"x") });
    }
    for mode in [0o020_000, 0o060_000, 0o010_000, 0o140_000, 0o150_000] {
        cases.push(request("c1/node", mode | 0o644, b""));
    }
    cases.push(request("c1/link", LINK, b""));
    cases.push(request("c1/link", LINK, b"a\0b"));
    cases.push(piece("c1/keep", 3, 0, b"abcd"));
    cases.push(piece("c1/keep", 3, usize::MAX, b""));
    cases.push(CopyFileRequest { file_size: -1, ..request("c1/keep", FILE, b"") });
    cases.push(CopyFileRequest { offset: i64::MAX, file_size: i64::MAX, ..request("c1/keep", FILE, b"abc") });
    cases.push(CopyFileRequest { uid: -2, ..request("c1/keep", FILE, b"abc") });
    for case in &cases {
        let (status, message) = code(copy(&guest, case).await);
        assert_eq!(status, Code::INVALID_ARGUMENT, "{case:?}: {message}");
    }
    code(copy(&guest, &request(&long, FILE | 0o644, b"x")).await);
    assert_eq!(snapshot(&shared), before);
    assert!(!Path::new("/etc/berth-must-not-exist").exists());
}

/// Rows H1 and A9 of the reliability tests (CVE-2026-41326); `copy::tests` has them at random.
#[tokio::test]
async fn links_lead_nowhere_outside_the_tree() {
    let agent = Agent::start().await;
    let (guest, shared) = (agent.client().await, agent.shared());
    let outside = agent.dir().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("victim"), "untouched").unwrap();
    let before = snapshot(&outside);
    copy(&guest, &request("c1/x", FILE | 0o644, b"x")).await.unwrap();
    let up = "../".repeat(20);
    let targets = [
        outside.display().to_string(),
        format!("{up}{}", outside.strip_prefix("/").unwrap().display()),
        "/proc/self/root".into(),
        "/proc/1/root".into(),
        "/".into(),
        "loop".into(),
        "nowhere".into(),
    ];
    for (n, target) in targets.iter().enumerate() {
        let name = format!("c1/link{n}");
        copy(&guest, &request(&name, LINK, target.as_bytes())).await.unwrap();
        for path in
            [format!("{name}/victim"), format!("{name}/new"), format!("{name}{}/victim", outside.display())]
        {
            code(copy(&guest, &request(&path, FILE | 0o644, b"overwritten")).await);
            code(copy(&guest, &request(&path, DIRECTORY | 0o777, b"")).await);
            code(copy(&guest, &request(&path, LINK, b"x")).await);
        }
        // Through its own name the link is replaced, not followed.
        copy(&guest, &request(&name, FILE | 0o644, b"a file")).await.unwrap();
        assert!(fs::symlink_metadata(shared.join(&name)).unwrap().is_file());
    }
    // What a container may put where a partial copy is.
    copy(&guest, &piece("c1/f", 6, 0, b"abc")).await.unwrap();
    let part = shared.join("c1/.f.berth-part");
    fs::remove_file(&part).unwrap();
    symlink(outside.join("victim"), &part).unwrap();
    code(copy(&guest, &piece("c1/f", 6, 3, b"def")).await);
    fs::remove_file(&part).unwrap();
    nix::unistd::mkfifo(&part, nix::sys::stat::Mode::S_IRWXU).unwrap();
    code(copy(&guest, &piece("c1/f", 6, 3, b"def")).await);
    fs::remove_file(&part).unwrap();
    fs::write(shared.join("c1/other"), "other").unwrap();
    fs::hard_link(shared.join("c1/other"), &part).unwrap();
    code(copy(&guest, &piece("c1/f", 6, 3, b"def")).await);
    assert_eq!(fs::read(shared.join("c1/other")).unwrap(), b"other");
    // A link within the tree may be followed.
    fs::create_dir(shared.join("c1/data")).unwrap();
    symlink("data", shared.join("c1/..data")).unwrap();
    copy(&guest, &request("c1/..data/key", FILE | 0o644, b"v")).await.unwrap();
    assert_eq!(fs::read(shared.join("c1/data/key")).unwrap(), b"v");
    assert_eq!(snapshot(&outside), before);
}

#[tokio::test]
async fn directories_that_turn_into_links_meanwhile() {
    let agent = Agent::start().await;
    let (guest, shared) = (agent.client().await, agent.shared());
    let outside = agent.dir().join("outside");
    fs::create_dir(&outside).unwrap();
    copy(&guest, &request("c1/dir/f", FILE | 0o644, b"x")).await.unwrap();
    let (dir, spare, link) = (shared.join("c1/dir"), shared.join("c1/spare"), shared.join("c1/link"));
    // Seen from inside the tree's mount namespace, which shares this file system.
    symlink(&outside, &link).unwrap();
    let stop = AtomicBool::new(false);
    let arrived = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::rename(&dir, &spare);
                let _ = fs::rename(&link, &dir);
                let _ = fs::rename(&dir, &link);
                let _ = fs::rename(&spare, &dir);
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let socket = agent.client();
        let copies = std::thread::spawn({
            let address = agent.socket();
            move || {
                runtime.block_on(async {
                    let client = ttrpc::r#async::Client::connect(&format!("unix://{}", address.display()))
                        .await
                        .unwrap();
                    let guest = Guest::new(client);
                    let mut arrived = 0;
                    for n in 0..2000 {
                        arrived += u32::from(
                            copy(&guest, &request(&format!("c1/dir/n{n}"), FILE | 0o644, b"x")).await.is_ok(),
                        );
                    }
                    arrived
                })
            }
        });
        drop(socket);
        let arrived = copies.join().unwrap();
        stop.store(true, Ordering::Relaxed);
        arrived
    });
    assert!(arrived > 0, "no copy ever met the directory");
    assert!(snapshot(&outside).is_empty(), "{:?}", snapshot(&outside));
}

#[tokio::test]
async fn a_full_disk_leaves_the_old_file_and_no_rest() {
    let agent = Agent::start().await;
    let (guest, shared) = (agent.client().await, agent.shared());
    copy(&guest, &request("c1/f", FILE | 0o644, b"the old one")).await.unwrap();
    let remount = agent.inside(&["mount", "-o", "remount,size=1m", "/run/kata-containers"]);
    assert!(remount.status.success(), "{remount:?}");
    let half = vec![7; 700 << 10];
    copy(&guest, &piece("c1/f", half.len() * 2, 0, &half)).await.unwrap();
    let (status, message) = code(copy(&guest, &piece("c1/f", half.len() * 2, half.len(), &half)).await);
    assert_eq!(status, Code::RESOURCE_EXHAUSTED, "{message}");
    assert_eq!(fs::read(shared.join("c1/f")).unwrap(), b"the old one");
    assert_eq!(fs::read_dir(shared.join("c1")).unwrap().count(), 1, "the partial copy has made room");
    copy(&guest, &request("c1/f", FILE | 0o644, b"the new one")).await.unwrap();
    assert_eq!(fs::read(shared.join("c1/f")).unwrap(), b"the new one");
}

/// A gibibyte, on a file system that is not memory itself: the worker never held more than while it had the first few
/// pieces.
#[tokio::test]
async fn a_copy_of_any_size_takes_the_same_memory() {
    let agent = Agent::start().await;
    let room = agent.dir().join("room");
    fs::create_dir(&room).unwrap();
    let mounted = agent.inside(&["mount", "--bind", &room.display().to_string(), "/run/kata-containers"]);
    assert!(mounted.status.success(), "{mounted:?}");
    let peak = || {
        let status = fs::read_to_string(format!("/proc/{}/status", agent.role(Role::Worker))).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let mut client = RawClient::connect(&agent.socket()).unwrap();
    let chunk = vec![0x5a; 1 << 20];
    let total = 1024usize;
    let mut after_sixteen = 0;
    for n in 0..total {
        let request = piece("c1/big", total << 20, n << 20, &chunk);
        client.agent::<Empty>("CopyFile", &request).unwrap();
        if n == 15 {
            after_sixteen = peak();
        }
    }
    let grown = peak() - after_sixteen;
    assert!(grown < 2 << 10, "{grown} KiB more after 1 GiB than after 16 MiB, which took {after_sixteen}");
    assert_eq!(fs::metadata(room.join("shared/containers/c1/big")).unwrap().len(), (total as u64) << 20);
}
