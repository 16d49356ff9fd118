//! Any text as the kernel's command line, as the environment and as arguments: whatever is wrong is a warning.
#![no_main]

use berth_agent::config::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &str| {
    // It would be read, whatever it is.
    if data.contains("config") {
        return;
    }
    let mut lines = data.split('\n');
    let (kernel, variable) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let arguments: Vec<String> = lines.map(str::to_owned).collect();
    let config = Config::compose(kernel, |_| Some(variable.to_owned()), &arguments);
    assert!(config.warnings.iter().all(|warning| !warning.is_empty()));
});
