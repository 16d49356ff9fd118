//! What storages have of images (feature `image-pull`): layers before they are mounted, and given back after.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use oci_spec::runtime::Spec;

use super::{
    Storages,
    drivers::{Driver, image_guest_pull::wanted},
    error::Result,
    request::Storage,
    steps::Steps,
};

/// Until there is a setting.
pub(super) const PATIENCE: Duration = Duration::from_secs(1200);

impl Storages {
    /// How long an image may take to be unpacked.
    pub fn set_image_patience(&self, patience: Duration) {
        self.image_patience.set(patience);
    }

    /// Lets `spec` have the process of the image that its root file system is of, as far as it leaves that open.
    pub fn complete(&self, spec: &mut Spec) {
        let Some(root) = spec.root().as_ref().map(|root| root.path().clone()) else { return };
        let entry = self.table.borrow().get(&root).cloned();
        let process =
            entry.and_then(|entry| entry.steps.borrow().as_ref()?.record.image.as_ref()?.process.clone());
        if let Some(process) = process {
            process.complete(spec);
        }
    }

    pub(super) async fn take_image(
        &self,
        steps: &mut Steps,
        driver: Driver,
        storage: &Storage,
    ) -> Result<()> {
        if driver == Driver::ImageGuestPull {
            let wanted = wanted(storage)?;
            let patience = self.image_patience.get();
            steps.record.image = Some(self.images.acquire(wanted, steps.record.sequence, patience).await?);
        }
        Ok(())
    }

    pub(super) async fn give_image_back(&self, steps: &Steps) {
        if let Some(image) = &steps.record.image
            && let Err(error) = self.images.release(image).await
        {
            slog::error!(self.log, "layers of an image are left"; "error" => %error);
        }
    }

    pub(super) async fn recover_images(&self) -> Result<()> {
        let entries: Vec<_> = self.table.borrow().values().cloned().collect();
        let used = entries.iter().filter_map(|entry| entry.steps.borrow().as_ref()?.record.image.clone());
        Ok(self.images.recover(&used.collect::<Vec<_>>()).await?)
    }
}

/// `/run/kata-containers/image`, where hosts mount what is to hold images, of an agent whose state is in `/run/berth`.
pub(super) fn beside(state_dir: &Path) -> PathBuf {
    state_dir.with_file_name("kata-containers").join("image")
}
