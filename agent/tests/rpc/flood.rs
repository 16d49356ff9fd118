//! Peers that take more than their share. Bounds are in KiB of resident memory.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    thread,
    time::Duration,
};

use super::{
    client::{Client, frame, request},
    server::{Running, Setup, start, wait_for},
};

/// Writes until the server stops reading: the number of bytes that went.
fn push(client: &mut Client, bytes: &[u8]) -> usize {
    client.socket.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut written = 0;
    while written < bytes.len() {
        match client.socket.write(&bytes[written..]) {
            Ok(count) => written += count,
            Err(_) => break,
        }
    }
    written
}

fn parked_megabytes(count: u32) -> Vec<u8> {
    (0..count).flat_map(|i| request(2 * i + 1, "Park", &vec![b'x'; 1 << 20])).collect()
}

#[test]
fn t3_unanswered_calls_stop_at_the_budget() {
    let server = start(Setup::default());
    let base = server.resident();
    let flood = parked_megabytes(40);
    let mut one = server.client();
    assert!(push(&mut one, &flood) < 12 << 20, "one connection has its own limit");
    assert!(server.resident() < base + 12 * 1024, "{} KiB more", server.resident() - base);

    let mut others: Vec<Client> = (0..60).map(|_| server.client()).collect();
    let small = &flood[..flood.len() / 10];
    thread::scope(|scope| {
        for client in &mut others {
            scope.spawn(|| push(client, small));
        }
    });
    let resident = server.resident();
    assert!(resident < base + 20 * 1024, "{} KiB more", resident - base);
    assert!(server.slow_ping() < Duration::from_millis(100), "pings go on");
    drop((one, others));
    wait_for(|| server.counts()[3] == 0);
    let mut again = server.client();
    assert_eq!(again.call("Echo", &vec![1; 3 << 20]).unwrap().len(), 3 << 20, "the budget is whole again");
}

#[test]
fn t4_replies_nobody_reads_stop_at_the_queue() {
    let server = start(Setup { stall_ms: Some(1500), ..Setup::default() });
    let base = server.resident();
    let mut client = server.client();
    let calls: Vec<u8> = (0..500).flat_map(|i| request(2 * i + 1, "Read", b"1048576")).collect();
    client.send(&calls);
    assert!(server.slow_ping() < Duration::from_millis(100));
    wait_for(|| {
        let resident = server.resident();
        assert!(resident < base + 8 * 1024, "{} KiB more", resident - base);
        server.counts()[2] > 0
    });
    // What the socket had taken comes, and then the end.
    wait_for(|| client.try_answer().is_err());
    let [_, sent, dropped, _] = server.counts();
    assert!((4..8).contains(&(sent + dropped)), "without room nothing is read: {sent} + {dropped}");
}

#[test]
fn a_slow_reader_gets_everything_in_the_end() {
    let server = start(Setup::default());
    let mut client = server.client();
    for _ in 0..100 {
        client.start("Read", b"1048576");
    }
    for _ in 0..100 {
        assert_eq!(client.answer().1.unwrap().len(), 1_048_580);
    }
    wait_for(|| server.counts()[1] == 100);
}

#[test]
fn t5_sixteen_slow_readers_hold_up_nobody_and_get_everything() {
    let server = start(Setup::default());
    let base = server.resident();
    let mut slow: Vec<Client> = (0..16).map(|_| server.client()).collect();
    for client in &mut slow {
        (0..8).for_each(|_| _ = client.start("Read", b"1048576"));
    }
    let mut other = server.client();
    for _ in 0..200 {
        assert_eq!(other.call("Read", b"65536").unwrap().len(), 65_540);
    }
    // A queue of at most a frame more than its limit for each.
    assert!(server.resident() < base + 16 * 9 * 1024, "{} KiB more", server.resident() - base);
    for client in &mut slow {
        for _ in 0..8 {
            assert_eq!(client.answer().1.unwrap().len(), 1_048_580);
        }
    }
}

