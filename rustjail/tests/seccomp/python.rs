//! The two helpers that speak to C: tests have no unsafe code of their own.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

/// Runs `script` of this directory with `input`. Without what it needs the answer is `None`, and the
/// caller's test is skipped; on CI that is a failure.
pub fn run(script: &str, input: &Value) -> Option<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seccomp").join(script);
    let outcome = Command::new("python3")
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("python3: {error}"))
        .and_then(|mut child| {
            // A helper that cannot start does not read, and says why on stderr.
            let _ = child.stdin.take().unwrap().write_all(input.to_string().as_bytes());
            let output = child.wait_with_output().unwrap();
            if output.status.success() {
                return Ok(serde_json::from_slice(&output.stdout).unwrap());
            }
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        });
    match outcome {
        Ok(answer) => Some(answer),
        Err(reason) if std::env::var("CI").is_ok_and(|ci| ci == "true") => panic!("{script}: {reason}"),
        Err(reason) => {
            println!("skipped, {script} does not run here: {reason}");
            None
        }
    }
}

/// A program as the helpers write it.
pub fn from_hex(text: &str) -> Vec<[u8; 8]> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect();
    bytes.chunks_exact(8).map(|chunk| chunk.try_into().unwrap()).collect()
}

/// The inverse of [`from_hex`].
pub fn to_hex(program: &[[u8; 8]]) -> String {
    program.iter().flatten().map(|byte| format!("{byte:02x}")).collect()
}
