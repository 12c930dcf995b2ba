//! `ujournal check` and `ujournal dump`: looking without changing.
//!
//! `check` does what a start would do up to the first write, and says what it found. `dump` shows what one
//! part carries: its superblocks and, where the whole ring lies on it, every record in the ring.

use super::open::{locate, open};
use super::{from_disk, from_part, scan_reports};
use crate::config::Config;
use crate::config::quantity::size_told;
use crate::control::progress::ProgressSink;
use crate::control::status::{Recovery, StartKind};
use crate::disk::identity::Located;
use crate::disk::part::{Access, Part, check_writable};
use crate::disk::{Disk, DiskError, PartError};
use crate::engine::recovery;
use crate::journal::anchor::{Anchor, Closed};
use crate::journal::assemble::{Set, read_copies, read_superblock};
use crate::journal::geometry::{Geometry, anchor_span};
use crate::journal::record::{EntryOp, Expected, Kind, Record};
use crate::journal::scan::{AnchorProblem, Scope, every_record, read_anchors};
use crate::journal::superblock::{Cleanliness, Health, Phase, Role, Superblock, SuperblockError};
use crate::outcome::{Exit, Failure, sentence};
use crate::ublk::State;
use crate::units::FRAME;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What `check` found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CheckReport {
    /// The array's name.
    pub array: String,
    /// What a start would do.
    pub verdict: Verdict,
    /// Why, in one sentence.
    pub because: String,
    /// What each part says.
    pub parts: Vec<CheckedPart>,
    /// What recovery would do, as far as it could be found out.
    pub recovery: Option<Recovery>,
    /// Whatever else an administrator should know: damaged blocks, lost marks, larger parts.
    pub findings: Vec<String>,
}

/// What a start would do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Serve.
    Serve,
    /// Refuse.
    Refuse,
    /// Refuse, for acknowledged data is damaged.
    Damage,
}

/// What one part says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CheckedPart {
    /// Where.
    pub path: PathBuf,
    /// `member 0`, `journal`, or what else it is.
    pub role: String,
    /// In words.
    pub state: String,
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Serve => "would start",
            Verdict::Refuse => "would be refused",
            Verdict::Damage => "is damaged",
        };
        writeln!(f, "{}: {verdict}: {}", self.array, self.because)?;
        for part in &self.parts {
            writeln!(
                f,
                "  {:<9} {}: {}",
                part.role,
                part.path.display(),
                part.state
            )?;
        }
        if let Some(recovery) = &self.recovery {
            writeln!(
                f,
                "  recovery  {}",
                crate::control::render::recovery(recovery)
            )?;
        }
        for finding in &self.findings {
            writeln!(f, "  note      {finding}")?;
        }
        Ok(())
    }
}

/// Finds out what a start would do. Reads only.
///
/// # Errors
/// If that cannot be found out: no permission, a disk that does not answer.
pub fn check(config: &Config, progress: &ProgressSink) -> Result<CheckReport, Failure> {
    let mut report = CheckReport {
        array: config.name.to_string(),
        verdict: Verdict::Serve,
        because: String::new(),
        parts: Vec::new(),
        recovery: None,
        findings: Vec::new(),
    };
    let refused = |mut report: CheckReport, failure: Failure| match failure.exit {
        Exit::Refused | Exit::Damaged => {
            report.verdict = if failure.exit == Exit::Damaged {
                Verdict::Damage
            } else {
                Verdict::Refuse
            };
            report.because = failure.message;
            Ok(report)
        }
        Exit::Done | Exit::Failed | Exit::Usage | Exit::Interrupted => Err(failure),
    };
    let located = match locate(config) {
        Ok(located) => located,
        Err(failure) => return refused(report, failure),
    };
    let mut opened = match open(config, Access::ReadOnly, progress) {
        Ok(opened) => opened,
        Err(failure) => return refused(report, failure),
    };
    for (sb, path) in opened.set.superblocks.iter().zip(&opened.paths) {
        let state = describe_superblock(sb);
        report.parts.push(CheckedPart {
            path: path.clone(),
            role: sb.role.to_string(),
            state,
        });
    }
    if let Some(failure) = not_writable(&located) {
        return refused(report, failure);
    }
    report.findings = findings(&mut opened.set).map_err(|error| from_disk(&error))?;
    let left = left_device(&opened.set);
    report.findings.extend(left.map(|id| {
        format!("/dev/ublkb{id} is still there from a daemon that ended: start takes it over")
    }));
    let began = Instant::now();
    match recovery::inspect(&mut opened.set, &mut scan_reports(progress)) {
        Ok(found) => {
            if !found.both_anchors {
                let part = opened.set.geometry.anchors.part;
                report.findings.push(format!(
                    "{}: one of the two anchors of the journal is unreadable, the other is used; start rewrites it",
                    opened.set.disks[part.index()].name()
                ));
            }
            report.because = if found.was_clean {
                "it was stopped cleanly, and there is nothing to recover".to_owned()
            } else {
                format!("recovery would keep everything up to seq {}", found.kept)
            };
            report.recovery = Some(Recovery {
                array: config.name.to_string(),
                epoch: found.epoch.0,
                kind: match (left, found.was_clean) {
                    (Some(_), _) => StartKind::Takeover,
                    (None, true) => StartKind::Clean,
                    (None, false) => StartKind::Recovery,
                },
                durable_seq: found.durable.to_string(),
                kept_seq: found.kept.to_string(),
                records_replayed: found.records,
                records_dropped: found.dropped,
                dropped_because: (found.dropped > 0).then(|| found.ended_by.to_string()),
                ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            });
            Ok(report)
        }
        Err(error) => refused(report, super::from_recovery(&error)),
    }
}

