//! Mount options, seen from inside.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
};

use serde_json::{Value, json};
use support::{Bundle, OUTSIDE};

/// A container with a tree of two mounts at `/data`, bound with `options`, and the attributes it then sees of each.
fn attributes(options: Value, user: bool) -> (String, String) {
    let mut bundle =
        Bundle::new("grep -E ' /data(/below)? ' /proc/self/mountinfo | awk '{ print $5, $6 }' | sort");
    let outer = bundle.path.join("outer");
    fs::create_dir_all(&outer).unwrap();
    bundle.set("/mounts/-", json!({"destination": "/data", "source": outer, "options": options}));
    if user {
        bundle.in_user_namespace();
    }
    let (dir, flags) = (outer.display(), "strictatime");
    let outcome = bundle.run_after(&format!(
        "mount -t tmpfs -o {flags} x {dir}; mkdir {dir}/below; mount -t tmpfs -o {flags} x {dir}/below"
    ));
    let mut lines = outcome.text().lines().map(|line| line.split_once(' ').unwrap().1.to_owned());
    (lines.next().unwrap(), lines.next().unwrap_or_default())
}

#[test]
fn recursive_options_reach_all_below_and_plain_ones_the_mount_itself() {
    for (plain, recursive, seen) in [
        ("ro", "rro", "ro"),
        ("nosuid", "rnosuid", "rw,nosuid"),
        ("nodev", "rnodev", "rw,nodev"),
        ("noexec", "rnoexec", "rw,noexec"),
        ("noatime", "rnoatime", "rw,noatime"),
        ("relatime", "rrelatime", "rw,relatime"),
        ("nodiratime", "rnodiratime", "rw,nodiratime"),
        ("nosymfollow", "rnosymfollow", "rw,nosymfollow"),
    ] {
        let (own, below) = attributes(json!(["rbind", plain]), false);
        assert_eq!((own.as_str(), below.as_str()), (seen, "rw"), "{plain}");
        let (own, below) = attributes(json!(["rbind", recursive]), false);
        assert_eq!((own.as_str(), below.as_str()), (seen, seen), "{recursive}");
    }
}

#[test]
fn recursive_options_are_taken_back_by_their_opposites() {
    for (set, back) in [
        ("rro", "rrw"),
        ("rnosuid", "rsuid"),
        ("rnodev", "rdev"),
        ("rnoexec", "rexec"),
        ("rnodiratime", "rdiratime"),
        ("rnosymfollow", "rsymfollow"),
        ("rnoatime", "rstrictatime"),
    ] {
        assert_eq!(
            attributes(json!(["rbind", set, back]), false),
            ("rw".into(), "rw".into()),
            "{set} {back}"
        );
    }
    for (word, seen) in
        [("ratime", "rw,relatime"), ("rnorelatime", "rw,relatime"), ("rnostrictatime", "rw,relatime")]
    {
        assert_eq!(attributes(json!(["rbind", word]), false), (seen.into(), seen.into()), "{word}");
    }
    // An exception for the mount itself wins over what is said of all.
    assert_eq!(attributes(json!(["rbind", "rro", "nosuid"]), false), ("ro,nosuid".into(), "ro".into()));
}

#[test]
fn a_user_namespace_can_restrict_the_mounts_it_was_given() {
    let all = json!(["rbind", "rro", "rnosuid", "rnodev", "rnoexec"]);
    let seen = "ro,nosuid,nodev,noexec";
    assert_eq!(attributes(all, true), (seen.into(), seen.into()));
}

#[test]
fn a_bind_without_r_leaves_the_mounts_below_behind() {
    assert_eq!(attributes(json!(["bind", "ro"]), false), ("ro".into(), String::new()));
}

