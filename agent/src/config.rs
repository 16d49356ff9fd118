//! What the agent is told before it starts: by the kernel's command line, the environment, and its arguments, the
//! later winning over the earlier.
//!
//! A value that makes no sense is reported in [`Config::warnings`] and ignored: a guest that boots with a default
//! can be asked what is wrong, a guest that does not boot cannot. One table, [`SETTINGS`], names every setting,
//! reads it, and is what `--help` prints.

use std::{str::FromStr, time::Duration};

use slog::Level;

use crate::address::Address;

/// Every setting, with defaults where nothing was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where ttrpc is served.
    pub server_address: Address,
    /// The vsock port of raw standard streams.
    pub stdio_port: u32,
    /// The least severe level that is logged.
    pub log_level: Level,
    /// The vsock port for log readers; 0 is none.
    pub log_port: u32,
    /// The size of containers' pipes in bytes; 0 leaves the kernel's.
    pub container_pipe_size: u32,
    /// How long a device that was plugged in is waited for.
    pub hotplug_timeout: Duration,
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
    /// What was wrong with the rest.
    pub warnings: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server_address: Address::default(),
            stdio_port: 1027,
            log_level: Level::Info,
            log_port: 0,
            container_pipe_size: 0,
            hotplug_timeout: Duration::from_secs(3),
            debug_console: false,
            debug_console_port: 0,
            ready_port: 0,
            modules: Vec::new(),
            cgroup_v1: false,
            warnings: Vec::new(),
        }
    }
}

/// One setting: its names, what it is, and how its value is taken.
#[derive(Debug)]
pub struct Setting {
    /// On the kernel's command line.
    pub parameter: &'static str,
    /// In the environment.
    pub variable: Option<&'static str>,
    /// Among the arguments.
    pub flag: Option<&'static str>,
    /// For `--help`.
    pub help: &'static str,
    apply: fn(&mut Config, &str) -> Result<(), String>,
}

/// All settings there are.
pub const SETTINGS: &[Setting] = &[
    Setting {
        parameter: "agent.server_addr",
        variable: Some("KATA_AGENT_SERVER_ADDR"),
        flag: Some("--listen"),
        help: "where to serve ttrpc: vsock://CID:PORT, unix://PATH or unix://@NAME [vsock://-1:1024]",
        apply: |config, text| set(&mut config.server_address, text.parse()),
    },
    Setting {
        parameter: "agent.log",
        variable: Some("KATA_AGENT_LOG_LEVEL"),
        flag: Some("--log"),
        help: "least severe level to log: trace, debug, info, warn, error or critical [info]",
        apply: |config, text| set(&mut config.log_level, level(text)),
    },
    Setting {
        parameter: "agent.passfd_listener_port",
        variable: None,
        flag: Some("--stdio-port"),
        help: "vsock port of raw standard streams [1027]",
        apply: |config, text| set(&mut config.stdio_port, number(text)),
    },
    Setting {
        parameter: "agent.container_pipe_size",
        variable: None,
        flag: None,
        help: "size of containers' pipes in bytes [the kernel's]",
        apply: |config, text| set(&mut config.container_pipe_size, number(text)),
    },
    Setting {
        parameter: "agent.log_vport",
        variable: None,
        flag: None,
        help: "vsock port for log readers [none]",
        apply: |config, text| set(&mut config.log_port, number(text)),
    },
    Setting {
        parameter: "agent.hotplug_timeout",
        variable: None,
        flag: Some("--hotplug-timeout"),
        help: "seconds to wait for a device that was plugged in [3]",
        apply: |config, text| match number(text)? {
            0 => Err("it has to be at least 1".to_owned()),
            seconds => {
                set(&mut config.hotplug_timeout, Ok::<_, String>(Duration::from_secs(u64::from(seconds))))
            }
        },
    },
    Setting {
        parameter: "agent.debug_console",
        variable: None,
        flag: None,
        help: "whether there is a debug console [no]",
        apply: |config, text| set(&mut config.debug_console, switch(text)),
    },
    Setting {
        parameter: "agent.debug_console_vport",
        variable: None,
        flag: None,
        help: "vsock port of the debug console [/dev/console]",
        apply: |config, text| set(&mut config.debug_console_port, number(text)),
    },
    Setting {
        parameter: "berth.ready_port",
        variable: None,
        flag: None,
        help: "vsock port of the host to dial once the agent serves [none]",
        apply: |config, text| set(&mut config.ready_port, number(text)),
    },
    Setting {
        parameter: "berth.modules",
        variable: None,
        flag: None,
        help: "kernel modules to load at boot, separated by commas [those vsock needs]",
        apply: |config, text| {
            config.modules.extend(text.split(',').filter(|name| !name.is_empty()).map(str::to_owned));
            Ok(())
        },
    },
    Setting {
        parameter: "systemd.unified_cgroup_hierarchy",
        variable: None,
        flag: None,
        help: "no for cgroup v1, as far as the kernel has it [yes]",
        apply: |config, text| set(&mut config.cgroup_v1, switch(text).map(|unified| !unified)),
    },
];

impl Config {
    /// Reads `/proc/cmdline`, the environment, and `arguments`.
    pub fn load(arguments: &[String]) -> Self {
        let mut config = Self::default();
        match std::fs::read_to_string("/proc/cmdline") {
            Ok(line) => config.kernel_command_line(&line),
            Err(error) => config.warnings.push(format!("cannot read /proc/cmdline: {error}")),
        }
        config.environment(|name| std::env::var(name).ok());
        config.arguments(arguments);
        config
    }