/// What a start would say of a part that takes no writes: it opens all for writing, and this did not.
fn not_writable(located: &[Located]) -> Option<Failure> {
    let error = located.iter().find_map(|part| check_writable(part).err());
    error.map(|error| from_part(&error))
}

fn describe_superblock(sb: &Superblock) -> String {
    let state = match sb.cleanliness {
        Cleanliness::Clean => "clean",
        Cleanliness::Dirty => "dirty",
    };
    format!("life {}, {state}, {}", sb.epoch, sb.health)
}

/// The number of the array's device, if a daemon that ended has left it. Without a driver, or without the
/// permission to ask it, there is none.
fn left_device(set: &Set) -> Option<u32> {
    let identity = set.journal().uuid.device_flags();
    let ours = crate::ublk::find(|of| of == identity).ok()?;
    let left = ours.into_iter().find(|found| found.state != State::Dead);
    left.map(|found| found.id)
}

/// What an administrator should know though it keeps nothing from starting.
fn findings(set: &mut Set) -> Result<Vec<String>, DiskError> {
    let mut findings = Vec::new();
    for disk in &mut set.disks {
        let lost = match read_copies(disk.as_mut())? {
            [Err(_), Ok(_)] => ("first", "second"),
            [Ok(_), Err(_)] => ("second", "first"),
            [Ok(_), Ok(_)] | [Err(_), Err(_)] => continue,
        };
        findings.push(format!(
            "{}: {} label unreadable, the {} is used; start rewrites it",
            disk.name(),
            lost.0,
            lost.1
        ));
    }
    if set.health() == Health::Failed {
        findings.push(
            "the array is in state FAILED: it would serve reads, and refuse writes until start --clear-error".to_owned(),
        );
    }
    let marks = set.journal().marks;
    if marks.acknowledged_writes_lost {
        findings.push("acknowledged writes were given up by an earlier recovery".to_owned());
    }
    if marks.journal_lost {
        findings.push("the journal was given up once while it was needed".to_owned());
    }
    for (disk, sb) in set.disks.iter().zip(&set.superblocks) {
        if disk.size() > sb.part_size {
            let more = disk.size() - sb.part_size;
            findings.push(format!(
                "{} has {} more than when it was labelled; they stay unused",
                disk.name(),
                size_told(more)
            ));
        }
    }
    Ok(findings)
}

/// The blocks that a record would have changed.
pub(super) fn affected(record: &Record) -> String {
    let ranges: Vec<String> = record
        .entries
        .iter()
        .map(|entry| format!("{}+{}", entry.lba, entry.sectors))
        .collect();
    format!("the damaged record holds sectors {}", ranges.join(", "))
}

/// No part is smaller: a label at each end.
const SIZE_MIN: u64 = 4 * FRAME;

