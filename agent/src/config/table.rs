//! Every setting there is: its names, what it is for, and how its value is taken.

use super::{
    Config,
    value::{components, level, number, rest_api, seconds, set, switch, up_to, whole_seconds},
};

/// What becomes of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// What its description says.
    Yes,
    /// That, in a build with this feature.
    Feature(&'static str),
    /// Understood and checked, and nothing else; this is why.
    No(&'static str),
}

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// On the kernel's command line.
    pub parameter: &'static str,
    /// In a configuration file.
    pub key: Option<&'static str>,
    /// In the environment.
    pub variable: Option<&'static str>,
    /// Among the arguments.
    pub flag: Option<&'static str>,
    /// What can be written.
    pub values: &'static str,
    /// What counts when nothing is written.
    pub default: &'static str,
    /// What it is for.
    pub help: &'static str,
    /// What it does here.
    pub effect: Effect,
    pub(super) apply: fn(&mut Config, &str) -> Result<(), String>,
}

/// A setting that the kernel's command line and a configuration file know, and that has its effect.
const fn setting(
    parameter: &'static str,
    key: &'static str,
    (values, default): (&'static str, &'static str),
    help: &'static str,
    apply: fn(&mut Config, &str) -> Result<(), String>,
) -> Setting {
    let (key, effect) = (Some(key), Effect::Yes);
    Setting { parameter, key, variable: None, flag: None, values, default, help, effect, apply }
}

impl Setting {
    const fn variable(self, variable: &'static str) -> Self {
        Self { variable: Some(variable), ..self }
    }

    const fn flag(self, flag: &'static str) -> Self {
        Self { flag: Some(flag), ..self }
    }

    const fn effect(self, effect: Effect) -> Self {
        Self { effect, ..self }
    }

    const fn kernel_only(self) -> Self {
        Self { key: None, ..self }
    }
}

const SWITCH: (&str, &str) = ("yes or no", "no");
const DATA_HUB: Effect = Effect::Feature("cdh");
const NOT_STARTED: Effect = Effect::No(
    "Berth starts no guest components: an image that has them starts them beside the agent, and knows which",
);
const PERCENT: &str = "0 to 100";

