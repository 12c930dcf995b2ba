//! `ujournal clear`: takes the labels off.

use super::from_disk;
use super::label::Force;
use super::open::{open, open_parts};
use crate::config::Config;
use crate::control::progress::ProgressSink;
use crate::disk::Disk;
use crate::disk::buffer::AlignedBuffer;
use crate::disk::part::Access;
use crate::journal::FRAME_LEN;
use crate::journal::assemble::read_copies;
use crate::journal::geometry::superblock_places;
use crate::outcome::Failure;
use crate::units::FRAME;

/// Makes the parts of an array ordinary disks again. Their data stays where it is.
///
/// # Errors
/// If the array is dirty, in use, or not whole, unless `force` says that whatever superblocks are there
/// may go.
pub fn clear(config: &Config, force: Force, progress: &ProgressSink) -> Result<(), Failure> {
    if force == Force::No {
        let mut opened = open(config, Access::ReadWrite, progress)?;
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
    for mut part in open_parts(config, Access::ReadWrite, progress)? {
        erase(&mut part).map_err(|error| from_disk(&error))?;
    }
    Ok(())
}

/// Erases whatever copies a part has, wherever its first copy says that the second one is.
fn erase(disk: &mut dyn Disk) -> Result<(), crate::disk::DiskError> {
    let zeroes = AlignedBuffer::zeroed(FRAME_LEN);
    let [first, _] = read_copies(disk)?;
    let mut places = superblock_places(disk.size()).to_vec();
    if let Ok(sb) = first {
        places.extend(superblock_places(sb.part_size.min(disk.size())));
    }
    places.sort_unstable();
    places.dedup();
    let size = disk.size();
    for place in places.into_iter().filter(|place| place.0 + FRAME <= size) {
        disk.write(place, &zeroes)?;
    }
    disk.flush()
}
