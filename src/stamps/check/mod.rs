//! Whether a device holds what its log says that it must.
//!
//! The rules are those of the crash specification, section 8, without the device's own numbers:
//!
//! 1. *Integrity.* A sector holds a stamp of this run that belongs there, was submitted, and covers it; or
//!    what it held before the run.
//! 2. *Threshold.* T is the latest of: when a write that can be seen was submitted, when an acknowledged
//!    flush was submitted, when an acknowledged FUA write was. If only the server died and not the machine,
//!    T is the end of the log: everything acknowledged must be there.
//! 3. *Prefix and durability.* A write that was acknowledged before T is there, or a newer one.
//! 4. *Atomicity.* Of a write that can be seen in one sector, no other sector shows an older one.
//! 5. *FUA.* An acknowledged FUA write is itself there, or a newer one.
//!
//! A writer has one write at a time, so "newer" within a region is a greater counter, and one number for
//! each sector says it all: the oldest version that it may hold, and for which reason.

use super::log::{Durability, Event, Stretch};
use super::stamp::Content;
use super::{Counter, Seed, Writer};
use crate::units::{Lba, to_u64, to_usize};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// What died.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The server of the device. The machine lives, so all that was acknowledged is there.
    Acked,
    /// The machine, or its power: what was flushed is there, and of the rest a prefix.
    Flushed,
}

/// A log that does not make sense: our own mistake, or another file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("record {record} of the log: {what}")]
pub struct LogError {
    /// Which record, counted from 0.
    pub record: usize,
    /// What is wrong.
    pub what: &'static str,
}

/// One write of the log. Moments are numbers of records.
#[derive(Clone, Copy, Debug)]
struct Write {
    /// Relative to the stretch.
    first: u32,
    sectors: u32,
    durability: Durability,
    submitted: usize,
    acknowledged: Option<usize>,
}

impl Write {
    fn range(&self) -> std::ops::Range<usize> {
        let first = to_usize(u64::from(self.first));
        first..first + to_usize(u64::from(self.sectors))
    }

    fn covers(&self, sector: usize) -> bool {
        self.range().contains(&sector)
    }
}

/// A log, put in order.
#[derive(Clone, Debug)]
pub struct History {
    /// The run.
    pub seed: Seed,
    /// Where it wrote.
    pub stretch: Stretch,
    /// How many records there are.
    records: usize,
    /// For each writer its writes, in order: the first is number 1.
    writes: Vec<Vec<Write>>,
    flushes: Vec<(usize, Option<usize>)>,
    /// The longest time between two acknowledged writes.
    gap_max: Duration,
}

impl History {
    /// Of the events of a log.
    ///
    /// # Errors
    /// If they cannot be those of one run.
    pub fn new(events: &[(Event, Duration)]) -> Result<History, LogError> {
        let wrong = |record, what| LogError { record, what };
        let Some((
            Event::Begin {
                seed,
                stretch,
                writers,
            },
            began,
        )) = events.first().copied()
        else {
            return Err(wrong(0, "a run begins with its beginning"));
        };
        let mut history = History {
            seed,
            stretch,
            records: events.len(),
            writes: vec![Vec::new(); usize::from(writers)],
            flushes: Vec::new(),
            gap_max: Duration::ZERO,
        };
        let mut last = began;
        for (record, (event, time)) in events.iter().enumerate().skip(1) {
            history
                .take(record, *event)
                .map_err(|what| wrong(record, what))?;
            if matches!(event, Event::Acknowledged { .. }) {
                history.gap_max = history.gap_max.max(time.saturating_sub(last));
                last = *time;
            }
        }
        Ok(history)
    }

