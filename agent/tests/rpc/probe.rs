//! A service whose methods do what a test wants a handler to do.

use std::{
    cell::{Cell, RefCell},
    future::pending,
    rc::Rc,
    str,
    time::Duration,
};

use berth_agent::{
    rpc::{
        envelope::Request,
        reply::{Code, Lease, Reply, Status},
        service::{Fate, Outcome, Running, Service, Work},
    },
    task::blocking,
};
use tokio::time::sleep;

#[derive(Default)]
struct Counters {
    finished: Cell<u64>,
    leases_sent: Cell<u64>,
    leases_dropped: Cell<u64>,
    parked: Cell<u64>,
}

/// Service `test.Probe`; numbers in payloads are decimal text.
#[derive(Default)]
pub struct Probe(Rc<Counters>, RefCell<Rc<[u8]>>);

impl Probe {
    /// The same bytes for every call of one size, so that making them is not part of a measurement.
    fn shared(&self, size: usize) -> Rc<[u8]> {
        if self.1.borrow().len() != size {
            self.1.replace(vec![7; size].into());
        }
        self.1.borrow().clone()
    }
}

struct Shared(Rc<[u8]>);

impl Lease for Shared {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn sent(self: Box<Self>) {}
}

struct Counted {
    bytes: Vec<u8>,
    counters: Rc<Counters>,
    sent: bool,
}

impl Lease for Counted {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn sent(mut self: Box<Self>) {
        self.sent = true;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let counter = if self.sent { &self.counters.leases_sent } else { &self.counters.leases_dropped };
        counter.set(counter.get() + 1);
    }
}

struct Parked(Rc<Counters>);

impl Drop for Parked {
    fn drop(&mut self) {
        self.0.parked.set(self.0.parked.get() - 1);
    }
}

fn later(name: &'static str, fate: Fate, work: Work) -> Result<Outcome, Status> {
    Ok(Outcome::Later(Running { name, work, fate, cap: None }))
}

fn number(payload: &[u8]) -> u64 {
    str::from_utf8(payload).unwrap().parse().unwrap()
}

impl Service for Probe {
    fn call(&self, request: &Request<'_>) -> Result<Outcome, Status> {
        let counters = self.0.clone();
        let payload = if request.method == "Swallow" { Vec::new() } else { request.payload.to_vec() };
        match request.method {
            "Echo" => Ok(Outcome::Now(Reply::message(payload))),
            "Make" => Ok(Outcome::Now(Reply::message(vec![7; number(&payload) as usize]))),
            "Park" => {
                counters.parked.set(counters.parked.get() + 1);
                let parked = Parked(counters);
                later(
                    "Park",
                    Fate::Tied,
                    Box::pin(async move {
                        let _held = (payload, parked);
                        pending().await
                    }),
                )
            }
            "Read" => later(
                "Read",
                Fate::Tied,
                Box::pin(async move {
                    let bytes = vec![7; number(&payload) as usize];
                    Ok(Reply::leased_field(1, Box::new(Counted { bytes, counters, sent: false })))
                }),
            ),
            "Shared" => {
                let bytes = self.shared(number(&payload) as usize);
                later(
                    "Shared",
                    Fate::Tied,
                    Box::pin(async move { Ok(Reply::leased_field(1, Box::new(Shared(bytes)))) }),
                )
            }
            "Pool" => later(
                "Pool",
                Fate::Tied,
                Box::pin(async move {
                    let made = blocking(move || vec![7; number(&payload) as usize]).await;
                    counters.finished.set(counters.finished.get() + 1);
                    Ok(Reply::message(made.map_err(|error| Status::new(Code::Internal, error))?))
                }),
            ),
            "Swallow" => Ok(Outcome::Now(Reply::empty())),
            "Work" => later(
                "Work",
                Fate::Detached,
                Box::pin(async move {
                    sleep(Duration::from_millis(number(&payload))).await;
                    counters.finished.set(counters.finished.get() + 1);
                    Ok(Reply::message(payload))
                }),
            ),
            "Capped" => {
                let work = Box::pin(async move {
                    sleep(Duration::from_millis(number(&payload))).await;
                    Ok(Reply::empty())
                });
                let cap = Some(Duration::from_millis(100));
                Ok(Outcome::Later(Running { name: "Capped", work, fate: Fate::Detached, cap }))
            }
            "Panic" => panic!("said {}", payload.len()),
            "PanicLater" => later(
                "PanicLater",
                Fate::Detached,
                Box::pin(async {
                    sleep(Duration::from_millis(1)).await;
                    panic!("later")
                }),
            ),
            "Count" => {
                let Counters { finished, leases_sent, leases_dropped, parked } = &*counters;
                let text =
                    [finished, leases_sent, leases_dropped, parked].map(|count| count.get().to_string());
                Ok(Outcome::Now(Reply::message(text.join(" ").into_bytes())))
            }
            other => Err(Status::new(Code::Unimplemented, format_args!("{other} method"))),
        }
    }
}
