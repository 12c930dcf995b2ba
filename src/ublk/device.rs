//! A device's life as the control plane sees it.
//!
//! ```text
//!   create --> Device --serve--> Serving --start--> (live) --stop--> --join--> delete
//!                ^                                    |
//!   recover -----+                                    +-- the server leaves, or dies
//!      ^                                              |
//!      +---------------- QUIESCED <-------------------+
//! ```
//!
//! The queue thread is made here rather than by libublk's `run_target`, which always stops the device at
//! its end and waits for ever if the thread fails early. Nothing happens in a `Drop`: a device that is not
//! deleted stays with the kernel, and that is what a takeover needs.
//!
//! Functions here block and may be called on any thread but the queue thread. A process that wants to run
//! in the background forks before it makes a device: `START_DEV` must come from the process that opened it.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use io_uring::IoUring;
use io_uring::squeue::Entry128;
use libublk::ctrl::{UblkCtrl, UblkCtrlBuilder};
use libublk::io::UblkDev;
use libublk::{UblkError, UblkFlags, sys, ublk_init_ctrl_task_ring};
use tracing::{debug, info, warn};

use super::Server;
use super::control::Control;
use super::error::Error;
use super::memory::TagBuffers;
use super::queue::{self, End, Health, Shared, Waker};
use super::request::Bounds;
use crate::units::{KIB, SECTOR, to_usize};

/// The name that libublk wants for a kind of device.
const KIND: &str = "ujournal";

/// Some kernels never answer `ADD_DEV`: after this long a line says so.
const ADD_PATIENCE: Duration = Duration::from_secs(30);

/// What the kernel does when the server dies: it keeps the device, and gives all requests that were not
/// answered to the next server.
const RECOVERY: u32 = sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE;

/// What would make requests come in another way than this program takes them.
const OTHER_WAYS: u32 = sys::UBLK_F_SUPPORT_ZERO_COPY
    | sys::UBLK_F_NEED_GET_DATA
    | sys::UBLK_F_USER_COPY
    | sys::UBLK_F_ZONED
    | sys::UBLK_F_AUTO_BUF_REG
    | sys::UBLK_F_BATCH_IO;

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

/// DISCARD and `WRITE_ZEROES`, where the device takes them. All in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zeroing {
    /// What discards are aligned to: a power of two.
    pub granularity: u32,
    /// In one DISCARD at most; 0: none are sent.
    pub discard_max: u64,
    /// In one `WRITE_ZEROES` at most; 0: none are sent.
    pub write_zeroes_max: u64,
}

/// What the kernel is told of a device when it is made, and what it says of a live one. Sizes in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// 64 bits that tell our device from all others (`ublksrv_flags`).
    pub identity: u64,
    /// Requests at once.
    pub depth: u16,
    /// One READ or WRITE at most: a multiple of 4096, at most 32 MiB.
    pub max_io: u32,
    /// The device: a multiple of the block.
    pub size: u64,
    /// Logical block: 512 or 4096.
    pub block_size: u32,
    /// What is well written at once: a power of two.
    pub io_min: u32,
    /// What is best written at once: a power of two.
    pub io_opt: u32,
    /// What an answered write is worth.
    pub cache: Cache,
    /// What is under it.
    pub media: Media,
    /// DISCARD and `WRITE_ZEROES`, or neither.
    pub zeroing: Option<Zeroing>,
}

