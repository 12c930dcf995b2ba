//! The seam between the control thread and whoever serves the array.
//!
//! [`Port`] is what the server needs. The part of it that concerns the I/O thread goes through
//! [`ring_port`]: commands in a bounded channel, and an eventfd that the ring watches, so that the
//! I/O thread learns of a command as it learns of everything else and never polls. Answers come back
//! through channels whose sending never waits.

use super::in_use::{Claim, DeviceHold};
use super::progress::ProgressSink;
use super::status::{Live, Status};
use crate::outcome::Failure;
use rustix::event::{EventfdFlags, eventfd};
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
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
}

/// The control thread's end.
#[derive(Clone, Debug)]
pub struct RingPort {
    commands: mpsc::Sender<Command>,
    wake: Arc<OwnedFd>,
}

/// The I/O thread's end.
#[derive(Debug)]
pub struct RingCommands {
    commands: mpsc::Receiver<Command>,
    wake: Arc<OwnedFd>,
}

/// Both ends.
pub fn ring_port() -> io::Result<(RingPort, RingCommands)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = mpsc::channel(COMMANDS_MAX);
    let port = RingPort {
        commands: sender,
        wake: Arc::clone(&wake),
    };
    Ok((
        port,
        RingCommands {
            commands: receiver,
            wake,
        },
    ))
}

impl RingPort {
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
        self.wake()
    }

    #[expect(
        clippy::host_endian_bytes,
        reason = "an eventfd counts in the byte order of the machine"
    )]
    fn wake(&self) -> Result<(), Failure> {
        match rustix::io::write(&*self.wake, &1_u64.to_ne_bytes()) {
            // A counter at its end has waked it already.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(Failure::failed(format!(
                "cannot wake the array's I/O thread: {error}"
            ))),
        }
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

    /// Returns when the I/O thread has dropped its end.
    pub async fn closed(&self) {
        self.commands.closed().await;
    }
}

fn io_thread_gone() -> Failure {
    Failure::failed("the array's I/O thread has ended: its log says why")
}

impl RingCommands {
    /// What the ring must watch: readable when a command waits.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The next command, if one waits. Call [`RingCommands::rearm`] first, then this until `None`.
    pub fn take(&mut self) -> Option<Command> {
        self.commands.try_recv().ok()
    }

    /// Makes the eventfd unreadable again. Before taking, so that a command that comes in between
    /// leaves it readable: not needed if the ring reads the eventfd itself.
    pub fn rearm(&self) {
        let mut counter = [0_u8; 8];
        match rustix::io::read(&*self.wake, &mut counter) {
            // Nothing in it: somebody has read it, or nobody has written.
            Ok(_) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn readable(commands: &RingCommands) -> bool {
        let mut fds = [PollFd::new(&commands.wake, PollFlags::IN)];
        poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            }),
        )
        .expect("polled")
            == 1
    }

    fn status() -> (Command, oneshot::Receiver<Live>) {
        let (sender, receiver) = oneshot::channel();
        (Command::Status(sender), receiver)
    }

    #[test]
    fn a_command_makes_the_eventfd_readable_until_it_is_rearmed() {
        let (port, mut commands) = ring_port().expect("made");
        assert!(!readable(&commands));
        port.send(status().0).expect("sent");
        port.send(status().0).expect("sent");
        assert!(readable(&commands));
        commands.rearm();
        assert!(!readable(&commands));
        assert!(
            commands.take().is_some() && commands.take().is_some() && commands.take().is_none()
        );
        commands.rearm();
    }

    #[test]
    fn commands_that_nobody_takes_are_refused_not_piled_up() {
        let (port, commands) = ring_port().expect("made");
        for _ in 0..COMMANDS_MAX {
            port.send(status().0).expect("sent");
        }
        assert_eq!(
            port.send(status().0).expect_err("full").message,
            "the array's I/O thread does not take commands"
        );
        drop(commands);
        assert_eq!(port.send(status().0).expect_err("gone"), io_thread_gone());
    }
}
