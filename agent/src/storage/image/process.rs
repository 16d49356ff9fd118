//! The process that an image describes, and what of it a container gets.
//!
//! A host that knows the image sends a configuration that is complete, and it stays as it is. One that does not
//! know it sends no arguments; then everything that the configuration leaves open is the image's.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, ResolveFlag},
    libc,
    sys::stat::fstat,
};
use oci_spec::runtime::Spec;
use rustjail::lookup::open_within;
use serde::{Deserialize, Serialize};

use super::{ImageError, Result, error::failed_to, layout::Config};

/// No user file of an image is as large.
const MAX_FILE: u64 = 1 << 20;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::storage) struct ImageProcess {
    pub(super) arguments: Vec<String>,
    pub(super) environment: Vec<String>,
    pub(super) directory: PathBuf,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
    /// It takes the place of what the host sent, which is for an image that the guest does not use.
    pub(super) instead: bool,
}

impl ImageProcess {
    /// That of the image whose files are at `root`.
    pub(super) fn new(config: Config, root: &impl std::os::fd::AsFd) -> Result<Self> {
        let arguments = [config.entrypoint, config.cmd].into_iter().flatten().flatten().collect();
        let directory = config.working_dir.filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned());
        let mut process = Self {
            arguments,
            environment: config.env.unwrap_or_default(),
            directory: directory.into(),
            ..Self::default()
        };
        if let Some(user) = config.user.filter(|user| !user.is_empty()) {
            process.find_user(&user, root)?;
        }
        Ok(process)
    }

    /// Puts it into the configuration of a container that runs on the image.
    pub(in crate::storage) fn complete(&self, spec: &mut Spec) {
        let Some(process) = spec.process_mut() else { return };
        let none = process.args().as_ref().is_none_or(Vec::is_empty);
        if !none && !self.instead {
            return;
        }
        process.set_args(Some(self.arguments.clone()));
        let mut environment = process.env().clone().unwrap_or_default();
        let name = |entry: &str| entry.split('=').next().unwrap_or_default().to_owned();
        for entry in &self.environment {
            if !environment.iter().any(|present| name(present) == name(entry)) {
                environment.push(entry.clone());
            }
        }
        process.set_env(Some(environment));
        if self.instead || process.cwd().as_os_str().is_empty() || process.cwd().as_os_str() == "/" {
            process.set_cwd(self.directory.clone());
        }
        let mut user = process.user().clone();
        if self.instead || (user.uid(), user.gid()) == (0, 0) {
            user.set_uid(self.uid).set_gid(self.gid);
            let mut groups = user.additional_gids().clone().unwrap_or_default();
            groups.extend(
                self.groups.iter().filter(|group| !groups.contains(group)).copied().collect::<Vec<_>>(),
            );
            user.set_additional_gids(Some(groups).filter(|groups| !groups.is_empty()));
            process.set_user(user);
        }
    }

    /// `USER[:GROUP]`, names or numbers; without a group, all of the user's.
    fn find_user(&mut self, text: &str, root: &impl std::os::fd::AsFd) -> Result<()> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
            None => (text, None),
        };
        let unknown = |file| ImageError::User { user: text.to_owned(), file };
        let mut name = None;
        for line in lines(root, "etc/passwd")? {
            let fields: Vec<&str> = line.split(':').collect();
            if let [found, _, uid, gid, ..] = fields.as_slice()
                && (*found == user || *uid == user)
                && let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse())
            {
                (self.uid, self.gid) = (uid, gid);
                name = Some((*found).to_owned());
                break;
            }
        }
        if name.is_none() {
            self.uid = user.parse().map_err(|_| unknown("passwd"))?;
        }
        let mut known = false;
        for line in lines(root, "etc/group")? {
            let fields: Vec<&str> = line.split(':').collect();
            let [found, _, gid, members] = fields.as_slice() else { continue };
            let Ok(number) = gid.parse::<u32>() else { continue };
            match group {
                Some(group) if *found == group || *gid == group => {
                    self.gid = number;
                    known = true;
                    break;
                }
                None if members.split(',').any(|member| name.as_deref() == Some(member)) => {
                    self.groups.push(number);
                }
                _ => {}
            }
        }
        if let Some(group) = group.filter(|_| !known) {
            self.gid = group.parse().map_err(|_| unknown("group"))?;
        }
        Ok(())
    }
}

/// The process of an OCI bundle, which takes the place of the host's.
pub(super) fn of_bundle(bundle: &Path) -> Result<ImageProcess> {
    #[derive(Deserialize)]
    struct Bundle {
        process: oci_spec::runtime::Process,
    }
    let path = bundle.join("config.json");
    let failed = || format!("read {}, the guest's own image of what holds a pod", path.display());
    let text = std::fs::read(&path).map_err(failed_to(failed))?;
    let Bundle { process } = serde_json::from_slice(&text).map_err(failed_to(failed))?;
    Ok(ImageProcess {
        arguments: process.args().clone().unwrap_or_default(),
        environment: process.env().clone().unwrap_or_default(),
        directory: process.cwd().clone(),
        uid: process.user().uid(),
        gid: process.user().gid(),
        groups: process.user().additional_gids().clone().unwrap_or_default(),
        instead: true,
    })
}

