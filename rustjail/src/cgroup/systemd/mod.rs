//! The systemd cgroup manager: a container's group as a transient unit.
//!
//! On a machine that systemd manages, groups are systemd's to make: it would remove or rewrite others. So the
//! container gets a scope, with the limits systemd has properties for, delegated, which makes everything below
//! and every other file ours. A scope needs a process to begin with: the caller gives one (its own, or one it
//! made to wait), and may end it once the container's processes are there. Everything after that is done on
//! the [`Cgroup`] as with any other.
//!
//! ```text
//!   Unit::parse -> start(unit, pid) -> Cgroup::adopt -> update (both) ... kill, delete -> stop(unit)
//! ```
//!
//! The protocol is a small client of our own: some methods and one signal do not pay for a D-Bus library and
//! its async runtime, in a crate that has none.

mod bus;
mod error;
mod properties;
mod unit;
mod wire;

use oci_spec::runtime::LinuxResources;

use self::{
    bus::Bus,
    wire::{Message, Value},
};
pub use self::{error::SystemdError, unit::Unit};
use super::Hierarchies;

#[cfg(doc)]
use super::Cgroup;

/// A connection to systemd.
#[derive(Debug)]
pub struct Systemd {
    bus: Bus,
    /// Whether it manages cgroup2.
    unified: bool,
}

impl Systemd {
    /// Connects to the system's systemd, which manages `hierarchies`.
    pub fn connect(hierarchies: &Hierarchies) -> Result<Self, SystemdError> {
        // systemd uses cgroup2 for its controllers only where there is nothing else.
        Ok(Self { bus: Bus::connect()?, unified: hierarchies.v1.is_empty() })
    }

    /// Starts `unit` with the process `pid` in it (a slice takes none) and waits until it is there.
    pub fn start(
        &mut self,
        unit: &Unit,
        pid: Option<u32>,
        resources: Option<&LinuxResources>,
    ) -> Result<(), SystemdError> {
        let mut properties = self.fixed(unit, pid);
        if let Some(resources) = resources {
            properties.extend(properties::of(resources, self.unified)?);
        }
        let arguments = [
            Value::Text(unit.name().to_owned()),
            Value::Text("replace".to_owned()),
            Value::Properties(properties),
            Value::NoUnits,
        ];
        self.bus.subscribe()?;
        let job = match self.bus.call("StartTransientUnit", unit.name(), &arguments) {
            // One of that name failed before, and is kept for somebody to look at.
            Err(SystemdError::Refused { name, .. }) if name.ends_with(".UnitExists") => {
                self.bus.call("ResetFailedUnit", unit.name(), &arguments[..1])?;
                self.bus.call("StartTransientUnit", unit.name(), &arguments)?
            }
            done => done?,
        };
        self.finish(unit, &job)
    }

    /// Changes limits of a running unit, until it ends.
    pub fn update(&mut self, unit: &Unit, resources: &LinuxResources) -> Result<(), SystemdError> {
        let properties = properties::of(resources, self.unified)?;
        if properties.is_empty() {
            return Ok(());
        }
        let arguments =
            [Value::Text(unit.name().to_owned()), Value::Bool(true), Value::Properties(properties)];
        self.bus.call("SetUnitProperties", unit.name(), &arguments).map(drop)
    }

    /// Stops the unit, which removes its group; one that is gone is fine.
    pub fn stop(&mut self, unit: &Unit) -> Result<(), SystemdError> {
        let name = Value::Text(unit.name().to_owned());
        self.bus.subscribe()?;
        let stopped =
            match self.bus.call("StopUnit", unit.name(), &[name.clone(), Value::Text("replace".into())]) {
                Ok(job) => self.finish(unit, &job),
                Err(error) => Err(error),
            };
        unless_unknown(stopped)?;
        // A scope whose processes were killed has failed, and would be kept.
        unless_unknown(self.bus.call("ResetFailedUnit", unit.name(), &[name]).map(drop))
    }

    /// What every unit of ours has.
    fn fixed(&self, unit: &Unit, pid: Option<u32>) -> Vec<(&'static str, Value)> {
        let yes = || Value::Bool(true);
        let mut properties = vec![
            ("Description", Value::Text(format!("container {}", unit.name()))),
            // Shutting down stops it in any case, but nothing is to be started for it.
            ("DefaultDependencies", Value::Bool(false)),
            ("MemoryAccounting", yes()),
            ("CPUAccounting", yes()),
            (if self.unified { "IOAccounting" } else { "BlockIOAccounting" }, yes()),
            ("TasksAccounting", yes()),
        ];
        // A slice's name tells what it is in, and everything below it is systemd's.
        if unit.is_slice() {
            return properties;
        }
        properties.push(("Slice", Value::Text(unit.slice.clone())));
        properties.push(("Delegate", yes()));
        properties.extend(pid.map(|pid| ("PIDs", Value::Numbers(vec![pid]))));
        properties
    }

    /// Waits for the job that `reply` names.
    fn finish(&mut self, unit: &Unit, reply: &Message) -> Result<(), SystemdError> {
        let job = reply.arguments().text().ok_or(SystemdError::Malformed)?;
        let deadline = Bus::deadline();
        loop {
            let removed = self.bus.signal("JobRemoved", deadline)?;
            let mut arguments = removed.arguments();
            let (_id, path) = (arguments.u32(), arguments.text());
            let (_unit, result) = (arguments.text(), arguments.text());
            if path.as_ref() != Some(&job) {
                continue;
            }
            return match result.as_deref() {
                Some("done") => Ok(()),
                Some(result) => Err(SystemdError::Job { unit: unit.name.clone(), result: result.to_owned() }),
                None => Err(SystemdError::Malformed),
            };
        }
    }
}

fn unless_unknown(result: Result<(), SystemdError>) -> Result<(), SystemdError> {
    match result {
        Err(SystemdError::Refused { name, .. }) if name.ends_with(".NoSuchUnit") => Ok(()),
        done => done,
    }
}
