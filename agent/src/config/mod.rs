//! What the agent is told before it starts.
//!
//! ```text
//!   --config FILE given?          yes: FILE, then the environment, then the arguments
//!   agent.config_file=FILE given? yes: FILE, then the arguments
//!   otherwise                     the kernel's command line, then the environment, then the arguments
//! ```
//!
//! The later wins. A value that makes no sense is reported in [`Config::warnings`] and ignored: a guest that boots
//! with a default can be asked what is wrong, a guest that does not boot cannot. One table, [`SETTINGS`], names
//! every setting and reads it; `--help` and `docs/configuration.md` are written from it.

use std::{fs, path::PathBuf, time::Duration};

use slog::Level;

use crate::address::Address;

mod document;
mod file;
mod mem_agent;
mod table;
pub mod toml;
mod value;

pub use document::{help, markdown};
pub use mem_agent::MemAgent;
pub use table::{Effect, SETTINGS, Setting};
pub use value::level;

/// The kernel's command line replaces itself by the file that this names.
const CONFIG_FILE: &str = "agent.config_file";

/// Which processes of the confidential containers' guest components the image's own init is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestComponents {
    /// None of them.
    None,
    /// The attestation agent.
    AttestationAgent,
    /// That, and the confidential data hub.
    ConfidentialDataHub,
    /// Those, and the REST server in front of them.
    ApiServerRest,
}

/// Every setting, with defaults where nothing was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where ttrpc is served.
    pub server_address: Address,
    /// Whether vsock peers other than the host are served.
    pub any_cid: bool,
    /// The vsock port of raw standard streams.
    pub stdio_port: u32,
    /// The least severe level that is logged.
    pub log_level: Level,
    /// The vsock port for log readers; 0 is none.
    pub log_port: u32,
    /// The size of containers' pipes in bytes; 0 leaves the kernel's.
    pub container_pipe_size: u32,
    /// Whether there is a debug console.
    pub debug_console: bool,
    /// Its vsock port; 0 is /dev/console.
    pub debug_console_port: u32,
    /// The port on the host that is dialled once the agent serves; 0 is none.
    pub ready_port: u32,
    /// Kernel modules to load at boot, beside those that vsock needs.
    pub modules: Vec<String>,
    /// Whether the guest is to have cgroup v1.
    pub cgroup_v1: bool,
    /// How long a device may take to appear after the host has plugged it.
    pub hotplug_timeout: Duration,
    /// How long the kinds of devices that a CDI annotation names may take to be described.
    pub cdi_timeout: Duration,
    /// Whether the environment variable VISIBLE_CDI_DEVICES selects devices too.
    pub visible_cdi_devices: bool,
    /// How long the confidential data hub may take to answer.
    pub cdh_api_timeout: Duration,
    /// How long it may take to pull an image.
    pub image_pull_timeout: Duration,
    /// How long a guest component may take to open its socket.
    pub launch_process_timeout: Duration,
    /// Which guest components the image runs.
    pub guest_components: GuestComponents,
    /// Whether storage that the data hub encrypts is protected against tampering too.
    pub secure_storage_integrity: bool,
    /// Whether spans are exported.
    pub tracing: bool,
    /// The Rego document that decides over calls until another is set.
    pub policy_file: Option<PathBuf>,
    /// One mutating call at a time; `None` is when the guest is confidential.
    pub sequential: Option<bool>,
    /// Reclaim and compaction of the guest's memory.
    pub mem_agent: MemAgent,
    /// What was wrong with the rest.
    pub warnings: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server_address: Address::default(),
            any_cid: false,
            stdio_port: 1027,
            log_level: Level::Info,
            log_port: 0,
            container_pipe_size: 0,
            debug_console: false,
            debug_console_port: 0,
            ready_port: 0,
            modules: Vec::new(),
            cgroup_v1: false,
            hotplug_timeout: Duration::from_secs(3),
            cdi_timeout: Duration::from_secs(100),
            visible_cdi_devices: false,
            cdh_api_timeout: Duration::from_secs(50),
            image_pull_timeout: Duration::from_secs(1200),
            launch_process_timeout: Duration::from_secs(6),
            guest_components: GuestComponents::ApiServerRest,
            secure_storage_integrity: true,
            tracing: false,
            policy_file: None,
            sequential: None,
            mem_agent: MemAgent::default(),
            warnings: Vec::new(),
        }
    }
}

impl Config {
    /// Reads what the kernel, the environment and `arguments` say, and the file that one of them names.
    pub fn load(arguments: &[String]) -> Self {
        let line = fs::read_to_string("/proc/cmdline");
        let unread = line.as_ref().err().map(|error| format!("cannot read /proc/cmdline: {error}"));
        let mut config = Self::compose(&line.unwrap_or_default(), |name| std::env::var(name).ok(), arguments);
        config.warnings.extend(unread);
        config
    }

