//! The seam between the control thread and whoever serves the array.
//!
//! [`Port`] is what the server needs. The part of it that concerns the I/O thread goes through
//! [`RingPort`]: commands in a bounded channel, and a call that wakes the ring, so that the I/O thread
//! learns of a command as it learns of everything else and never polls. Answers come back
//! through channels whose sending never waits.

use super::in_use::{Claim, DeviceHold};
use super::progress::ProgressSink;
use super::status::{Live, Status};
use crate::outcome::Failure;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Commands that may wait for the I/O thread; there are never more than connections.
const COMMANDS_MAX: usize = 64;

/// How long the I/O thread may take to answer a question about itself.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// What the control server asks of a served array. All on one thread.
pub trait Port {
    /// How it fares.
    fn status(&self) -> impl Future<Output = Result<Status, Failure>>;

    /// Returns once everything that was answered when it was called is durable and home.
    fn sync(&self, progress: ProgressSink) -> impl Future<Output = Result<(), Failure>>;

    /// Ends serving. `hold` keeps others from opening the device for themselves; it must be dropped
    /// after the device was stopped and before it is deleted, for an open device is not deleted.
    fn stop(
        &self,
        how: Stop,
        hold: Option<DeviceHold>,
        progress: ProgressSink,
    ) -> impl Future<Output = StopEnd>;

    /// Returns, with the reason, if serving ends without having been asked to.
    fn ended(&self) -> impl Future<Output = Failure>;

    /// Looks after the array for as long as it is polled.
    fn watch(&self) -> impl Future<Output = Infallible> {
        std::future::pending()
    }

    /// Takes the exposed device if nobody uses it: [`super::in_use::claim_elsewhere`] of it.
    fn claim(&self) -> impl Future<Output = Result<Claim, Failure>>;
}

/// How to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Nobody has the device open: replay all, mark clean, remove the device.
    Clean,
    /// The same, whoever has the device open. Takes no new requests first.
    Forced,
    /// Somebody has the device open and the daemon must go: flush, replay for at most 20 s or until
    /// less than 64 MiB remain, write a closed anchor, leave the device for a takeover.
    Leave,
}

/// How an attempt to end came out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StopEnd {
    /// As asked.
    Stopped,
    /// It does not serve any longer, but the array stays dirty.
    StoppedDirty(Failure),
    /// It could not be begun; it serves as before.
    StillServing(Failure),
}

/// A command for the I/O thread.
#[derive(Debug)]
pub enum Command {
    /// Send a snapshot.
    Status(oneshot::Sender<Live>),
    /// Bring home what was answered so far.
    Sync {
        /// Where to say how far it is.
        progress: ProgressSink,
        /// Where to say that it is done.
        done: oneshot::Sender<Result<(), Failure>>,
    },
    /// Come to an end.
    Stop {
        /// In which way.
        how: Stop,
        /// Where to say how far it is.
        progress: ProgressSink,
        /// Where to say that nothing more will be answered and everything is as `how` asks.
        done: oneshot::Sender<Result<(), Failure>>,
    },
    /// The device could not be stopped after all: go on as before.
    StopWithdrawn,
}

/// The control thread's end.
pub struct RingPort {
    commands: mpsc::Sender<Command>,
    wake: Box<dyn Fn()>,
}

impl std::fmt::Debug for RingPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingPort")
            .field("commands", &self.commands)
            .finish_non_exhaustive()
    }
}

/// The I/O thread's end.
#[derive(Debug)]
pub struct RingCommands {
    commands: mpsc::Receiver<Command>,
}

/// Commands on their way to the I/O thread: the end that [`RingPort::new`] wants, and the other one.
pub fn ring_commands() -> (mpsc::Sender<Command>, RingCommands) {
    let (sender, commands) = mpsc::channel(COMMANDS_MAX);
    (sender, RingCommands { commands })
}

impl RingPort {
    /// Over a thread that has the other end of `commands` and looks there when `wake` was called.
    pub fn new(commands: mpsc::Sender<Command>, wake: impl Fn() + 'static) -> RingPort {
        RingPort {
            commands,
            wake: Box::new(wake),
        }
    }

    /// Hands a command over and wakes the I/O thread. Never waits.
    pub fn send(&self, command: Command) -> Result<(), Failure> {
        self.commands
            .try_send(command)
            .map_err(|error| match error {
                mpsc::error::TrySendError::Closed(_) => io_thread_gone(),
                mpsc::error::TrySendError::Full(_) => {
                    Failure::failed("the array's I/O thread does not take commands")
                }
            })?;
        (self.wake)();
        Ok(())
    }

    /// Asks for a snapshot.
    pub async fn live(&self) -> Result<Live, Failure> {
        let (sender, receiver) = oneshot::channel();
        self.send(Command::Status(sender))?;
        match tokio::time::timeout(ANSWER_WAIT, receiver).await {
            Ok(Ok(live)) => Ok(live),
            Ok(Err(_)) => Err(io_thread_gone()),
            Err(_) => Err(Failure::failed(format!(
                "the array's I/O thread has not answered for {} s",
                ANSWER_WAIT.as_secs()
            ))),
        }
    }

    /// See [`Port::sync`].
    pub async fn sync(&self, progress: ProgressSink) -> Result<(), Failure> {
        let (done, end) = oneshot::channel();
        self.send(Command::Sync { progress, done })?;
        end.await.unwrap_or_else(|_| Err(io_thread_gone()))
    }

    /// The I/O thread's share of [`Port::stop`].
    pub async fn stop(&self, how: Stop, progress: ProgressSink) -> Result<(), Failure> {
        let (done, end) = oneshot::channel();
        self.send(Command::Stop {
            how,
            progress,
            done,
        })?;
        end.await.unwrap_or_else(|_| Err(io_thread_gone()))
    }

    /// Takes a [`Stop::Forced`] back.
    pub fn withdraw_stop(&self) -> Result<(), Failure> {
        self.send(Command::StopWithdrawn)
    }

    /// Returns when the I/O thread has dropped its end.
    #[cfg(test)]
    pub async fn closed(&self) {
        self.commands.closed().await;
    }
}

fn io_thread_gone() -> Failure {
    Failure::failed("the array's I/O thread has ended: its log says why")
}

impl RingCommands {
    /// The next command, if one waits. After being woken, until `None`.
    pub fn take(&mut self) -> Option<Command> {
        self.commands.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    fn status() -> Command {
        Command::Status(oneshot::channel().0)
    }

    #[test]
    fn each_command_wakes_and_is_there_when_it_does() {
        let (sender, mut commands) = ring_commands();
        let woken = Rc::new(Cell::new(0));
        let counter = Rc::clone(&woken);
        let port = RingPort::new(sender, move || counter.set(counter.get() + 1));
        port.send(status()).expect("sent");
        port.send(status()).expect("sent");
        assert_eq!(woken.get(), 2);
        assert!(
            commands.take().is_some() && commands.take().is_some() && commands.take().is_none()
        );
    }

    #[test]
    fn commands_that_nobody_takes_are_refused_not_piled_up() {
        let (sender, commands) = ring_commands();
        let port = RingPort::new(sender, || {});
        for _ in 0..COMMANDS_MAX {
            port.send(status()).expect("sent");
        }
        assert_eq!(
            port.send(status()).expect_err("full").message,
            "the array's I/O thread does not take commands"
        );
        drop(commands);
        assert_eq!(port.send(status()).expect_err("gone"), io_thread_gone());
    }
}
