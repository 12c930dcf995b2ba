//! Commit: from waiting requests to records, answers and durability.
//!
//! ```text
//!   waiting        requests that came and are in no record yet
//!      | seal      one record takes all that waits; while two are in flight, only full ones (self-clocking)
//!   in flight      numbered, payload in the window, write submitted
//!      | written   and every earlier record as well
//!   acknowledged   in the map and answered, one by one, in the order of their seqs
//!      | durable   by the record's own DSYNC, or by a journal flush submitted after it was written
//!   durable        leaves this module; replay may take it home
//! ```
//!
//! Here is the state and the acknowledging; `seal`, `durable` and `anchor` are the other steps.
//!
//! FLUSH waits for what was acknowledged when it came, FUA for its own record. A DSYNC record makes only
//! itself durable: `durable` moves over it once it has reached its predecessor.
//!
//! Everything that must be done now and then (flush, anchor, MARK) is decided by looking at the state, at
//! the end of each turn, and never by remembering that something was asked for: what is needed is begun
//! as soon as nothing of its kind is in flight.

mod anchor;
mod durable;
mod seal;

use super::extent_map::Extent;
use super::port::{Port, Sync};
use super::recovery::StartPoint;
use super::request::{Durability, Errno, Outcome, Request, Tag};
use super::settings::Settings;
use super::{Condition, Engine, Place, answer};
use crate::journal::ArrayUuid;
use crate::journal::record::{Entry, EntryOp, HeaderWriter, LifeSeed};
use crate::units::{Epoch, FRAME, Lba, Pos, Seq, to_usize};
use anchor::AnchorState;
use durable::{Flushing, Predictor};
use seal::payload_of;
use std::collections::VecDeque;
use std::time::Duration;

/// A request that is in a record and not answered yet.
#[derive(Clone, Copy, Debug)]
struct Unacked {
    tag: Tag,
    /// What the map will hold; shortened from the front while a long one is inserted over several turns.
    extent: Extent,
    entry: Entry,
    durability: Durability,
}

/// A record that is not durable yet.
#[derive(Clone, Copy, Debug)]
struct Volatile {
    number: u64,
    start: Pos,
    end: Pos,
    last_seq: Seq,
    /// The tail that it carries.
    tail: Pos,
    sync: Sync,
    /// Records up to this number are durable once this one is written: they had been written before it
    /// was submitted, with DSYNC, to a disk that flushes everything for that. Else 0.
    covers: u64,
    pieces_left: u32,
    sealed_at: Duration,
}

/// Why nothing more can be sealed just now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Blocked {
    /// The ring is full up to its reserve, or writers are being slowed down.
    Space,
    /// The anchor is too far behind.
    Anchor,
    /// Every slot of the window is in use.
    Window,
    /// The map is full.
    Map,
}

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Commits {
    epoch: Epoch,
    seed: LifeSeed,
    writer: HeaderWriter,
    /// Requests that are in no record yet.
    waiting: VecDeque<Request>,
    /// Bytes of payload that these have.
    waiting_bytes: u64,
    unacked: VecDeque<Unacked>,
    records: VecDeque<Volatile>,
    /// Each FLUSH, and the seq that it waits for; never decreasing.
    flushes: VecDeque<(Tag, Seq)>,
    /// Where the next record goes.
    pub(super) head: Pos,
    /// The last seq that was given.
    pub(super) sealed: Seq,
    /// The last seq that was answered; all before it were as well.
    pub(super) acked: Seq,
    /// The last record such that it and all before it are written.
    written: u64,
    /// The number that the next record gets.
    next_number: u64,
    /// The end of the last durable record.
    pub(super) durable: Place,
    durable_number: u64,
    /// A successful flush was submitted after this record was written.
    flushed_through: u64,
    flush: Option<Flushing>,
    /// Flushes of the journal that were begun, and that ended well.
    flushes_begun: u64,
    flushes_ended: u64,
    /// Records up to here are no longer needed, and that is durable.
    pub(super) tail_durable: Pos,
    /// The durable seq and the tail that the newest record carries.
    carried: (Seq, Pos),
    /// When `durable` or the tail last moved.
    moved_at: Duration,
    pub(super) anchor: AnchorState,
    predictor: Predictor,
    blocked: Option<Blocked>,
    sync_pending: usize,
    records_max: usize,
}

/// Most records that are not durable: beyond this the engine flushes by itself.
const VOLATILE_RECORDS_MAX: usize = 4096;

