//! Giving memory back that nobody uses: the working set of containers, and free memory in useful pieces.
//!
//! ```text
//!   off <--disabled--> waiting --period over--> measured --under pressure--> waiting
//!                         ^                        \--calm for long enough--> working --+
//!                         +------------- done, or it began to hurt ---------------------+
//! ```
//!
//! Both works are off until a host turns them on. Whether to work, and when to stop, is told by pressure: the share
//! of time in which something waited for memory. Work is done in small pieces so that what hurts can be stopped.

pub mod compact;
pub mod reclaim;
pub mod settings;

use std::{fs, io, time::Duration};

use super::{Error, Result, failed_to};

const PRESSURE: &str = "/proc/pressure/memory";

/// How a share of time in microseconds of pressure compares to a limit in percent.
fn is_over(pressure: u64, elapsed: Duration, limit_percent: u32) -> bool {
    u128::from(pressure) * 100 > elapsed.as_micros() * u128::from(limit_percent)
}

/// Microseconds in which something in the guest waited for memory.
fn guest_pressure(action: &'static str) -> Result<u64> {
    let missing =
        || Error::Unsupported { action, missing: "pressure information (CONFIG_PSI, psi=1)".to_owned() };
    let text = match fs::read_to_string(PRESSURE) {
        Ok(text) => text,
        // EOPNOTSUPP: compiled in and turned off.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Unsupported) => {
            return Err(missing());
        }
        Err(error) => return Err(failed_to(|| format!("read {PRESSURE}"))(error)),
    };
    let some = text.lines().find_map(|line| line.strip_prefix("some "));
    let total =
        some.and_then(|some| some.split_ascii_whitespace().find_map(|word| word.strip_prefix("total=")));
    total.and_then(|total| total.parse().ok()).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::is_over;

    #[test]
    fn pressure_is_a_share_of_the_time_that_passed() {
        let second = Duration::from_secs(1);
        assert!(is_over(10_001, second, 1) && !is_over(10_000, second, 1));
        assert!(!is_over(0, second, 0) && is_over(1, second, 0));
        assert!(!is_over(u64::MAX, Duration::from_micros(u64::MAX), 100));
    }
}
