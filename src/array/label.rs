//! `ujournal label`: writes a new array, after looking at everything that it would overwrite.
//!
//! 1. Everything is opened, fenced and looked at. Whatever is wrong ends it here, and nothing has changed.
//! 2. The margins of every part are filled with zeroes and flushed: whatever the part carried, an array or a
//!    filesystem, is gone before anything else of it is touched. Half of it would still be believed.
//! 3. The ring of a journal file is filled with zeroes: unwritten extents would make every record slow.
//! 4. The superblocks go from blank to `forming` to `ready` ([`crate::journal::assemble::label`]).

use super::device::check_none_left;
use super::open::open_parts;
use super::{from_disk, from_part};
use crate::config::quantity::{size_rough, size_told};
use crate::config::{Config, Journal};
use crate::control::progress::{Progress, ProgressSink, Stage};
use crate::disk::Disk;
use crate::disk::fill::{fill_with_zeroes, write_zeroes};
use crate::disk::identity::{DeviceNumber, Identity, Kind};
use crate::disk::part::{Access, Part};
use crate::disk::probe::probe;
use crate::journal::assemble::{Label, LabelError, read_copies};
use crate::journal::geometry::{
    Geometry, Placement, Shape, ShapeError, journal_size_min, ring_size_min,
};
use crate::journal::superblock::{Cleanliness, Phase, Superblock, SuperblockError};
use crate::journal::{ArrayUuid, MARGIN};
use crate::outcome::{Failure, sentence};
use crate::units::{Epoch, KIB, Offset};
use std::collections::BTreeMap;

/// Whether what a part carries may be overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Force {
    /// Only nothing, or an interrupted label of the same array.
    No,
    /// Anything.
    Yes,
}

/// What was labelled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Labelled {
    /// The array's name.
    pub name: String,
    /// Its identity.
    pub uuid: ArrayUuid,
    /// Bytes of the device that it will expose.
    pub size: u64,
    /// Bytes of the ring.
    pub ring: u64,
    /// What else the administrator should know.
    pub notes: Vec<String>,
}

/// Labels the array that `config` describes.
///
/// # Errors
/// If a part is not there, too small, in use, or carries something and `force` does not allow it; and,
/// whatever `force` says, if it carries an array whose device is still there.
pub fn label(config: &Config, force: Force, progress: &ProgressSink) -> Result<Labelled, Failure> {
    let mut parts = open_parts(config, Access::ReadWrite, progress)?;
    let shape = shape_of(config, &parts)?;
    let geometry = Geometry::new(shape).map_err(|error| too_small(config, &error, &parts))?;
    let least = ring_size_min(config.device.max_io);
    assert!(
        geometry.ring.size() >= least,
        "the size of the journal was checked"
    );
    check_blocks(config, &parts)?;
    let labels = readable_labels(&mut parts)?;
    check_none_left((&config.file, config.name.as_str()), &labels)?;
    let interrupted = interrupted_labels(config, &labels);
    for part in &mut parts {
        check_blank(config, part, force, &interrupted)?;
    }
    check_space(&parts, &geometry)?;
    let notes = sparse_members(config, &parts);
    clear_margins(&mut parts)?;
    fill_journal_file(&mut parts, &geometry, progress)?;

    let uuid = ArrayUuid(*uuid::Uuid::new_v4().as_bytes());
    let wanted = Label {
        uuid,
        name: config.name.as_str().to_owned(),
        shape,
        block_size: config.device.block_size.bytes(),
    };
    let disks = parts
        .into_iter()
        .map(|part| Box::new(part) as Box<dyn Disk>)
        .collect();
    crate::journal::assemble::label(disks, &wanted).map_err(|error| match error {
        LabelError::Shape(error) => Failure::refused(sentence(&error)),
        LabelError::Disk(error) => from_disk(&error),
    })?;
    Ok(Labelled {
        name: wanted.name,
        uuid,
        size: geometry.data.size(),
        ring: geometry.ring.size(),
        notes,
    })
}

