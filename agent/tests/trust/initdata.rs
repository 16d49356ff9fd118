//! Initdata on a real block device, under the name that a virtio disk has.

use std::{
    fs,
    io::Write,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use berth_protocols::{
    agent::{CreateSandboxRequest, GuestDetailsRequest},
    health::{CheckRequest, health_check_response::ServingStatus},
    health_ttrpc::HealthClient,
};
use nix::sys::{
    signal::Signal,
    stat::{major, minor},
};
use ttrpc::{Code, r#async::Client};

use crate::{
    RUN,
    host::{Host, soon},
};

const STRICT: &str = "package agent_policy\nimport rego.v1\ndefault GuestDetailsRequest := true\n\
    default CreateSandboxRequest := false\nCreateSandboxRequest if input.hostname == \"box\"\n";

fn document(policy: &str) -> String {
    format!(
        "algorithm = \"sha384\"\nversion = \"0.1.0\"\n\n[data]\n\"policy.rego\" = '''\n{policy}'''\n\
         \"cdh.toml\" = '''\n[kbc]\nname = 'cc_kbc'\n'''\n"
    )
}

fn piped(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child =
        Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input).unwrap());
        child.wait_with_output().unwrap().stdout
    })
}

/// As a host writes it: what is packed, behind its length, filled up to whole blocks.
fn disk_of(packed: &[u8]) -> Vec<u8> {
    let mut disk = [&b"initdata"[..], &(packed.len() as u64).to_le_bytes(), packed].concat();
    disk.resize(disk.len().next_multiple_of(512), 0);
    disk
}

fn gzip(text: &[u8]) -> Vec<u8> {
    piped("gzip", &["-c"], text)
}

/// A loop device, gone when dropped.
struct Disk {
    file: PathBuf,
    node: String,
}

impl Disk {
    fn new(name: &str, content: &[u8]) -> Self {
        let file = std::env::temp_dir().join(format!("berth-initdata-{name}-{}", std::process::id()));
        fs::write(&file, content).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Self { file, node: String::from_utf8(made.stdout).unwrap().trim().to_owned() }
    }

    fn write(&self, content: &[u8]) {
        fs::write(&self.file, content).unwrap();
        assert!(Command::new("losetup").args(["--set-capacity", &self.node]).status().unwrap().success());
    }

    /// Gives the agent a /dev with this disk in it as a virtio disk, beside what every /dev has.
    fn scope(&self) -> String {
        let about = fs::metadata(&self.node).unwrap();
        assert!(about.file_type().is_block_device());
        let (major, minor) = (major(about.rdev()), minor(about.rdev()));
        format!(
            "{RUN}mkdir @DIR@/dev; mount -t tmpfs dev @DIR@/dev
             cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty @DIR@/dev
             mknod @DIR@/dev/vdx b {major} {minor}
             mount --move @DIR@/dev /dev\n"
        )
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _gone = Command::new("losetup").args(["--detach", &self.node]).status();
        let _gone = fs::remove_file(&self.file);
    }
}

