//! Makes image layouts: archives entry by entry, as no well-meaning tool would.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The time of every entry.
pub const TIME: i64 = 1_000_000_000;

/// A tar archive in the making.
#[derive(Clone)]
pub struct Tar {
    bytes: Vec<u8>,
    ids: (u32, u32),
    device: (u32, u32),
}

impl Tar {
    pub fn new() -> Self {
        Self { bytes: Vec::new(), ids: (0, 0), device: (0, 0) }
    }

    /// Whose the next entries are.
    pub fn owned(mut self, uid: u32, gid: u32) -> Self {
        self.ids = (uid, gid);
        self
    }

    pub fn device(mut self, kind: u8, path: &str, major: u32, minor: u32) -> Self {
        self.device = (major, minor);
        self.entry(kind, path, "", 0o666, b"")
    }

    pub fn dir(self, path: &str) -> Self {
        self.entry(b'5', path, "", 0o755, b"")
    }

    pub fn file(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        self.entry(b'0', path, "", 0o644, content.as_ref())
    }

    pub fn program(self, path: &str, content: &[u8]) -> Self {
        self.entry(b'0', path, "", 0o755, content)
    }

    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(b'2', path, target, 0o777, b"")
    }

    pub fn hardlink(self, path: &str, target: &str) -> Self {
        self.entry(b'1', path, target, 0o644, b"")
    }

    /// Extended headers for the next entry.
    pub fn pax(self, records: &[(&str, &str)]) -> Self {
        let mut text = String::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            text += &format!("{length} {key}={value}\n");
        }
        self.entry(b'x', "pax", "", 0o644, text.as_bytes())
    }

    pub fn entry(mut self, kind: u8, path: &str, target: &str, mode: u32, content: &[u8]) -> Self {
        let mut block = [0_u8; 512];
        let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
        put(0, path.as_bytes());
        for (at, number) in [(100, mode), (108, self.ids.0), (116, self.ids.1)] {
            put(at, format!("{number:07o}\0").as_bytes());
        }
        put(124, format!("{:011o}\0", content.len()).as_bytes());
        put(136, format!("{TIME:011o}\0").as_bytes());
        put(148, b"        ");
        put(156, &[kind]);
        put(157, target.as_bytes());
        put(257, b"ustar\x0000");
        put(329, format!("{:07o}\0{:07o}\0", self.device.0, self.device.1).as_bytes());
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend(block);
        self.bytes.extend(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    pub fn bytes(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 1024, 0);
        self.bytes
    }
}

pub fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// A layout on disk.
pub struct Layout {
    pub dir: PathBuf,
    pub manifests: Vec<Value>,
}

impl Layout {
    pub fn new(dir: PathBuf) -> Self {
        fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
        fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Self { dir, manifests: Vec::new() }
    }

    /// With one image, `latest`, of the layers `tars`.
    pub fn of(dir: PathBuf, tars: Vec<Tar>) -> Self {
        let mut layout = Self::new(dir);
        let layers: Vec<_> = tars.into_iter().map(|tar| ("", tar.bytes())).collect();
        layout.image("latest", &layers, json!({}));
        layout
    }

    pub fn blob(&self, bytes: &[u8]) -> PathBuf {
        self.path_of(&digest(bytes))
    }

    pub fn path_of(&self, digest: &str) -> PathBuf {
        self.dir.join("blobs/sha256").join(digest.strip_prefix("sha256:").unwrap())
    }

    /// Writes a blob; answers its descriptor.
    pub fn add(&self, media_type: &str, bytes: &[u8]) -> Value {
        fs::write(self.blob(bytes), bytes).unwrap();
        json!({ "mediaType": media_type, "digest": digest(bytes), "size": bytes.len() })
    }

    /// Adds an image, whose layers are archives, packed as their suffix says.
    pub fn image(&mut self, name: &str, layers: &[(&str, Vec<u8>)], config: Value) {
        let diffs: Vec<String> = layers.iter().map(|(_, tar)| digest(tar)).collect();
        let layers: Vec<Value> = layers
            .iter()
            .map(|(suffix, tar)| {
                let media_type = format!("application/vnd.oci.image.layer.v1.tar{suffix}");
                self.add(&media_type, &packed(suffix, tar))
            })
            .collect();
        let config = json!({
            "architecture": "any", "os": "linux", "config": config,
            "rootfs": { "type": "layers", "diff_ids": diffs },
        });
        let config = self.add("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
        self.manifest(name, json!({ "schemaVersion": 2, "config": config, "layers": layers }));
    }

    pub fn manifest(&mut self, name: &str, manifest: Value) {
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let mut descriptor = self.add(media_type, manifest.to_string().as_bytes());
        descriptor["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
        self.manifests.push(descriptor);
        self.write_index();
    }

    pub fn write_index(&self) {
        let index = json!({ "schemaVersion": 2, "manifests": self.manifests });
        fs::write(self.dir.join("index.json"), index.to_string()).unwrap();
    }

    /// As a storage's source.
    pub fn source(&self) -> String {
        format!("oci:{}", self.dir.display())
    }
}

fn packed(suffix: &str, tar: &[u8]) -> Vec<u8> {
    match suffix {
        "+gzip" => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(tar).unwrap();
            encoder.finish().unwrap()
        }
        "+zstd" => zstd(tar),
        _ => tar.to_vec(),
    }
}

fn zstd(tar: &[u8]) -> Vec<u8> {
    let mut child = Command::new("zstd")
        .args(["-q", "-c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("run zstd (make setup installs it)");
    let mut input = child.stdin.take().unwrap();
    let tar = tar.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&tar));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    output.stdout
}

/// What is in a directory, by name.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
