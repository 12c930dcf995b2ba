//! Control commands.

use super::{Health, Server, Waker};

/// What the device promises about acknowledged writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// Every answered write is durable: no FLUSH comes.
    WriteThrough,
    /// Durable after a FLUSH; the kernel makes FUA of a write and a FLUSH.
    Volatile,
    /// Durable after a FLUSH; FUA comes on the write.
    VolatileWithFua,
}

/// What is under the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Media {
    /// Seeks are expensive.
    Rotating,
    /// They are not.
    Solid,
}

/// DISCARD and WRITE_ZEROES, where the device takes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zeroing {
    /// Bytes: a power of two.
    pub granularity: u32,
    /// Bytes in one DISCARD at most; 0: none are sent.
    pub discard_max: u64,
    /// Bytes in one WRITE_ZEROES at most; 0: none are sent.
    pub write_zeroes_max: u64,
}

/// What the kernel is told of a device when it is made, and what it says of a live one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// 64 bits that tell our device from all others (`ublksrv_flags`).
    pub identity: u64,
    /// Requests at once.
    pub depth: u16,
    /// Bytes in one READ or WRITE at most: a multiple of 4096, at most 32 MiB.
    pub max_io: u32,
    /// Bytes: a multiple of the block size.
    pub size: u64,
    /// Logical block: 512 or 4096.
    pub block_size: u32,
    /// Bytes that are well written at once: a power of two.
    pub io_min: u32,
    /// Bytes that are best written at once: a power of two.
    pub io_opt: u32,
    /// What an answered write is worth.
    pub cache: Cache,
    /// What is under it.
    pub media: Media,
    /// DISCARD and WRITE_ZEROES, or neither.
    pub zeroing: Option<Zeroing>,
}

/// What is set through sysfs once the device is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Read-ahead in KiB.
    pub read_ahead_kib: u32,
}

/// In what state the kernel holds a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not started, or stopped.
    Dead,
    /// A server answers, or has died a moment ago.
    Live,
    /// Its server died; a new one may take it over.
    Quiesced,
    /// Its server died and requests are failed.
    FailIo,
    /// A number that this program does not know.
    Unknown(u16),
}

/// A ublk device that the kernel has.
#[derive(Clone, Debug)]
pub struct Found {
    /// N in `/dev/ublkbN`.
    pub id: u32,
    /// Its state.
    pub state: State,
    /// The process that serves or served it.
    pub server_pid: i32,
    /// What it says of itself.
    pub parameters: Parameters,
}

/// All ublk devices, in the order of their numbers.
pub fn find() -> Result<Vec<Found>, Error> {
    unimplemented!()
}

/// A device, made or taken over.
#[derive(Debug)]
pub struct Device;

impl Device {
    /// Makes a new device with the next free number. Nothing is served yet.
    pub fn create(parameters: &Parameters) -> Result<Device, Error> {
        unimplemented!("{parameters:?}")
    }

    /// Begins to take over the device of a server that died. Waits up to 30 s for its end.
    pub fn recover(id: u32) -> Result<Device, Error> {
        unimplemented!("{id}")
    }

    /// N in `/dev/ublkbN`.
    pub fn id(&self) -> u32 {
        unimplemented!()
    }

    /// What the kernel says of it.
    pub fn parameters(&self) -> &Parameters {
        unimplemented!()
    }

    /// Starts the queue thread and waits until it is ready for requests.
    pub fn serve<S: Server + Send + 'static>(self, server: S) -> Result<Serving<S>, Error> {
        unimplemented!("{}", size_of_val(&server))
    }

    /// Removes a device that no process serves.
    pub fn delete(id: u32) -> Result<(), Error> {
        unimplemented!("{id}")
    }
}

/// A device with its queue thread.
#[derive(Debug)]
pub struct Serving<S> {
    server: Option<S>,
}

impl<S> Serving<S> {
    /// Makes the block device appear, or go on after a takeover; returns when requests are answered.
    pub fn start(&self, tuning: &Tuning) -> Result<(), Error> {
        unimplemented!("{tuning:?}")
    }

    /// Wakes the queue thread.
    pub fn waker(&self) -> Waker {
        unimplemented!()
    }

    /// For a watchdog.
    pub fn health(&self) -> Health {
        unimplemented!()
    }

    /// Takes the block device away, after all requests have been answered. The queue thread ends when the
    /// server is idle.
    pub fn stop(&self) -> Result<(), Error> {
        unimplemented!()
    }

    /// Waits for the end of the queue thread.
    pub fn join(self) -> Result<S, Error> {
        self.server.ok_or_else(|| unimplemented!())
    }
}

/// Why a device could not be made, served or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {}