#[test]
fn t5_who_does_not_read_has_no_thread_of_the_pool() {
    const SIZE: usize = 64 << 10;
    let server = start(Setup::default());
    let base = server.resident();
    let mut slow: Vec<Client> = (0..16).map(|_| server.client()).collect();
    for client in &mut slow {
        // Three times what is queued for them.
        (0..200).for_each(|_| _ = client.start("Pool", SIZE.to_string().as_bytes()));
    }
    let mut other = server.client();
    other.socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The first waits for those that came before it and are still served.
    for _ in 0..50 {
        assert_eq!(other.call("Pool", b"1024").unwrap().len(), 1024);
    }
    let made = server.counts()[0];
    assert!(made < 16 * 100, "what nobody takes is not made: {made}");
    assert!(server.resident() < base + 16 * 6 * 1024, "{} KiB more", server.resident() - base);
    for client in &mut slow {
        for _ in 0..200 {
            assert_eq!(client.answer().1.unwrap().len(), SIZE);
        }
    }
}

#[test]
fn t5_who_takes_a_little_at_a_time_is_not_cut_off() {
    let server = start(Setup { stall_ms: Some(3000), ..Setup::default() });
    let mut slow = server.client();
    (0..4).for_each(|_| _ = slow.start("Read", b"1048576"));
    // Less in the time of a stall than makes a Unix socket poll writable (160 KiB), over more than two of them.
    for _ in 0..50 {
        slow.socket.read_exact(&mut [0; 8 << 10]).unwrap();
        thread::sleep(Duration::from_millis(170));
    }
    let rest = 4 * (1_048_580 + 10 + 4) - 50 * (8 << 10);
    slow.socket.read_exact(&mut vec![0; rest]).unwrap();
    slow.ping();
}

#[test]
fn t7_declared_lengths_cost_nothing() {
    let server = start(Setup { frame_ms: Some(6000), ..Setup::default() });
    server.client().ping();
    let (base, mapped, open) = (server.resident(), server.mapped(), server.descriptors());
    let sockets: Vec<UnixStream> = (0..500)
        .map(|_| {
            let mut socket = UnixStream::connect(&server.socket).unwrap();
            let _ = socket.write_all(&frame(4 << 20, 1, 1, 0, b"x"));
            socket
        })
        .collect();
    // Once the last is refused, all of them have been met.
    assert!(matches!((&sockets[499]).read(&mut [0]), Ok(0) | Err(_)));
    assert!((open + 60..=open + 65).contains(&server.descriptors()), "{}", server.descriptors());
    assert!(server.resident() < base + 4 * 1024, "{} KiB more", server.resident() - base);
    assert!(server.mapped() < mapped + 64 * 1024, "{} KiB mapped", server.mapped() - mapped);
    wait_for(|| server.descriptors() <= open);
    drop(sockets);
    server.client().ping();
}

fn t8(limit: u64) {
    let server = start(Setup::default());
    let open = server.descriptors();
    server.limit_descriptors(open as u64 + limit);
    let sockets: Vec<UnixStream> = (0..200).map_while(|_| UnixStream::connect(&server.socket).ok()).collect();
    wait_for(|| server.descriptors() as u64 + 1 >= open as u64 + limit);
    // A rate needs a time to be taken over.
    let before = server.processor();
    thread::sleep(Duration::from_secs(1));
    let used = server.processor() - before;
    assert!(used <= Duration::from_millis(50), "{used:?} of processor time in a second");
    drop(sockets);
    let mut client = server.client();
    client.socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    client.ping();
}

#[test]
fn t8_without_descriptors_accepting_pauses_and_goes_on() {
    t8(10);
    t8(40);
}

#[test]
fn t18_ten_thousand_connections_leave_nothing() {
    let server = start(Setup::default());
    let churn = |server: &Running, count| {
        for _ in 0..count {
            server.client().ping();
        }
    };
    churn(&server, 200);
    let (base, open) = (server.resident(), server.descriptors());
    churn(&server, 10_000);
    wait_for(|| server.descriptors() <= open);
    assert!(server.resident() < base + 1024, "{} KiB more", server.resident() - base);
}