/// The lines of a file of the image, none where it does not exist. Links stay within the image.
fn lines(root: &impl std::os::fd::AsFd, path: &str) -> Result<Vec<String>> {
    let failed = || format!("read /{path} of the image");
    let within = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let file = match open_within(root, Path::new(path), OFlag::O_RDONLY | OFlag::O_NONBLOCK, within) {
        Err(nix::Error::ENOENT) => return Ok(Vec::new()),
        file => File::from(file.map_err(failed_to(failed))?),
    };
    if fstat(&file).map_err(failed_to(failed))?.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(failed_to(failed)(io::Error::from(io::ErrorKind::InvalidInput)));
    }
    let lines = BufReader::new(file.take(MAX_FILE)).split(b'\n');
    let text = |line: io::Result<Vec<u8>>| line.map(|line| String::from_utf8_lossy(&line).into_owned());
    lines.map(text).collect::<io::Result<_>>().map_err(failed_to(failed))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn user(text: &str) -> Result<(u32, u32, Vec<u32>)> {
        let dir = std::env::temp_dir().join(format!("berth-users-{}-{text}", std::process::id()));
        fs::create_dir_all(dir.join("etc")).unwrap();
        fs::write(dir.join("etc/passwd"), "root:x:0:0:::\nweb:x:33:34:web:/srv:/bin/sh\nbroken\n").unwrap();
        fs::write(dir.join("etc/group"), "root:x:0:\nweb:x:34:\nlog:x:7:web,root\nhttp:x:80:root\n").unwrap();
        let config = Config { user: Some(text.to_owned()), ..Config::default() };
        let process = ImageProcess::new(config, &File::open(&dir).unwrap());
        fs::remove_dir_all(&dir).unwrap();
        process.map(|process| (process.uid, process.gid, process.groups))
    }

    #[test]
    fn users_are_looked_up_in_the_image() {
        assert_eq!(user("web").unwrap(), (33, 34, vec![7]));
        assert_eq!(user("33").unwrap(), (33, 34, vec![7]));
        assert_eq!(user("web:http").unwrap(), (33, 80, vec![]));
        assert_eq!(user("5:6").unwrap(), (5, 6, vec![]));
        assert_eq!(user("5").unwrap(), (5, 0, vec![]));
        assert!(user("nobody").unwrap_err().to_string().contains("/etc/passwd"));
        assert!(user("web:none").unwrap_err().to_string().contains("/etc/group"));
    }

    fn spec(args: &[&str], cwd: &str, uid: u32) -> Spec {
        let process = serde_json::json!({
            "cwd": cwd, "args": args, "env": ["A=host"], "user": { "uid": uid, "gid": 0 },
        });
        serde_json::from_value(serde_json::json!({ "ociVersion": "1.2.0", "process": process })).unwrap()
    }

    #[test]
    fn only_what_is_left_open_is_the_images() {
        let image = ImageProcess {
            arguments: vec!["/run".into()],
            environment: vec!["A=image".into(), "B=image".into()],
            directory: "/srv".into(),
            uid: 33,
            gid: 34,
            groups: vec![7],
            instead: false,
        };
        let completed = |image: &ImageProcess, mut spec: Spec| {
            image.complete(&mut spec);
            let process = spec.process().clone().unwrap();
            let user = process.user();
            let ids = (user.uid(), user.gid(), user.additional_gids().clone());
            (process.args().clone().unwrap(), process.env().clone().unwrap(), process.cwd().clone(), ids)
        };
        let (args, env, cwd, ids) = completed(&image, spec(&[], "/", 0));
        assert_eq!((args, env), (vec!["/run".to_owned()], vec!["A=host".to_owned(), "B=image".to_owned()]));
        assert_eq!((cwd, ids), ("/srv".into(), (33, 34, Some(vec![7]))));
        let (.., cwd, ids) = completed(&image, spec(&[], "/tmp", 5));
        assert_eq!((cwd, ids), ("/tmp".into(), (5, 0, None)));
        let complete = completed(&image, spec(&["sh"], "/", 0));
        assert_eq!(complete.0, ["sh"]);
        assert_eq!(
            (complete.1, complete.2, complete.3),
            (vec!["A=host".to_owned()], "/".into(), (0, 0, None))
        );
        let instead = ImageProcess { instead: true, ..image };
        assert_eq!(completed(&instead, spec(&["sh"], "/tmp", 5)).0, ["/run"]);
    }
}