#[test]
fn links_on_a_mount_can_be_dead() {
    let mut bundle = Bundle::new("cat /data/link 2>/dev/null || echo dead; cat /data/file");
    let source = bundle.path.join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "text\n").unwrap();
    symlink("file", source.join("link")).unwrap();
    bundle.set(
        "/mounts/-",
        json!({"destination": "/data", "source": source, "options": ["bind", "nosymfollow"]}),
    );
    assert_eq!(bundle.run().text(), "dead\ntext");
}

/// A mount of its own below the source, for the propagation to be seen on.
fn propagation(options: Value) -> String {
    let mut bundle =
        Bundle::new("grep -E ' /data ' /proc/self/mountinfo | awk '{ sub(/:.*/, \"\", $7); print $7 }'");
    let outer = bundle.path.join("outer");
    fs::create_dir_all(&outer).unwrap();
    bundle.set("/mounts/-", json!({"destination": "/data", "source": outer, "options": options}));
    let dir = outer.display();
    bundle.run_after(&format!("mount -t tmpfs x {dir}; mount --make-shared {dir}")).text().to_owned()
}

#[test]
fn a_bind_is_a_slave_unless_it_is_to_be_something_else() {
    assert_eq!(propagation(json!(["rbind"])), "master");
    assert_eq!(propagation(json!(["rbind", "rslave"])), "master");
    assert_eq!(propagation(json!(["bind", "slave"])), "master");
    assert_eq!(propagation(json!(["rbind", "rshared"])), "shared");
    assert_eq!(propagation(json!(["rbind", "rprivate"])), "-");
    assert_eq!(propagation(json!(["bind", "private"])), "-");
    assert_eq!(propagation(json!(["bind", "unbindable"])), "unbindable");
}

#[test]
fn the_root_is_propagated_as_asked() {
    let script = "awk '$5 == \"/\" { sub(/:.*/, \"\", $7); print $7 }' /proc/self/mountinfo";
    for (word, seen) in [
        ("shared", "shared"),
        ("rshared", "shared"),
        ("private", "-"),
        ("rprivate", "-"),
        ("unbindable", "unbindable"),
    ] {
        let mut bundle = Bundle::new(script);
        bundle.set("/linux/rootfsPropagation", json!(word));
        assert_eq!(bundle.run().text(), seen, "{word}");
    }
    // One that is shared on the machine is followed, and shared anew with what the container makes of it.
    for (word, seen) in [("slave", "master"), ("shared", "shared")] {
        let mut bundle = Bundle::new(script);
        bundle.set("/linux/rootfsPropagation", json!(word));
        let rootfs = bundle.rootfs();
        let dir = rootfs.display();
        let outcome = bundle.run_after(&format!("mount --bind {dir} {dir}; mount --make-shared {dir}"));
        assert_eq!(outcome.text(), seen, "{word}");
    }
}

#[test]
fn files_of_a_mount_are_shown_with_mapped_ids() {
    let script = "stat -c %u:%g /data/file; touch /data/made && stat -c %u:%g /data/made";
    let map = |inside: u32, outside: u32| json!([{"containerID": inside, "hostID": outside, "size": 100}]);
    let make = |script: &str, extra: Value| {
        let mut bundle = Bundle::new(script);
        let source = bundle.path.join("source");
        fs::create_dir(&source).unwrap();
        fs::write(source.join("file"), "").unwrap();
        for path in [source.clone(), source.join("file")] {
            chown(path, Some(50), Some(60)).unwrap();
        }
        let mut mount = json!({"destination": "/data", "source": source, "options": ["bind", "idmap"]});
        mount.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        bundle.set("/mounts/-", mount);
        bundle
    };
    // Maps of its own: 50 of the file system is 1050 here.
    let mut bundle = make(script, json!({"uidMappings": map(0, 1000), "gidMappings": map(0, 2000)}));
    bundle.set("/process/user", json!({"uid": 1050, "gid": 2060}));
    assert_eq!(bundle.run().text(), "1050:2060\n1050:2060");
    let made = fs::metadata(bundle.path.join("source/made")).unwrap();
    assert_eq!(
        (std::os::unix::fs::MetadataExt::uid(&made), std::os::unix::fs::MetadataExt::gid(&made)),
        (50, 60)
    );

    // Those of the container's user namespace: its 50 is 50 of the file system.
    let mut bundle = make(script, json!({}));
    bundle.in_user_namespace().set("/process/user", json!({"uid": 50, "gid": 60}));
    assert_eq!(bundle.run().text(), "50:60\n50:60");

    // The same without the option: nobody's.
    let mut bundle = make("stat -c %u:%g /data/file", json!({"options": ["bind"]}));
    assert_eq!(bundle.in_user_namespace().run().text(), "65534:65534");

    let refused = make("true", json!({})).run();
    assert!(refused.refusal().contains("neither maps of its own nor a user namespace"), "{refused:?}");
    let half = make("true", json!({"uidMappings": map(0, 1000)})).run();
    assert!(half.refusal().contains("it takes both"), "{half:?}");
}

