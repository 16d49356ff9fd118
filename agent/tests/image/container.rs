//! Containers that run on images, by a real agent.

use std::{fs, path::Path, process::Command};

use berth_protocols::agent::Storage;
use serde_json::json;

use crate::{
    host::{Host, Out, Run},
    layout::{Layout, Tar, names},
};

fn storage(host: &Host, source: String, id: &str) -> Storage {
    Storage {
        driver: "image_guest_pull".to_owned(),
        driver_options: vec![r#"image_guest_pull={"metadata":{}}"#.to_owned()],
        source,
        fstype: "overlay".to_owned(),
        mount_point: host.dir.join(id).join("rootfs").display().to_string(),
        ..Default::default()
    }
}

/// Runs a container that the image says everything about; answers what it said.
async fn run(host: &Host, id: &str, source: String, args: &[&str]) -> String {
    let storage = storage(host, source, id);
    let root = storage.mount_point.clone();
    let run = Run { args, ..Run::default() };
    host.create_asking(id, run, |request| {
        let spec = request.OCI.as_mut().unwrap();
        spec.Root.as_mut().unwrap().Path = root;
        spec.Process.as_mut().unwrap().Env = vec!["WHO=host".to_owned()];
        request.storages.push(storage);
    })
    .await
    .unwrap();
    host.start_container(id).await.unwrap();
    let output = host.read_all(id, "", Out::Stdout).await.unwrap();
    let errors = host.read_all(id, "", Out::Stderr).await.unwrap();
    assert_eq!(host.wait(id, "").await.unwrap(), 0, "{output}{errors}");
    output
}

/// Where this agent keeps images, on a file system that an overlay can be over.
fn room(host: &Host) -> std::path::PathBuf {
    let path = host.dir.join("kata-containers");
    let pid = host.role("berth-worker").unwrap();
    // In the agent's own namespace, with which it goes.
    let script = format!("mount -t tmpfs -o size=64m tmpfs {}", path.display());
    fs::create_dir_all(&path).unwrap();
    let entered =
        Command::new("nsenter").args(["--mount", "--target", &pid.to_string(), "sh", "-c", &script]).status();
    assert!(entered.unwrap().success());
    Path::new("/proc").join(pid.to_string()).join("root").join(path.strip_prefix("/").unwrap()).join("image")
}

#[tokio::test]
async fn an_image_says_what_its_container_is() {
    let host = Host::start().await;
    let images = room(&host);
    let mut layout = Layout::new(host.dir.join("layout"));
    let base = Tar::new()
        .program("bin/busybox", &fs::read("/bin/busybox").unwrap())
        .symlink("bin/sh", "busybox")
        .symlink("bin/cat", "busybox")
        .symlink("bin/id", "busybox")
        .dir("proc")
        .dir("dev")
        .dir("sys")
        .dir("etc")
        .file("etc/passwd", "root:x:0:0::/:/bin/sh\nweb:x:33:34::/srv:/bin/sh\n")
        .file("etc/group", "root:x:0:\nweb:x:34:\nlog:x:7:web\n");
    let own = Tar::new().dir("srv").entry(b'0', "greeting", "", 0o666, b"hello\n");
    let config = json!({
        "User": "web",
        "Env": ["PATH=/bin", "FROM=image", "WHO=image"],
        "Entrypoint": ["/bin/sh", "-c"],
        "Cmd": ["echo $FROM $WHO; id -u; id -g; id -G; pwd; cat /greeting; echo changed >/greeting"],
        "WorkingDir": "/srv",
    });
    layout.image("latest", &[("+gzip", base.bytes()), ("+zstd", own.bytes())], config);

    let expected = "image host\n33\n34\n34 7\n/srv\nhello\n";
    assert_eq!(run(&host, "one", layout.source(), &[]).await, expected);
    assert_eq!(
        run(&host, "two", layout.source(), &[]).await,
        expected,
        "another container's changes are its own"
    );
    // A host that knows the image says all of it.
    let told = ["/bin/sh", "-c", "/bin/id -u; pwd; echo $FROM"];
    assert_eq!(run(&host, "three", layout.source(), &told).await, "0\n/\n\n");
    assert_eq!(names(&images.join("layers")).len(), 2);
    for id in ["one", "two", "three"] {
        host.remove(id).await.unwrap();
    }
    assert!(names(&images.join("layers")).is_empty());
}

#[tokio::test]
async fn an_image_that_podman_built() {
    let host = Host::start().await;
    room(&host);
    let context = host.dir.join("context");
    fs::create_dir_all(&context).unwrap();
    fs::copy("/bin/busybox", context.join("busybox")).unwrap();
    let text = "FROM scratch\nCOPY busybox /bin/busybox\nCOPY busybox /bin/sh\nENV PATH=/bin FROM=podman\n\
                WORKDIR /srv\nENTRYPOINT [\"/bin/sh\", \"-c\"]\nCMD [\"echo $FROM; pwd\"]\n";
    fs::write(context.join("Containerfile"), text).unwrap();
    let podman = |arguments: &[&str]| {
        let at = |name: &str| host.dir.join("podman").join(name);
        let output = Command::new("podman")
            .arg("--root")
            .arg(at("root"))
            .arg("--runroot")
            .arg(at("run"))
            .args(["--storage-driver", "vfs", "--events-backend", "file", "--cgroup-manager", "cgroupfs"])
            .args(arguments)
            .output()
            .expect("podman (make setup installs it)");
        assert!(output.status.success(), "podman {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let (name, layout) = ("localhost/berth-test:1", host.dir.join("layout").display().to_string());
    podman(&[
        "build",
        "--isolation",
        "chroot",
        "--network",
        "host",
        "-t",
        name,
        &context.display().to_string(),
    ]);
    podman(&["save", "--format", "oci-dir", "-o", &layout, name]);
    let output = run(&host, "one", format!("oci:{layout}:{name}"), &[]).await;
    assert_eq!(output, "podman\n/srv\n");
    host.remove("one").await.unwrap();
}
