//! OCI containers on Linux, without RPC types, async code or globals.
//!
//! A container is made in two halves. [`compile`] turns a runtime-spec document into a flat [`plan::Plan`]
//! and the descriptors it refers to: everything that can be wrong about a request is found there, in
//! ordinary code, before anything exists. [`launch`] then makes one `clone3` straight into the cgroup and
//! the new namespaces; the new process ([`child`]) only walks the plan and execs, reporting over the
//! socket described in [`sync`].
//!
//! | to | use |
//! |---|---|
//! | make a container's init, or one more process in it | [`compile::container`], [`compile::exec`], [`launch::spawn`] |
//! | follow it, and let it start | [`sync::receive`], [`sync::start`] |
//! | run a configuration's hooks | [`hooks`], at [`sync::Report::Hooks`] and where its drawing says |
//! | limit it, pause it, end it, count what it uses | [`cgroup`] |
//! | give it a share of caches | [`resctrl`] |
//! | wait for its end | [`sys::pidfd`] |
//!
//! Whoever calls [`launch::spawn`] must be single-threaded, because its child goes on in ordinary Rust; a caller
//! with threads gets an error. Such a program has a small process for it, made before its threads are.
//!
//! A container that runs one program from `/srv/bundle` (a `config.json` and a `rootfs`), from its creation to
//! its exit:
//!
//! ```no_run
//! use std::{error::Error, io, os::fd::AsFd, path::Path};
//!
//! use oci_spec::runtime::{ContainerState, Spec};
//! use rustjail::{
//!     compile::{self, ContainerRequest, Stdio},
//!     hooks::{self, Kind},
//!     launch::{Parent, spawn},
//!     sync::{self, Report},
//!     sys::pidfd,
//! };
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let bundle = Path::new("/srv/bundle");
//!     let spec = Spec::load(bundle.join("config.json"))?;
//!     let stdio = Stdio::Streams {
//!         stdin: io::stdin().as_fd().try_clone_to_owned()?,
//!         stdout: io::stdout().as_fd().try_clone_to_owned()?,
//!         stderr: io::stderr().as_fd().try_clone_to_owned()?,
//!     };
//!     let (maker, child) = sync::pair()?;
//!     let launch = compile::container(ContainerRequest {
//!         id: "box",
//!         spec: &spec,
//!         bundle,
//!         confined: &[],
//!         stdio,
//!         join: Vec::new(),
//!         placement: None,
//!         resctrl: None,
//!         sync: child,
//!     })?;
//!     let fds: Vec<_> = launch.fds.iter().map(AsFd::as_fd).collect();
//!     let init = spawn(&launch.plan, &fds, Parent::Caller)?;
//!     // The child has its own copies; with ours closed, the end of the socket is the end of the story.
//!     drop(fds);
//!     drop(launch);
//!
//!     let state = |status| hooks::state(&spec, "box", bundle, status, Some(init.pid));
//!     nix::fcntl::fcntl(&maker, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty()))?; // to wait in receive
//!     while let Some(report) = sync::receive(maker.as_fd())? {
//!         match report {
//!             Report::Hooks => {
//!                 hooks::run(&spec, Kind::Prestart, &state(ContainerState::Creating))?;
//!                 hooks::run(&spec, Kind::CreateRuntime, &state(ContainerState::Creating))?;
//!                 sync::hooks_done(maker.as_fd())?;
//!             }
//!             Report::Ready => sync::start(maker.as_fd())?,
//!             Report::Console(_) | Report::Listener(_) => {} // only with Stdio::Terminal, linux.seccomp.listenerPath
//!             Report::Failed(step) => return Err(step.into()),
//!         }
//!     }
//!     hooks::run(&spec, Kind::Poststart, &state(ContainerState::Running))?;
//!     println!("{:?}", pidfd::wait(init.pidfd.as_fd())?);
//!     for error in hooks::run_poststop(&spec, &hooks::state(&spec, "box", bundle, ContainerState::Stopped, None)) {
//!         eprintln!("{error}");
//!     }
//!     Ok(())
//! }
//! ```

pub mod cgroup;
pub mod child;
pub mod compile;
pub mod hooks;
pub mod launch;
mod limits;
pub mod lookup;
pub mod plan;
pub mod procfs;
pub mod resctrl;
pub mod rtnetlink;
pub mod seccomp;
pub mod sync;
pub mod sys;
