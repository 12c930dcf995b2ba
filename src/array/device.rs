//! An array's device without its daemon.
//!
//! A device belongs to the kernel: it outlives the daemon that served it, and whoever uses it waits.
//!
//! ```text
//!   daemon ended or killed --> left --start--------> served again
//!                               |
//!                               +-----stop --force--> gone: its users get errors, the array stays dirty
//! ```
//!
//! It is known by its identity, which it shares with the labels of its array, never by its number: that
//! may be another program's by now. Whoever holds an array's disks, or its name ([`DaemonLock`]), knows that no
//! daemon serves it.

use crate::control::in_use;
use crate::control::run_dir::{DaemonLock, DeviceRecord};
use crate::control::status::DeviceStatus;
use crate::journal::ArrayUuid;
use crate::journal::superblock::Superblock;
use crate::outcome::{Failure, sentence};
use crate::ublk::{Device, Error, Found, State, any_device, find};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How long the kernel may take to see that a server has died.
const QUIESCE_WAIT: Duration = Duration::from_secs(30);
const QUIESCE_POLL: Duration = Duration::from_millis(50);

/// A device without a daemon.
#[derive(Clone, Debug)]
pub struct Left {
    /// The array's name.
    pub name: String,
    /// What the kernel says.
    found: Found,
}

impl Left {
    /// `/dev/ublkbN`.
    pub fn block(&self) -> PathBuf {
        block_of(&self.found)
    }

    /// What a command shows of it.
    pub fn status(&self) -> DeviceStatus {
        DeviceStatus {
            block: self.block(),
            link: PathBuf::from(format!("/dev/ujournal/{}", self.name)),
            size: self.found.parameters.size,
            block_size: self.found.parameters.block_size,
        }
    }

    /// `array vol0: its device /dev/ublkb0 is still there (mounted on /mnt), waiting for a daemon`.
    fn sentence(&self) -> String {
        let block = self.block();
        let users = in_use::users(&block).map_or(String::new(), |users| format!(" ({users})"));
        format!(
            "array {}: its device {} is still there{users}, waiting for a daemon",
            self.name,
            block.display()
        )
    }

    /// Why a command that needs a daemon cannot be carried out.
    pub fn without_daemon(&self) -> Failure {
        Failure::failed(format!(
            "{}; ujournal start CONFIG takes it over, ujournal stop --force {} gives it up (its users get errors, \
             the array stays dirty)",
            self.sentence(),
            self.name
        ))
    }

    /// Why the array's labels may not change. `config` is the file that describes it, if one is known.
    fn refusal(&self, config: Option<&Path>) -> Failure {
        let config = config.map_or("CONFIG".to_owned(), |path| path.display().to_string());
        Failure::refused(format!(
            "{}; start {config} takes it over, stop --force {} gives it up",
            self.sentence(),
            self.name
        ))
    }

    /// Takes the device away: whoever uses it gets errors. The caller is the array's daemon as far as
    /// anybody else can see, so no other one serves it or begins to.
    ///
    /// # Errors
    /// If the kernel says that a process still serves it, or refuses.
    pub fn give_up(&self, _held: &DaemonLock) -> Result<(), Failure> {
        let identity = self.found.parameters.identity;
        let began = Instant::now();
        loop {
            let now = devices(|of| of == identity)?.into_iter().next();
            match now {
                None => return Ok(()),
                Some(found) if found.state != State::Live => {
                    if found.state != State::Dead {
                        Device::stop(found.id).map_err(failed)?;
                    }
                    return Device::delete(found.id).map_err(failed);
                }
                Some(found) if began.elapsed() > QUIESCE_WAIT => {
                    return Err(Failure::refused(format!(
                        "array {}: {} is still served by process {}, or its I/O does not end: end that process first",
                        self.name,
                        block_of(&found).display(),
                        found.server_pid
                    )));
                }
                Some(_) => thread::sleep(QUIESCE_POLL),
            }
        }
    }
}

/// The device that was written down of array `name`, if the kernel still has it.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn left(name: &str, record: &DeviceRecord) -> Result<Option<Left>, Failure> {
    let identity = ArrayUuid(*record.uuid.as_bytes()).device_flags();
    let waiting = devices(|of| of == identity)?
        .into_iter()
        .find(|found| found.state != State::Dead);
    Ok(waiting.map(|found| Left {
        name: name.to_owned(),
        found,
    }))
}

