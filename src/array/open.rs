//! The parts of a configuration: found, told apart, fenced, opened, and put in order.

use super::{from_assemble, from_part};
use crate::config::quantity::size_told;
use crate::config::{Config, Journal};
use crate::control::progress::{Progress, ProgressSink, Stage};
use crate::disk::Disk;
use crate::disk::alias::{self, Place};
use crate::disk::error::PartError;
use crate::disk::identity::{Kind, Located};
use crate::disk::limits::PartLimits;
use crate::disk::lock;
use crate::disk::part::{Access, Part};
use crate::journal::assemble::{self, AssembleError, Mixed, Set, assemble};
use crate::journal::geometry::Placement;
use crate::journal::superblock::{Role, SuperblockError};
use crate::kernel::Kernel;
use crate::outcome::{Failure, sentence};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// An array's parts, open and fenced.
#[derive(Debug)]
pub struct Opened {
    /// The parts in order, with what their superblocks say.
    pub set: Set,
    /// The same parts' descriptors, for the ring. They share the lock.
    pub files: Vec<OwnedFd>,
    /// What each part can do.
    pub limits: Vec<PartLimits>,
    /// Where each was found.
    pub paths: Vec<PathBuf>,
    /// Which of the members lie on a disk that a detached journal lies on as well.
    pub beside_journal: Vec<bool>,
}

/// The paths of a configuration: the members, then a detached journal.
pub fn paths(config: &Config) -> Vec<&Path> {
    let members = config.data.members.iter().map(PathBuf::as_path);
    members.chain(config.journal_device()).collect()
}

/// Finds every part, and refuses if two of them are, or overlap, the same thing.
///
/// # Errors
/// If one is missing, or no part at all, or shared.
pub fn locate(config: &Config) -> Result<Vec<Located>, Failure> {
    locate_at(&paths(config))
}

fn locate_at(paths: &[&Path]) -> Result<Vec<Located>, Failure> {
    let located = paths
        .iter()
        .map(|path| Located::find(path).map_err(|error| from_part(&error)))
        .collect::<Result<Vec<_>, Failure>>()?;
    let places: Vec<_> = located.iter().map(Place::whole).collect();
    alias::check(&Kernel::running(), &places)
        .map_err(|overlap| Failure::refused(sentence(&overlap)))?;
    Ok(located)
}

/// Waits, for no longer than `wait`, until every part of `config` is there.
///
/// # Errors
/// If one still is not.
pub fn wait_for_parts(
    config: &Config,
    wait: Duration,
    progress: &ProgressSink,
) -> Result<(), Failure> {
    let began = Instant::now();
    loop {
        let missing = paths(config)
            .into_iter()
            .find_map(|path| missing(path).map(|error| (path, error)));
        let Some((path, error)) = missing else {
            return Ok(());
        };
        let waited = began.elapsed();
        if waited >= wait {
            return Err(from_part(&error));
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let report = Progress::new(Stage::Wait, millis(waited), millis(wait));
        progress.report(report.of_part(path.display().to_string()));
        std::thread::sleep(Duration::from_millis(100).min(wait.saturating_sub(waited)));
    }
}

/// Why a part is not there yet, if it is not. Whatever else is wrong with it, waiting does not help.
pub(super) fn missing(path: &Path) -> Option<PartError> {
    let there = Located::find(path).and_then(|located| match located.identity.kind() {
        Kind::File => Ok(()),
        // The node of a device can be there before its medium.
        Kind::BlockDevice => Part::open_unfenced(path).map(drop),
    });
    there
        .err()
        .filter(|error| matches!(error, PartError::Missing { .. }))
}

/// Opens every part for `access`. A dead daemon's I/O in flight is waited for.
///
/// # Errors
/// If one cannot be opened, or somebody else has it.
pub fn open_parts(
    config: &Config,
    access: Access,
    progress: &ProgressSink,
) -> Result<Vec<Part>, Failure> {
    open_at(&paths(config), access, progress)
}

/// The same for some of the parts.
pub(super) fn open_at(
    paths: &[&Path],
    access: Access,
    progress: &ProgressSink,
) -> Result<Vec<Part>, Failure> {
    locate_at(paths)?;
    let mut report = |waiting: lock::Waiting<'_>| {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let step = Progress::new(
            Stage::Wait,
            millis(waiting.waited),
            millis(waiting.patience),
        );
        progress.report(step.of_part(waiting.path.display().to_string()));
    };
    paths
        .iter()
        .map(|path| {
            Part::open_patiently(path, access, lock::PATIENCE, &mut report)
                .map_err(|e| from_part(&e))
        })
        .collect()
}

