//! The sandbox as a whole.

use std::rc::Rc;

use berth_protocols::agent::{CreateSandboxRequest, DestroySandboxRequest};

use super::{
    agent::{Agent, Method},
    decode::decode,
    reply::{Reply, Status},
    service::Outcome,
    storages::storages,
};
use crate::sandbox::SandboxRequest;

pub(super) fn create(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request = parse_create(body)?;
    let sandbox = agent.sandbox.clone();
    agent.mutate(method, body, async move {
        sandbox.create_sandbox(request).await?;
        Ok(Reply::empty())
    })
}

/// `sandbox_pidns` is left alone: it counts in CreateContainer.
fn parse_create(body: &[u8]) -> Result<SandboxRequest, Status> {
    let request: CreateSandboxRequest = decode(body)?;
    let modules = request.kernel_modules.into_iter().map(|module| (module.name, module.parameters));
    Ok(SandboxRequest {
        hostname: request.hostname,
        id: request.sandbox_id,
        dns: request.dns,
        kernel_modules: modules.collect(),
        storages: storages(request.storages),
        guest_hooks: request.guest_hook_path.into(),
    })
}

pub(super) fn destroy(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let _: DestroySandboxRequest = decode(body)?;
    let (sandbox, end) = (agent.sandbox.clone(), agent.end.clone());
    agent.mutate(method, body, async move {
        sandbox.destroy_sandbox().await?;
        let end = EndOnDrop(end);
        Ok(Reply::after_sent(move || drop(end)))
    })
}

/// Ends the machine when the reply is out, and just as well when nobody is left to send it to.
struct EndOnDrop(Rc<dyn Fn()>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use berth_protocols::agent::KernelModule;
    use protobuf::Message;

    use super::*;

    #[test]
    fn a_request_is_taken_whole() {
        let parse = |request: &CreateSandboxRequest| parse_create(&request.write_to_bytes().unwrap());
        let mut request = CreateSandboxRequest { sandbox_id: "s1".into(), ..Default::default() };
        let (name, parameters) = ("vsock".to_owned(), vec!["a=1".to_owned()]);
        request.kernel_modules.push(KernelModule { name, parameters, ..Default::default() });
        assert_eq!(parse(&request).unwrap().kernel_modules, [("vsock".to_owned(), vec!["a=1".to_owned()])]);

        let hooks = CreateSandboxRequest { guest_hook_path: "/hooks".into(), ..request.clone() };
        assert_eq!(parse(&hooks).unwrap().guest_hooks, std::path::Path::new("/hooks"));
    }

    #[test]
    fn the_machine_ends_once_whether_the_reply_got_through_or_not() {
        let ends = Rc::new(Cell::new(0));
        let reply = || {
            let ends = ends.clone();
            let end = EndOnDrop(Rc::new(move || ends.set(ends.get() + 1)));
            Reply::after_sent(move || drop(end))
        };
        drop(reply());
        assert_eq!(ends.get(), 1, "nobody was left to tell");
        let Reply { body, .. } = reply();
        match body {
            super::super::reply::Body::Leased(lease) => lease.sent(),
            super::super::reply::Body::Owned(_) => panic!("the reply tells nobody when it is sent"),
        }
        assert_eq!(ends.get(), 2);
    }
}
