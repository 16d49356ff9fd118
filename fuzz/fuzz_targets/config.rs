//! Any bytes as a bundle's `config.json`: compiled into a plan that survives its bytes, or refused.
#![no_main]

use std::{fs::File, path::Path, sync::OnceLock};

use libfuzzer_sys::fuzz_target;
use oci_spec::runtime::{Process, Spec};
use rustjail::{
    compile::{self, ContainerRequest, ExecRequest, Stdio},
    plan::Plan,
    sync,
    sys::pidfd,
};

fuzz_target!(|data: &[u8]| {
    let Ok(spec) = serde_json::from_slice::<Spec>(data) else { return };
    let launch = compile::container(ContainerRequest {
        id: "fuzz",
        spec: &spec,
        bundle: bundle(),
        stdio: stdio(),
        join: Vec::new(),
        placement: None,
        resctrl: None,
        sync: child(),
    });
    if let Ok(launch) = launch {
        same_over_the_wire(&launch.plan);
    }
    let own = Process::default();
    let init = pidfd::open(std::process::id() as i32).expect("this process exists");
    let launch = compile::exec(ExecRequest {
        process: spec.process().as_ref().unwrap_or(&own),
        spec: &spec,
        init: std::os::fd::AsFd::as_fd(&init),
        stdio: stdio(),
        placement: None,
        resctrl: None,
        sync: child(),
    });
    if let Ok(launch) = launch {
        same_over_the_wire(&launch.plan);
    }
});

fn same_over_the_wire(plan: &Plan) {
    let bytes = plan.to_bytes().expect("every plan can be sent");
    assert_eq!(&Plan::from_bytes(&bytes).expect("and received"), plan);
}

/// An empty root file system: what a configuration names beyond it is the machine's, and only looked at.
fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<std::path::PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| {
        let path = std::env::temp_dir().join("berth-fuzz-bundle");
        std::fs::create_dir_all(path.join("rootfs")).expect("a temporary directory can be made");
        path
    })
}

fn stdio() -> Stdio {
    let null = || File::open("/dev/null").expect("there is a null device").into();
    Stdio::Streams { stdin: null(), stdout: null(), stderr: null() }
}

fn child() -> std::os::fd::OwnedFd {
    sync::pair().expect("sockets can be made").1
}
