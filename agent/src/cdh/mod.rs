//! The confidential data hub: a program of the guest's that unseals secrets, encrypts storage and pulls images.
//!
//! It is a peer inside the guest, reached by ttrpc over a Unix socket. Each call has a connection and a deadline of
//! its own, so a hub that hangs or is started again costs the calls that wait for it and no other. A container's
//! secrets are in no error, no log and no file of its configuration; what is unsealed into a file is in the guest's
//! memory, never in a directory that a host shares.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use berth_protocols::confidential_data_hub::{
    ImagePullRequest, ImagePullResponse, SecureMountRequest, SecureMountResponse, UnsealSecretInput,
    UnsealSecretOutput,
};
use protobuf::Message;

mod arrival;
mod call;
pub mod volume;

use call::call;

/// Where the hub listens.
pub const SOCKET: &str = "/run/confidential-containers/cdh.sock";
/// What a sealed secret begins with.
pub const SEALED: &str = "sealed.";

/// Why the hub did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// It is not there.
    #[error("the confidential data hub at {} is not there: {source}; is it running?", socket.display())]
    Unreachable {
        /// Where.
        socket: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the confidential data hub was lost during {method}: {source}")]
    Lost {
        /// The call.
        method: &'static str,
        /// How.
        source: io::Error,
    },
    /// It takes too long.
    #[error("the confidential data hub has not answered {method} in {} s", .patience.as_secs_f32())]
    Late {
        /// The call.
        method: &'static str,
        /// How long it had.
        patience: Duration,
    },
    /// Its answer is none.
    #[error("the confidential data hub answers {method} with what is no reply")]
    Malformed {
        /// The call.
        method: &'static str,
    },
    /// It says no.
    #[error("the confidential data hub refuses {method}: code {code}: {message}")]
    Refused {
        /// The call.
        method: &'static str,
        /// As gRPC has them.
        code: u64,
        /// Its words.
        message: String,
    },
    /// A secret cannot be where it belongs.
    #[error("what was sealed there {0}")]
    Unfit(&'static str),
}

type Result<T> = std::result::Result<T, HubError>;

/// How the hub is dealt with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hub {
    /// Where it listens.
    pub socket: PathBuf,
    /// Whether this guest has one, so that it is waited for.
    pub expected: bool,
    /// How long it may take to open its socket.
    pub arrival: Duration,
    /// How long it may take to answer.
    pub patience: Duration,
    /// How long it may take to pull an image.
    pub pull_patience: Duration,
    /// Whether what it encrypts is to be protected against tampering too.
    pub integrity: bool,
}

impl Hub {
    /// Waits until the hub has opened its socket, for as long as it may take to; whether it has.
    pub async fn is_there(&self) -> bool {
        self.expected && (self.socket.exists() || arrival::wait(&self.socket, self.arrival).await.is_ok())
    }

    /// The secret in `sealed`.
    pub async fn unseal(&self, sealed: &[u8]) -> Result<Vec<u8>> {
        let request = UnsealSecretInput { secret: sealed.to_vec(), ..Default::default() };
        let method = "UnsealSecret";
        let output: UnsealSecretOutput =
            self.ask("api.SealedSecretService", method, &request, self.patience).await?;
        Ok(output.plaintext)
    }

    /// The secret in `sealed`, for an environment.
    pub async fn unseal_text(&self, sealed: &str) -> Result<String> {
        let text = String::from_utf8(self.unseal(sealed.as_bytes()).await?);
        let text = text.map_err(|_| HubError::Unfit("is not UTF-8"))?;
        if text.contains('\0') { Err(HubError::Unfit("has a NUL byte in it")) } else { Ok(text) }
    }

    /// Encrypts the disk `numbers` with a key that nobody else ever has, and mounts a new ext4 on it.
    pub async fn mount_scratch(&self, numbers: (i64, i64), mount_point: &str) -> Result<()> {
        let options = [
            ("deviceId", format!("{}:{}", numbers.0, numbers.1)),
            ("sourceType", "empty".to_owned()),
            ("targetType", "fileSystem".to_owned()),
            ("filesystemType", "ext4".to_owned()),
            ("encryptionType", "luks2".to_owned()),
            ("dataIntegrity", self.integrity.to_string()),
        ];
        let request = SecureMountRequest {
            volume_type: "block-device".to_owned(),
            options: options.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            mount_point: mount_point.to_owned(),
            ..Default::default()
        };
        let _: SecureMountResponse =
            self.ask("api.SecureMountService", "SecureMount", &request, self.patience).await?;
        Ok(())
    }

    /// Has `image` pulled; answers its root file system, which the hub has mounted below `bundle`.
    pub async fn pull(&self, image: &str, bundle: &Path) -> Result<PathBuf> {
        let request = ImagePullRequest {
            image_url: image.to_owned(),
            bundle_path: bundle.display().to_string(),
            ..Default::default()
        };
        let _: ImagePullResponse =
            self.ask("api.ImagePullService", "PullImage", &request, self.pull_patience).await?;
        Ok(bundle.join("rootfs"))
    }

    async fn ask<T: Message>(
        &self,
        service: &'static str,
        method: &'static str,
        request: &impl Message,
        patience: Duration,
    ) -> Result<T> {
        if !self.is_there().await {
            let source = io::ErrorKind::NotFound.into();
            return Err(HubError::Unreachable { socket: self.socket.clone(), source });
        }
        let malformed = |_| HubError::Malformed { method };
        let request = request.write_to_bytes().map_err(malformed)?;
        let answered =
            tokio::time::timeout(patience, call(&self.socket, service, method, &request, patience));
        let reply = answered.await.map_err(|_elapsed| HubError::Late { method, patience })??;
        T::parse_from_bytes(&reply).map_err(malformed)
    }
}
