//! Results that nobody was told.
//!
//! A host that lost its connection, or its patience, makes its call again. While the first is still running it is
//! joined ([`inflight`](super::inflight)); when the first has succeeded meanwhile and its reply reached nobody, the
//! result is here and the same request gets it. A result that was told is not kept: the same request is then a
//! second wish, and the state of the container answers it ("already exists", "it is running").
//!
//! Only the calls that refuse a repetition are kept; any other may simply be carried out again. One result is kept
//! for each container, since a later call on it makes the earlier one's result history.

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use super::{
    fingerprint::Key,
    wire::{Fields, Value},
};

/// How long a host may take to come back.
const KEPT: Duration = Duration::from_secs(60);
/// Results kept at once.
const MOST: usize = 1024;

/// The calls that would refuse their own repetition. All but the last name a container in field 1.
const ONCE: [&str; 5] =
    ["CreateContainer", "StartContainer", "ExecProcess", "RemoveContainer", "CreateSandbox"];

/// What a call is about.
pub(super) type Subject = Vec<u8>;

/// The results, by what they are about.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    results: RefCell<HashMap<Subject, Kept>>,
    order: RefCell<VecDeque<Subject>>,
}

#[derive(Debug)]
struct Kept {
    key: Key,
    since: Instant,
    reply: Vec<u8>,
}

/// Whose result a call's may be kept as; `None` for a call that may be repeated anyway.
pub(super) fn subject(method: &str, body: &[u8]) -> Option<Subject> {
    if !ONCE.contains(&method) {
        return None;
    }
    if method == "CreateSandbox" {
        return Some(Subject::new());
    }
    let mut fields = Fields::new(body);
    while let Ok(Some((number, value))) = fields.next_field() {
        if let (1, Value::Bytes(id)) = (number, value) {
            return Some(id.to_vec());
        }
    }
    None
}

impl Unheard {
    /// The result that the call `key` on `subject` had and nobody was told. Any other call on it forgets what was
    /// kept.
    pub(super) fn take(&self, subject: &Subject, key: Key, now: Instant) -> Option<Vec<u8>> {
        let kept = self.results.borrow_mut().remove(subject)?;
        self.order.borrow_mut().retain(|other| other != subject);
        (kept.key == key && now.duration_since(kept.since) < KEPT).then_some(kept.reply)
    }

    /// Nobody was told `reply`.
    pub(super) fn keep(&self, subject: Subject, key: Key, reply: Vec<u8>, now: Instant) {
        let mut order = self.order.borrow_mut();
        order.retain(|other| *other != subject);
        if order.len() == MOST
            && let Some(oldest) = order.pop_front()
        {
            self.results.borrow_mut().remove(&oldest);
        }
        order.push_back(subject.clone());
        self.results.borrow_mut().insert(subject, Kept { key, since: now, reply });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(method: &'static str) -> Key {
        Key { method, length: 1, hash: 1 }
    }

    #[test]
    fn a_result_is_given_once_to_the_same_call_within_a_minute() {
        let unheard = Unheard::default();
        let start = Instant::now();
        let (c1, c2) = (b"c1".to_vec(), b"c2".to_vec());
        unheard.keep(c1.clone(), key("CreateContainer"), vec![1], start);
        assert_eq!(unheard.take(&c2, key("CreateContainer"), start), None);
        assert_eq!(unheard.take(&c1, key("CreateContainer"), start), Some(vec![1]));
        assert_eq!(unheard.take(&c1, key("CreateContainer"), start), None);

        unheard.keep(c1.clone(), key("CreateContainer"), vec![1], start);
        assert_eq!(unheard.take(&c1, key("CreateContainer"), start + KEPT), None);
    }

    #[test]
    fn another_call_on_the_same_container_makes_it_history() {
        let unheard = Unheard::default();
        let (start, c1) = (Instant::now(), b"c1".to_vec());
        unheard.keep(c1.clone(), key("CreateContainer"), vec![], start);
        assert_eq!(unheard.take(&c1, key("RemoveContainer"), start), None);
        assert_eq!(unheard.take(&c1, key("CreateContainer"), start), None);
    }

    #[test]
    fn a_bounded_number_is_kept() {
        let unheard = Unheard::default();
        let start = Instant::now();
        for n in 0..3000u32 {
            unheard.keep(n.to_le_bytes().to_vec(), key("StartContainer"), vec![], start);
        }
        assert_eq!((unheard.results.borrow().len(), unheard.order.borrow().len()), (MOST, MOST));
        assert!(unheard.take(&2999u32.to_le_bytes().to_vec(), key("StartContainer"), start).is_some());
    }

    #[test]
    fn what_a_call_is_about() {
        assert_eq!(subject("StartContainer", b"\x0a\x02c1"), Some(b"c1".to_vec()));
        assert_eq!(subject("CreateSandbox", b"\x0a\x02c1"), Some(Vec::new()));
        assert_eq!(subject("WriteStdin", b"\x0a\x02c1"), None);
        assert_eq!(subject("StartContainer", b"\xff"), None);
    }
}
