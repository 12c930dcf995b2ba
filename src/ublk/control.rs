//! Commands to `/dev/ublk-control` that need no libublk: ask, stop, delete.
//!
//! Libublk keeps its control ring for each thread and panics on a thread that has none; it also reads its
//! state file, and complains, each time it looks at a device. These four commands must work from any
//! thread and for any device, so they are sent here, on a ring of their own that lives as long as a
//! [`Control`].

#![expect(
    unsafe_code,
    reason = "the kernel reads and fills structures by address"
)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::squeue::Entry128;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use libublk::sys;
use tracing::warn;
use zerocopy::{Immutable, IntoBytes};

use super::error::Error;
use super::ring::passes;

/// The driver's control device.
const CONTROL: &str = "/dev/ublk-control";

/// How long a removal is waited for. Without openers it takes some milliseconds.
const DELETE_WAIT: Duration = Duration::from_secs(2);

/// `struct ublksrv_ctrl_cmd`: what a command carries.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Command {
    device: u32,
    queue: u16,
    length: u16,
    address: u64,
    data: u64,
    path_length: u16,
    pad: u16,
    reserved: u32,
}

const _: () = assert!(size_of::<Command>() == size_of::<sys::ublksrv_ctrl_cmd>());

/// The control device, open.
pub(super) struct Control {
    file: File,
    ring: IoUring<Entry128>,
}

impl Control {
    /// Opens it. This is also the check whether ublk can be used at all.
    pub fn open() -> Result<Control, Error> {
        if !Path::new(CONTROL).exists() {
            return Err(Error::NoDriver);
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(CONTROL)
            .map_err(|source| Error::NoPermission { source })?;
        let ring = IoUring::<Entry128>::builder()
            .build(2)
            .map_err(|source| Error::IoUring { source })?;
        Ok(Control { file, ring })
    }

    /// What the kernel says of a device, or `None` if there is no such device (any more).
    pub fn information(&mut self, id: u32) -> Result<Option<sys::ublksrv_ctrl_dev_info>, Error> {
        let mut information = sys::ublksrv_ctrl_dev_info::default();
        let length = size_of_val(&information);
        // SAFETY: the address is that of a structure of this length, plain numbers, alive until the answer.
        let asked = unsafe {
            self.ask(
                sys::UBLK_U_CMD_GET_DEV_INFO,
                id,
                (&raw mut information).addr(),
                length,
            )
        };
        if_there(asked, "GET_DEV_INFO").map(|there| there.then_some(information))
    }

    /// The parameters of a device, or `None` as above.
    pub fn parameters(&mut self, id: u32) -> Result<Option<sys::ublk_params>, Error> {
        let length = size_of::<sys::ublk_params>();
        let mut parameters = sys::ublk_params {
            len: u32::try_from(length).expect("a small structure"),
            ..Default::default()
        };
        // SAFETY: the address is that of a structure of this length, plain numbers, alive until the answer.
        let asked = unsafe {
            self.ask(
                sys::UBLK_U_CMD_GET_PARAMS,
                id,
                (&raw mut parameters).addr(),
                length,
            )
        };
        if_there(asked, "GET_PARAMS").map(|there| there.then_some(parameters))
    }

    /// Takes the block device away once all requests are answered. Waits for that.
    pub fn stop(&mut self, id: u32) -> Result<(), Error> {
        self.tell(sys::UBLK_U_CMD_STOP_DEV, id)
            .map_err(|source| Error::Command {
                command: "STOP_DEV",
                source,
            })
    }

    /// Removes a device, which nobody serves any more. Somebody may still have the block device open, as
    /// after a forced stop: then the kernel removes it when the last one closes it, and this waits for that
    /// no longer than [`DELETE_WAIT`].
    pub fn delete(&mut self, id: u32) -> Result<(), Error> {
        match self.tell(sys::UBLK_U_CMD_DEL_DEV_ASYNC, id) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
            Err(source) => {
                return Err(Error::Command {
                    command: "DEL_DEV_ASYNC",
                    source,
                });
            }
            Ok(()) => {}
        }
        let begun = Instant::now();
        while self.information(id)?.is_some() {
            if begun.elapsed() > DELETE_WAIT {
                warn!(id, "the device is removed when the last program closes it");
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn tell(&mut self, operation: u32, id: u32) -> io::Result<()> {
        // SAFETY: no memory is named.
        unsafe { self.ask(operation, id, 0, 0) }
    }

    /// Sends one command and waits for its answer.
    ///
    /// # Safety
    ///
    /// If `length` is not 0, `address` is that of a plain structure of that length.
    unsafe fn ask(
        &mut self,
        operation: u32,
        id: u32,
        address: usize,
        length: usize,
    ) -> io::Result<()> {
        let command = Command {
            device: id,
            queue: u16::MAX,
            length: u16::try_from(length).expect("a small structure"),
            address: crate::units::to_u64(address),
            data: 0,
            path_length: 0,
            pad: 0,
            reserved: 0,
        };
        let mut bytes = [0; 80];
        bytes[..size_of::<Command>()].copy_from_slice(command.as_bytes());
        let sqe = opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), operation)
            .cmd(bytes)
            .build();
        // SAFETY: the caller vouches for the memory that the command names; this function waits for its end.
        let pushed = unsafe { self.ring.submission().push(&sqe) };
        assert!(pushed.is_ok(), "one command at a time fits");
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if passes(&error) => {}
                // The command may be running and its memory must stay: nothing else can be done about it.
                Err(error) => panic!("waiting for a control command: {error}"),
            }
            if let Some(completion) = self.ring.completion().next() {
                return match completion.result() {
                    0.. => Ok(()),
                    error => Err(io::Error::from_raw_os_error(-error)),
                };
            }
        }
    }
}

/// Whether a question was answered; not, if the device has gone.
fn if_there(asked: io::Result<()>, command: &'static str) -> Result<bool, Error> {
    match asked {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(false),
        Err(source) => Err(Error::Command { command, source }),
    }
}
