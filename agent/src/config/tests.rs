use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use super::*;

/// The 39 parameters that hosts know.
const OF_HOSTS: &str = "agent.debug_console agent.devmode agent.trace agent.log agent.server_addr \
    agent.passfd_listener_port agent.hotplug_timeout agent.cdh_api_timeout agent.image_pull_timeout \
    agent.cdi_timeout agent.launch_process_timeout agent.visible_cdi_devices agent.debug_console_vport \
    agent.log_vport agent.container_pipe_size cgroup_no_v1 systemd.unified_cgroup_hierarchy agent.config_file \
    agent.guest_components_rest_api agent.guest_components_procs agent.secure_storage_integrity \
    agent.https_proxy agent.no_proxy agent.mem_agent_enable agent.mem_agent_memcg_disable \
    agent.mem_agent_memcg_swap agent.mem_agent_memcg_swappiness_max agent.mem_agent_memcg_period_secs \
    agent.mem_agent_memcg_period_psi_percent_limit agent.mem_agent_memcg_eviction_psi_percent_limit \
    agent.mem_agent_memcg_eviction_run_aging_count_min agent.mem_agent_compact_disable \
    agent.mem_agent_compact_period_secs agent.mem_agent_compact_period_psi_percent_limit \
    agent.mem_agent_compact_psi_percent_limit agent.mem_agent_compact_sec_max agent.mem_agent_compact_order \
    agent.mem_agent_compact_threshold agent.mem_agent_compact_force_times";

/// Values that no setting but a free text takes.
const GARBAGE: [&str; 9] =
    ["-1", "4294967296.5x", "maybe", "\u{1b}[2J", "1e999", "NaN", "0x10", "é", "99999999999999999999999"];

fn from_line(line: &str) -> Config {
    Config::compose(line, |_| None, &[])
}

/// A file of the test's own, gone when dropped.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("berth-config-{name}-{}", std::process::id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn the_command_line_of_a_kata_guest_is_understood() {
    let config = from_line(
        "console=ttyS0 panic=-1 agent.log=debug agent.debug_console agent.debug_console_vport=1026 \
         agent.server_addr=vsock://-1:2048 agent.passfd_listener_port=1030 agent.log_vport=1025 \
         agent.container_pipe_size=1048576 berth.ready_port=9000 berth.modules=overlay,,virtiofs quiet \
         agent.hotplug_timeout=10 agent.trace agent.mem_agent_compact_order=4 agent.mem_agent_enable=1\n",
    );
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!(config.server_address, Address::Vsock { cid: u32::MAX, port: 2048 });
    assert_eq!(config.log_level, Level::Debug);
    assert_eq!(
        (config.stdio_port, config.log_port, config.debug_console_port, config.ready_port),
        (1030, 1025, 1026, 9000)
    );
    assert!(config.debug_console && config.tracing && config.mem_agent.enabled);
    assert_eq!(config.container_pipe_size, 1_048_576);
    assert_eq!(config.modules, ["overlay", "virtiofs"]);
    assert_eq!(config.hotplug_timeout, Duration::from_secs(10));
    assert_eq!(
        config.mem_agent.compact.compact_order, 4,
        "hosts' other agents want it after mem_agent_enable"
    );
}

#[test]
fn the_memory_agent_is_off_until_it_is_switched_on() {
    let line = "agent.mem_agent_memcg_disable agent.mem_agent_memcg_period_secs=2.5 agent.mem_agent_compact_sec_max=7";
    let (reclaim, compact) = from_line(line).mem_agent.at_boot();
    assert!(reclaim.disabled && compact.disabled);
    let (reclaim, compact) = from_line(&format!("agent.mem_agent_enable {line}")).mem_agent.at_boot();
    assert!(reclaim.disabled && !compact.disabled);
    assert_eq!((reclaim.period_secs, compact.compact_sec_max), (3, 7));
    let (reclaim, compact) = from_line("agent.mem_agent_enable").mem_agent.at_boot();
    assert!(!reclaim.disabled && !compact.disabled);
}

#[test]
fn every_parameter_of_hosts_is_in_the_table_once() {
    let hosts: HashSet<&str> = OF_HOSTS.split_whitespace().collect();
    let ours: Vec<&str> = SETTINGS.iter().map(|setting| setting.parameter).collect();
    assert_eq!(hosts.len(), 39);
    assert_eq!(ours.iter().filter(|name| hosts.contains(*name)).count(), 39);
    for names in [ours, SETTINGS.iter().filter_map(|setting| setting.key).collect()] {
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
    }
    assert!(SETTINGS.iter().all(|setting| setting.key != Some("")));
}

