//! `ujournal clear`: takes the labels off.

use super::device::check_none_left;
use super::from_disk;
use super::label::Force;
use super::open::{missing, open, open_at, paths};
use crate::config::Config;
use crate::control::progress::ProgressSink;
use crate::disk::buffer::AlignedBuffer;
use crate::disk::part::{Access, Part};
use crate::disk::{Disk, DiskError};
use crate::journal::FRAME_LEN;
use crate::journal::assemble::read_copies;
use crate::journal::geometry::superblock_places;
use crate::journal::superblock::{Superblock, SuperblockError};
use crate::outcome::{Failure, sentence};
use crate::units::Offset;
use std::path::Path;

/// Makes the parts of an array ordinary disks again. Their data stays where it is.
///
/// With `force` it is done to whatever part of the array is there, dirty or not. Other disks among those
/// that `config` names are none of our business and stay as they are.
///
/// # Errors
/// If the array is dirty, in use, or not whole, or its device is still there; with `force` if it is in use
/// or its device is there, and also, after the work is done, if `config` names something that could not be
/// cleared.
pub fn clear(config: &Config, force: Force, progress: &ProgressSink) -> Result<(), Failure> {
    match force {
        Force::No => clear_whole(config, progress),
        Force::Yes => clear_what_is_there(config, progress),
    }
}

fn described(config: &Config) -> (&Path, &str) {
    (&config.file, config.name.as_str())
}

fn clear_whole(config: &Config, progress: &ProgressSink) -> Result<(), Failure> {
    let mut opened = open(config, Access::ReadWrite, progress)?;
    check_none_left(described(config), &opened.set.superblocks)?;
    if !opened.set.is_clean() {
        return Err(Failure::refused(format!(
            "array {} was not stopped cleanly and its journal is needed: start it and stop it, or use clear --force \
             and lose what the journal holds",
            config.name
        )));
    }
    opened
        .set
        .erase_superblocks()
        .map_err(|error| from_disk(&error))
}

fn clear_what_is_there(config: &Config, progress: &ProgressSink) -> Result<(), Failure> {
    let (mut there, mut left) = (Vec::new(), Vec::new());
    for path in paths(config) {
        match missing(path) {
            None => there.push(path),
            Some(error) => left.push(error.to_string()),
        }
    }
    // All are looked at before the first is changed.
    let mut ours: Vec<(Part, Labels)> = Vec::new();
    for mut part in open_at(&there, Access::ReadWrite, progress)? {
        match labels_of(config, &mut part) {
            Ok(labels) => ours.push((part, labels)),
            Err(why_not) => left.push(why_not),
        }
    }
    check_one_array(config, &ours)?;
    if ours.is_empty() {
        return Err(Failure::refused(left.join("; ")));
    }
    let labels = ours.iter().flat_map(|(_, labels)| &labels.readable);
    check_none_left(described(config), labels)?;
    let all = ours.len() + left.len();
    let mut cleared = 0;
    for (part, labels) in &mut ours {
        match erase(part, &labels.places) {
            Ok(()) => cleared += 1,
            Err(error) => left.push(sentence(&error)),
        }
    }
    if left.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{}: labels taken off {cleared} of {all} parts; not off the others: {}",
        config.name,
        left.join("; ")
    )))
}

/// What a part carries of the array.
struct Labels {
    /// Those that can be read.
    readable: Vec<Superblock>,
    /// Where all of them are.
    places: Vec<Offset>,
}

/// Where a part carries a superblock, whole or damaged, of an array with the name that `config` says; or
/// why it is none of that array.
fn labels_of(config: &Config, part: &mut Part) -> Result<Labels, String> {
    let path = part.path().display().to_string();
    let size = part.size();
    let copies = read_copies(part).map_err(|error| sentence(&error))?;
    if let [Err(SuperblockError::Absent), Err(SuperblockError::Absent)] = copies {
        return Err(format!("{path}: carries no ujournal label"));
    }
    // A part that has grown has its second copy where its end was.
    let end = copies[0]
        .as_ref()
        .map_or(size, |first| first.part_size.min(size));
    let mut labels = Labels {
        readable: Vec::new(),
        places: Vec::new(),
    };
    for (copy, place) in copies.into_iter().zip(superblock_places(end)) {
        match copy {
            Ok(sb) if sb.name != config.name.as_str() => return Err(foreign(config, &path, &sb)),
            Ok(sb) => labels.readable.push(sb),
            Err(SuperblockError::Absent) => continue,
            Err(_) => {}
        }
        labels.places.push(place);
    }
    Ok(labels)
}

fn foreign(config: &Config, path: &str, sb: &Superblock) -> String {
    format!(
        "{path}: is {} of the ujournal array {} ({}), not of {}",
        sb.role, sb.name, sb.uuid, config.name
    )
}

/// Two arrays of one name are not taken for one.
fn check_one_array(config: &Config, parts: &[(Part, Labels)]) -> Result<(), Failure> {
    let mut known = parts
        .iter()
        .flat_map(|(part, labels)| labels.readable.iter().map(|sb| (part.path(), sb.uuid)));
    let Some((first, uuid)) = known.next() else {
        return Ok(());
    };
    match known.find(|(_, other)| *other != uuid) {
        None => Ok(()),
        Some((path, other)) => Err(Failure::refused(format!(
            "{} and {} are of two arrays that are both called {} ({uuid} and {other}): list the parts of one alone",
            first.display(),
            path.display(),
            config.name
        ))),
    }
}

fn erase(disk: &mut dyn Disk, labels: &[Offset]) -> Result<(), DiskError> {
    let zeroes = AlignedBuffer::zeroed(FRAME_LEN);
    for place in labels {
        disk.write(*place, &zeroes)?;
    }
    disk.flush()
}