impl Commits {
    pub(super) fn new(
        settings: &Settings,
        ring_size: u64,
        uuid: ArrayUuid,
        start: &StartPoint,
    ) -> Commits {
        let depth = usize::from(settings.queue_depth);
        let durable = Place {
            seq: start.last_seq,
            pos: start.head,
        };
        let smallest = 2 * FRAME;
        let records_max = to_usize(ring_size / smallest).min(VOLATILE_RECORDS_MAX);
        Commits {
            epoch: start.epoch,
            seed: LifeSeed::new(uuid, start.epoch),
            writer: HeaderWriter::new(uuid),
            waiting: VecDeque::with_capacity(depth),
            waiting_bytes: 0,
            unacked: VecDeque::with_capacity(depth),
            records: VecDeque::with_capacity(records_max + 8),
            flushes: VecDeque::with_capacity(depth),
            head: start.head,
            sealed: start.last_seq,
            acked: start.last_seq,
            written: 0,
            next_number: 1,
            durable,
            durable_number: 0,
            flushed_through: 0,
            flush: None,
            flushes_begun: 0,
            flushes_ended: 0,
            tail_durable: start.tail_durable,
            carried: (start.last_seq, start.tail.pos),
            moved_at: Duration::ZERO,
            anchor: AnchorState::new(start),
            predictor: Predictor::default(),
            blocked: None,
            sync_pending: 0,
            records_max,
        }
    }

    pub(super) fn push(&mut self, request: Request) {
        self.waiting_bytes += payload_of(&request);
        self.waiting.push_back(request);
    }

    /// A FLUSH covers what was acknowledged when it came.
    pub(super) fn push_flush(&mut self, tag: Tag) {
        self.predictor.flush();
        self.flushes.push_back((tag, self.acked));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.unacked.is_empty() && self.flushes.is_empty()
    }

    pub(super) fn requests_pending(&self) -> usize {
        self.waiting.len() + self.unacked.len() + self.flushes.len()
    }

    /// Whether everything that was sealed is answered and durable.
    pub(super) fn nothing_volatile(&self) -> bool {
        self.records.is_empty() && self.unacked.is_empty() && self.flush.is_none()
    }

    /// Whether writers wait because the ring or the map is full.
    pub(super) fn is_out_of_room(&self) -> bool {
        matches!(self.blocked, Some(Blocked::Space | Blocked::Map))
    }

    /// The last seq of which the map holds something.
    pub(super) fn inserted_seq(&self) -> Seq {
        self.left_to_insert().map_or(self.acked, |rest| rest.seq)
    }

    /// The number of the first flush that is not begun yet.
    pub(super) fn next_flush(&self) -> u64 {
        self.flushes_begun + 1
    }

    /// Whether the flush with this number has ended well; they end in their order.
    pub(super) fn flush_has_ended(&self, number: u64) -> bool {
        self.flushes_ended >= number
    }

    /// Whether every request that is in a record has been answered.
    pub(super) fn all_acked(&self) -> bool {
        self.unacked.is_empty()
    }

    fn in_flight(&self) -> usize {
        to_usize(self.next_number - 1 - self.written)
    }

    fn volatile_bytes(&self) -> u64 {
        self.head.since(self.durable.pos)
    }

    fn record_mut(&mut self, number: u64) -> &mut Volatile {
        let first = self
            .records
            .front()
            .expect("a record in flight is not durable")
            .number;
        &mut self.records[to_usize(number - first)]
    }

    /// The request that is being inserted into the map over several turns, if there is one.
    fn half_inserted(&self) -> Option<&Unacked> {
        let first = self.unacked.front();
        first.filter(|first| first.extent.sectors < first.entry.sectors)
    }

    /// Whether some of these sectors belong to a request that is being inserted over several turns: a
    /// read would see half of it.
    pub(super) fn is_inserting(&self, lba: Lba, sectors: u64) -> bool {
        self.half_inserted().is_some_and(|first| {
            let entry = &first.entry;
            lba < entry.lba.plus(entry.sectors.into()) && entry.lba < lba.plus(sectors)
        })
    }

    /// What is left of a request that is being inserted over several turns.
    pub(super) fn left_to_insert(&self) -> Option<Extent> {
        self.half_inserted().map(|first| first.extent)
    }

    /// Tells everybody who waits for the journal that it will not happen.
    pub(super) fn refuse_all(&mut self, port: &mut impl Port) {
        for unacked in self.unacked.drain(..) {
            port.reply(unacked.tag, Outcome::Failed(Errno::IO));
        }
        self.waiting_bytes = 0;
        for waiting in self.waiting.drain(..) {
            port.reply(waiting.tag, Outcome::Failed(Errno::IO));
        }
        for (tag, _) in self.flushes.drain(..) {
            port.reply(tag, Outcome::Failed(Errno::IO));
        }
        self.sync_pending = 0;
    }