#[test]
fn garbage_leaves_the_default_and_a_warning() {
    let free = ["agent.https_proxy", "agent.no_proxy", "cgroup_no_v1", "agent.config_file", "berth.modules"];
    for setting in SETTINGS.iter().filter(|setting| !free.contains(&setting.parameter)) {
        if setting.parameter == "berth.policy_file" {
            continue;
        }
        for garbage in GARBAGE {
            let config = from_line(&format!("{}={garbage}", setting.parameter));
            assert_eq!(config.warnings.len(), 1, "{}={garbage}: {:?}", setting.parameter, config.warnings);
            assert!(config.warnings[0].starts_with(setting.parameter));
            assert!(!config.warnings[0].contains('\u{1b}'), "{}", config.warnings[0]);
            assert_eq!(Config { warnings: Vec::new(), ..config }, Config::default());
        }
    }
    assert_eq!(from_line("agent.hotplug_timeout=0 agent.cdi_timeout=0").warnings.len(), 2);
    assert_eq!(from_line("agent.nosuch=1 berth.nosuch other.nosuch=1 ro").warnings.len(), 2);
}

#[test]
fn any_bytes_at_all_are_survived() {
    const ALPHABET: &[u8] = b" =agent.log_vport\n\"\\{}[]1-\xff'";
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..2_000 {
        let bytes: Vec<u8> = (0..200)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                ALPHABET[(state % ALPHABET.len() as u64) as usize]
            })
            .collect();
        let text = String::from_utf8_lossy(&bytes);
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        let _ = Config::compose(&text, |_| Some(text.to_string()), &words);
        let _ = file::entries(&text);
    }
}

#[test]
fn arguments_win_over_the_environment_and_that_over_the_kernel() {
    let line = "agent.log=trace agent.server_addr=unix:///kernel";
    let environment = |name: &str| match name {
        "KATA_AGENT_SERVER_ADDR" => Some("unix:///environment".to_owned()),
        "KATA_AGENT_LOG_LEVEL" => Some("error".to_owned()),
        _ => None,
    };
    let config = Config::compose(line, environment, &[]);
    assert_eq!(config.log_level, Level::Error);
    let arguments = ["--listen", "unix:///argument", "--log=warn"].map(str::to_owned);
    let config = Config::compose(line, environment, &arguments);
    assert_eq!(config.server_address, Address::Unix("/argument".into()));
    assert_eq!(config.log_level, Level::Warning);
    let config = Config::compose("", |_| None, &["nosuch=1", "--log", "--config"].map(str::to_owned));
    assert_eq!(config.warnings.len(), 2, "{:?}", config.warnings);
}

#[test]
fn a_file_named_by_an_argument_replaces_the_kernel_s_command_line() {
    let file = File::new("argument", "log_level = \"error\"\nlog_vport = 7\n");
    let environment = |name: &str| (name == "KATA_AGENT_LOG_LEVEL").then(|| "trace".to_owned());
    for arguments in [vec!["-c", file.path()], vec!["--config", file.path()]] {
        let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        let config = Config::compose("agent.log_vport=1 agent.debug_console", environment, &arguments);
        assert_eq!((config.log_level, config.log_port), (Level::Trace, 7));
        assert!(!config.debug_console && config.warnings.is_empty(), "{:?}", config.warnings);
    }
}

#[test]
fn a_file_named_by_the_kernel_s_command_line_replaces_everything() {
    let file = File::new("kernel", "log_vport = 7\nnosuch = 1\nhotplug_timeout = { secs = 9, nanos = 0 }\n");
    let line = format!("agent.log_vport=1 agent.config_file={} agent.debug_console", file.path());
    let config = Config::compose(&line, |_| Some("trace".to_owned()), &[]);
    assert_eq!((config.log_port, config.log_level, config.debug_console), (7, Level::Info, false));
    assert_eq!(config.hotplug_timeout, Duration::from_secs(9));
    assert_eq!(config.warnings.len(), 1, "the unknown key: {:?}", config.warnings);
}

#[test]
fn a_file_that_cannot_be_used_leaves_the_rest_and_a_warning() {
    let file = File::new("broken", "log_vport = \n");
    for path in [file.path(), "/nonexistent/agent.toml"] {
        let config = from_line(&format!("agent.config_file={path} agent.log_vport=1"));
        assert_eq!(config.log_port, 1);
        assert!(config.warnings[0].contains(path), "{:?}", config.warnings);
    }
    assert!(Config::check(&["-c", "/nonexistent"].map(str::to_owned)).is_err());
}

#[test]
fn the_cgroup_version_is_the_newer_unless_the_older_is_asked_for_and_there() {
    assert!(!from_line("quiet").cgroup_v1);
    assert!(from_line("systemd.unified_cgroup_hierarchy=0").cgroup_v1);
    assert!(!from_line("systemd.unified_cgroup_hierarchy=1").cgroup_v1);
    assert!(!from_line("systemd.unified_cgroup_hierarchy=0 cgroup_no_v1=all").cgroup_v1);
}

/// `BERTH_BLESS=1` writes the table into the page instead.
#[test]
fn the_page_has_the_table() {
    const BEGIN: &str = "<!-- settings -->\n";
    const END: &str = "<!-- end of settings -->";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page says where the table begins");
    let (table, after) = rest.split_once(END).expect("and where it ends");
    if std::env::var_os("BERTH_BLESS").is_some() {
        fs::write(&path, [before, BEGIN, &markdown(), END, after].concat()).unwrap();
    } else {
        assert_eq!(
            table,
            markdown(),
            "run this test once more with BERTH_BLESS=1 and look at the difference"
        );
    }
}