/// In which form to show what is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Writes what a disk or file holds to `out`. Reads only, and does not disturb whoever uses it.
///
/// # Errors
/// If it carries nothing of ours, or cannot be read.
pub fn dump(path: &Path, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let mut part = Part::open_unfenced(path).map_err(|error: PartError| from_part(&error))?;
    if part.size() < SIZE_MIN {
        return Err(Failure::refused(format!(
            "{}: dump takes a disk, or a file that is a part of an array, and this file is too small for one{}",
            path.display(),
            if path
                .extension()
                .is_some_and(|extension| extension == "toml")
            {
                ": check takes the configuration"
            } else {
                ""
            }
        )));
    }
    let copies = read_copies(&mut part).map_err(|error| from_disk(&error))?;
    let sb = read_superblock(&mut part).map_err(|error| Failure::refused(sentence(&error)))?;
    let ring = RingDump::read(&sb, part);
    let written = match format {
        Format::Json => {
            let value = json!({
                "path": path,
                "superblocks": copies.each_ref().map(superblock_json),
                "ring": ring.as_ref().map(RingDump::json),
            });
            writeln!(out, "{value:#}")
        }
        Format::Text => dump_text(path, &copies, ring.as_ref(), out),
    };
    written.map_err(|error| Failure::failed(format!("cannot write the result: {error}")))
}

/// Everything in the ring, where all of it lies on one part.
struct RingDump {
    anchors: [Result<Anchor, AnchorProblem>; 2],
    records: Vec<(u64, Record, bool)>,
    ring_size: u64,
}

impl RingDump {
    fn read(sb: &Superblock, part: Part) -> Option<RingDump> {
        let geometry = Geometry::new(sb.shape).ok()?;
        let alone = geometry.ring.lanes().len() == 1;
        let here = match sb.role {
            Role::Journal => true,
            Role::Member(index) => geometry.journal_part().0 == index,
        };
        if !alone || !here {
            return None;
        }
        // Only the journal's part is looked at; the others are not here.
        let index = geometry.journal_part().index();
        let mut disks: Vec<Box<dyn Disk>> = Vec::new();
        for _ in 0..index {
            disks.push(Box::new(Nothing));
        }
        disks.push(Box::new(part));
        let ring_size = geometry.ring.size();
        let scope = Scope {
            geometry: &geometry,
            expected: Expected {
                uuid: sb.uuid,
                ring_size,
                device_sectors: geometry.sectors(),
            },
            epoch: sb.epoch,
            span: anchor_span(ring_size),
        };
        let anchors = read_anchors(&mut disks, &scope);
        let mut records = Vec::new();
        every_record(&mut disks, &scope, &mut |offset, record, whole| {
            records.push((offset, record, whole));
        });
        records.sort_by_key(|(_, record, _)| (record.header.epoch, record.header.number));
        Some(RingDump {
            anchors,
            records,
            ring_size,
        })
    }