    fn take(&mut self, record: usize, event: Event) -> Result<(), &'static str> {
        match event {
            Event::Begin { .. } => return Err("a run begins once"),
            Event::Submitted {
                writer,
                counter,
                lba,
                sectors,
                durability,
            } => {
                let write = Write {
                    first: place(self.stretch, lba, sectors).ok_or("outside the stretch")?,
                    sectors,
                    durability,
                    submitted: record,
                    acknowledged: None,
                };
                let writes = self
                    .writes
                    .get_mut(writer.index())
                    .ok_or("no such writer")?;
                if writes
                    .last()
                    .is_some_and(|last| last.acknowledged.is_none())
                {
                    return Err("a writer has one write at a time");
                }
                writes.push(write);
                if to_u64(writes.len()) != counter.0 {
                    return Err("a writer counts its writes");
                }
            }
            Event::Acknowledged { writer, counter } => {
                let writes = self
                    .writes
                    .get_mut(writer.index())
                    .ok_or("no such writer")?;
                let count = to_u64(writes.len());
                let last = writes.last_mut().ok_or("nothing was submitted")?;
                if count != counter.0 || last.acknowledged.replace(record).is_some() {
                    return Err("only what is in flight is acknowledged");
                }
            }
            Event::FlushSubmitted(counter) => {
                self.flushes.push((record, None));
                if to_u64(self.flushes.len()) != counter.0 {
                    return Err("flushes are counted");
                }
            }
            Event::FlushAcknowledged(counter) => {
                let flush = counter
                    .0
                    .checked_sub(1)
                    .and_then(|index| self.flushes.get_mut(to_usize(index)));
                let (_, acknowledged) = flush.ok_or("no such flush")?;
                *acknowledged = Some(record);
            }
            Event::End => {}
        }
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = &Write> {
        self.writes.iter().flatten()
    }

    fn write(&self, seen: Seen) -> Option<&Write> {
        let index = seen.counter.0.checked_sub(1)?;
        let writes = self.writes.get(seen.writer.index())?;
        writes.get(usize::try_from(index).ok()?)
    }

    fn count(&self, wanted: impl Fn(&Write) -> bool) -> u64 {
        to_u64(self.all().filter(|write| wanted(write)).count())
    }
}

fn place(stretch: Stretch, lba: Lba, sectors: u32) -> Option<u32> {
    let first = u32::try_from(lba.0.checked_sub(stretch.first.0)?).ok()?;
    let end = first.checked_add(sectors)?;
    (sectors > 0 && end <= stretch.sectors).then_some(first)
}

/// A version of this run, in a sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    writer: Writer,
    counter: Counter,
}

/// Why a sector must hold at least some version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It was acknowledged, and the machine lived.
    Acknowledged,
    /// A flush that was acknowledged came after it.
    Flushed,
    /// It was an acknowledged FUA write.
    Fua,
    /// It came before something that can be seen, or that is durable for another reason.
    Prefix,
    /// Another sector shows it.
    Atomic,
}

/// Something that must not be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Violation {
    /// Neither a stamp that was submitted for this sector nor what it held before.
    Integrity {
        /// Where.
        lba: Lba,
        /// What is there.
        found: Content,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Something is missing.
    Lost {
        /// Where.
        lba: Lba,
        /// Whose.
        writer: Writer,
        /// The version that is there; 0 is what was there before the run.
        found: Counter,
        /// The oldest that may be.
        expected: Counter,
        /// Why.
        reason: Reason,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Integrity { lba, found, what } => {
                write!(f, "sector {lba}: {what}: found {found:?}")
            }
            Violation::Lost {
                lba,
                writer,
                found,
                expected,
                reason,
            } => write!(
                f,
                "sector {lba}: writer {}: found version {}, expected {} or newer ({reason:?})",
                writer.0, found.0, expected.0
            ),
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Writes in the log.
    pub submitted: u64,
    /// Those acknowledged.
    pub acknowledged: u64,
    /// Those of them with FUA.
    pub fua: u64,
    /// Flushes acknowledged.
    pub flushes: u64,
    /// Sectors looked at.
    pub sectors: u64,
    /// Those that hold a stamp of this run.
    pub stamped: u64,
    /// Those that had to hold one.
    pub required: u64,
    /// Writes that were in flight and can be seen.
    pub unacknowledged_seen: u64,
    /// Sectors whose newest acknowledged version is gone, which was allowed.
    pub lost_sectors: u64,
    /// Acknowledged writes of which, in some sector, neither they nor anything newer is there, which was
    /// allowed.
    pub lost_writes: u64,
    /// The longest time between two acknowledgements, in milliseconds.
    pub gap_max_ms: u64,
    /// Of which versions the sectors hold: two checks of one image agree on it.
    pub digest: u32,
    /// Sectors that break a rule.
    pub violations: u64,
    /// The first of them.
    #[serde(skip)]
    pub examples: Vec<Violation>,
}

/// As many examples as anybody wants to read.
const EXAMPLES_MAX: usize = 20;

impl Report {
    fn add(&mut self, violation: Violation) {
        self.violations += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(violation);
        }
    }
}