/// All settings there are.
pub const SETTINGS: &[Setting] = &[
    setting(
        "agent.server_addr",
        "server_addr",
        ("vsock://CID:PORT, unix://PATH or unix://@NAME", "vsock://-1:1024"),
        "where ttrpc is served; CID -1 is any of the guest's own",
        |config, text| set(&mut config.server_address, text.parse()),
    )
    .variable("KATA_AGENT_SERVER_ADDR")
    .flag("--listen"),
    setting(
        "berth.any_cid",
        "any_cid",
        SWITCH,
        "serve vsock peers other than the host, for a guest that is driven from a sibling VM",
        |config, text| set(&mut config.any_cid, switch(text)),
    ),
    setting(
        "agent.log",
        "log_level",
        ("trace, debug, info, warn, error or critical", "info"),
        "the least severe level that is logged; fatal and panic are other names of critical",
        |config, text| set(&mut config.log_level, level(text)),
    )
    .variable("KATA_AGENT_LOG_LEVEL")
    .flag("--log"),
    setting(
        "agent.log_vport",
        "log_vport",
        ("a port", "none"),
        "vsock port where the log can be read, by several readers at once; with a Unix socket, that socket's name and `.log`",
        |config, text| set(&mut config.log_port, number(text)),
    ),
    setting(
        "agent.debug_console",
        "debug_console",
        SWITCH,
        "a debug console: a root shell of the guest's, for anyone who reaches it",
        |config, text| set(&mut config.debug_console, switch(text)),
    ),
    setting(
        "agent.debug_console_vport",
        "debug_console_vport",
        ("a port", "/dev/console"),
        "vsock port of the debug console; with a Unix socket, that socket's name and `.console`",
        |config, text| set(&mut config.debug_console_port, number(text)),
    ),
    setting(
        "agent.trace",
        "tracing",
        SWITCH,
        "send a span for each call to the host's vsock port 10240, below the caller's `traceparent`; with a Unix socket, to that socket's name and `.trace`",
        |config, text| set(&mut config.tracing, switch(text)),
    )
    .variable("KATA_AGENT_TRACING")
    .effect(Effect::Feature("tracing")),
    setting(
        "agent.passfd_listener_port",
        "passfd_listener_port",
        ("a port", "1027"),
        "vsock port of raw standard streams; with a Unix socket, that socket's name and `.stdio`",
        |config, text| set(&mut config.stdio_port, number(text)),
    )
    .flag("--stdio-port"),
    setting(
        "agent.container_pipe_size",
        "container_pipe_size",
        ("bytes", "0"),
        "size of containers' pipes; 0 is 256 KiB, and 1 MiB for raw streams",
        |config, text| set(&mut config.container_pipe_size, number(text)),
    ),
    setting(
        "agent.hotplug_timeout",
        "hotplug_timeout",
        ("seconds", "3"),
        "how long a device may take to appear after the host has plugged it",
        |config, text| set(&mut config.hotplug_timeout, seconds(text)),
    ),
    setting(
        "agent.cdi_timeout",
        "cdi_timeout",
        ("seconds", "100"),
        "how long the CDI description of a device that a container names may take to appear",
        |config, text| set(&mut config.cdi_timeout, seconds(text)),
    ),
    setting(
        "agent.visible_cdi_devices",
        "visible_cdi_devices",
        SWITCH,
        "let a container's variable VISIBLE_CDI_DEVICES select devices",
        |config, text| set(&mut config.visible_cdi_devices, switch(text)),
    ),
    setting(
        "systemd.unified_cgroup_hierarchy",
        "unified_cgroup_hierarchy",
        ("yes or no", "yes"),
        "no for cgroup v1, as far as the kernel has it",
        |config, text| set(&mut config.cgroup_v1, switch(text).map(|unified| !unified)),
    ),
    setting("cgroup_no_v1", "", ("all", "nothing"), "all for cgroup v2, whatever else was said", |_, _| {
        Ok(())
    })
    .kernel_only(),
    setting(
        super::CONFIG_FILE,
        "",
        ("a path", "none"),
        "take every setting from this file and nothing from the kernel's command line or the environment",
        |_, text| if text.is_empty() { Err("no path".to_owned()) } else { Ok(()) },
    )
    .flag("--config")
    .kernel_only(),
    setting(
        "berth.ready_port",
        "ready_port",
        ("a port", "none"),
        "vsock port of the host to dial once the agent serves; it is sent one line of JSON with the time of each stage of the boot",
        |config, text| set(&mut config.ready_port, number(text)),
    ),
    setting(
        "berth.modules",
        "modules",
        ("names, separated by commas", "none"),
        "kernel modules to load at boot, beside those that vsock needs",
        |config, text| {
            config.modules.extend(text.split(',').filter(|name| !name.is_empty()).map(str::to_owned));
            Ok(())
        },
    ),
    setting(
        "berth.policy_file",
        "policy_file",
        ("a path", "/etc/kata-opa/default-policy.rego"),
        "the Rego document that decides over calls until SetPolicy gives another, where no initdata disk brings one",
        |config, text| {
            config.policy_file = (!text.is_empty()).then(|| text.into());
            Ok(())
        },
    )
    .variable("KATA_AGENT_POLICY_FILE")
    .effect(Effect::Feature("policy")),
    setting(
        "berth.sequential",
        "sequential",
        ("yes or no", "yes in a confidential guest"),
        "do one call that changes something at a time, so that what a policy checked is what is done",
        |config, text| set(&mut config.sequential, switch(text).map(Some)),
    ),
    setting(
        "agent.cdh_api_timeout",
        "cdh_api_timeout",
        ("seconds", "50"),
        "how long the confidential data hub may take to answer",
        |config, text| set(&mut config.cdh_api_timeout, seconds(text)),
    )
    .effect(DATA_HUB),
    setting(
        "agent.image_pull_timeout",
        "image_pull_timeout",
        ("seconds", "1200"),
        "how long one image may take to come (builds with the feature `cdh` or `image-pull`)",
        |config, text| set(&mut config.image_pull_timeout, seconds(text)),
    ),
    setting(
        "agent.secure_storage_integrity",
        "secure_storage_integrity",
        ("yes or no", "yes"),
        "whether storage that the data hub encrypts is protected against tampering too",
        |config, text| set(&mut config.secure_storage_integrity, switch(text)),
    )
    .effect(DATA_HUB),
    setting(
        "agent.launch_process_timeout",
        "launch_process_timeout",
        ("seconds", "6"),
        "how long the confidential data hub may take to open its socket",
        |config, text| set(&mut config.launch_process_timeout, seconds(text)),
    )
    .effect(DATA_HUB),
    setting(
        "agent.guest_components_procs",
        "guest_components_procs",
        ("none, attestation-agent, confidential-data-hub or api-server-rest", "api-server-rest"),
        "which guest components the image runs; with one of the last two there is a confidential data hub to ask",
        |config, text| set(&mut config.guest_components, components(text)),
    )
    .effect(DATA_HUB),
    setting(
        "agent.guest_components_rest_api",
        "guest_components_rest_api",
        ("all, attestation or resource", "resource"),
        "what the guest components' REST server serves",
        |_, text| rest_api(text).map_err(str::to_owned),
    )
    .effect(NOT_STARTED),
    setting("agent.https_proxy", "https_proxy", ("a URL", "none"), "the proxy for pulling images", |_, _| {
        Ok(())
    })
    .effect(Effect::No("the agent itself pulls nothing; hosts' other agents parse it and use it no more")),
    setting("agent.no_proxy", "no_proxy", ("names", "none"), "what the proxy is not for", |_, _| Ok(()))
        .effect(Effect::No("as agent.https_proxy")),
    setting("agent.devmode", "dev_mode", SWITCH, "development mode", |_, text| Ok(switch(text).map(|_| ())?))
        .effect(Effect::No(
            "it once let the agent dump core; a worker that dies is told of in the log, and started again",
        )),
    setting(
        "agent.mem_agent_enable",
        "mem_agent_enable",
        SWITCH,
        "reclaim cold memory and compact the rest in the background; where the settings below stand, before or after, does not matter",
        |config, text| set(&mut config.mem_agent.enabled, switch(text)),
    ),
    setting(
        "agent.mem_agent_memcg_disable",
        "mem_agent_memcg_disable",
        SWITCH,
        "no reclaim",
        |config, text| set(&mut config.mem_agent.reclaim.disabled, switch(text)),
    ),
    setting(
        "agent.mem_agent_memcg_swap",
        "mem_agent_memcg_swap",
        SWITCH,
        "let reclaim swap anonymous memory out",
        |config, text| set(&mut config.mem_agent.reclaim.swap, switch(text)),
    ),
    setting(
        "agent.mem_agent_memcg_swappiness_max",
        "mem_agent_memcg_swappiness_max",
        ("0 to 200", "50"),
        "the most swappiness of a reclaim",
        |config, text| set(&mut config.mem_agent.reclaim.swappiness_max, up_to(text, 200)),
    ),
    setting(
        "agent.mem_agent_memcg_period_secs",
        "mem_agent_memcg_period_secs",
        ("seconds", "600"),
        "how often memory is reclaimed",
        |config, text| set(&mut config.mem_agent.reclaim.period_secs, whole_seconds(text)),
    ),
    setting(
        "agent.mem_agent_memcg_period_psi_percent_limit",
        "mem_agent_memcg_period_psi_percent_limit",
        (PERCENT, "1"),
        "no reclaim while memory pressure is above this",
        |config, text| set(&mut config.mem_agent.reclaim.period_psi_percent_limit, up_to(text, 100)),
    ),
    setting(
        "agent.mem_agent_memcg_eviction_psi_percent_limit",
        "mem_agent_memcg_eviction_psi_percent_limit",
        (PERCENT, "1"),
        "reclaim stops when memory pressure rises above this",
        |config, text| set(&mut config.mem_agent.reclaim.eviction_psi_percent_limit, up_to(text, 100)),
    ),
    setting(
        "agent.mem_agent_memcg_eviction_run_aging_count_min",
        "mem_agent_memcg_eviction_run_aging_count_min",
        ("a number", "3"),
        "for how many periods a page must be unused to be reclaimed",
        |config, text| set(&mut config.mem_agent.reclaim.eviction_run_aging_count_min, number(text)),
    ),
    setting(
        "agent.mem_agent_compact_disable",
        "mem_agent_compact_disable",
        SWITCH,
        "no compaction",
        |config, text| set(&mut config.mem_agent.compact.disabled, switch(text)),
    ),
    setting(
        "agent.mem_agent_compact_period_secs",
        "mem_agent_compact_period_secs",
        ("seconds", "600"),
        "how often memory is compacted",
        |config, text| set(&mut config.mem_agent.compact.period_secs, whole_seconds(text)),
    ),
    setting(
        "agent.mem_agent_compact_period_psi_percent_limit",
        "mem_agent_compact_period_psi_percent_limit",
        (PERCENT, "1"),
        "no compaction while memory pressure is above this",
        |config, text| set(&mut config.mem_agent.compact.period_psi_percent_limit, up_to(text, 100)),
    ),
    setting(
        "agent.mem_agent_compact_psi_percent_limit",
        "mem_agent_compact_psi_percent_limit",
        (PERCENT, "5"),
        "compaction stops when memory pressure rises above this",
        |config, text| set(&mut config.mem_agent.compact.compact_psi_percent_limit, up_to(text, 100)),
    ),
    setting(
        "agent.mem_agent_compact_sec_max",
        "mem_agent_compact_sec_max",
        ("seconds", "300"),
        "the longest one compaction may take",
        |config, text| set(&mut config.mem_agent.compact.compact_sec_max, whole_seconds(text)),
    ),
    setting(
        "agent.mem_agent_compact_order",
        "mem_agent_compact_order",
        ("0 to 10", "9"),
        "the order of the free blocks that compaction is to make",
        |config, text| set(&mut config.mem_agent.compact.compact_order, up_to(text, 10)),
    ),
    setting(
        "agent.mem_agent_compact_threshold",
        "mem_agent_compact_threshold",
        ("pages", "1024"),
        "how many free pages below that order make a compaction worth while",
        |config, text| set(&mut config.mem_agent.compact.compact_threshold, number(text)),
    ),
    setting(
        "agent.mem_agent_compact_force_times",
        "mem_agent_compact_force_times",
        ("a number", "never"),
        "after how many periods without one a compaction is done all the same",
        |config, text| set(&mut config.mem_agent.compact.compact_force_times, number(text)),
    ),
];