    fn json(&self) -> Value {
        json!({
            "size": self.ring_size,
            "anchors": self.anchors.each_ref().map(|anchor| match anchor {
                Ok(anchor) => json!({
                    "generation": anchor.generation,
                    "epoch": anchor.epoch.0,
                    "tail_seq": anchor.tail.seq.to_string(),
                    "tail_offset": anchor.tail.offset,
                    "head_seq": anchor.head.seq.to_string(),
                    "head_offset": anchor.head.offset,
                    "durable_seq": anchor.durable.to_string(),
                    "replayed_through": anchor.replayed_through.to_string(),
                    "closed": anchor.closed == Closed::Yes,
                }),
                Err(problem) => json!({ "error": problem.to_string() }),
            }),
            "records": self.records.iter().map(|(offset, record, whole)| json!({
                "offset": offset,
                "kind": kind(record.header.kind),
                "epoch": record.header.epoch.0,
                "number": record.header.number,
                "prev_seq": record.header.prev_seq.to_string(),
                "last_seq": record.header.last_seq().to_string(),
                "tail_seq": record.header.tail.seq.to_string(),
                "durable_seq": record.header.durable.to_string(),
                "bytes": record.header.record_len(),
                "whole": whole,
                "entries": record.entries.iter().map(|entry| json!({
                    "op": op(entry.op),
                    "lba": entry.lba.0,
                    "sectors": entry.sectors,
                })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
        })
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Requests => "requests",
        Kind::Start => "start",
        Kind::Mark => "mark",
        Kind::Switch => "switch",
        Kind::SwitchLost => "switch-lost",
    }
}

fn op(op: EntryOp) -> &'static str {
    match op {
        EntryOp::Write => "write",
        EntryOp::ZeroesKept => "zeroes-kept",
        EntryOp::Zeroes => "zeroes",
        EntryOp::Discard => "discard",
    }
}

fn superblock_json(copy: &Result<Superblock, SuperblockError>) -> Value {
    match copy {
        Ok(sb) => json!({
            "uuid": sb.uuid.to_string(),
            "name": sb.name,
            "role": sb.role.to_string(),
            "members": sb.shape.members,
            "chunk": sb.shape.chunk,
            "placement": sb.shape.placement.to_string(),
            "journal_size": sb.shape.journal_size,
            "member_size": sb.shape.member_size,
            "part_size": sb.part_size,
            "block_size": sb.block_size,
            "forming": sb.phase == Phase::Forming,
            "epoch": sb.epoch.0,
            "members_at": sb.members_at.0,
            "clean": sb.cleanliness == Cleanliness::Clean,
            "state": sb.health.to_string(),
            "generation": sb.generation,
        }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}

fn dump_text(
    path: &Path,
    copies: &[Result<Superblock, SuperblockError>; 2],
    ring: Option<&RingDump>,
    out: &mut dyn Write,
) -> io::Result<()> {
    for (copy, name) in copies.iter().zip(["first", "second"]) {
        match copy {
            Err(error) => writeln!(out, "{}: {name} superblock: {error}", path.display())?,
            Ok(sb) => {
                writeln!(
                    out,
                    "{}: {name} superblock, generation {}",
                    path.display(),
                    sb.generation
                )?;
                writeln!(out, "  array       {} {}", sb.name, sb.uuid)?;
                writeln!(
                    out,
                    "  role        {} of {} members",
                    sb.role, sb.shape.members
                )?;
                writeln!(
                    out,
                    "  layout      chunk {}, journal {} of {} bytes, smallest member {} bytes",
                    sb.shape.chunk, sb.shape.placement, sb.shape.journal_size, sb.shape.member_size
                )?;
                writeln!(out, "  device      blocks of {}", sb.block_size)?;
                let forming = if sb.phase == Phase::Forming {
                    ", label interrupted"
                } else {
                    ""
                };
                writeln!(
                    out,
                    "  state       {}, members at {}{forming}",
                    describe_superblock(sb),
                    sb.members_at
                )?;
            }
        }
    }
    let Some(ring) = ring else {
        return writeln!(
            out,
            "the ring does not lie on this part alone: ujournal check CONFIG looks at all of it"
        );
    };
    for (anchor, name) in ring.anchors.iter().zip(["first", "second"]) {
        match anchor {
            Err(problem) => writeln!(out, "{name} anchor: {problem}")?,
            Ok(anchor) => writeln!(
                out,
                "{name} anchor: generation {}, life {}, tail {} at {}, head {} at {}, durable {}{}",
                anchor.generation,
                anchor.epoch,
                anchor.tail.seq,
                anchor.tail.offset,
                anchor.head.seq,
                anchor.head.offset,
                anchor.durable,
                if anchor.closed == Closed::Yes {
                    ", closed"
                } else {
                    ""
                }
            )?,
        }
    }
    writeln!(
        out,
        "{} records in a ring of {} bytes",
        ring.records.len(),
        ring.ring_size
    )?;
    for (offset, record, whole) in &ring.records {
        let header = &record.header;
        writeln!(
            out,
            "  {offset:>12} life {} record {} {}: after {}, to {}, tail {}, durable {}, {} bytes{}",
            header.epoch,
            header.number,
            kind(header.kind),
            header.prev_seq,
            header.last_seq(),
            header.tail.seq,
            header.durable,
            header.record_len(),
            if *whole { "" } else { ", PAYLOAD DAMAGED" }
        )?;
        for entry in &record.entries {
            writeln!(
                out,
                "               {} {}+{}",
                op(entry.op),
                entry.lba,
                entry.sectors
            )?;
        }
    }
    Ok(())
}

/// A part that is not here.
struct Nothing;

impl Nothing {
    fn refuse(op: crate::disk::DiskOp) -> DiskError {
        DiskError {
            part: "a part that is not looked at".to_owned(),
            op,
            offset: crate::units::Offset(0),
            len: 0,
            source: io::Error::from(io::ErrorKind::NotFound),
        }
    }
}

impl Disk for Nothing {
    fn size(&self) -> u64 {
        0
    }
    fn read(&mut self, _: crate::units::Offset, _: &mut [u8]) -> Result<(), DiskError> {
        Err(Nothing::refuse(crate::disk::DiskOp::Read))
    }
    fn write(&mut self, _: crate::units::Offset, _: &[u8]) -> Result<(), DiskError> {
        Err(Nothing::refuse(crate::disk::DiskOp::Write))
    }
    fn flush(&mut self) -> Result<(), DiskError> {
        Err(Nothing::refuse(crate::disk::DiskOp::Flush))
    }
    fn zero(&mut self, _: crate::units::Offset, _: u64) -> Result<(), DiskError> {
        Err(Nothing::refuse(crate::disk::DiskOp::Zero))
    }
    fn name(&self) -> String {
        "a part that is not looked at".to_owned()
    }
}