/// The oldest version that a sector may hold.
#[derive(Clone, Copy, Debug)]
struct Required {
    writer: Writer,
    counter: Counter,
    reason: Reason,
}

/// Compares what the sectors of the stretch hold with its history.
pub fn check(history: &History, sectors: &[Content], mode: Mode) -> Report {
    assert_eq!(
        to_u64(sectors.len()),
        u64::from(history.stretch.sectors),
        "all of the stretch was read"
    );
    let mut report = Report {
        submitted: history.count(|_| true),
        acknowledged: history.count(|write| write.acknowledged.is_some()),
        fua: history.count(is_forced),
        flushes: to_u64(
            history
                .flushes
                .iter()
                .filter(|(_, end)| end.is_some())
                .count(),
        ),
        sectors: to_u64(sectors.len()),
        gap_max_ms: u64::try_from(history.gap_max.as_millis()).unwrap_or(u64::MAX),
        ..Report::default()
    };
    let seen = integrity(history, sectors, &mut report);
    let newest_seen = newest_seen(history, &seen);
    let required = required(history, &newest_seen, mode);
    report.stamped = to_u64(seen.iter().flatten().count());
    report.required = to_u64(required.iter().flatten().count());
    report.digest = digest(&seen);

    for (sector, (seen, required)) in seen.iter().zip(&required).enumerate() {
        let Some(required) = required else { continue };
        let found = seen.map_or(Counter(0), |seen| seen.counter);
        if found < required.counter {
            report.add(Violation::Lost {
                lba: history.stretch.first.plus(to_u64(sector)),
                writer: required.writer,
                found,
                expected: required.counter,
                reason: required.reason,
            });
        }
    }
    count_losses(history, &seen, &newest_seen, &mut report);
    report
}

fn is_forced(write: &Write) -> bool {
    write.durability == Durability::Now && write.acknowledged.is_some()
}

/// Rule 1: what of this run each sector holds.
fn integrity(history: &History, sectors: &[Content], report: &mut Report) -> Vec<Option<Seen>> {
    let version = |(sector, content): (usize, &Content)| {
        let mut wrong = |what| {
            report.add(Violation::Integrity {
                lba: history.stretch.first.plus(to_u64(sector)),
                found: *content,
                what,
            });
            None
        };
        let stamp = match content {
            Content::Zeroes => return None,
            Content::Garbage => return wrong("neither a stamp nor zeroes"),
            Content::Elsewhere(..) => return wrong("a stamp of another sector"),
            Content::Stamp(stamp) => stamp,
        };
        // A stamp of an earlier run is what was there before.
        if stamp.seed != history.seed {
            return None;
        }
        let seen = Seen {
            writer: stamp.writer,
            counter: stamp.counter,
        };
        match history.write(seen) {
            None => wrong("a stamp that was never submitted"),
            Some(write) if !write.covers(sector) => wrong("a stamp of a write to other sectors"),
            Some(_) => Some(seen),
        }
    };
    sectors.iter().enumerate().map(version).collect()
}