#[test]
fn an_option_can_name_the_ids_as_well() {
    for (option, user) in [
        ("idmap=uids=50-1050-1;gids=60-2060-1", false),
        ("idmap=uids=7-1007-1#50-101050-1;gids=60-102060-1", true),
        ("idmap=uids=@50-1050-1;gids=@60-2060-1", true),
    ] {
        let mut bundle = Bundle::new("stat -c %u:%g /data/file");
        let source = bundle.path.join("source");
        fs::create_dir(&source).unwrap();
        fs::write(source.join("file"), "").unwrap();
        chown(source.join("file"), Some(50), Some(60)).unwrap();
        let mount = json!({"destination": "/data", "source": source, "options": ["bind", option]});
        bundle.set("/mounts/-", mount);
        if user {
            bundle.in_user_namespace();
        }
        assert_eq!(bundle.run().text(), "1050:2060", "{option}");
    }
    let mut bundle = Bundle::new("true");
    let options = json!(["bind", "idmap=uids=@0-0-1;gids=@0-0-1"]);
    bundle.set("/mounts/-", json!({"destination": "/data", "source": ".", "options": options}));
    let outcome = bundle.run();
    assert!(outcome.refusal().contains("relative to a user namespace"), "{outcome:?}");
}

#[test]
fn a_link_is_made_anew_bound_or_mounted_on_when_that_is_asked_for() {
    let mut bundle = Bundle::new(
        "readlink /new/copied; readlink /same; readlink /bound; cat /on; readlink /on || echo file; cat /victim",
    );
    let rootfs = bundle.rootfs();
    symlink("/etc/passwd", bundle.path.join("link")).unwrap();
    symlink("/etc/passwd", rootfs.join("same")).unwrap();
    symlink("/victim", rootfs.join("on")).unwrap();
    fs::write(rootfs.join("victim"), "untouched\n").unwrap();
    fs::write(bundle.path.join("file"), "mounted\n").unwrap();
    for (destination, source, option) in [
        ("/new/copied", "link", "copy-symlink"),
        ("/same", "link", "copy-symlink"),
        ("/bound", "link", "src-nofollow"),
        ("/on", "file", "dest-nofollow"),
    ] {
        let options = json!(["bind", option]);
        bundle.set("/mounts/-", json!({"destination": destination, "source": source, "options": options}));
    }
    let link = "/etc/passwd";
    assert_eq!(bundle.run().text(), format!("{link}\n{link}\n{link}\nmounted\nfile\nuntouched"));
    assert!(rootfs.join("new/copied").is_symlink());

    // A source that is none is bound, and what an image has in the place of a copy is left to it.
    let mut bundle = Bundle::new("cat /copied");
    fs::write(bundle.path.join("source"), "plain\n").unwrap();
    let options = json!(["bind", "copy-symlink"]);
    bundle.set("/mounts/-", json!({"destination": "/copied", "source": "source", "options": options}));
    assert_eq!(bundle.run().text(), "plain");
    fs::remove_file(bundle.path.join("source")).unwrap();
    symlink("elsewhere", bundle.path.join("source")).unwrap();
    let outcome = bundle.run();
    assert!(outcome.refusal().contains("make the symbolic link /copied"), "{outcome:?}");
}

