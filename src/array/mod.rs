//! An array as a whole: what the commands do with its parts while nothing is served.
//!
//! Here the configuration meets the disks. Everything that could go wrong with either becomes one
//! [`Failure`] with the exit code of the contract; nothing is written before everything has been looked
//! at.
//!
//! * [`open`]: the parts of a configuration, fenced, in order, and known to belong together
//! * [`label`]: writes a new array
//! * [`start`]: recovery, the engine, the device
//! * [`inspect`]: `check` and `dump`
//! * [`clear`]: takes the labels off
//! * [`device`]: what the kernel still has of an array whose daemon has gone

pub mod clear;
pub mod device;
pub mod inspect;
pub mod label;
pub mod open;
pub mod settings;
pub mod start;

use crate::control::progress::{Progress, ProgressSink, Stage};
use crate::control::run_dir::RunDir;
use crate::disk::DiskError;
use crate::disk::error::PartError;
use crate::disk::lock::InUse;
use crate::engine::recovery::RecoveryError;
use crate::journal::assemble::{AssembleError, BeginError};
use crate::journal::scan::ScanError;
use crate::outcome::{Exit, Failure, sentence};
use crate::units::MIB;

/// A failure of exit code `exit` that says what `error` and its causes say.
fn failure(exit: Exit, error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure {
        exit,
        message: sentence(error),
    }
}

/// Tells `progress` how far a scan has read. Records are small: one report for many.
fn scan_reports(progress: &ProgressSink) -> impl FnMut(u64, u64) {
    const EVERY: u64 = 8 * MIB;
    let mut reported = 0;
    move |done, total| {
        if done / EVERY != reported / EVERY {
            progress.report(Progress::new(Stage::Scan, done, total));
        }
        reported = done;
    }
}

/// What stands on or under a path keeps us from using it, or the machine does.
pub(crate) fn from_part(error: &PartError) -> Failure {
    if let PartError::InUse(InUse::Process { path, holder }) = error
        && let Some(name) = RunDir::system().array_of(holder.pid)
    {
        return Failure::refused(format!(
            "array {name} is running (pid {}) and holds {}; stop it first: ujournal stop {name}",
            holder.pid,
            path.display()
        ));
    }
    let exit = match error {
        PartError::Inspect { .. } | PartError::Open { .. } => Exit::Failed,
        PartError::Missing { .. }
        | PartError::Circle { .. }
        | PartError::ReadOnly { .. }
        | PartError::NotAPart { .. }
        | PartError::NoDirectIo { .. }
        | PartError::BlockSize { .. }
        | PartError::Replaced { .. }
        | PartError::Lock { .. }
        | PartError::InUse(_) => Exit::Refused,
    };
    failure(exit, error)
}

pub(crate) fn from_disk(error: &DiskError) -> Failure {
    failure(Exit::Failed, error)
}

pub(crate) fn from_assemble(error: &AssembleError) -> Failure {
    use crate::journal::assemble::PartError;
    let exit = if matches!(error, AssembleError::Part(PartError::Disk(_))) {
        Exit::Failed
    } else {
        Exit::Refused
    };
    failure(exit, error)
}

pub(crate) fn from_recovery(error: &RecoveryError) -> Failure {
    let exit = match error {
        RecoveryError::Scan(ScanError::Damage(_) | ScanError::NoAnchor { .. })
        | RecoveryError::Scan(ScanError::AnchorsDiffer(_) | ScanError::AnchorEpoch { .. })
        | RecoveryError::Changed(_) => Exit::Damaged,
        RecoveryError::Disk(_) | RecoveryError::Begin(BeginError::Disk(_)) => Exit::Failed,
        RecoveryError::Begin(BeginError::OutOfEpochs) | RecoveryError::JournalNotStopped { .. } => {
            Exit::Refused
        }
    };
    let mut failure = failure(exit, error);
    if let RecoveryError::Scan(ScanError::Damage(damage)) = error
        && let Some(record) = &damage.record
    {
        failure.message.push_str("; ");
        failure.message.push_str(&inspect::affected(record));
    }
    failure
}
