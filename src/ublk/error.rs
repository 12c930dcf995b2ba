//! What can go wrong between this program and the ublk driver, each with what to do about it.

use std::io;

use libublk::UblkError;

/// Why a device could not be made, taken over, served or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No control device.
    #[error(
        "this kernel has no ublk driver: /dev/ublk-control does not exist; `modprobe ublk_drv` loads it \
         where the kernel has it (CONFIG_BLK_DEV_UBLK)"
    )]
    NoDriver,
    /// The control device cannot be opened.
    #[error("/dev/ublk-control cannot be opened; block devices are made by root")]
    NoPermission {
        /// The kernel's answer.
        source: io::Error,
    },
    /// No ring.
    #[error(
        "this process may not use io_uring; check `sysctl kernel.io_uring_disabled` (0 expected) and the \
         seccomp filter of the container"
    )]
    IoUring {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The buffers of the tags.
    #[error(
        "{bytes} bytes for the buffers of requests could not be had and locked in memory; lower the queue \
         depth or the request size, or raise LimitMEMLOCK"
    )]
    Memory {
        /// How much was asked for.
        bytes: u64,
        /// The kernel's answer.
        source: io::Error,
    },
    /// `PR_SET_IO_FLUSHER`.
    #[error(
        "this process may not be marked as one that the kernel writes pages through; it needs \
         CAP_SYS_RESOURCE"
    )]
    IoFlusher {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The queue thread's own system calls.
    #[error("queue thread: {what} failed")]
    Thread {
        /// What it was doing.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A command to the driver.
    #[error("the ublk driver refused {command}")]
    Command {
        /// Its name in the kernel's documentation.
        command: &'static str,
        /// The driver's answer.
        source: io::Error,
    },
    /// There is no such device.
    #[error("there is no ublk device {id}")]
    NoDevice {
        /// N in `/dev/ublkbN`.
        id: u32,
    },
    /// A takeover of a device without a disk.
    #[error(
        "/dev/ublkb{id} cannot be taken over: it was stopped or never started, and can only be deleted"
    )]
    Dead {
        /// N in `/dev/ublkbN`.
        id: u32,
    },
    /// A takeover whose device is not free.
    #[error(
        "/dev/ublkb{id} is still held by process {pid}, which serves it or has not ended yet; stop that \
         process first"
    )]
    StillServed {
        /// N in `/dev/ublkbN`.
        id: u32,
        /// Who has it.
        pid: i32,
    },
    /// A takeover of a device that was made for something else.
    #[error("/dev/ublkb{id} was not made by this program: {what}")]
    NotOurs {
        /// N in `/dev/ublkbN`.
        id: u32,
        /// What shows it.
        what: &'static str,
    },
    /// The driver does not know the recovery flags.
    #[error(
        "the ublk driver of this kernel cannot keep a device while its server is away; use Linux 6.12 or newer"
    )]
    NoRecovery,
}

impl Error {
    /// What libublk says of a command.
    pub(super) fn command(command: &'static str, error: UblkError) -> Error {
        let source = match error {
            UblkError::UringIOError(result) | UblkError::OtherError(result) => of_result(result),
            UblkError::IOError(source) => source,
            other @ (UblkError::UringTimeout
            | UblkError::UringIoQueued
            | UblkError::JsonError(_)
            | UblkError::QueueIsDown
            | UblkError::InvalidVal) => io::Error::other(other),
        };
        Error::Command { command, source }
    }

    /// Whether the driver did not like who asked, or how: as opposed to a device that does not answer.
    pub(super) fn is_refusal(&self) -> bool {
        let Error::Command { source, .. } = self else {
            return false;
        };
        let errno = source.raw_os_error();
        [libc::EINVAL, libc::EPERM, libc::EACCES]
            .map(Some)
            .contains(&errno)
    }

    /// What the kernel says of a command: a result that is not 0.
    pub(super) fn refused(command: &'static str, result: i32) -> Error {
        Error::Command {
            command,
            source: of_result(result),
        }
    }
}

fn of_result(result: i32) -> io::Error {
    io::Error::from_raw_os_error(result.saturating_neg())
}
