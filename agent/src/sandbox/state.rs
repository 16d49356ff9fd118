//! The states of a container.
//!
//! ```text
//!   Creating --ready--> Created --start--> Running --init exits--> Stopped
//!       |                  |  \--init dies--------------------------^  |
//!       |                  |                 Running <--> Paused       |
//!       +--failed----------+---------------> Removing <----------------+--> (gone)
//! ```
//!
//! A transition is one synchronous step from a state and an event to a state, or refused. What is refused
//! changes nothing; in particular a second start, and anything that would bring a container back from
//! `Removing`.

use std::fmt;

/// Where a container is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum State {
    /// Its init is being set up.
    Creating,
    /// Its init waits for the start call.
    Created,
    /// Its program runs.
    Running,
    /// Its program is frozen.
    Paused,
    /// Its init has exited.
    Stopped,
    /// It is being taken down.
    Removing,
}

/// What can happen to a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Its init reported that everything but its program is in place.
    Ready,
    /// The start call.
    Start,
    /// The pause call.
    Pause,
    /// The resume call.
    Resume,
    /// Its init has been reaped.
    InitExited,
    /// The remove call, or a creation that failed.
    Remove,
}

impl State {
    /// The state that follows, or `None` where the event is refused.
    #[must_use]
    pub fn after(self, event: Event) -> Option<Self> {
        match (self, event) {
            (Self::Creating, Event::Ready) => Some(Self::Created),
            (Self::Created, Event::Start) | (Self::Paused, Event::Resume) => Some(Self::Running),
            (Self::Running, Event::Pause) => Some(Self::Paused),
            (Self::Created | Self::Running | Self::Paused, Event::InitExited) => Some(Self::Stopped),
            // A creation whose init died fails by itself; the others have nothing left to lose.
            (Self::Creating | Self::Stopped | Self::Removing, Event::InitExited) => Some(self),
            (_, Event::Remove) => Some(Self::Removing),
            _ => None,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Creating => "being created",
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Removing => "being removed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Event, State};

    const STATES: [State; 6] =
        [State::Creating, State::Created, State::Running, State::Paused, State::Stopped, State::Removing];
    const EVENTS: [Event; 6] =
        [Event::Ready, Event::Start, Event::Pause, Event::Resume, Event::InitExited, Event::Remove];

    /// Every pair of state and event, in the order of the two tables above; `None` is refused.
    #[test]
    fn every_transition_is_as_drawn() {
        use State::{Created, Creating, Paused, Removing, Running, Stopped};
        let table: [[Option<State>; 6]; 6] = [
            [Some(Created), None, None, None, Some(Creating), Some(Removing)],
            [None, Some(Running), None, None, Some(Stopped), Some(Removing)],
            [None, None, Some(Paused), None, Some(Stopped), Some(Removing)],
            [None, None, None, Some(Running), Some(Stopped), Some(Removing)],
            [None, None, None, None, Some(Stopped), Some(Removing)],
            [None, None, None, None, Some(Removing), Some(Removing)],
        ];
        for (state, row) in STATES.into_iter().zip(table) {
            for (event, expected) in EVENTS.into_iter().zip(row) {
                assert_eq!(state.after(event), expected, "{state:?} on {event:?}");
            }
        }
    }

    #[test]
    fn nothing_leaves_removing() {
        assert!(EVENTS.into_iter().filter_map(|e| State::Removing.after(e)).all(|s| s == State::Removing));
    }
}
