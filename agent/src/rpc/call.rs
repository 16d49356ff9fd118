//! A call that outlives the frame it came in.
//!
//! ```text
//!   Running --done--> answered, ended
//!      |---panic----> answered INTERNAL, ended
//!      |---deadline-> answered DEADLINE_EXCEEDED --tied-----> dropped
//!      |                                         '-detached-> runs on, its result goes nowhere
//!      '---client gone --tied-----> dropped
//!                      '-detached-> runs on, its result goes nowhere
//! ```

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    rc::{Rc, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

use super::{
    budget::Charge,
    connection::Connection,
    hub::Hub,
    reply::{Code, Status},
    service::{Answer, Fate, Running},
};
use crate::task::poll_with_room;

/// One pending call; see the module's drawing. Its bytes are charged until it is dropped.
pub(super) struct Call {
    connection: Weak<Connection>,
    hub: Rc<Hub>,
    stream: u32,
    running: Running,
    deadline: Option<Pin<Box<Sleep>>>,
    answered: bool,
    _charge: Charge,
}

impl Call {
    /// Runs `running` as far as it goes at once, and the rest in a task. Work that is ready, such as a read
    /// of output that is there, then costs no task.
    pub(super) fn start(
        connection: &Rc<Connection>,
        stream: u32,
        running: Running,
        timeout: Option<Duration>,
        charge: Charge,
    ) {
        let fate = running.fate;
        let mut call = Self {
            connection: Rc::downgrade(connection),
            hub: connection.hub.clone(),
            stream,
            running,
            deadline: timeout.map(|timeout| Box::pin(sleep(timeout))),
            answered: false,
            _charge: charge,
        };
        connection.call_begins();
        // The task polls again at once, so a waker that does nothing loses nothing.
        if Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            let task = crate::task::spawn(call);
            if fate == Fate::Tied {
                connection.tie(stream, task.abort_handle());
            }
        }
    }

    fn answer(&mut self, answer: Answer) {
        if !std::mem::replace(&mut self.answered, true)
            && let Some(connection) = self.connection.upgrade()
        {
            connection.reply(self.stream, answer);
        }
    }
}

impl Future for Call {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let call = &mut *self;
        let tied = call.running.fate == Fate::Tied;
        let work = call.running.work.as_mut();
        let poll = || catch_unwind(AssertUnwindSafe(|| work.poll(cx)));
        let polled = match call.connection.upgrade().filter(|_| tied) {
            Some(connection) => poll_with_room(connection, poll),
            None if tied => return Poll::Ready(()),
            None => poll(),
        };
        match polled {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(answer)) => {
                call.answer(answer);
                return Poll::Ready(());
            }
            Err(panic) => {
                let status = call.hub.panicked(call.running.name, panic.as_ref());
                call.answer(Err(status));
                return Poll::Ready(());
            }
        }
        if !call.answered
            && let Some(deadline) = call.deadline.as_mut()
            && deadline.as_mut().poll(cx).is_ready()
        {
            let text = format_args!("{} is not done yet: the call's deadline has passed", call.running.name);
            call.answer(Err(Status::new(Code::DeadlineExceeded, text)));
            if tied {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.hub.call_ends();
        if let Some(connection) = self.connection.upgrade() {
            connection.call_ends(self.stream);
        }
    }
}