    /// Says what is wrong with `arguments`. A person who mistypes one wants to know; only a machine that boots
    /// must go on.
    pub fn check(arguments: &[String]) -> Result<(), String> {
        let config = Self::compose("", |_| None, arguments);
        if config.warnings.is_empty() { Ok(()) } else { Err(config.warnings.join("\n")) }
    }

    /// Reads what `line`, the kernel's, says, the variables that `value_of` knows, and `arguments`, and the file that one
    /// of them names. What is wrong is among the warnings.
    pub fn compose(line: &str, value_of: impl Fn(&str) -> Option<String>, arguments: &[String]) -> Self {
        let mut config = Self::default();
        let (file, arguments) = take_config_flag(arguments);
        let named = line.split_ascii_whitespace().rev().find_map(|word| {
            word.strip_prefix(CONFIG_FILE)?.strip_prefix('=').filter(|path| !path.is_empty())
        });
        match (file, named) {
            (Some(path), _) if config.file(path) => config.environment(value_of),
            (None, Some(path)) if config.file(path) => {}
            // A file that cannot be used leaves what would have counted without it.
            _ => {
                config.kernel_command_line(line);
                config.environment(value_of);
            }
        }
        config.arguments(&arguments);
        config
    }

    fn kernel_command_line(&mut self, line: &str) {
        for word in line.split_ascii_whitespace() {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match SETTINGS.iter().find(|setting| setting.parameter == name) {
                Some(setting) => self.apply(setting, name, value),
                None if name.starts_with("agent.") || name.starts_with("berth.") => {
                    self.warnings.push(format!("unknown kernel parameter {name}"));
                }
                None => {}
            }
        }
        // The kernel was told to have no v1 controllers, so there is nothing to mount.
        self.cgroup_v1 &= !line.split_ascii_whitespace().any(|word| word == "cgroup_no_v1=all");
    }

    /// Whether the file could be used; if not, nothing is changed.
    fn file(&mut self, path: &str) -> bool {
        let entries = fs::read_to_string(path)
            .map_err(|error| error.to_string())
            .and_then(|text| file::entries(&text).map_err(|error| error.to_string()));
        let entries = match entries {
            Ok(entries) => entries,
            Err(problem) => {
                self.warnings.push(format!("the configuration file {path} is not used: {problem}"));
                return false;
            }
        };
        for (key, value) in entries {
            match SETTINGS.iter().find(|setting| setting.key == Some(key.as_str())) {
                Some(setting) => self.apply(setting, &key, &value),
                None => self.warnings.push(format!("{path}: unknown key {key}")),
            }
        }
        true
    }

    fn environment(&mut self, value_of: impl Fn(&str) -> Option<String>) {
        for setting in SETTINGS {
            if let Some((name, value)) = setting.variable.and_then(|name| Some((name, value_of(name)?))) {
                self.apply(setting, name, &value);
            }
        }
    }

    fn arguments(&mut self, arguments: &[&str]) {
        let mut arguments = arguments.iter().copied();
        while let Some(argument) = arguments.next() {
            let (name, attached) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (argument, None),
            };
            let Some(setting) = SETTINGS.iter().find(|setting| setting.flag == Some(name)) else {
                // The kernel passes words of its command line that it does not know to process 1.
                self.warnings.push(format!("unknown argument {argument:?}"));
                continue;
            };
            match attached.or_else(|| arguments.next()) {
                Some(value) => self.apply(setting, name, value),
                None => self.warnings.push(format!("{name} needs a value")),
            }
        }
    }

    fn apply(&mut self, setting: &Setting, name: &str, value: &str) {
        if let Err(problem) = (setting.apply)(self, value) {
            self.warnings.push(format!("{name}={value:?}: {problem}"));
        }
    }
}

/// The value of the last `--config FILE` or `-c FILE`, and the other arguments.
fn take_config_flag(arguments: &[String]) -> (Option<&str>, Vec<&str>) {
    let (mut file, mut rest) = (None, Vec::new());
    let mut arguments = arguments.iter().map(String::as_str);
    while let Some(argument) = arguments.next() {
        if argument == "--config" || argument == "-c" {
            match arguments.next() {
                Some(path) => file = Some(path),
                // Told as an argument without its value.
                None => rest.push(argument),
            }
        } else if let Some(path) = argument.strip_prefix("--config=") {
            file = Some(path);
        } else {
            rest.push(argument);
        }
    }
    (file, rest)
}

#[cfg(test)]
mod tests;