#[test]
fn ids_are_mapped_below_when_that_is_asked_for() {
    for (option, below) in [("idmap", "0"), ("ridmap", "1000")] {
        let mut bundle = Bundle::new("stat -c %u /data /data/below");
        let outer = bundle.path.join("outer");
        fs::create_dir_all(&outer).unwrap();
        let map = json!([{"containerID": 0, "hostID": 1000, "size": 100}]);
        bundle.set(
            "/mounts/-",
            json!({"destination": "/data", "source": outer, "options": ["rbind", option],
                                       "uidMappings": map, "gidMappings": map}),
        );
        let dir = outer.display();
        let outcome = bundle
            .run_after(&format!("mount -t tmpfs x {dir}; mkdir {dir}/below; mount -t tmpfs x {dir}/below"));
        assert_eq!(outcome.text(), format!("1000\n{below}"), "{option}");
    }
}

#[test]
fn a_tmpfs_can_begin_with_what_it_hides() {
    for user in [false, true] {
        let mut bundle = Bundle::new(
            "cat /etc/sub/file /etc/link; stat -c '%a %u:%g' /etc/sub /etc/sub/file; readlink /etc/link; \
             grep -c ' /etc .*tmpfs' /proc/self/mountinfo; echo new > /etc/new && echo writable",
        );
        let etc = bundle.rootfs().join("etc");
        fs::create_dir(etc.join("sub")).unwrap();
        fs::write(etc.join("sub/file"), "in a file\n").unwrap();
        symlink("sub/file", etc.join("link")).unwrap();
        fs::set_permissions(etc.join("sub"), fs::Permissions::from_mode(0o710)).unwrap();
        bundle.set(
            "/mounts/-",
            json!({"destination": "/etc", "type": "tmpfs", "source": "x",
                                       "options": ["tmpcopyup", "mode=755"]}),
        );
        if user {
            bundle.in_user_namespace();
        }
        chown(etc.join("sub/file"), Some(OUTSIDE * u32::from(user) + 5), Some(OUTSIDE * u32::from(user) + 6))
            .unwrap();
        fs::set_permissions(etc.join("sub/file"), fs::Permissions::from_mode(0o4755)).unwrap();
        let expected = "in a file\nin a file\n710 0:0\n4755 5:6\nsub/file\n1\nwritable";
        assert_eq!(bundle.run().text(), expected, "{user}");
        assert!(!etc.join("new").exists());
        // Read-only once it is filled.
        let last = bundle.spec["mounts"].as_array().unwrap().len() - 1;
        bundle.set(&format!("/mounts/{last}/options"), json!(["tmpcopyup", "ro"]));
        bundle.set("/process/args", json!(["sh", "-c", "cat /etc/sub/file; touch /etc/x 2>&1 || true"]));
        assert_eq!(bundle.run().text(), "in a file\ntouch: /etc/x: Read-only file system");
    }
}

#[test]
fn options_that_belong_to_other_mounts_are_refused() {
    for (mount, text) in [
        (json!({"destination": "/x", "type": "proc", "options": ["tmpcopyup"]}), "only a tmpfs can have"),
        (json!({"destination": "/x", "type": "tmpfs", "options": ["idmap"]}), "only a bind mount can have"),
        (
            json!({"destination": "/x", "type": "tmpfs", "options": ["src-nofollow"]}),
            "only a bind mount can have",
        ),
    ] {
        let mut bundle = Bundle::new("true");
        bundle.set("/mounts/-", mount);
        let outcome = bundle.run();
        assert!(outcome.refusal().contains(text), "{outcome:?}");
    }
}
