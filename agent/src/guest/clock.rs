//! The guest's wall clock. Nothing in the agent waits by it, so a jump disturbs no deadline.

use nix::{
    errno::Errno,
    sys::time::{TimeSpec, TimeValLike},
    time::{ClockId, clock_settime},
};

use super::{Error, Result, failed_to};

/// Microseconds in a second.
const MICROSECONDS: i64 = 1_000_000;

/// Sets the time: seconds and microseconds since 1970, UTC.
pub fn set(seconds: i64, microseconds: i64) -> Result<()> {
    let time = time(seconds, microseconds)?;
    match clock_settime(ClockId::CLOCK_REALTIME, time) {
        Ok(()) => Ok(()),
        // The kernel keeps the time of its own boot, which may not be before 1970.
        Err(Errno::EINVAL) => {
            Err(Error::Invalid(format!("{seconds} seconds: the guest has been up for longer than that")))
        }
        Err(errno) => {
            Err(failed_to(|| format!("set the guest's clock to {seconds} s since 1970"))(errno.into()))
        }
    }
}

fn time(seconds: i64, microseconds: i64) -> Result<TimeSpec> {
    if !(0..MICROSECONDS).contains(&microseconds) {
        return Err(Error::Invalid(format!("{microseconds} microseconds: it must be 0 to 999999")));
    }
    if seconds < 0 {
        return Err(Error::Invalid(format!("{seconds} seconds: a clock cannot be set to before 1970")));
    }
    Ok(TimeSpec::new(seconds, TimeSpec::microseconds(microseconds).tv_nsec()))
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn only_real_times_are_taken() {
        let spec = time(1_700_000_000, 999_999).unwrap();
        assert_eq!((spec.tv_sec(), spec.tv_nsec()), (1_700_000_000, 999_999_000));
        assert!(time(0, 1_000_000).is_err() && time(0, -1).is_err() && time(-1, 0).is_err());
    }
}
