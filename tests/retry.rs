//! Hosts that lose their connection, or their patience, and ask again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{io::Write, os::unix::net::UnixStream};

use berth::{Agent, code};
use protobuf::Message;
use ttrpc::{Code, proto::Request};

/// A request as it goes over the wire.
fn frame(method: &str, request: &impl Message) -> Vec<u8> {
    let request = Request {
        service: "grpc.AgentService".into(),
        method: method.into(),
        payload: request.write_to_bytes().unwrap(),
        ..Default::default()
    };
    let body = request.write_to_bytes().unwrap();
    let mut frame = (body.len() as u32).to_be_bytes().to_vec();
    frame.extend([0, 0, 0, 1, 1, 0]);
    frame.extend(body);
    frame
}

#[tokio::test]
async fn a_create_whose_client_vanished_is_answered_when_it_asks_again() {
    let (agent, guest) = Agent::with_sandbox().await;
    for round in 0..20 {
        let id = format!("c{round}");
        let container = agent.container(&id, &["sleep", "1000"]);
        let bytes = frame("CreateContainer", &container.request);
        let mut gone = UnixStream::connect(agent.socket()).unwrap();
        gone.write_all(&bytes).unwrap();
        drop(gone);
        // Joined if it still runs, told its result if it is over, made now if it never began.
        guest.create(&container).await.unwrap();
        assert_eq!(code(guest.create(&container).await).0, Code::ALREADY_EXISTS, "once is enough");
        guest.start(&id).await.unwrap();
        guest.remove(&id).await.unwrap();
    }
    assert_eq!(agent.container_pids(), [] as [i32; 0]);
}

#[tokio::test]
async fn a_client_that_vanishes_at_any_byte_leaves_nothing_half_made() {
    let (agent, guest) = Agent::with_sandbox().await;
    let container = agent.container("c1", &["sleep", "1000"]);
    let bytes = frame("CreateContainer", &container.request);
    for cut in (0..bytes.len()).step_by(bytes.len() / 64) {
        let mut gone = UnixStream::connect(agent.socket()).unwrap();
        gone.write_all(&bytes[..cut]).unwrap();
    }
    guest.create(&container).await.unwrap();
    guest.remove("c1").await.unwrap();
    assert_eq!(agent.container_pids(), [] as [i32; 0]);
}

#[tokio::test]
async fn what_was_not_told_is_history_after_another_call() {
    let (agent, guest) = Agent::with_sandbox().await;
    let container = agent.container("c1", &["sleep", "1000"]);
    for _ in 0..20 {
        let mut gone = UnixStream::connect(agent.socket()).unwrap();
        gone.write_all(&frame("CreateContainer", &container.request)).unwrap();
        drop(gone);
        while guest.remove("c1").await.is_err() {
            tokio::task::yield_now().await;
        }
        guest.create(&container).await.unwrap();
        guest.start("c1").await.expect("it was made anew");
        guest.remove("c1").await.unwrap();
    }
}

#[tokio::test]
async fn two_clients_with_one_wish_get_one_container() {
    let (agent, guest) = Agent::with_sandbox().await;
    let other = agent.client().await;
    for _ in 0..20 {
        let container = agent.container("c1", &["sleep", "1000"]);
        let (one, two) = tokio::join!(guest.create(&container), other.create(&container));
        for result in [one, two] {
            assert!(result.is_ok() || code(result).0 == Code::ALREADY_EXISTS);
        }
        guest.start("c1").await.unwrap();
        assert_eq!(agent.container_pids().len(), 1);
        guest.remove("c1").await.unwrap();
    }
}
