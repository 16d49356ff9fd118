//! The ttrpc crate's own client.

use std::{path::Path, time::Duration};

use ttrpc::{
    Error,
    asynchronous::Client,
    proto::{Code, Request, Response},
};

use super::server::{Setup, start};

async fn call(
    client: &Client,
    service: &str,
    method: &str,
    payload: Vec<u8>,
    timeout_nano: i64,
) -> Result<Response, Error> {
    let (service, method) = (service.into(), method.into());
    client.request(Request { service, method, payload, timeout_nano, ..Default::default() }).await
}

async fn connect(socket: &Path) -> Client {
    Client::connect(&format!("unix://{}", socket.display())).await.unwrap()
}

fn code(result: Result<Response, Error>) -> Code {
    match result {
        Err(Error::RpcStatus(status)) => status.code.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_thousand_calls_at_once_of_all_sizes() {
    let server = start(Setup::default());
    let client = connect(&server.socket).await;
    let tasks: Vec<_> = (0..1000usize)
        .map(|i| {
            let (client, payload) = (client.clone(), vec![i as u8; i * i % 100_000]);
            tokio::spawn(async move {
                let reply = call(&client, "test.Probe", "Echo", payload.clone(), 0).await.unwrap();
                assert_eq!(reply.payload, payload);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn errors_are_understood() {
    let server = start(Setup::default());
    let client = connect(&server.socket).await;
    let probe = "test.Probe";
    assert_eq!(code(call(&client, probe, "Nothing", Vec::new(), 0).await), Code::UNIMPLEMENTED);
    assert_eq!(code(call(&client, probe, "Panic", Vec::new(), 0).await), Code::INTERNAL);
    let late = call(&client, probe, "Park", Vec::new(), Duration::from_millis(30).as_nanos() as i64).await;
    assert!(late.is_err());
    let reply = call(&client, probe, "Read", b"2000000".to_vec(), 0).await.unwrap();
    assert_eq!(reply.payload.len(), 2_000_004);
}
