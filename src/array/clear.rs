//! `ujournal clear`: takes the labels off.

use super::device::check_none_left;
use super::from_disk;
use super::label::{Force, readable_labels};
use super::open::{open, open_parts};
use crate::config::Config;
use crate::control::progress::ProgressSink;
use crate::disk::Disk;
use crate::disk::buffer::AlignedBuffer;
use crate::disk::part::{Access, Part};
use crate::journal::FRAME_LEN;
use crate::journal::assemble::read_copies;
use crate::journal::geometry::superblock_places;
use crate::journal::superblock::SuperblockError;
use crate::outcome::{Failure, sentence};
use crate::units::Offset;

/// Makes the parts of an array ordinary disks again. Their data stays where it is.
///
/// # Errors
/// If the array is dirty, in use, or not whole; with `force` only if it is in use, its device is still
/// there, or a part carries no label of this array: what else is on a disk is none of our business.
pub fn clear(config: &Config, force: Force, progress: &ProgressSink) -> Result<(), Failure> {
    let described = (config.file.as_path(), config.name.as_str());
    if force == Force::No {
        let mut opened = open(config, Access::ReadWrite, progress)?;
        check_none_left(described, &opened.set.superblocks)?;
        if !opened.set.is_clean() {
            return Err(Failure::refused(format!(
                "array {} was not stopped cleanly and its journal is needed: start it and stop it, or use clear \
                 --force and lose what the journal holds",
                config.name
            )));
        }
        return opened
            .set
            .erase_superblocks()
            .map_err(|error| from_disk(&error));
    }
    // All are looked at before the first is changed.
    let mut parts = open_parts(config, Access::ReadWrite, progress)?;
    check_none_left(described, &readable_labels(&mut parts)?)?;
    let labels = parts
        .iter_mut()
        .map(|part| labels_of(config, part))
        .collect::<Result<Vec<_>, Failure>>()?;
    for (part, places) in parts.iter_mut().zip(labels) {
        erase(part, &places).map_err(|error| from_disk(&error))?;
    }
    Ok(())
}

/// Where a part carries a superblock, whole or damaged, of the array that `config` names.
fn labels_of(config: &Config, part: &mut Part) -> Result<Vec<Offset>, Failure> {
    let path = part.path().display().to_string();
    let size = part.size();
    let copies = read_copies(part).map_err(|error| from_disk(&error))?;
    if let [Err(SuperblockError::Absent), Err(SuperblockError::Absent)] = copies {
        let absent = sentence(&SuperblockError::Absent);
        return Err(Failure::refused(format!("{path}: {absent}")));
    }
    // A part that has grown has its second copy where its end was.
    let end = copies[0]
        .as_ref()
        .map_or(size, |first| first.part_size.min(size));
    let mut labels = Vec::new();
    for (copy, place) in copies.into_iter().zip(superblock_places(end)) {
        match copy {
            Ok(sb) if sb.name != config.name.as_str() => {
                return Err(Failure::refused(format!(
                    "{path}: is {} of the ujournal array {} ({}), not of {}",
                    sb.role, sb.name, sb.uuid, config.name
                )));
            }
            Err(SuperblockError::Absent) => {}
            Ok(_) | Err(_) => labels.push(place),
        }
    }
    Ok(labels)
}

fn erase(disk: &mut dyn Disk, labels: &[Offset]) -> Result<(), crate::disk::DiskError> {
    let zeroes = AlignedBuffer::zeroed(FRAME_LEN);
    for place in labels {
        disk.write(*place, &zeroes)?;
    }
    disk.flush()
}