    /// Says what is wrong with `arguments`. A person who mistypes one wants to know; only a machine that boots
    /// must go on.
    pub fn check(arguments: &[String]) -> Result<(), String> {
        let mut config = Self::default();
        config.arguments(arguments);
        if config.warnings.is_empty() { Ok(()) } else { Err(config.warnings.join("\n")) }
    }

    fn kernel_command_line(&mut self, line: &str) {
        for word in line.split_ascii_whitespace() {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            if let Some(setting) = SETTINGS.iter().find(|setting| setting.parameter == name) {
                self.apply(setting, name, value);
            }
        }
        // The kernel was told to have no v1 controllers, so there is nothing to mount.
        self.cgroup_v1 &= !line.split_ascii_whitespace().any(|word| word == "cgroup_no_v1=all");
    }

    fn environment(&mut self, value_of: impl Fn(&str) -> Option<String>) {
        for setting in SETTINGS {
            if let Some((name, value)) = setting.variable.and_then(|name| Some((name, value_of(name)?))) {
                self.apply(setting, name, &value);
            }
        }
    }

    fn arguments(&mut self, arguments: &[String]) {
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let (name, attached) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (argument.as_str(), None),
            };
            let Some(setting) = SETTINGS.iter().find(|setting| setting.flag == Some(name)) else {
                // The kernel passes words of its command line that it does not know to process 1.
                self.warnings.push(format!("unknown argument {argument:?}"));
                continue;
            };
            match attached.or_else(|| arguments.next().map(String::as_str)) {
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

fn set<T, E: ToString>(place: &mut T, value: Result<T, E>) -> Result<(), String> {
    *place = value.map_err(|error| error.to_string())?;
    Ok(())
}

fn number(text: &str) -> Result<u32, String> {
    u32::from_str(text).map_err(|error| format!("not a number from 0 to {}: {error}", u32::MAX))
}

/// A parameter that stands alone on the kernel's command line switches on.
fn switch(text: &str) -> Result<bool, &'static str> {
    match text {
        "" | "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("neither yes nor no"),
    }
}

fn level(text: &str) -> Result<Level, &'static str> {
    match text {
        "trace" => Ok(Level::Trace),
        "debug" => Ok(Level::Debug),
        "info" => Ok(Level::Info),
        "warn" | "warning" => Ok(Level::Warning),
        "error" => Ok(Level::Error),
        // Two names of Kata's for what slog calls critical.
        "critical" | "fatal" | "panic" => Ok(Level::Critical),
        _ => Err("not one of trace, debug, info, warn, error, critical"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_line(line: &str) -> Config {
        let mut config = Config::default();
        config.kernel_command_line(line);
        config
    }

    #[test]
    fn the_command_line_of_a_kata_guest_is_understood() {
        let config = from_line(
            "console=ttyS0 panic=-1 agent.log=debug agent.debug_console agent.debug_console_vport=1026 \
             agent.server_addr=vsock://-1:2048 agent.passfd_listener_port=1030 agent.log_vport=1025 \
             agent.container_pipe_size=1048576 berth.ready_port=9000 berth.modules=overlay,,virtiofs quiet\n",
        );
        assert_eq!(config.warnings, Vec::<String>::new());
        assert_eq!(config.server_address, Address::Vsock { cid: u32::MAX, port: 2048 });
        assert_eq!(config.log_level, Level::Debug);
        assert_eq!(
            (config.stdio_port, config.log_port, config.debug_console_port, config.ready_port),
            (1030, 1025, 1026, 9000)
        );
        assert!(config.debug_console);
        assert_eq!(config.container_pipe_size, 1_048_576);
        assert_eq!(config.modules, ["overlay", "virtiofs"]);
    }

    #[test]
    fn malformed_values_leave_the_default_and_a_warning_each() {
        let config = from_line(
            "agent.log=loud agent.server_addr=tcp://1 agent.passfd_listener_port=-1 agent.log_vport= \
             agent.container_pipe_size=4294967296 agent.debug_console=maybe berth.ready_port=x",
        );
        assert_eq!(config.warnings.len(), 7, "{:#?}", config.warnings);
        assert_eq!(Config { warnings: Vec::new(), ..config }, Config::default());
    }

    #[test]
    fn arguments_win_over_the_environment_and_that_over_the_kernel() {
        let mut config = from_line("agent.log=trace agent.server_addr=unix:///kernel");
        config.environment(|name| match name {
            "KATA_AGENT_SERVER_ADDR" => Some("unix:///environment".into()),
            "KATA_AGENT_LOG_LEVEL" => Some("error".into()),
            _ => None,
        });
        assert_eq!(config.log_level, Level::Error);
        config.arguments(&["--listen".into(), "unix:///argument".into(), "--log=warn".into()]);
        assert_eq!(config.server_address, Address::Unix("/argument".into()));
        assert_eq!(config.log_level, Level::Warning);
        config.arguments(&["nosuch=1".into(), "--log".into()]);
        assert_eq!(config.warnings.len(), 2);
    }

    #[test]
    fn the_cgroup_version_is_the_newer_unless_the_older_is_asked_for_and_there() {
        assert!(!from_line("quiet").cgroup_v1);
        assert!(from_line("systemd.unified_cgroup_hierarchy=0").cgroup_v1);
        assert!(!from_line("systemd.unified_cgroup_hierarchy=1").cgroup_v1);
        assert!(!from_line("systemd.unified_cgroup_hierarchy=0 cgroup_no_v1=all").cgroup_v1);
    }
}