/// Opens an array and puts its parts in order.
///
/// # Errors
/// If a part is missing or in use, the parts do not belong together, or they are not the array that
/// `config` describes.
pub fn open(config: &Config, access: Access, progress: &ProgressSink) -> Result<Opened, Failure> {
    let parts = open_parts(config, access, progress)?;
    let mut by_name = Vec::with_capacity(parts.len());
    for part in &parts {
        let file = part.as_fd().try_clone_to_owned().map_err(|error| {
            Failure::failed(format!(
                "{}: cannot duplicate its descriptor: {error}",
                part.path().display()
            ))
        })?;
        by_name.push((
            part.name(),
            Some(file),
            *part.limits(),
            part.path().to_owned(),
            part.identity(),
        ));
    }
    let disks = parts
        .into_iter()
        .map(|part| Box::new(part) as Box<dyn Disk>)
        .collect();
    let set = assemble(disks).map_err(|error| not_an_array(config, &error))?;
    check_agrees(config, &set)?;

    let (mut files, mut limits, mut paths) = (Vec::new(), Vec::new(), Vec::new());
    let mut disks_below = Vec::new();
    for disk in &set.disks {
        let name = disk.name();
        let entry = by_name
            .iter_mut()
            .find(|(other, file, ..)| *other == name && file.is_some());
        let (_, file, limit, path, identity) =
            entry.expect("every disk of the set is one of the parts");
        files.extend(file.take());
        limits.push(*limit);
        paths.push(path.clone());
        disks_below.push(Kernel::running().disks_below(*identity));
    }
    let journal = &disks_below[set.geometry.journal_part().index()];
    let members = set
        .geometry
        .members()
        .map(|part| &disks_below[part.index()]);
    let beside_journal = members
        .map(|member| !set.geometry.is_attached() && !member.is_disjoint(journal))
        .collect();
    for (index, limit) in limits
        .iter()
        .enumerate()
        .take(usize::from(set.geometry.shape.members))
    {
        let block = u64::from(set.superblocks[index].block_size);
        if limit.block_size > block {
            return Err(Failure::refused(format!(
                "{}: its blocks have {} bytes, the array was labelled with {block}",
                paths[index].display(),
                limit.block_size
            )));
        }
    }
    Ok(Opened {
        set,
        files,
        limits,
        paths,
        beside_journal,
    })
}

/// Why the parts of `config` are not its array: where a slip in the file is the likeliest cause, in its
/// terms.
fn not_an_array(config: &Config, error: &AssembleError) -> Failure {
    let (file, name) = (config.file.display(), &config.name);
    Failure::refused(match error {
        AssembleError::Part(assemble::PartError::Superblock {
            part,
            problem: SuperblockError::Absent,
        }) => {
            let key = key_of(config, part);
            format!(
                "{part}: carries no ujournal label, expected a part of array {name}; check {key}"
            )
        }
        AssembleError::Mixed(mixed) => mixed_up(config, mixed),
        AssembleError::Missing {
            role: Role::Journal,
            name,
            ..
        } if config.journal_device().is_none() => {
            format!("{file} names no journal.device, but {name} was labelled with one")
        }
        AssembleError::Missing {
            role,
            name,
            members,
        } => {
            let listed = match config.data.members.len() {
                1 => "1 member".to_owned(),
                count => format!("{count} members"),
            };
            format!("{file} lists {listed}, array {name} has {members}: {role} is not among them")
        }
        AssembleError::Shrunk {
            part,
            found,
            expected,
        } => format!(
            "{part}: has {}, it had {} when it was labelled",
            size_told(*found),
            size_told(*expected)
        ),
        AssembleError::Part(_)
        | AssembleError::Doubled { .. }
        | AssembleError::Disagree { .. }
        | AssembleError::Forming { .. }
        | AssembleError::JournalStale { .. }
        | AssembleError::MemberStale { .. }
        | AssembleError::MemberNotStopped { .. }
        | AssembleError::ReadOnly { .. }
        | AssembleError::Shape(_) => return from_assemble(error),
    })
}

/// Parts of two arrays: which of them the file means, if that can be told.
fn mixed_up(config: &Config, mixed: &Mixed) -> String {
    let Mixed {
        a,
        a_uuid,
        a_name,
        b,
        b_uuid,
        b_name,
    } = mixed;
    let (file, name) = (config.file.display(), config.name.as_str());
    let correct = |stranger| format!("correct {}", key_of(config, stranger));
    let meant = match (a_name == name, b_name == name) {
        (true, false) => format!("{file} means {name}: {}", correct(b)),
        (false, true) => format!("{file} means {name}: {}", correct(a)),
        (true, true) => format!("{file} cannot mean both: {}", correct(b)),
        (false, false) => format!("{file} means {name}, which is neither: correct data.members"),
    };
    format!("{a} belongs to array {a_name} ({a_uuid}), {b} to array {b_name} ({b_uuid}); {meant}")
}

/// The key of the file that names a part.
fn key_of(config: &Config, part: &str) -> &'static str {
    let journal = config.journal_device();
    if journal.is_some_and(|path| path.display().to_string() == part) {
        "journal.device"
    } else {
        "data.members"
    }
}

/// Refuses if a key that was fixed at label time says something else now.
fn check_agrees(config: &Config, set: &Set) -> Result<(), Failure> {
    let sb = set.journal();
    let shape = sb.shape;
    let differs = |key: &str, file: &dyn std::fmt::Display, disks: &dyn std::fmt::Display| {
        Err(Failure::refused(format!(
            "{}: {key} is {file}, labelled with {disks}; it is fixed at label time, set it back",
            config.file.display()
        )))
    };
    if config.name.as_str() != sb.name {
        return differs("name", &config.name, &sb.name);
    }
    if config.data.members.len() != usize::from(shape.members) {
        return differs(
            "the number of data.members",
            &config.data.members.len(),
            &shape.members,
        );
    }
    if config.data.chunk != shape.chunk {
        let [file, disks] = [config.data.chunk, shape.chunk].map(size_told);
        return differs("data.chunk", &file, &disks);
    }
    if config.device.block_size.bytes() != sb.block_size {
        return differs(
            "device.block_size",
            &config.device.block_size.bytes(),
            &sb.block_size,
        );
    }
    let (placement, size) = match &config.journal {
        Journal::Detached { size, .. } => (Placement::Detached, *size),
        Journal::Attached { size, placement } => (placement.layout(), Some(*size)),
    };
    if placement != shape.placement {
        return differs("journal.placement", &placement, &shape.placement);
    }
    match size {
        Some(size) if size != shape.journal_size => differs(
            "journal.size",
            &size_told(size),
            &size_told(shape.journal_size),
        ),
        _ => Ok(()),
    }
}
