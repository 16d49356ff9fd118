//! The same steps by runc and by rustjail: exit statuses and documents have to be alike.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::jail::{Jail, RUSTJAIL, ends, installed};

fn both() -> Option<[Jail; 2]> {
    installed("runc").then(|| {
        ["runc", RUSTJAIL].map(|program| {
            let mut jail = Jail::of(program, "");
            jail.bundle.set("/process/args", json!(["sleep", "1000"]));
            // The last that the runc of this system knows.
            jail.bundle.set("/ociVersion", "1.0.2".into());
            jail
        })
    })
}

#[test]
fn every_step_ends_alike() {
    let Some([runc, rustjail]) = both() else { return };
    let steps: &[&[&str]] = &[
        &["state", "c"],
        &["start", "c"],
        &["kill", "c"],
        &["pause", "c"],
        &["resume", "c"],
        &["exec", "c", "true"],
        &["ps", "c"],
        &["events", "--stats", "c"],
        &["update", "--pids-limit", "9", "c"],
        &["delete", "c"],
        &["delete", "--force", "c"],
        &["create", "a/b"],
        &["create", "--bundle", "/nonexistent", "c"],
        &["create", "--no-such-flag", "c"],
        &["list"],
        &["no-such-command"],
        &["create", "c"],
        &["create", "c"],
        &["state", "c"],
        &["resume", "c"],
        &["exec", "c", "true"],
        &["start", "c"],
        &["start", "c"],
        &["state", "c"],
        &["list"],
        &["list", "--quiet"],
        &["list", "--format", "json"],
        &["list", "--format", "xml"],
        &["delete", "c"],
        &["exec", "c", "true"],
        &["exec", "c", "sh", "-c", "exit 9"],
        &["exec", "c", "sh", "-c", "kill -9 $$"],
        &["exec", "c", "no-such-program"],
        &["exec", "c", "/etc/passwd"],
        &["exec", "--user", "x", "c", "true"],
        &["exec", "--cwd", "/tmp", "c", "true"],
        &["ps", "c"],
        &["ps", "--format", "json", "c"],
        &["ps", "--format", "xml", "c"],
        &["ps", "c", "-o", "pid"],
        &["update", "--pids-limit", "9", "c"],
        &["update", "--pids-limit", "x", "c"],
        &["events", "--stats", "c"],
        &["kill", "c", "NOSUCH"],
        &["kill", "c", "0"],
        &["pause", "c"],
        &["state", "c"],
        &["exec", "c", "true"],
        &["start", "c"],
        &["delete", "c"],
        &["resume", "c"],
        &["resume", "c"],
        &["kill", "c", "SIGKILL"],
    ];
    let compare = |steps: &[&[&str]]| {
        for step in steps {
            let [theirs, ours] = [&runc, &rustjail].map(|jail| jail.call(step));
            assert_eq!(ours.code, theirs.code, "{step:?}: {ours:?} is not {theirs:?}");
            assert_eq!(
                ours.stderr.is_empty(),
                theirs.stderr.is_empty(),
                "{step:?}: {ours:?} is not {theirs:?}"
            );
        }
    };
    let pids = || [&runc, &rustjail].map(|jail| jail.pid("c"));
    compare(&steps[..steps.len() - 1]);
    let killed = pids();
    compare(&steps[steps.len() - 1..]);
    assert!(killed.into_iter().all(ends));
    compare(&[
        &["state", "c"],
        &["kill", "c"],
        &["start", "c"],
        &["pause", "c"],
        &["exec", "c", "true"],
        &["events", "--stats", "c"],
        &["list"],
        &["create", "c"],
        &["delete", "c"],
        &["delete", "c"],
        &["delete", "--force", "c"],
    ]);
}

#[test]
fn documents_have_the_same_keys() {
    let Some(both) = both() else { return };
    for jail in &both {
        jail.ok(&["run", "--detach", "c"]);
    }
    let compare = |line: &[&str], pointer: &str, except: &[&str]| {
        let [theirs, ours] = [&both[0], &both[1]].map(|jail| {
            let document: Value = serde_json::from_str(&jail.ok(line)).unwrap();
            let object = document.pointer(pointer).and_then(Value::as_object);
            let keys = object.unwrap_or_else(|| panic!("{line:?} {pointer}: {document}")).keys().cloned();
            keys.collect::<BTreeSet<String>>()
        });
        let missing: Vec<&String> =
            theirs.difference(&ours).filter(|key| !except.contains(&key.as_str())).collect();
        assert!(missing.is_empty(), "{line:?} {pointer}: no {missing:?} in {ours:?}");
    };
    compare(&["state", "c"], "", &[]);
    compare(&["list", "-f", "json"], "/0", &[]);
    compare(&["events", "--stats", "c"], "", &[]);
    for pointer in
        ["", "/cpu", "/memory", "/memory/usage", "/memory/swap", "/memory/kernel", "/memory/raw", "/pids"]
    {
        compare(&["events", "--stats", "c"], &format!("/data{pointer}"), &[]);
    }
    // Times of each CPU in user mode and in the kernel are there only where the kernel tells them.
    compare(&["events", "--stats", "c"], "/data/cpu/usage", &["percpu_kernel", "percpu_user"]);
    compare(&["features"], "", &[]);
    compare(&["features"], "/linux", &[]);
    compare(&["features"], "/linux/seccomp", &[]);
    let [theirs, ours] = both.each_ref().map(|jail| jail.ok(&["list"]));
    let title =
        |text: &str| text.lines().next().unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(title(&theirs), title(&ours));
    let [theirs, ours] = both.each_ref().map(|jail| jail.ok(&["ps", "c"]));
    assert_eq!(title(&theirs), title(&ours));
}