impl Parameters {
    /// As the driver wants them. Panics if they are not possible: whoever fills them in has checked them.
    fn to_driver(self) -> sys::ublk_params {
        assert!(
            [512, 4096].contains(&self.block_size),
            "the block is 512 or 4096 bytes"
        );
        assert!(
            self.max_io.is_multiple_of(4096),
            "a transfer is whole pages"
        );
        assert!(
            self.size.is_multiple_of(u64::from(self.block_size)),
            "the device is whole blocks"
        );
        let sectors = |bytes: u64| u32::try_from(bytes / SECTOR).expect("at most 2 TiB at once");
        let mut attributes = match self.cache {
            Cache::WriteThrough => 0,
            Cache::Volatile => sys::UBLK_ATTR_VOLATILE_CACHE,
            Cache::VolatileWithFua => sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA,
        };
        if self.media == Media::Rotating {
            attributes |= sys::UBLK_ATTR_ROTATIONAL;
        }
        let basic = sys::ublk_param_basic {
            attrs: attributes,
            logical_bs_shift: shift(self.block_size),
            physical_bs_shift: shift(4096),
            io_min_shift: shift(self.io_min),
            io_opt_shift: shift(self.io_opt),
            max_sectors: sectors(u64::from(self.max_io)),
            dev_sectors: self.size / SECTOR,
            ..Default::default()
        };
        let mut parameters = sys::ublk_params {
            types: sys::UBLK_PARAM_TYPE_BASIC,
            basic,
            ..Default::default()
        };
        if let Some(zeroing) = self.zeroing {
            parameters.types |= sys::UBLK_PARAM_TYPE_DISCARD;
            parameters.discard = sys::ublk_param_discard {
                discard_granularity: zeroing.granularity,
                max_discard_sectors: sectors(zeroing.discard_max),
                max_write_zeroes_sectors: sectors(zeroing.write_zeroes_max),
                max_discard_segments: 1, // Nothing else is accepted.
                ..Default::default()
            };
        }
        parameters
    }

    /// What the driver says of a device.
    fn from_driver(
        information: &sys::ublksrv_ctrl_dev_info,
        driver: &sys::ublk_params,
    ) -> Parameters {
        let basic = &driver.basic;
        let bytes = |shift: u8| 1_u32.checked_shl(u32::from(shift)).unwrap_or(0);
        let has = |attribute| basic.attrs & attribute != 0;
        let zeroing = (driver.types & sys::UBLK_PARAM_TYPE_DISCARD != 0).then(|| Zeroing {
            granularity: driver.discard.discard_granularity,
            discard_max: u64::from(driver.discard.max_discard_sectors) * SECTOR,
            write_zeroes_max: u64::from(driver.discard.max_write_zeroes_sectors) * SECTOR,
        });
        Parameters {
            identity: information.ublksrv_flags,
            depth: information.queue_depth,
            max_io: information.max_io_buf_bytes,
            size: basic.dev_sectors.saturating_mul(SECTOR),
            block_size: bytes(basic.logical_bs_shift),
            io_min: bytes(basic.io_min_shift),
            io_opt: bytes(basic.io_opt_shift),
            cache: match (has(sys::UBLK_ATTR_VOLATILE_CACHE), has(sys::UBLK_ATTR_FUA)) {
                (false, _) => Cache::WriteThrough,
                (true, false) => Cache::Volatile,
                (true, true) => Cache::VolatileWithFua,
            },
            media: if has(sys::UBLK_ATTR_ROTATIONAL) {
                Media::Rotating
            } else {
                Media::Solid
            },
            zeroing,
        }
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            device: self.size / SECTOR,
            block: self.block_size / u32::try_from(SECTOR).expect("512"),
            transfer: self.max_io / u32::try_from(SECTOR).expect("512"),
        }
    }
}

fn shift(bytes: u32) -> u8 {
    assert!(
        bytes.is_power_of_two(),
        "{bytes} is told to the driver as a power of two"
    );
    u8::try_from(bytes.trailing_zeros()).expect("less than 32")
}

/// What is set through sysfs once the device is there. The scheduler is always `none`, and requests are as
/// large as the device takes them.
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

