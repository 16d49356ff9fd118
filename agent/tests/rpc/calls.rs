//! What becomes of calls: deadlines, panics, clients that leave.

use std::time::{Duration, Instant};

use super::{
    client::{DEADLINE_EXCEEDED, INTERNAL, INVALID_ARGUMENT, UNAVAILABLE, request},
    server::{PROMPT, Setup, start, wait_for},
};

#[test]
fn t6_a_request_cut_at_any_byte_does_nothing_and_a_whole_one_is_carried_out() {
    let server = start(Setup::default());
    let whole = request(1, "Work", b"0");
    for cut in 0..whole.len() {
        server.client().send(&whole[..cut]);
    }
    let [finished, ..] = server.counts();
    assert_eq!(finished, 0);
    for _ in 0..100 {
        server.client().send(&whole);
    }
    wait_for(|| server.counts()[0] == 100);
}

#[test]
fn t6_work_goes_on_without_its_client_and_waiting_does_not() {
    let server = start(Setup::default());
    let mut client = server.client();
    client.start("Work", b"200");
    for _ in 0..50 {
        client.start("Park", b"");
    }
    wait_for(|| server.counts()[3] == 50);
    drop(client);
    wait_for(|| server.counts()[3] == 0);
    wait_for(|| server.counts()[0] == 1);
}

#[test]
fn a_lease_of_a_client_that_left_is_given_back_unsent() {
    let server = start(Setup::default());
    let mut client = server.client();
    for _ in 0..8 {
        client.start("Read", b"1000000");
    }
    wait_for(|| server.resident() > 0 && server.counts()[1] + server.counts()[2] == 0);
    drop(client);
    wait_for(|| {
        let [_, sent, dropped, _] = server.counts();
        sent == 0 && dropped >= 1
    });
    let mut reader = server.client();
    assert_eq!(reader.call("Read", b"1000000").unwrap().len(), 1_000_004);
    assert_eq!(server.counts()[1], 1);
}

#[test]
fn t14_deadlines() {
    let server = start(Setup::default());
    let mut client = server.client();
    let mut timed = |method: &str, payload: &[u8], nanos: i64| {
        let start = Instant::now();
        let stream = client.start_with_timeout(method, payload, nanos);
        let (answered, result) = client.answer();
        assert_eq!(answered, stream);
        (result, start.elapsed())
    };
    let millis = |count: i64| count * 1_000_000;

    assert_eq!(timed("Work", b"0", i64::MAX).0, Ok(b"0".to_vec()));
    for negative in [-1, i64::MIN] {
        assert_eq!(timed("Work", b"0", negative).0.unwrap_err().0, INVALID_ARGUMENT);
    }
    assert_eq!(timed("Work", b"3000", 1).0.unwrap_err().0, DEADLINE_EXCEEDED);
    for (method, given, payload) in [("Work", 50, "3000"), ("Park", 50, ""), ("Capped", 0, "3000")] {
        let (result, took) = timed(method, payload.as_bytes(), millis(given));
        assert_eq!(result.unwrap_err().0, DEADLINE_EXCEEDED, "{method}");
        let due = Duration::from_millis(if given > 0 { given as u64 } else { 100 });
        assert!(took >= due && took < due + PROMPT, "{method}: {took:?}");
    }
    assert_eq!(timed("Capped", b"3000", millis(20)).0.unwrap_err().0, DEADLINE_EXCEEDED);
    assert_eq!(timed("Capped", b"200", millis(60_000)).0, Ok(Vec::new()), "who gives more waits longer");
    // Three of those that work were late; they finish all the same, and their results go nowhere.
    wait_for(|| server.counts()[0] == 3);
    assert_eq!(server.counts()[3], 0, "waiting ends with the deadline");
    client.ping();
}

#[test]
fn t15_a_panic_is_answered_and_nothing_else_suffers() {
    let server = start(Setup::default());
    let mut client = server.client();
    for (round, method) in ["Panic", "PanicLater", "Panic"].into_iter().enumerate() {
        let start = Instant::now();
        let (code, text) = client.call(method, b"secret").unwrap_err();
        assert!(start.elapsed() < PROMPT);
        assert_eq!(code, INTERNAL);
        assert!(text.contains(method) && text.contains(&format!("P{:04}", round + 1)), "{text}");
        assert!(!text.contains("secret") && !text.contains("said"), "{text}");
    }
    client.ping();
}

#[test]
fn t15_a_method_that_panics_three_times_is_not_asked_for_a_while() {
    let server = start(Setup::default());
    let mut client = server.client();
    for _ in 0..3 {
        assert_eq!(client.call("Panic", b"").unwrap_err().0, INTERNAL);
    }
    let (code, text) = client.call("Panic", b"").unwrap_err();
    assert_eq!(code, UNAVAILABLE);
    assert!(text.contains("served again in"), "{text}");
    assert_eq!(client.call("PanicLater", b"").unwrap_err().0, INTERNAL, "only the one that panics");
    client.ping();
}

#[test]
fn answers_come_as_they_are_ready_not_as_they_were_asked() {
    let server = start(Setup::default());
    let mut client = server.client();
    let slow = client.start("Work", b"100");
    let fast = client.start("Work", b"1");
    let now = client.start("Echo", b"");
    let order: Vec<u32> = (0..3).map(|_| client.answer().0).collect();
    assert_eq!(order, [now, fast, slow]);
}

#[test]
fn ten_thousand_parked_calls_are_cheap() {
    let server = start(Setup::default());
    let mut client = server.client();
    let base = server.resident();
    for _ in 0..10_000 {
        client.start("Park", b"container process");
    }
    wait_for(|| server.counts()[3] == 10_000);
    let each = (server.resident() - base) * 1024 / 10_000;
    assert!(each <= 1024, "{each} bytes each");
    assert!(client.ping() < PROMPT);
    drop(client);
    wait_for(|| server.counts()[3] == 0);
    server.client().ping();
}