async fn sandbox(host: &Host, hostname: &str) -> Option<(Code, String)> {
    let request = CreateSandboxRequest { hostname: hostname.into(), ..Default::default() };
    match host.client.create_sandbox(soon(), &request).await {
        Ok(_) => None,
        Err(ttrpc::Error::RpcStatus(status)) => Some((status.code(), status.message)),
        Err(error) => panic!("{error}"),
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[tokio::test]
async fn its_policy_is_in_force_before_the_images_and_for_the_life_of_the_guest() {
    let whole = document(STRICT);
    let disk = Disk::new("good", &disk_of(&gzip(whole.as_bytes())));
    let own = "package agent_policy\nAllowRequestsFailingPolicy := true\n";
    let scope = format!("printf '{}' > @DIR@/own.rego\n{}", own.replace('\n', "\\n"), disk.scope());
    let mut host = Host::start_in("policy_file = '@DIR@/own.rego'\n", &scope).await;

    let (code, message) = sandbox(&host, "evil").await.expect("refused");
    assert_eq!(code, Code::PERMISSION_DENIED, "{message}");
    assert!(message.contains("CreateSandboxRequest is blocked by policy"), "{message}");
    let details = host.client.get_guest_details(soon(), &GuestDetailsRequest::new()).await.unwrap();
    assert_eq!(details.agent_details.extra_features, ["agent-policy", "init-data", "seccomp"]);

    let placed = host.dir.join("run/initdata");
    assert_eq!(text(&placed.join("initdata.toml")), whole);
    assert_eq!(text(&placed.join("policy.rego")), STRICT);
    assert_eq!(text(&placed.join("cdh.toml")), "[kbc]\nname = 'cc_kbc'\n");
    assert_eq!(fs::read_dir(&placed).unwrap().count(), 3);
    assert_eq!(fs::metadata(&placed).unwrap().permissions().mode() & 0o777, 0o700);
    let digest = String::from_utf8(piped("sha384sum", &[], whole.as_bytes())).unwrap();
    let digest = format!("sha384:{}", digest.split(' ').next().unwrap());
    assert!(host.log().contains(&digest), "{}", host.log());

    // Another disk, or the same with something else on it, is nothing to the next worker.
    disk.write(&disk_of(&gzip(document(own).as_bytes())));
    host.kill_worker(Signal::SIGKILL);
    host.client = host.connect().await;
    assert_eq!(sandbox(&host, "evil").await.expect("refused").0, Code::PERMISSION_DENIED);
    assert_eq!(text(&placed.join("policy.rego")), STRICT);
    assert_eq!(sandbox(&host, "box").await, None);
}

#[tokio::test]
async fn without_a_disk_the_images_own_policy_counts() {
    let scope = format!(
        "{RUN}mkdir -p @DIR@/etc/kata-opa
         printf '{}' > @DIR@/etc/kata-opa/default-policy.rego
         mount --bind @DIR@/etc /etc",
        STRICT.replace('\n', "\\n").replace('"', "\\042")
    );
    let host = Host::start_in("", &scope).await;
    let (code, message) = sandbox(&host, "evil").await.expect("refused");
    assert_eq!(code, Code::PERMISSION_DENIED, "{message}");
    assert_eq!(sandbox(&host, "box").await, None);
    assert!(!host.dir.join("run/initdata").exists());
    assert!(host.log().contains("/etc/kata-opa/default-policy.rego"), "{}", host.log());
}

#[tokio::test]
async fn a_disk_that_cannot_be_used_has_nothing_served_and_says_why() {
    let good = gzip(document(STRICT).as_bytes());
    let endless = [&b"initdata"[..], &u64::MAX.to_le_bytes(), &[0; 496]].concat();
    let cut = disk_of(&good)[..512].to_vec();
    let bomb = disk_of(&gzip(&vec![b'\n'; 17 << 20]));
    for (name, content, says) in [
        ("endless", endless, "is 18446744073709551615 bytes long, and must be 4194304 at most"),
        (
            "cut",
            [&b"initdata"[..], &4096_u64.to_le_bytes(), &cut[16..]].concat(),
            "cannot read /dev/vdx: unexpected end",
        ),
        ("bomb", bomb, "unpacks to more than 16777216 bytes"),
        ("noise", disk_of(b"this is not gzip"), "is no gzip that can be used"),
        (
            "old",
            disk_of(&gzip(document(STRICT).replace("0.1.0", "9").as_bytes())),
            "version must be \"0.1.0\"",
        ),
    ] {
        let disk = Disk::new(name, &content);
        let host = Host::start_in("", &disk.scope()).await;
        let (code, message) = sandbox(&host, "box").await.expect("refused");
        assert_eq!(code, Code::PERMISSION_DENIED, "{name}: {message}");
        assert!(message.contains("/dev/vdx") && message.contains(says), "{name}: {message}");
        assert!(!host.dir.join("run/initdata").exists(), "{name}");
        let socket = format!("unix://{}", host.dir.join("agent.sock").display());
        let health = HealthClient::new(Client::connect(&socket).await.unwrap());
        let check = health.check(soon(), &CheckRequest::new()).await.unwrap();
        assert_eq!(check.status.enum_value(), Ok(ServingStatus::NOT_SERVING), "{name}");
    }
}