impl State {
    fn of(number: u16) -> State {
        match u32::from(number) {
            sys::UBLK_S_DEV_DEAD => State::Dead,
            sys::UBLK_S_DEV_LIVE => State::Live,
            sys::UBLK_S_DEV_QUIESCED => State::Quiesced,
            sys::UBLK_S_DEV_FAIL_IO => State::FailIo,
            _ => State::Unknown(number),
        }
    }
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

/// Whether the kernel has any ublk device. Needs no permission.
pub fn any_device() -> Result<bool, Error> {
    Ok(!device_ids()?.is_empty())
}

/// Whether devices can be made on this machine: it has the driver, and lets this process ask it.
pub fn check_driver() -> Result<(), Error> {
    Control::open().map(drop)
}

/// The ublk devices of which `is_ours` says so by their identity, in the order of their numbers.
///
/// Nothing more is asked of the others: what a device is made of, the driver tells only between two of its
/// commands, and one whose server does not come to its end would keep us waiting.
pub fn find(is_ours: impl Fn(u64) -> bool) -> Result<Vec<Found>, Error> {
    let mut control = Control::open()?;
    let mut devices = Vec::new();
    for id in device_ids()? {
        match control.information(id) {
            Ok(Some(information)) if is_ours(information.ublksrv_flags) => {
                devices.extend(look_at(&mut control, id, &information)?);
            }
            // Another one's, or one that went while we looked.
            Ok(_) => {}
            // One of an unprivileged user wants to be asked in another way. Ours are never of that kind.
            Err(error) if error.is_refusal() => debug!(id, %error, "device passed over"),
            Err(error) => return Err(error),
        }
    }
    Ok(devices)
}

/// One device, if it exists.
pub fn look(id: u32) -> Result<Option<Found>, Error> {
    let mut control = Control::open()?;
    match control.information(id)? {
        Some(information) => look_at(&mut control, id, &information),
        None => Ok(None),
    }
}

fn look_at(
    control: &mut Control,
    id: u32,
    information: &sys::ublksrv_ctrl_dev_info,
) -> Result<Option<Found>, Error> {
    let driver = control.parameters(id)?;
    Ok(driver.map(|driver| Found {
        id,
        state: State::of(information.state),
        server_pid: information.ublksrv_pid,
        parameters: Parameters::from_driver(information, &driver),
    }))
}

fn device_ids() -> Result<Vec<u32>, Error> {
    let unlisted = |source| Error::Thread {
        what: "listing ublk devices",
        source,
    };
    let mut ids = Vec::new();
    let entries = match fs::read_dir("/sys/class/ublk-char") {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ids),
        Err(error) => return Err(unlisted(error)),
    };
    for entry in entries {
        let name = entry.map_err(unlisted)?.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix("ublkc")?.parse::<u32>().ok());
        ids.extend(number);
    }
    ids.sort_unstable();
    Ok(ids)
}

/// A device, made or being taken over. Nothing is served yet.
pub struct Device {
    control: UblkCtrl,
    device: Arc<UblkDev>,
    parameters: Parameters,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

impl Device {
    /// Makes a new device with the next free number.
    pub fn create(parameters: &Parameters) -> Result<Device, Error> {
        drop(Control::open()?);
        let driver = parameters.to_driver();
        have_control_ring()?;
        let control = with_watchdog("ADD_DEV", || {
            UblkCtrlBuilder::default()
                .name(KIND)
                .nr_queues(1)
                .depth(parameters.depth)
                .io_buf_bytes(parameters.max_io)
                .ctrl_flags(u64::from(RECOVERY))
                .ctrl_target_flags(parameters.identity)
                .dev_flags(UblkFlags::UBLK_DEV_F_ADD_DEV)
                .build()
        })
        .map_err(|error| Error::command("ADD_DEV", error))?;
        // Otherwise libublk deletes the device when the value goes.
        control.disown();
        let id = control.dev_info().dev_id;
        match Device::open(control, driver) {
            Ok(device) => Ok(device),
            Err(error) => {
                Device::delete(id)?;
                Err(error)
            }
        }
    }

