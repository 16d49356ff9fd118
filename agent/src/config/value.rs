//! How the text of a value is read. Every function says what it would have taken.

use std::{str::FromStr, time::Duration};

use slog::Level;

use super::GuestComponents;

pub(super) fn set<T, E: ToString>(place: &mut T, value: Result<T, E>) -> Result<(), String> {
    *place = value.map_err(|error| error.to_string())?;
    Ok(())
}

/// A number within what `T` holds.
pub(super) fn number<T: FromStr>(text: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error| format!("not a number that is possible here: {error}"))
}

/// A number from 0 to `most`.
pub(super) fn up_to(text: &str, most: u32) -> Result<u32, String> {
    number(text).and_then(|value| if value <= most { Ok(value) } else { Err(format!("more than {most}")) })
}

/// A parameter that stands alone on the kernel's command line switches on.
pub(super) fn switch(text: &str) -> Result<bool, &'static str> {
    match text {
        "" | "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("neither yes nor no"),
    }
}

/// Seconds, more than none; hosts write whole ones, a configuration file may have parts of them.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = number(text)?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(Duration::ZERO) => Err("no time at all".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

/// The same where parts of a second do not count: they are taken for whole ones.
pub(super) fn whole_seconds<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let duration = seconds(text)?;
    let seconds = duration.as_secs().saturating_add((duration.subsec_nanos() > 0).into());
    seconds.try_into().map_err(|_| "more seconds than can be counted".to_owned())
}

/// The name of a level, as hosts write it.
pub fn level(text: &str) -> Result<Level, &'static str> {
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

pub(super) fn components(text: &str) -> Result<GuestComponents, &'static str> {
    match text {
        "none" => Ok(GuestComponents::None),
        "attestation-agent" => Ok(GuestComponents::AttestationAgent),
        "confidential-data-hub" => Ok(GuestComponents::ConfidentialDataHub),
        "api-server-rest" => Ok(GuestComponents::ApiServerRest),
        _ => Err("not one of none, attestation-agent, confidential-data-hub, api-server-rest"),
    }
}

/// What the REST server would serve; only the spelling is checked, because nothing here serves it.
pub(super) fn rest_api(text: &str) -> Result<(), &'static str> {
    match text {
        "all" | "attestation" | "resource" => Ok(()),
        _ => Err("not one of all, attestation, resource"),
    }
}