fn shape_of(config: &Config, parts: &[Part]) -> Result<Shape, Failure> {
    let members = config.data.members.len();
    let member_size = parts[..members]
        .iter()
        .map(Disk::size)
        .min()
        .expect("an array has a member");
    let (placement, journal_size) = match &config.journal {
        Journal::Attached { size, placement } => (placement.layout(), *size),
        Journal::Detached { size, .. } => {
            let disk = parts[members].size();
            let size = size.unwrap_or(disk);
            if size > disk {
                return Err(Failure::refused(format!(
                    "{}: has {}, but journal.size is {}: lower it, or leave it out to use all",
                    parts[members].path().display(),
                    size_told(disk),
                    size_told(size)
                )));
            }
            let least = journal_size_min(Placement::Detached, 1, 0, config.device.max_io);
            if size < least {
                return Err(Failure::refused(format!(
                    "{}: has {}, but a journal for requests of {} needs at least {}: give it a larger disk, or lower \
                     device.max_io",
                    parts[members].path().display(),
                    size_told(size),
                    size_told(config.device.max_io),
                    size_told(least)
                )));
            }
            (Placement::Detached, size)
        }
    };
    let members = u8::try_from(members).expect("at most 32 members");
    Ok(Shape {
        members,
        chunk: config.data.chunk,
        member_size,
        placement,
        journal_size,
    })
}

/// The file alone has shown that an attached journal is large enough: what is left is a member that is not.
fn too_small(config: &Config, error: &ShapeError, parts: &[Part]) -> Failure {
    match error {
        ShapeError::MemberTooSmall { found, needed } => {
            let smallest = parts
                .iter()
                .find(|part| part.size() == *found)
                .expect("the shape was computed from it");
            let because = match &config.journal {
                Journal::Attached { size, .. } => {
                    format!(" because of journal.size, which is {}", size_told(*size))
                }
                Journal::Detached { .. } => String::new(),
            };
            Failure::refused(format!(
                "{}: has {}, each member of this array needs at least {}{because}",
                smallest.path().display(),
                size_told(*found),
                size_told(*needed)
            ))
        }
        ShapeError::JournalTooSmall { .. } => Failure::refused(sentence(error)),
    }
}

/// A member must be able to write every block of the device; the journal is written in frames.
fn check_blocks(config: &Config, parts: &[Part]) -> Result<(), Failure> {
    let block = u64::from(config.device.block_size.bytes());
    for part in &parts[..config.data.members.len()] {
        let found = part.limits().block_size;
        if found > block {
            return Err(Failure::refused(format!(
                "{}: its blocks have {found} bytes, but device.block_size is {block}: set it to {found}",
                part.path().display()
            )));
        }
    }
    Ok(())
}

/// Every copy of a label that the parts carry, but for those that are damaged.
pub(super) fn readable_labels(parts: &mut [Part]) -> Result<Vec<Superblock>, Failure> {
    let mut labels = Vec::new();
    for part in parts {
        let copies = read_copies(part).map_err(|error| from_disk(&error))?;
        labels.extend(copies.into_iter().flatten());
    }
    Ok(labels)
}

/// The labels of this name that did not come to their end. Its last step makes one part after the other
/// ready: those that it reached say nothing of the interruption, but the others do.
fn interrupted_labels(config: &Config, labels: &[Superblock]) -> Vec<ArrayUuid> {
    labels
        .iter()
        .filter(|sb| sb.phase == Phase::Forming && sb.name == config.name.as_str())
        .map(|sb| sb.uuid)
        .collect()
}

/// Refuses a part that carries something, unless that may be overwritten.
fn check_blank(
    config: &Config,
    part: &mut Part,
    force: Force,
    interrupted: &[ArrayUuid],
) -> Result<(), Failure> {
    let path = part.path().display().to_string();
    let copies = read_copies(part).map_err(|error| from_disk(&error))?;
    for copy in &copies {
        if force == Force::No {
            check_copy(config, &path, copy, interrupted)?;
        }
    }
    let found = probe(part).map_err(|error| from_disk(&error))?;
    match found.first() {
        Some(found) if force == Force::No => Err(Failure::refused(format!(
            "{path}: carries {found}; label --force overwrites it",
        ))),
        Some(_) | None => Ok(()),
    }
}

/// Refuses whatever has our magic. What cannot be read of an array may still be mended, and its journal
/// may be needed.
fn check_copy(
    config: &Config,
    path: &str,
    copy: &Result<Superblock, SuperblockError>,
    interrupted: &[ArrayUuid],
) -> Result<(), Failure> {
    match copy {
        Ok(sb) => check_superblock(config, path, sb, interrupted),
        Err(SuperblockError::Absent) => Ok(()),
        Err(SuperblockError::Version { .. } | SuperblockError::Incompatible(_)) => {
            Err(Failure::refused(format!(
                "{path}: carries an array of a newer version of ujournal; label --force overwrites it"
            )))
        }
        Err(damage @ (SuperblockError::Checksum { .. } | SuperblockError::Field { .. })) => {
            Err(Failure::refused(format!(
                "{path}: carries a ujournal array whose label is damaged ({}); label --force overwrites it",
                sentence(damage)
            )))
        }
    }
}