    /// Begins to take over the device of a server that died: waits up to 30 s until the kernel sees that,
    /// and becomes the one who may serve it.
    pub fn recover(id: u32) -> Result<Device, Error> {
        let mut asking = Control::open()?;
        let information = asking.information(id)?.ok_or(Error::NoDevice { id })?;
        let driver = asking.parameters(id)?.ok_or(Error::NoDevice { id })?;
        if State::of(information.state) == State::Dead {
            return Err(Error::Dead { id });
        }
        let not_ours = |what| Err(Error::NotOurs { id, what });
        if information.nr_hw_queues != 1 {
            return not_ours("it has more than one queue");
        }
        if information.flags & u64::from(RECOVERY) != u64::from(RECOVERY) {
            return not_ours("it cannot be taken over");
        }
        if information.flags & u64::from(OTHER_WAYS) != 0 {
            return not_ours("its requests come in another way");
        }
        have_control_ring()?;
        leave_state_file(id);
        let control = UblkCtrlBuilder::default()
            .name(KIND)
            .id(i32::try_from(id).expect("device numbers are small"))
            .nr_queues(1)
            .depth(information.queue_depth)
            .io_buf_bytes(information.max_io_buf_bytes)
            // Not the flags of the live device: they contain some that libublk refuses.
            .ctrl_flags(u64::from(sys::UBLK_F_USER_RECOVERY))
            .dev_flags(UblkFlags::UBLK_DEV_F_RECOVER_DEV)
            .build()
            .map_err(|error| Error::command("GET_DEV_INFO", error))?;
        match control.start_user_recover() {
            Ok(0..) => {}
            // Libublk's way to say that it has waited for 30 s.
            Ok(_) => {
                return Err(Error::StillServed {
                    id,
                    pid: information.ublksrv_pid,
                });
            }
            Err(error) => return Err(Error::command("START_USER_RECOVERY", error)),
        }
        Device::open(control, driver)
    }

    fn open(control: UblkCtrl, driver: sys::ublk_params) -> Result<Device, Error> {
        let information = control.dev_info();
        if information.flags & u64::from(RECOVERY) != u64::from(RECOVERY) {
            return Err(Error::NoRecovery);
        }
        let parameters = Parameters::from_driver(&information, &driver);
        leave_state_file(information.dev_id);
        let target = |device: &mut UblkDev| {
            device.tgt.dev_size = parameters.size;
            device.tgt.params = driver;
            Ok(())
        };
        let device = UblkDev::new(KIND.to_owned(), target, &control)
            .map_err(|error| Error::command("opening of the character device", error))?;
        Ok(Device {
            control,
            device: Arc::new(device),
            parameters,
        })
    }

    /// N in `/dev/ublkbN`. The driver chose it.
    pub fn id(&self) -> u32 {
        self.device.dev_info.dev_id
    }

    /// What the kernel says of it: after a takeover, what the live device has, whatever was wished for.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Starts the queue thread and waits until it is ready for requests. `ended` is called on that thread
    /// when the loop has ended, for whatever reason.
    pub fn serve<S, F>(self, server: S, ended: F) -> Result<Serving<S>, Error>
    where
        S: Server + Send + 'static,
        F: FnOnce() + Send + 'static,
    {
        let Parameters { depth, max_io, .. } = self.parameters;
        let buffers = TagBuffers::new(depth, to_usize(u64::from(max_io))).map_err(|source| {
            Error::Memory {
                bytes: u64::from(depth) * u64::from(max_io),
                source,
            }
        })?;
        let shared = Arc::new(Shared::new().map_err(|source| Error::Thread {
            what: "eventfd",
            source,
        })?);
        let (ready, is_ready) = mpsc::sync_channel(1);
        let thread = {
            let (device, bounds) = (Arc::clone(&self.device), self.parameters.bounds());
            let shared = Arc::clone(&shared);
            let body = move || {
                let (mut server, mut buffers) = (server, buffers);
                let ready = || ready.send(()).expect("`serve` waits for this");
                let result = queue::run(&device, &mut server, &mut buffers, &shared, bounds, ready);
                ended();
                (server, result, buffers)
            };
            thread::Builder::new()
                .name(format!("ublk-queue-{}", self.id()))
                .spawn(body)
                .map_err(|source| Error::Thread {
                    what: "starting it",
                    source,
                })?
        };
        let serving = Serving {
            device: self,
            thread: Some(thread),
            shared,
        };
        if is_ready.recv().is_ok() {
            return Ok(serving);
        }
        // The thread ended before it was ready.
        match serving.join() {
            (_, Err(error)) => Err(error),
            (_, Ok(end)) => unreachable!("a loop that never began ended with {end:?}"),
        }
    }

