//! A blocking ttrpc client on a bare socket: no runtime, no task, one call at a time. Measurements use it
//! because it adds next to nothing, transport tests because it can also send what no client would.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use berth_protocols::agent::{DestroySandboxRequest, GuestDetailsRequest, GuestDetailsResponse};
use protobuf::{EnumOrUnknown, Message};
use ttrpc::{Code, Request, Response};

/// Bytes of replies: more than all buffers between the agent and a client take, and less than the agent queues.
const HELD_BACK: usize = 2 << 20;

/// One connection.
#[derive(Debug)]
pub struct RawClient {
    /// The socket, for those who send frames of their own.
    pub stream: UnixStream,
    next_id: u32,
}

impl RawClient {
    /// Connects to a Unix socket.
    pub fn connect(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).map(Self::over)
    }

    /// Over a connection that there is.
    pub fn over(stream: UnixStream) -> Self {
        Self { stream, next_id: 1 }
    }

    /// One call of `grpc.AgentService`; a refusal becomes an error with its code and message.
    pub fn agent<Reply: Message>(&mut self, method: &str, request: &impl Message) -> io::Result<Reply> {
        self.call("grpc.AgentService", method, request)
    }

    /// One call.
    pub fn call<Reply: Message>(
        &mut self,
        service: &str,
        method: &str,
        body: &impl Message,
    ) -> io::Result<Reply> {
        self.send(service, method, body)?;
        let response = self.receive()?;
        let status = response.status();
        if status.code != EnumOrUnknown::new(Code::OK) {
            return Err(io::Error::other(format!("{method}: {:?}: {}", status.code, status.message)));
        }
        Reply::parse_from_bytes(&response.payload).map_err(io::Error::other)
    }

    /// Sends a request without waiting for its reply; returns its stream id.
    pub fn send(&mut self, service: &str, method: &str, body: &impl Message) -> io::Result<u32> {
        let id = self.next_id;
        let frame = self.frame(service, method, body)?;
        self.stream.write_all(&frame)?;
        Ok(id)
    }

    /// A request as it goes over the wire, to be sent as it is.
    pub fn frame(&mut self, service: &str, method: &str, body: &impl Message) -> io::Result<Vec<u8>> {
        let payload = body.write_to_bytes().map_err(io::Error::other)?;
        let (service, method) = (service.into(), method.into());
        self.frame_of(&Request { service, method, payload, ..Default::default() })
    }

    /// The same of a request that is no message of its method, or has a deadline.
    pub fn frame_of(&mut self, request: &Request) -> io::Result<Vec<u8>> {
        let payload = request.write_to_bytes().map_err(io::Error::other)?;
        let id = self.next_id;
        self.next_id += 2;
        let mut frame = Vec::with_capacity(10 + payload.len());
        frame.extend((payload.len() as u32).to_be_bytes());
        frame.extend(id.to_be_bytes());
        frame.extend([1, 0]);
        frame.extend(payload);
        Ok(frame)
    }

    /// Sends a frame of [`Self::frame`] and waits for the reply, which must be good.
    pub fn exchange(&mut self, frame: &[u8]) -> io::Result<()> {
        self.stream.write_all(frame)?;
        let response = self.receive()?;
        match response.status() {
            status if status.code == EnumOrUnknown::new(Code::OK) => Ok(()),
            status => Err(io::Error::other(format!("{:?}: {}", status.code, status.message))),
        }
    }

    /// Destroys the sandbox without taking replies, of which there are so many that this one is not sent: only then does
    /// the machine end. Returns how many come before it.
    pub fn destroy_unheard(&mut self) -> io::Result<usize> {
        let request = GuestDetailsRequest::new();
        let details: GuestDetailsResponse = self.agent("GetGuestDetails", &request)?;
        let replies = HELD_BACK / details.compute_size() as usize;
        for _ in 0..replies {
            self.send("grpc.AgentService", "GetGuestDetails", &request)?;
        }
        self.send("grpc.AgentService", "DestroySandbox", &DestroySandboxRequest::new())?;
        Ok(replies)
    }

    /// The next reply, whichever call it answers.
    pub fn receive(&mut self) -> io::Result<Response> {
        self.receive_with_id().map(|(_, response)| response)
    }

    /// The next reply, with the id of the request that it answers.
    pub fn receive_with_id(&mut self) -> io::Result<(u32, Response)> {
        let mut header = [0; 10];
        self.stream.read_exact(&mut header)?;
        let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload)?;
        let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        Response::parse_from_bytes(&payload).map(|response| (id, response)).map_err(io::Error::other)
    }
}