/// Refuses to change labels of an array whose device is still there: nothing could take it over after
/// that, and its users would wait for ever. `labels` are those found on the disks, whose locks the caller
/// holds; `config` names the array `name`.
///
/// # Errors
/// If there is such a device, or the kernel cannot be asked.
pub fn check_none_left<'a>(
    config: (&Path, &str),
    labels: impl IntoIterator<Item = &'a Superblock>,
) -> Result<(), Failure> {
    let labels: Vec<&Superblock> = labels.into_iter().collect();
    let of_device = |of| labels.iter().find(|label| label.uuid.device_flags() == of);
    for found in devices(|of| of_device(of).is_some())? {
        let label = of_device(found.parameters.identity).filter(|_| found.state != State::Dead);
        if let Some(label) = label {
            let left = Left {
                name: label.name.clone(),
                found,
            };
            let (file, name) = config;
            return Err(left.refusal((label.name == name).then_some(file)));
        }
    }
    Ok(())
}

/// The live device of the array that carries `label`, if the kernel still has it from a daemon that died.
/// What was stopped and not removed is removed. `size` is what the device must have; `record` what was
/// written down of the array's last device.
///
/// # Errors
/// If it is not this array's device after all, the disks are older than what it has shown, or the kernel
/// cannot be asked.
pub fn take_up(
    label: &Superblock,
    size: u64,
    record: Option<&DeviceRecord>,
) -> Result<Option<Found>, Failure> {
    let identity = label.uuid.device_flags();
    for found in find(|of| of == identity).map_err(failed)? {
        if found.state == State::Dead {
            Device::delete(found.id).map_err(failed)?;
            continue;
        }
        let block = label.block_size;
        if found.parameters.size != size || found.parameters.block_size != block {
            return Err(Failure::refused(format!(
                "{} carries this array's identity, but has {} bytes in blocks of {}, expected {size} in blocks of \
                 {block}: it is not this array's device",
                block_of(&found).display(),
                found.parameters.size,
                found.parameters.block_size
            )));
        }
        // Its users have seen what that life wrote.
        let newer = record.filter(|record| {
            *record.uuid.as_bytes() == label.uuid.0 && record.epoch > label.epoch.0
        });
        if let Some(record) = newer {
            return Err(Failure::refused(format!(
                "{} was served in life {} of the array, but these disks know of life {} only: they are old copies; \
                 put those back that were served, or stop --force {} gives the device up",
                block_of(&found).display(),
                record.epoch,
                label.epoch,
                label.name
            )));
        }
        return Ok(Some(found));
    }
    Ok(None)
}

/// Refuses to begin a life under a name whose last one has left its device, if that was another array's:
/// nobody would know it again.
///
/// # Errors
/// If there is such a device, or the kernel cannot be asked.
pub fn check_namesake(
    name: &str,
    uuid: ArrayUuid,
    record: Option<&DeviceRecord>,
) -> Result<(), Failure> {
    let Some(record) = record.filter(|record| *record.uuid.as_bytes() != uuid.0) else {
        return Ok(());
    };
    match left(name, record)? {
        None => Ok(()),
        Some(left) => Err(Failure::refused(format!(
            "{}, and is that of another array of this name ({}): start that one, or stop --force {name} gives it up",
            left.sentence(),
            record.uuid
        ))),
    }
}

/// The ublk devices of which `is_ours` says so; none where there is no driver. Where there is no device,
/// nobody needs permission to be told so.
fn devices(is_ours: impl Fn(u64) -> bool) -> Result<Vec<Found>, Failure> {
    if !any_device().map_err(failed)? {
        return Ok(Vec::new());
    }
    match find(is_ours) {
        Ok(devices) => Ok(devices),
        Err(Error::NoDriver) => Ok(Vec::new()),
        Err(error) => Err(failed(error)),
    }
}

fn block_of(found: &Found) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{}", found.id))
}

fn failed(error: impl std::error::Error + 'static) -> Failure {
    Failure::failed(sentence(&error))
}