    /// Takes a block device away: waits until its process has answered all requests, and fails them if it
    /// has none. The queue thread ends when the server is idle after that.
    pub fn stop(id: u32) -> Result<(), Error> {
        Control::open()?.stop(id)
    }

    /// Removes a stopped device. Where a program still has it open, the kernel removes it later.
    pub fn delete(id: u32) -> Result<(), Error> {
        Control::open()?.delete(id)?;
        match fs::remove_file(state_file(id)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => warn!(id, %error, "libublk's state file stays"),
        }
        Ok(())
    }
}

/// What a queue thread leaves behind. The buffers are here so that they outlive it.
type Ended<S> = (S, Result<End, Error>, TagBuffers);

/// A device with its queue thread. It must be joined.
#[must_use = "a queue thread is joined"]
pub struct Serving<S> {
    device: Device,
    thread: Option<thread::JoinHandle<Ended<S>>>,
    shared: Arc<Shared>,
}

impl<S> fmt::Debug for Serving<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

impl<S> Serving<S> {
    /// N in `/dev/ublkbN`.
    pub fn id(&self) -> u32 {
        self.device.id()
    }

    /// What the kernel says of the device.
    pub fn parameters(&self) -> &Parameters {
        self.device.parameters()
    }

    /// Makes the block device appear, or go on after a takeover; returns when requests are answered.
    ///
    /// A device that goes on has its tuning: that is no business of `tuning` then, and more than needless.
    /// To change an attribute the kernel waits until no request is in flight; those that wait for space in
    /// a full journal may be in flight for as long as a member is ill, and all others would wait behind
    /// them.
    pub fn start(&self, tuning: Option<&Tuning>) -> Result<(), Error> {
        have_control_ring()?;
        let Device {
            control,
            device,
            parameters,
        } = &self.device;
        match control.start_dev(device) {
            Ok(0..) => {}
            Ok(error) => return Err(Error::refused("START_DEV", error)),
            Err(error) => return Err(Error::command("START_DEV", error)),
        }
        let id = self.id();
        if let Some(tuning) = tuning {
            let max_sectors = (u64::from(parameters.max_io) / KIB).to_string();
            set_queue_attribute(id, "scheduler", "none");
            set_queue_attribute(id, "max_sectors_kb", &max_sectors);
            set_queue_attribute(id, "read_ahead_kb", &tuning.read_ahead_kib.to_string());
        }
        info!(id, "device started");
        Ok(())
    }

    /// Wakes the queue thread.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.shared))
    }

    /// For a watchdog.
    pub fn health(&self) -> Health {
        Health(Arc::clone(&self.shared))
    }

    /// [`Device::stop`] of this one.
    pub fn stop(&self) -> Result<(), Error> {
        Device::stop(self.id())
    }

    /// Lets go of the queue thread without waiting for it: for a process that is about to end and leaves
    /// the device to whoever takes it over next.
    pub fn detach(mut self) {
        drop(self.thread.take());
    }

    /// Waits for the end of the queue thread, gives the server back and says how it ended.
    pub fn join(mut self) -> (S, Result<End, Error>) {
        let thread = self.thread.take().expect("joined once");
        // A panic on the queue thread ends the process.
        let (server, result, _buffers) = thread.join().expect("the queue thread does not unwind");
        (server, result)
    }
}

impl<S> Drop for Serving<S> {
    /// Only the end of the thread makes it certain that the kernel is done with its memory.
    fn drop(&mut self) {
        assert!(
            self.thread.is_none() || thread::panicking(),
            "a queue thread is joined"
        );
    }
}

