//! A confidential data hub: a real ttrpc server, that knows a few secrets.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use berth_protocols::{
    confidential_data_hub::{
        ImagePullRequest, ImagePullResponse, SecureMountRequest, SecureMountResponse, UnsealSecretInput,
        UnsealSecretOutput,
    },
    confidential_data_hub_ttrpc::{
        ImagePullService, SealedSecretService, SecureMountService, create_image_pull_service,
        create_sealed_secret_service, create_secure_mount_service,
    },
};
use ttrpc::r#async::{Server, TtrpcContext};

/// What the hub makes of what is sealed; as nothing else has it in it, it can be searched for.
pub fn plaintext(name: &str) -> String {
    format!("s3cret-{name}")
}

pub struct Hub {
    server: Server,
    service: Arc<Service>,
}

struct Service {
    /// A process in whose mount namespace images are mounted.
    mounter: i32,
    asked: Mutex<Vec<String>>,
}

impl Hub {
    /// Listens at `socket`; mounts for the processes that see what `mounter` sees.
    pub async fn start(socket: &Path, mounter: i32) -> Self {
        let service = Arc::new(Service { mounter, asked: Mutex::default() });
        let mut server = Server::new()
            .bind(&format!("unix://{}", socket.display()))
            .unwrap()
            .register_service(create_sealed_secret_service(service.clone()))
            .register_service(create_secure_mount_service(service.clone()))
            .register_service(create_image_pull_service(service.clone()));
        server.start().await.unwrap();
        Self { server, service }
    }

    /// What it was asked, in order, but for secrets.
    pub fn asked(&self) -> Vec<String> {
        self.service.asked.lock().unwrap().clone()
    }

    pub async fn stop(mut self) {
        self.server.shutdown().await.unwrap();
    }
}

fn refusal(text: &str) -> ttrpc::Error {
    ttrpc::Error::RpcStatus(ttrpc::get_status(ttrpc::Code::INTERNAL, text.to_owned()))
}

#[async_trait]
impl SealedSecretService for Service {
    async fn unseal_secret(
        &self,
        _: &TtrpcContext,
        input: UnsealSecretInput,
    ) -> ttrpc::Result<UnsealSecretOutput> {
        let sealed = String::from_utf8(input.secret).unwrap();
        let plaintext = match sealed.trim().strip_prefix("sealed.").unwrap() {
            "unknown" => return Err(refusal("no such key")),
            "silence" => std::future::pending().await,
            "binary" => vec![0xff, 0xfe],
            name => plaintext(name).into_bytes(),
        };
        Ok(UnsealSecretOutput { plaintext, ..Default::default() })
    }
}

#[async_trait]
impl SecureMountService for Service {
    async fn secure_mount(
        &self,
        _: &TtrpcContext,
        request: SecureMountRequest,
    ) -> ttrpc::Result<SecureMountResponse> {
        let mut options: Vec<_> =
            request.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
        options.sort();
        let told = format!("{} {} {}", request.volume_type, options.join(","), request.mount_point);
        self.asked.lock().unwrap().push(told);
        Ok(SecureMountResponse { mount_path: request.mount_point, ..Default::default() })
    }
}

#[async_trait]
impl ImagePullService for Service {
    async fn pull_image(
        &self,
        _: &TtrpcContext,
        request: ImagePullRequest,
    ) -> ttrpc::Result<ImagePullResponse> {
        self.asked.lock().unwrap().push(request.image_url.clone());
        if request.image_url.ends_with(":none") {
            return Err(refusal("manifest unknown"));
        }
        let rootfs = Path::new(&request.bundle_path).join("rootfs");
        fs::create_dir_all(&rootfs).unwrap();
        let script = "mount -t tmpfs image \"$0\" && cd \"$0\" && mkdir bin proc dev sys tmp etc &&
            cp /bin/busybox bin/ && ln -s busybox bin/sh && ln -s busybox bin/cat && echo pulled > etc/image";
        let mounted = Command::new("nsenter")
            .args(["--mount", "--target", &self.mounter.to_string(), "--", "/bin/sh", "-c", script])
            .arg(&rootfs)
            .status();
        assert!(mounted.unwrap().success());
        Ok(ImagePullResponse { manifest_digest: "sha256:0".into(), ..Default::default() })
    }
}
