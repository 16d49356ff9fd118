//! An OCI image layout: from a reference to the layers and the configuration of one image.
//!
//! `index.json` names images, or lists of one image for several platforms; every document below it is taken for
//! what it says only after its digest has been compared. Docker's media types mean the same and are read too.

use std::{path::Path, time::Instant};

use serde::{Deserialize, de::DeserializeOwned};

use super::{
    ImageError, Result,
    blob::{Blobs, Digest},
    compression::Compression,
    error::failed_to,
};
use crate::storage::place;

const INDEX: &str = "index.json";
/// A list in a list in a list is nobody's image.
const MAX_DEPTH: usize = 3;
/// Linux takes 500 lower directories, container engines 127 layers.
const MAX_LAYERS: usize = 128;
/// Where layouts have an image's name, or the tag of it.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
const LISTS: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
const MANIFESTS: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];

/// A document or a layer, as another document describes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: Digest,
    size: u64,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Platform {
    os: String,
    architecture: String,
    #[serde(default)]
    variant: String,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

/// What an image's configuration says of its process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Config {
    pub(super) user: Option<String>,
    pub(super) env: Option<Vec<String>>,
    pub(super) entrypoint: Option<Vec<String>>,
    pub(super) cmd: Option<Vec<String>>,
    pub(super) working_dir: Option<String>,
}

#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    config: Option<Config>,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<Digest>,
}

/// One layer: its blob, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) blob: Digest,
    pub(super) size: u64,
    pub(super) compression: Compression,
    /// Of the archive without its compression.
    pub(super) diff: Digest,
    /// Of this layer and all below it, as the image specification defines it.
    pub(super) chain: Digest,
}

/// One image, verified but for its layers.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) blobs: Blobs,
    /// The lowest first.
    pub(super) layers: Vec<Layer>,
    pub(super) config: Config,
}

/// Opens the layout at `path` and finds the image `reference` in it; without one, the only image there is.
pub(super) fn open(path: &Path, reference: Option<&str>, until: Instant) -> Result<Image> {
    let root =
        place::open(path).map_err(failed_to(|| format!("open the image layout {}", path.display())))?;
    let blobs = Blobs::new(root, path, until);
    let index: Index = parse(&blobs, INDEX, &blobs.document(INDEX)?)?;
    let named = match reference {
        Some(reference) => index.manifests.into_iter().filter(|one| one.is_named(reference)).collect(),
        None => index.manifests,
    };
    let wanted = reference.map_or(String::new(), |reference| format!(" called {reference:?}"));
    let mut found = choose(&blobs, named, &wanted)?;
    for _ in 0..MAX_DEPTH {
        if !LISTS.contains(&found.media_type.as_str()) {
            return read_image(blobs, &found);
        }
        let list: Index = document(&blobs, &found)?;
        found = choose(&blobs, list.manifests, &wanted)?;
    }
    Err(problem(&blobs, format!("the image{wanted} is a list of lists of lists")))
}

impl Descriptor {
    /// A reference is a whole name, a tag, or what has a digest at its end.
    fn is_named(&self, reference: &str) -> bool {
        if let Some((_, digest)) = reference.rsplit_once('@') {
            return self.digest.to_string() == digest;
        }
        let tag = match reference.rsplit_once(':') {
            Some((_, tag)) if !tag.contains('/') => tag,
            _ => "latest",
        };
        let names = NAMES.iter().filter_map(|name| self.annotations.get(*name));
        names.map(String::as_str).any(|name| name == reference || name == tag)
    }

    /// Lower is better; `None` does not run here. Attestations are of the platform `unknown`.
    fn fitness(&self) -> Option<u8> {
        let Some(platform) = &self.platform else { return Some(1) };
        if (platform.os.as_str(), platform.architecture.as_str()) != ("linux", architecture()) {
            return None;
        }
        match platform.variant.as_str() {
            "" | "v1" | "v8" => Some(0),
            // Made for a later variant of the processor, which this may not be.
            _ => Some(2),
        }
    }
}

/// As the image specification calls what this agent is compiled for.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

fn choose(blobs: &Blobs, all: Vec<Descriptor>, wanted: &str) -> Result<Descriptor> {
    let mut fitting: Vec<(u8, Descriptor)> =
        all.iter().filter_map(|one| Some((one.fitness()?, one.clone()))).collect();
    fitting.sort_by_key(|(fitness, _)| *fitness);
    fitting.dedup_by_key(|(_, one)| one.digest);
    let several = |two: &[(u8, Descriptor)]| matches!(two, [(a, _), (b, _), ..] if a == b);
    if several(&fitting) {
        return Err(problem(blobs, format!("it has several images{wanted}; name one of them")));
    }
    let none = match all.is_empty() {
        true => format!("it has no image{wanted}"),
        false => format!("the image{wanted} is not for linux/{}", architecture()),
    };
    fitting.into_iter().next().map(|(_, one)| one).ok_or_else(|| problem(blobs, none))
}

fn read_image(blobs: Blobs, descriptor: &Descriptor) -> Result<Image> {
    if !MANIFESTS.contains(&descriptor.media_type.as_str()) {
        let text = format!("{} is of the unknown type {:?}", descriptor.digest, descriptor.media_type);
        return Err(problem(&blobs, text));
    }
    let manifest: Manifest = document(&blobs, descriptor)?;
    let configuration: Configuration = document(&blobs, &manifest.config)?;
    let diffs = configuration.rootfs.diff_ids;
    if manifest.layers.is_empty()
        || manifest.layers.len() > MAX_LAYERS
        || manifest.layers.len() != diffs.len()
    {
        let text = format!(
            "the image {} has {} layers and its configuration {}; it takes as many, and 1 to {MAX_LAYERS}",
            descriptor.digest,
            manifest.layers.len(),
            diffs.len()
        );
        return Err(problem(&blobs, text));
    }
    let mut layers: Vec<Layer> = Vec::new();
    for (layer, diff) in manifest.layers.into_iter().zip(diffs) {
        let compression = Compression::of(&layer.media_type).ok_or_else(|| {
            problem(
                &blobs,
                format!("the layer {} is of the unknown type {:?}", layer.digest, layer.media_type),
            )
        })?;
        let chain = match layers.last() {
            Some(below) => Digest::of(format!("{} {diff}", below.chain).as_bytes()),
            None => diff,
        };
        layers.push(Layer { blob: layer.digest, size: layer.size, compression, diff, chain });
    }
    Ok(Image { blobs, layers, config: configuration.config.unwrap_or_default() })
}

fn document<T: DeserializeOwned>(blobs: &Blobs, descriptor: &Descriptor) -> Result<T> {
    let bytes = blobs.whole(descriptor.digest, descriptor.size)?;
    parse(blobs, &descriptor.digest.to_string(), &bytes)
}

fn parse<T: DeserializeOwned>(blobs: &Blobs, name: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| problem(blobs, format!("{name} cannot be read: {error}")))
}

fn problem(blobs: &Blobs, problem: String) -> ImageError {
    ImageError::Layout { path: blobs.path().to_owned(), problem }
}