    pub(super) fn check_invariants(&self) {
        assert!(self.durable.pos <= self.head);
        assert!(self.flushed_through <= self.written);
        let waiting = self.waiting.iter().map(payload_of);
        assert_eq!(waiting.sum::<u64>(), self.waiting_bytes);
        assert!(
            self.records
                .iter()
                .zip(self.records.iter().skip(1))
                .all(|(a, b)| a.number + 1 == b.number && a.end == b.start)
        );
        assert_eq!(
            self.records
                .back()
                .map_or(self.durable.pos, |last| last.end),
            self.head
        );
        assert!(
            self.unacked
                .iter()
                .zip(self.unacked.iter().skip(1))
                .all(|(a, b)| a.extent.seq < b.extent.seq)
        );
        assert!(
            self.flushes
                .iter()
                .zip(self.flushes.iter().skip(1))
                .all(|(a, b)| a.1 <= b.1)
        );
        assert!(
            self.flushes
                .iter()
                .all(|(_, seq)| *seq <= self.acked && *seq > self.durable.seq)
        );
    }
}

impl Engine {
    /// Answers, in order, what has become true since the last turn.
    pub(super) fn acknowledge(&mut self, port: &mut impl Port) {
        if self.condition == Condition::Failed {
            self.commits.refuse_all(port);
            return;
        }
        self.advance_written();
        self.advance_durable();
        self.acknowledge_writes(port);
        self.acknowledge_flushes(port);
    }

    fn advance_written(&mut self) {
        let commits = &mut self.commits;
        let known = commits.records.len() - commits.in_flight();
        let written = commits.records.iter().skip(known);
        let written = written.take_while(|record| record.pieces_left == 0);
        let (mut last, mut flushed) = (commits.written, commits.flushed_through);
        for record in written {
            last = record.number;
            flushed = flushed.max(record.covers);
        }
        (commits.written, commits.flushed_through) = (last, flushed);
    }

    /// Moves `durable` over every record that is: flushed after it was written, or written DSYNC with all
    /// before it durable.
    fn advance_durable(&mut self) {
        while let Some(record) = self.commits.records.front().copied() {
            let commits = &mut self.commits;
            if record.number > commits.written {
                break;
            }
            if record.sync == Sync::No && record.number > commits.flushed_through {
                break;
            }
            commits.records.pop_front();
            commits.durable = Place {
                seq: record.last_seq,
                pos: record.end,
            };
            commits.durable_number = record.number;
            commits.tail_durable = commits.tail_durable.max(record.tail);
            commits.moved_at = self.now;
            self.window.unpin(record.start..record.end);
        }
    }

    fn acknowledge_writes(&mut self, port: &mut impl Port) {
        let mut budget = self.settings.extents_a_turn;
        while let Some(mut unacked) = self.commits.unacked.front().copied() {
            let seq = unacked.extent.seq;
            if seq > self.written_seq() {
                break;
            }
            // Later requests wait behind this one even where they could be answered: answers keep the
            // order of the seqs (invariant 1).
            if unacked.durability == Durability::Now && self.commits.durable.seq < seq {
                break;
            }
            let before = self.map.len();
            let inserted = self.map.insert(unacked.extent, budget);
            budget = budget.saturating_sub(1 + before.saturating_sub(self.map.len()));
            if inserted < unacked.extent.sectors || budget == 0 {
                self.again = true;
            }
            if inserted < unacked.extent.sectors {
                let rest = unacked.extent.lba.plus(inserted.into());
                unacked.extent = unacked.extent.clipped(rest, unacked.extent.end());
                self.commits.unacked[0] = unacked;
                break;
            }
            self.commits.unacked.pop_front();
            self.commits.acked = seq;
            self.commits.sync_pending -= usize::from(unacked.durability == Durability::Now);
            match unacked.entry.op {
                EntryOp::Write => {
                    self.counters.writes += 1;
                    self.counters.write_sectors += u64::from(unacked.entry.sectors);
                }
                EntryOp::Zeroes | EntryOp::ZeroesKept | EntryOp::Discard => {
                    self.counters.zeroes += 1;
                }
            }
            answer(port, unacked.tag, Ok(()));
            if budget == 0 {
                break;
            }
        }
    }

    /// The last seq such that its record and all before it are written.
    fn written_seq(&self) -> Seq {
        let commits = &self.commits;
        match commits.records.front() {
            Some(first) if commits.written >= first.number => {
                commits.records[to_usize(commits.written - first.number)].last_seq
            }
            _ => commits.durable.seq,
        }
    }

    fn acknowledge_flushes(&mut self, port: &mut impl Port) {
        while let Some((tag, seq)) = self.commits.flushes.front().copied() {
            if self.commits.durable.seq < seq {
                break;
            }
            self.commits.flushes.pop_front();
            self.counters.flushes += 1;
            answer(port, tag, Ok(()));
        }
    }
}
