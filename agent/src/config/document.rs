//! The table of settings, for people.

use super::table::{Effect, SETTINGS, Setting};

/// What `--help` says of the settings.
pub fn help() -> String {
    SETTINGS
        .iter()
        .map(|setting| {
            let names = [Some(setting.parameter), setting.key, setting.variable, setting.flag];
            let names: Vec<&str> = names.into_iter().flatten().collect();
            format!("\n  {}\n      {} [{}]\n", names.join(", "), described(setting), setting.default)
        })
        .collect()
}

/// The table of `docs/configuration.md`.
pub fn markdown() -> String {
    let mut text = String::from(
        "| kernel parameter | file key | elsewhere | values | default | what it is for |\n|---|---|---|---|---|---|\n",
    );
    for setting in SETTINGS {
        let elsewhere: Vec<String> =
            [setting.variable, setting.flag].into_iter().flatten().map(|name| format!("`{name}`")).collect();
        let key = setting.key.map_or(String::new(), |key| format!("`{key}`"));
        text += &format!(
            "| `{}` | {key} | {} | {} | {} | {} |\n",
            setting.parameter,
            elsewhere.join(", "),
            setting.values,
            setting.default,
            described(setting),
        );
    }
    text
}

fn described(setting: &Setting) -> String {
    match setting.effect {
        Effect::Yes => setting.help.to_owned(),
        Effect::Feature(feature) => format!("{} (builds with the feature `{feature}`)", setting.help),
        Effect::No(why) => format!("{}; **no effect**: {why}", setting.help),
    }
}