fn check_superblock(
    config: &Config,
    path: &str,
    sb: &Superblock,
    interrupted: &[ArrayUuid],
) -> Result<(), Failure> {
    // An array that never had a life holds nothing.
    if interrupted.contains(&sb.uuid) && sb.epoch == Epoch(0) {
        return Ok(());
    }
    let state = match (sb.phase, sb.cleanliness) {
        (Phase::Forming, _) => "whose label was interrupted",
        (Phase::Ready, Cleanliness::Clean) => "which was stopped cleanly",
        (Phase::Ready, Cleanliness::Dirty) => {
            "which was NOT stopped cleanly: its journal may be needed"
        }
    };
    // Who labels an array a second time mostly means to start it.
    let to_use_it = if sb.phase == Phase::Ready && sb.name == config.name.as_str() {
        format!("; to use it: ujournal start {}", config.file.display())
    } else {
        String::new()
    };
    Err(Failure::refused(format!(
        "{path}: is {} of the ujournal array {} ({}), {state}{to_use_it}; label --force overwrites it",
        sb.role, sb.name, sb.uuid
    )))
}

/// What label writes to a part beside the ring: its margins and the anchors, with room to spare.
const BESIDE_THE_RING: u64 = 2 * MARGIN + 64 * KIB;

/// Refuses journal files that their filesystem has no room for, before anything is written.
fn check_space(parts: &[Part], geometry: &Geometry) -> Result<(), Failure> {
    // By filesystem: the first part there, what it has free, and what all parts there need.
    let mut needs: BTreeMap<DeviceNumber, (&Part, u64, u64)> = BTreeMap::new();
    for run in geometry.ring.runs(0, geometry.ring.size()) {
        let part = &parts[run.part.index()];
        let unallocated = part.unallocated().map_err(|error| from_part(&error))?;
        let needed = (run.len + BESIDE_THE_RING).min(unallocated.unwrap_or(0));
        if let (Identity::File { filesystem, .. }, Some(free)) =
            (part.identity(), part.free_space())
        {
            needs.entry(filesystem).or_insert((part, free, 0)).2 += needed;
        }
    }
    for (part, free, needed) in needs.into_values() {
        if free < needed {
            return Err(Failure::refused(format!(
                "{}: the journal needs {}, and the filesystem that holds it has {} free: make room, or lower \
                 journal.size",
                part.path().display(),
                size_rough(needed),
                size_rough(free)
            )));
        }
    }
    Ok(())
}

/// A word about each member that is a file with holes.
fn sparse_members(config: &Config, parts: &[Part]) -> Vec<String> {
    let members = &parts[..config.data.members.len()];
    let sparse = members
        .iter()
        .filter_map(|part| Some((part, part.unallocated().ok()??)));
    sparse
        .map(|(part, missing)| {
            format!(
                "{path}: is a sparse file, {} of it have no space yet: allocate it with fallocate -l {} {path}, or it \
                 can run out of space later",
                size_rough(missing),
                part.size(),
                path = part.path().display(),
            )
        })
        .collect()
}

/// Writes zeroes over both ends of every part, where arrays, filesystems and partition tables say that they
/// are there. No data of the new array comes to lie in them.
fn clear_margins(parts: &mut [Part]) -> Result<(), Failure> {
    for part in parts {
        let end = Offset(part.size());
        for margin in [Offset(0)..Offset(MARGIN), Offset(end.0 - MARGIN)..end] {
            write_zeroes(part, margin, &mut |_| {}).map_err(|error| from_disk(&error))?;
        }
        part.flush().map_err(|error| from_disk(&error))?;
    }
    Ok(())
}

/// Writes zeroes over the ring where it lies in files. It also finds out whether there is space for it.
fn fill_journal_file(
    parts: &mut [Part],
    geometry: &Geometry,
    progress: &ProgressSink,
) -> Result<(), Failure> {
    let runs: Vec<_> = geometry.ring.runs(0, geometry.ring.size()).collect();
    let total: u64 = runs.iter().map(|run| run.len).sum();
    let mut before = 0;
    for run in runs {
        let part = &mut parts[run.part.index()];
        if part.kind() == Kind::File {
            let name = part.path().display().to_string();
            let range = run.offset..Offset(run.offset.0 + run.len);
            fill_with_zeroes(part, range, &mut |step| {
                let report = Progress::new(Stage::Zero, before + step.done, total);
                progress.report(report.of_part(name.clone()));
            })
            .map_err(|error| from_disk(&error))?;
        }
        before += run.len;
    }
    Ok(())
}
