//! What a configuration may ask for and this runtime does not do. None of it is dropped in silence: a hook
//! that is not run, or a label that is not set, can be what keeps a container apart.

use oci_spec::runtime::{Process, Spec};

use super::CompileError;

const REMOVE: &str = "remove it from the configuration";

/// An error if `spec` asks for anything of that kind.
pub(super) fn spec(spec: &Spec) -> Result<(), CompileError> {
    if let Some(hooks) = spec.hooks() {
        let lists = [
            ("prestart", hooks.prestart()),
            ("createRuntime", hooks.create_runtime()),
            ("createContainer", hooks.create_container()),
            ("startContainer", hooks.start_container()),
            ("poststart", hooks.poststart()),
            ("poststop", hooks.poststop()),
        ];
        for (name, list) in lists {
            when(list.as_ref().is_some_and(|list| !list.is_empty()), || format!("hooks.{name}"))?;
        }
    }
    let Some(linux) = spec.linux() else { return Ok(()) };
    let personality_flags = linux.personality().as_ref().and_then(|p| p.flags().as_ref());
    for (asked, field) in [
        (linux.intel_rdt().is_some(), "linux.intelRdt"),
        (linux.memory_policy().is_some(), "linux.memoryPolicy"),
        (linux.time_offsets().as_ref().is_some_and(|list| !list.is_empty()), "linux.timeOffsets"),
        (linux.net_devices().as_ref().is_some_and(|list| !list.is_empty()), "linux.netDevices"),
        (is_set(linux.mount_label()), "linux.mountLabel"),
        (personality_flags.is_some_and(|flags| !flags.is_empty()), "linux.personality.flags"),
    ] {
        when(asked, || field.to_owned())?;
    }
    Ok(())
}

/// The same, for one process.
pub(super) fn process(process: &Process) -> Result<(), CompileError> {
    let apparmor = process.apparmor_profile().as_ref();
    for (asked, field) in [
        (apparmor.is_some_and(|name| !name.is_empty() && name != "unconfined"), "process.apparmorProfile"),
        (is_set(process.selinux_label()), "process.selinuxLabel"),
        (process.io_priority().is_some(), "process.ioPriority"),
        (process.scheduler().is_some(), "process.scheduler"),
        (process.exec_cpu_affinity().is_some(), "process.execCPUAffinity"),
    ] {
        when(asked, || field.to_owned())?;
    }
    Ok(())
}

fn is_set(text: &Option<String>) -> bool {
    text.as_ref().is_some_and(|text| !text.is_empty())
}

fn when(asked: bool, field: impl FnOnce() -> String) -> Result<(), CompileError> {
    if asked { Err(CompileError::Unsupported { field: field(), advice: REMOVE }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: serde_json::Value) -> Option<String> {
        let mut document = serde_json::to_value(Spec::default()).unwrap();
        merge(&mut document, change);
        let parsed: Spec = serde_json::from_value(document).unwrap();
        match spec(&parsed).and_then(|()| process(parsed.process().as_ref().unwrap())) {
            Err(CompileError::Unsupported { field, .. }) => Some(field),
            Ok(()) => None,
            Err(other) => panic!("{other}"),
        }
    }

    fn merge(into: &mut serde_json::Value, change: serde_json::Value) {
        match (into, change) {
            (serde_json::Value::Object(into), serde_json::Value::Object(change)) => {
                for (key, value) in change {
                    merge(into.entry(key).or_insert(serde_json::Value::Null), value);
                }
            }
            (into, change) => *into = change,
        }
    }

    #[test]
    fn nothing_is_dropped_in_silence() {
        use serde_json::json;
        let hook = json!([{"path": "/bin/true"}]);
        for (field, change) in [
            ("hooks.prestart", json!({"hooks": {"prestart": hook}})),
            ("hooks.createRuntime", json!({"hooks": {"createRuntime": hook}})),
            ("hooks.createContainer", json!({"hooks": {"createContainer": hook}})),
            ("hooks.startContainer", json!({"hooks": {"startContainer": hook}})),
            ("hooks.poststart", json!({"hooks": {"poststart": hook}})),
            ("hooks.poststop", json!({"hooks": {"poststop": hook}})),
            ("linux.intelRdt", json!({"linux": {"intelRdt": {"closID": "x"}}})),
            ("linux.timeOffsets", json!({"linux": {"timeOffsets": {"boottime": {"secs": 1}}}})),
            ("linux.netDevices", json!({"linux": {"netDevices": {"eth0": {}}}})),
            ("linux.mountLabel", json!({"linux": {"mountLabel": "x"}})),
            ("process.apparmorProfile", json!({"process": {"apparmorProfile": "x"}})),
            ("process.selinuxLabel", json!({"process": {"selinuxLabel": "x"}})),
            (
                "process.ioPriority",
                json!({"process": {"ioPriority": {"class": "IOPRIO_CLASS_IDLE", "priority": 1}}}),
            ),
            ("process.scheduler", json!({"process": {"scheduler": {"policy": "SCHED_BATCH"}}})),
        ] {
            assert_eq!(refused(change).as_deref(), Some(field));
        }
    }

    #[test]
    fn what_asks_for_nothing_is_no_reason() {
        use serde_json::json;
        assert_eq!(refused(json!({"hooks": {"prestart": []}, "linux": {"mountLabel": ""}})), None);
        assert_eq!(refused(json!({"process": {"apparmorProfile": "unconfined", "selinuxLabel": ""}})), None);
    }
}
