use std::process::{Command, Stdio};

use super::*;

const TEXT: &str = "algorithm = 'sha384'\nversion = '0.1.0'\n\n[data]\n'aa.toml' = '''\n[token]\nurl = 'x'\n'''\n\
    \"policy.rego\" = '''package agent_policy\ndefault A := true\n'''\n\"../../escape\" = 'no'\n";

/// Packed by the machine's gzip, with what follows on its command line.
fn gzip(text: &[u8], options: &[&str]) -> Vec<u8> {
    let mut child = Command::new("gzip")
        .args(options)
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || io::Write::write_all(&mut stdin, text).unwrap());
        child.wait_with_output().unwrap().stdout
    })
}

#[test]
fn what_gzip_packed_is_unpacked_and_nothing_beyond_a_bound() {
    let noise: Vec<u8> = (0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for text in [&b""[..], b"a", TEXT.as_bytes(), &noise, &[0; 300_000]] {
        let packed = gzip(text, &["-9"]);
        assert_eq!(disk::unpack(&packed, text.len()).unwrap().as_deref(), Some(text));
        if let Some(less) = text.len().checked_sub(1) {
            assert_eq!(disk::unpack(&packed, less).unwrap(), None);
        }
    }
    let bomb = gzip(&vec![0; 13 << 20], &["-9"]);
    assert!(bomb.len() < 16 << 10);
    assert_eq!(disk::unpack(&bomb, 1 << 20).unwrap(), None);
}

#[test]
fn damage_anywhere_is_seen() {
    let packed = gzip(TEXT.as_bytes(), &["-n"]);
    let refused = |member: &[u8]| disk::unpack(member, 1 << 20).is_err();
    for end in 0..packed.len() {
        assert!(refused(&packed[..end]), "cut at {end}");
    }
    // Not the flags, the time and the system, which say nothing of the content.
    for place in (0..3).chain(10..packed.len()) {
        let mut damaged = packed.clone();
        damaged[place] ^= 0x10;
        // The last byte of the stream may have bits that are nobody's.
        let unpacked = disk::unpack(&damaged, 1 << 20);
        assert!(unpacked.is_err() || unpacked.unwrap().unwrap() == TEXT.as_bytes(), "damaged at {place}");
    }
    assert!(refused(&[&packed[..], b"x"].concat()) && refused(&[&packed[..], &packed].concat()));
}

#[test]
fn a_document_is_understood_whole_or_not_at_all() {
    let document = Document::parse(TEXT.into()).unwrap();
    assert_eq!(document.part("aa.toml"), Some("[token]\nurl = 'x'\n"));
    assert_eq!((document.part("cdh.toml"), document.text()), (None, TEXT));
    for program in ["sha256", "sha384", "sha512"] {
        let text = TEXT.replace("sha384", program);
        let mut child = Command::new(format!("{program}sum"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
        let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let expected = format!("{program}:{}", said.split(' ').next().unwrap());
        assert_eq!(Document::parse(text.into()).unwrap().digest(), expected);
    }
    for (from, to, says) in [
        ("0.1.0", "0.2.0", "version must be"),
        ("sha384", "md5", "algorithm must be"),
        ("[data]", "[date]", "data must be a table"),
        ("= 'no'", "= 7", "data.\"../../escape\" must be a text"),
        ("= 'no'", "= 'no", "does not end on its line"),
    ] {
        let error = Document::parse(TEXT.replace(from, to).into()).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert_eq!(Document::parse(vec![0xff]).unwrap_err(), DocumentError::Text);
}

#[test]
fn what_is_placed_is_whole_and_replaces_what_was_there() {
    let root = std::env::temp_dir().join(format!("berth-initdata-{}", std::process::id()));
    let directory = root.join("run/initdata");
    fs::create_dir_all(directory.join("old")).unwrap();
    place(&Document::parse(TEXT.into()).unwrap(), &directory).unwrap();
    let mut names: Vec<_> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let policy = fs::read_to_string(directory.join("policy.rego")).unwrap();
    let beside = fs::read_dir(root.join("run")).unwrap().count();
    fs::remove_dir_all(&root).unwrap();
    assert_eq!(names, ["aa.toml", "initdata.toml", "policy.rego"]);
    assert_eq!((policy.as_str(), beside), ("package agent_policy\ndefault A := true\n", 1));
}