/// The newest version of each writer that any sector shows; 0 if none does.
fn newest_seen(history: &History, seen: &[Option<Seen>]) -> Vec<Counter> {
    let mut newest = vec![Counter(0); history.writes.len()];
    for seen in seen.iter().flatten() {
        let newest = &mut newest[seen.writer.index()];
        *newest = seen.counter.max(*newest);
    }
    newest
}

/// Rules 2 to 5: what each sector must hold at least.
fn required(history: &History, newest_seen: &[Counter], mode: Mode) -> Vec<Option<Required>> {
    let flushed = history.flushes.iter().filter(|(_, end)| end.is_some());
    let flushed = flushed.map(|(submitted, _)| *submitted).max();
    let forced = history.all().filter(|write| is_forced(write));
    let forced = forced.map(|write| write.submitted).max();
    let visible = newest_seen
        .iter()
        .enumerate()
        .filter_map(|(index, counter)| {
            let writer =
                Writer(u16::try_from(index).expect("as many as the log counts in 16 bits"));
            let counter = *counter;
            history.write(Seen { writer, counter })
        });
    let visible = visible.map(|write| write.submitted).max();
    let threshold = match mode {
        Mode::Acked => Some(history.records),
        Mode::Flushed => visible.max(flushed).max(forced),
    };

    let mut required = vec![None; to_usize(u64::from(history.stretch.sectors))];
    for (writes, index) in history.writes.iter().zip(0_u16..) {
        let newest = newest_seen[usize::from(index)];
        for (write, counter) in writes.iter().zip(1_u64..) {
            let before = |moment| write.acknowledged < moment;
            let reason = match write.acknowledged {
                Some(_) if mode == Mode::Acked => Reason::Acknowledged,
                Some(_) if before(flushed) => Reason::Flushed,
                Some(_) if is_forced(write) => Reason::Fua,
                Some(_) if before(threshold) => Reason::Prefix,
                Some(_) | None if Counter(counter) == newest => Reason::Atomic,
                Some(_) | None => continue,
            };
            required[write.range()].fill(Some(Required {
                writer: Writer(index),
                counter: Counter(counter),
                reason,
            }));
        }
    }
    required
}

/// What is gone, whether that was allowed or not.
fn count_losses(
    history: &History,
    seen: &[Option<Seen>],
    newest_seen: &[Counter],
    report: &mut Report,
) {
    for (writes, newest) in history.writes.iter().zip(newest_seen) {
        let mut counted = vec![
            false;
            writes
                .iter()
                .map(|write| write.range().end)
                .max()
                .unwrap_or(0)
        ];
        // From the newest on: a sector counts for the newest acknowledged write that covers it.
        for (write, counter) in writes.iter().rev().zip((1..=to_u64(writes.len())).rev()) {
            if write.acknowledged.is_none() {
                report.unacknowledged_seen += u64::from(Counter(counter) == *newest);
                continue;
            }
            let is_gone =
                |sector: usize| seen[sector].is_none_or(|seen| seen.counter < Counter(counter));
            report.lost_writes += u64::from(write.range().any(is_gone));
            for sector in write.range() {
                let first_time = !std::mem::replace(&mut counted[sector], true);
                report.lost_sectors += u64::from(first_time && is_gone(sector));
            }
        }
    }
}

fn digest(seen: &[Option<Seen>]) -> u32 {
    seen.iter().fold(0, |digest, seen| {
        let (writer, counter) = seen.map_or((0, 0), |seen| (seen.writer.0, seen.counter.0));
        let digest = crc32c::crc32c_append(digest, &writer.to_le_bytes());
        crc32c::crc32c_append(digest, &counter.to_le_bytes())
    })
}

#[cfg(test)]
mod tests;