/// Makes libublk's control ring for this thread. Any of its control functions panics on a thread without.
fn have_control_ring() -> Result<(), Error> {
    ublk_init_ctrl_task_ring(|ring| {
        if ring.is_none() {
            *ring = Some(
                IoUring::<Entry128>::builder()
                    .build(16)
                    .map_err(UblkError::IOError)?,
            );
        }
        Ok(())
    })
    .map_err(|error| Error::command("set-up of the control ring", error))
}

/// Runs something that may never return on a broken kernel, and says so if it takes too long.
fn with_watchdog<T>(what: &'static str, run: impl FnOnce() -> T) -> T {
    let (done, is_done) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        if is_done.recv_timeout(ADD_PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            warn!(
                "the kernel has not answered {what} for {} s; some kernels (6.18.4, 6.18.5) crash in it",
                ADD_PATIENCE.as_secs()
            );
        }
    });
    let result = run();
    drop(done);
    watchdog
        .join()
        .expect("the watchdog only waits and writes a line");
    result
}

/// Where libublk keeps what it knows of a device.
fn state_file(id: u32) -> PathBuf {
    PathBuf::from(format!("{}/{id:04}.json", UblkCtrl::run_dir()))
}

/// Leaves libublk an empty state file. It complains on stderr where it finds none, and makes its folder
/// writable for everybody where that is missing. Nothing is ever taken from the file.
fn leave_state_file(id: u32) {
    let folder = fs::DirBuilder::new()
        .mode(0o755)
        .create(UblkCtrl::run_dir());
    match folder {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => warn!(%error, "no folder for libublk's state"),
    }
    let written = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(state_file(id))
        .and_then(|mut file| io::Write::write_all(&mut file, b"{}"));
    if let Err(error) = written {
        warn!(id, %error, "no state file for libublk");
    }
}

/// Sets one attribute of the block device's queue. A device serves without it, only slower.
fn set_queue_attribute(id: u32, name: &str, value: &str) {
    let path = format!("/sys/block/ublkb{id}/queue/{name}");
    if let Err(error) = fs::write(&path, value) {
        warn!(path, value, %error, "not set");
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what the driver is told and what is read back from it are the same thing.

    use super::*;
    use crate::units::MIB;

    fn check(parameters: &Parameters) {
        let information = sys::ublksrv_ctrl_dev_info {
            ublksrv_flags: parameters.identity,
            queue_depth: parameters.depth,
            max_io_buf_bytes: parameters.max_io,
            ..Default::default()
        };
        let driver = parameters.to_driver();
        assert_eq!(Parameters::from_driver(&information, &driver), *parameters);
    }

    #[test]
    fn what_a_device_is_told_is_what_it_says_later() {
        let plain = Parameters {
            identity: 0x0123_4567_89ab_cdef,
            depth: 128,
            max_io: 512 * 1024,
            size: 100 * MIB,
            block_size: 512,
            io_min: 64 * 1024,
            io_opt: 1 << 20,
            cache: Cache::VolatileWithFua,
            media: Media::Solid,
            zeroing: None,
        };
        check(&plain);
        check(&Parameters {
            block_size: 4096,
            cache: Cache::Volatile,
            media: Media::Rotating,
            ..plain
        });
        let zeroing = Zeroing {
            granularity: 4096,
            discard_max: 1 << 30,
            write_zeroes_max: 1 << 30,
        };
        check(&Parameters {
            cache: Cache::WriteThrough,
            zeroing: Some(zeroing),
            ..plain
        });
    }

    #[test]
    fn a_machine_without_the_driver_is_told_what_to_do() {
        if std::path::Path::new("/dev/ublk-control").exists() {
            assert!(matches!(
                check_driver(),
                Ok(()) | Err(Error::NoPermission { .. })
            ));
        } else {
            let error = check_driver().expect_err("no driver").to_string();
            assert!(error.contains("modprobe ublk_drv"), "{error}");
        }
    }
}
