//! Commit: from waiting requests to records, answers and durability.
//!
//! ```text
//!   waiting        requests that came and are in no record yet
//!      | seal      one record takes all that waits; while two are in flight, only full ones (self-clocking)
//!   in flight      numbered, payload in the window, write submitted
//!      | written   and every earlier record as well
//!   acknowledged   in the map and answered, one by one, in the order of their seqs
//!      | durable   by the record's own DSYNC, or by a journal flush submitted after it was written
//!   durable        leaves this file; replay may take it home
//! ```
//!
//! FLUSH waits for what was acknowledged when it came, FUA for its own record. A DSYNC record makes only
//! itself durable: `durable` moves over it once it has reached its predecessor. Where flushes follow
//! closely on records, records are written with DSYNC from the start, so that the FLUSH finds nothing
//! left to do ([`Predictor`]).
//!
//! Everything that must be done now and then (flush, anchor, MARK) is decided by looking at the state, at
//! the end of each turn, and never by remembering that something was asked for: what is needed is begun
//! as soon as nothing of its kind is in flight.

use super::extent_map::{Content, Extent};
use super::io::{Purpose, Transfer};
use super::port::{Memory, Port, Sync};
use super::recovery::StartPoint;
use super::request::{Durability, Errno, Op, Outcome, Request, Tag, Unmap};
use super::settings::{Commit, Settings, SyncWrite};
use super::{Close, Condition, EXTENTS_A_TURN, Engine, Place, answer};
use crate::disk::raid0::Piece;
use crate::journal::ArrayUuid;
use crate::journal::anchor::{Anchor, Closed};
use crate::journal::geometry::{MARKS_RESERVED, anchor_span, payload_max};
use crate::journal::record::{
    ENTRIES_MAX, Entry, EntryOp, Header, HeaderWriter, Kind, LifeSeed, header_len,
};
use crate::units::{Epoch, FRAME, Lba, Pos, SECTOR, Seq, round_up, to_u64, to_usize};
use std::collections::VecDeque;
use std::time::Duration;

/// After so long a flush that no record followed is recorded by a MARK.
const MARK_AFTER: Duration = Duration::from_secs(1);

/// While so many records are in flight, the next one waits until it is full: then one record, and one
/// write, serves all who came meanwhile.
const GROWING_RECORDS: usize = 2;

/// Numbers that a life may give; after the last one the array fails rather than give one twice. Not all of
/// the counter, so that a record never has to be cut at its end.
const SEQS_A_LIFE: u64 = (1 << 44) - 2 * ENTRIES_MAX as u64;

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

/// A journal flush in flight.
#[derive(Clone, Copy, Debug)]
struct Flushing {
    parts_left: usize,
    /// The newest record that had been written when it was submitted.
    covers: u64,
    failed: bool,
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

/// What the next record may take.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// Bytes up to where the ring is full or writers are slowed down.
    space: u64,
    /// Bytes up to where the anchor has to follow.
    anchor: u64,
    /// Requests that the map has room for.
    entries: usize,
}

/// Guesses whether a FLUSH will follow the next record.
///
/// In sixteenths of a record: the mean distance of the last flushes, and the distance to the last one.
#[derive(Clone, Copy, Debug, Default)]
struct Predictor {
    mean: u32,
    since: u32,
    seen: bool,
}

impl Predictor {
    const LIMIT: u32 = 40;

    fn record(&mut self) {
        self.since = self.since.saturating_add(16).min(1 << 20);
    }

    fn flush(&mut self) {
        self.mean = if self.seen {
            (3 * self.mean + self.since) / 4
        } else {
            self.since
        };
        self.seen = true;
        self.since = 0;
    }

    fn expects_flush(&self) -> bool {
        self.seen && self.mean < Predictor::LIMIT && self.since < Predictor::LIMIT
    }
}

/// The anchor as it stands on disk, and the one on its way there.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnchorState {
    generation: u64,
    /// The copy that was written last.
    copy: usize,
    durable_head: Pos,
    replayed_through: Seq,
    in_flight: Option<(Pos, Seq)>,
}

impl AnchorState {
    /// How far the last durable anchor says that records are durable.
    pub(super) fn durable_head(&self) -> Pos {
        self.durable_head
    }

    /// The highest seq for which home writes have been announced.
    pub(super) fn replayed_through(&self) -> Seq {
        self.replayed_through
    }

    pub(super) fn replayed_through_max(&self) -> Seq {
        self.in_flight
            .map_or(self.replayed_through, |(_, through)| {
                through.max(self.replayed_through)
            })
    }

    pub(super) fn last(&self) -> (u64, usize) {
        (self.generation, self.copy)
    }
}

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Commits {
    epoch: Epoch,
    seed: LifeSeed,
    writer: HeaderWriter,
    /// Requests that are in no record yet.
    waiting: VecDeque<Request>,
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
            anchor: AnchorState {
                generation: start.anchor_generation,
                copy: start.anchor_copy,
                durable_head: start.head,
                replayed_through: start.replayed_through,
                in_flight: None,
            },
            predictor: Predictor::default(),
            blocked: None,
            sync_pending: 0,
            records_max,
        }
    }

    pub(super) fn push(&mut self, request: Request) {
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
    // Acknowledging.

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
        while let Some(first) = commits.records.front() {
            let index = to_usize(commits.written + 1 - first.number.min(commits.written + 1));
            match commits.records.get(index) {
                Some(record) if record.pieces_left == 0 => {
                    commits.written = record.number;
                    commits.flushed_through = commits.flushed_through.max(record.covers);
                }
                _ => break,
            }
        }
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
        let mut budget = EXTENTS_A_TURN;
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

    // Sealing.

    /// Puts what waits into records, as far as there is room.
    pub(super) fn seal(&mut self, port: &mut impl Port) {
        self.commits.blocked = None;
        if self.condition == Condition::Failed {
            self.commits.refuse_all(port);
            return;
        }
        if self.closing == Some(Close::Handover) {
            return;
        }
        if self.commits.sealed >= Seq::start_of(self.commits.epoch).plus(SEQS_A_LIFE) {
            self.fail(port);
            return;
        }
        while self.is_time_to_seal() {
            match self.room().and_then(|room| self.select(room)) {
                Ok(batch) => self.seal_batch(port, batch),
                Err(blocked) => {
                    self.commits.blocked = Some(blocked);
                    break;
                }
            }
        }
        self.refuse_stalled(port);
    }

    /// At the end of a turn: whether writes wait for space.
    pub(super) fn count_stall(&mut self) {
        self.counters.stalls += u64::from(self.commits.blocked == Some(Blocked::Space));
    }

    fn is_time_to_seal(&self) -> bool {
        let commits = &self.commits;
        let in_flight = commits.in_flight();
        if commits.waiting.is_empty() || in_flight >= self.settings.records_in_flight {
            return false;
        }
        let full = payload_max(self.ring_size()) - self.settings.max_io;
        in_flight < GROWING_RECORDS || commits.waiting.iter().map(payload_of).sum::<u64>() > full
    }

    /// What the next record may take.
    fn room(&self) -> Result<Room, Blocked> {
        let commits = &self.commits;
        let ring = self.ring_size();
        if commits.records.len() >= commits.records_max {
            return Err(Blocked::Window);
        }
        let space_end = Pos(commits.tail_durable.0 + ring - self.settings.reserve(ring));
        let space_end = self.replay.pace(commits.head, space_end);
        let anchor_end = commits.anchor.durable_head().plus(anchor_span(ring));
        // Each request may split one extent in two and add one.
        let spare = self
            .settings
            .extents
            .saturating_sub(self.map.len() + 2 * commits.unacked.len());
        Ok(Room {
            space: space_end.0.saturating_sub(commits.head.0),
            anchor: anchor_end.0.saturating_sub(commits.head.0),
            entries: ENTRIES_MAX.min(spare / 2),
        })
    }

    /// How many of the oldest waiting requests the next record takes, and their bytes of payload.
    fn select(&mut self, room: Room) -> Result<(usize, u64), Blocked> {
        if room.entries == 0 {
            return Err(Blocked::Map);
        }
        let payload_max = payload_max(self.ring_size());
        let (mut count, mut payload) = (0, 0);
        for waiting in self.commits.waiting.iter().take(room.entries) {
            let more = payload + payload_of(waiting);
            let len = record_len(count + 1, more);
            if more > payload_max || len > room.space.min(room.anchor) {
                break;
            }
            (count, payload) = (count + 1, more);
        }
        if count == 0 {
            let first = self.commits.waiting.front().expect("somebody waits");
            let len = record_len(1, payload_of(first));
            return Err(if len > room.space {
                Blocked::Space
            } else {
                Blocked::Anchor
            });
        }
        let head = self.commits.head;
        if !self
            .window
            .open(head..head.plus(record_len(count, payload)))
        {
            return Err(Blocked::Window);
        }
        Ok((count, payload))
    }

    /// Seals the oldest `count` requests into one record and submits it.
    ///
    /// 1. Give seqs, copy payloads into the window: from here on the bytes cannot change any more.
    /// 2. Checksum every frame of that private copy, then build the header over those checksums.
    /// 3. Submit the whole as writes that the kernel need not split.
    fn seal_batch(&mut self, port: &mut impl Port, (count, payload): (usize, u64)) {
        let start = self.commits.head;
        let payload_start = start.plus(header_len(count, frames_of(payload)));
        let end = payload_start.plus(round_up(payload, FRAME));
        let mut at: u64 = 0;
        let mut durability = Durability::Later;
        let mut seq = self.commits.sealed.max(Seq::start_of(self.commits.epoch));
        for _ in 0..count {
            let request = self.commits.waiting.pop_front().expect("it was counted");
            seq = seq.plus(1);
            let bytes = payload_of(&request);
            if bytes > 0 {
                self.window.store(
                    payload_start.plus(at),
                    &port.buffer(request.tag)[..to_usize(bytes)],
                );
            }
            let wants = match self.settings.commit {
                Commit::Flush => request.durability,
                Commit::Always => Durability::Now,
            };
            if wants == Durability::Now {
                durability = Durability::Now;
                self.commits.sync_pending += 1;
            }
            self.commits.unacked.push_back(Unacked {
                tag: request.tag,
                extent: Extent {
                    lba: request.lba,
                    sectors: request.sectors,
                    seq,
                    content: content_of(&request, payload_start.plus(at)),
                },
                entry: entry_of(&request, at),
                durability: wants,
            });
            at += bytes;
        }
        self.window.store_zeroes(payload_start.plus(payload)..end);
        let expects_flush = self.commits.predictor.expects_flush();
        let sync = if durability == Durability::Now || expects_flush {
            Sync::Data
        } else {
            Sync::No
        };
        self.commits.predictor.record();
        self.submit_record(port, Kind::Requests, count, payload, sync, seq);
    }

    /// Seals a record without requests, which carries the newest tail and durable seq.
    fn seal_mark(&mut self, port: &mut impl Port) {
        let head = self.commits.head;
        if !self.window.open(head..head.plus(FRAME)) {
            return;
        }
        self.submit_record(port, Kind::Mark, 0, 0, Sync::Data, self.commits.sealed);
    }

    fn submit_record(
        &mut self,
        port: &mut impl Port,
        kind: Kind,
        count: usize,
        payload: u64,
        sync: Sync,
        last_seq: Seq,
    ) {
        let ring_size = self.ring_size();
        let tail = self.replay.tail();
        let commits = &mut self.commits;
        let start = commits.head;
        let payload_start = start.plus(header_len(count, frames_of(payload)));
        let end = start.plus(record_len(count, payload));
        let number = commits.next_number;
        let mut frame = payload_start;
        while frame < end {
            self.window.seal_frame(frame);
            frame = frame.plus(FRAME);
        }
        let header = Header {
            kind,
            epoch: commits.epoch,
            number,
            offset: start.ring_offset(ring_size),
            prev_seq: commits.sealed,
            count: u32::try_from(count).expect("at most 256"),
            payload_len: u32::try_from(payload).expect("at most 1 MiB"),
            tail: super::RingPlace {
                seq: tail.seq,
                offset: tail.pos.ring_offset(ring_size),
            },
            durable: commits.durable.seq,
        };
        assert_eq!(header.last_seq(), last_seq);
        let entries = commits
            .unacked
            .range(commits.unacked.len() - count..)
            .map(|unacked| unacked.entry);
        let window = &self.window;
        let checksums =
            (0..frames_of(payload)).map(|i| window.checksum(payload_start.plus(to_u64(i) * FRAME)));
        let bytes = commits
            .writer
            .write(commits.seed, &header, entries, checksums);
        self.window.store(start, bytes);
        self.window.filled(start..end);
        self.window.pin(start..end);

        let pieces_left = self.write_ring(port, start..end, sync, Purpose::Record { number });
        let commits = &mut self.commits;
        let flushes_all = self.geometry.ring.lanes().len() == 1
            && self.settings.parts[self.geometry.journal_part().index()].sync == SyncWrite::Flushes;
        commits.records.push_back(Volatile {
            number,
            start,
            end,
            last_seq,
            tail: tail.pos,
            sync,
            covers: if flushes_all && sync == Sync::Data {
                commits.written
            } else {
                0
            },
            pieces_left,
            sealed_at: self.now,
        });
        commits.head = end;
        commits.sealed = last_seq;
        commits.next_number += 1;
        commits.carried = (commits.durable.seq, tail.pos);
        self.replay.note_record(
            Place {
                seq: last_seq,
                pos: end,
            },
            self.now,
        );
        self.counters.records += 1;
        self.counters.sync_records += u64::from(sync == Sync::Data);
        self.counters.ring_bytes += end.since(start);
    }

    /// Writes a range of the ring from the window; returns in how many operations.
    fn write_ring(
        &mut self,
        port: &mut impl Port,
        range: std::ops::Range<Pos>,
        sync: Sync,
        purpose: Purpose,
    ) -> u32 {
        let ring_size = self.ring_size();
        let sync = if cfg!(feature = "broken-flush") {
            Sync::No
        } else {
            sync
        };
        let mut pos = range.start;
        for (at, len) in self.window.runs(range) {
            for piece in self.geometry.ring.pieces(pos.ring_offset(ring_size), len) {
                let memory = Memory::Arena(at + to_usize(piece.at));
                self.ios
                    .gather(port, Transfer::Write(sync), purpose, piece, memory);
            }
            pos = pos.plus(len);
        }
        self.ios.finish(port)
    }

    /// Writers that no member takes anything from any more are told, if the operator wants that.
    fn refuse_stalled(&mut self, port: &mut impl Port) {
        let (Some(timeout), Some(Blocked::Space | Blocked::Map)) =
            (self.settings.stall_timeout, self.commits.blocked)
        else {
            return;
        };
        if self
            .replay
            .failing_for(self.now)
            .is_none_or(|failing| failing < timeout)
        {
            return;
        }
        for waiting in self.commits.waiting.drain(..) {
            self.counters.refused_writes += 1;
            port.reply(waiting.tag, Outcome::Failed(Errno::IO));
        }
    }

    pub(super) fn record_piece_ended(
        &mut self,
        port: &mut impl Port,
        number: u64,
        result: Result<(), Errno>,
    ) {
        match result {
            Ok(()) => self.commits.record_mut(number).pieces_left -= 1,
            Err(_) => {
                self.counters.journal_write_errors += 1;
                self.fail(port);
            }
        }
    }

    // Making durable.

    /// Begins whatever the state asks for: a flush, an anchor, a MARK.
    pub(super) fn make_durable(&mut self, port: &mut impl Port) {
        if self.condition == Condition::Failed {
            return;
        }
        if self.anchor_wanted() {
            self.write_anchor(port);
        }
        if self.flush_wanted() {
            self.flush_journal(port);
        }
        if self.mark_wanted() {
            self.seal_mark(port);
        }
    }

    fn flush_wanted(&self) -> bool {
        let commits = &self.commits;
        if commits.flush.is_some() {
            return false;
        }
        if self.replay.flush_needed() > commits.flushes_begun {
            return true;
        }
        let Some(first) = commits.records.front() else {
            return false;
        };
        if first.number > commits.written {
            return false;
        }
        let interval = self.now.saturating_sub(first.sealed_at) >= self.settings.commit_interval;
        let many = commits.volatile_bytes() >= self.settings.flush_bytes()
            || commits.records.len() * 2 >= commits.records_max;
        let for_anchor = self.anchor_is_far();
        let for_tail = commits.blocked == Some(Blocked::Space)
            && commits
                .records
                .iter()
                .any(|record| record.tail > commits.tail_durable);
        let for_replay = commits.durable.seq < self.replay.durable_needed();
        let for_sync =
            commits.durable.seq < self.sync_through.min(commits.acked) || self.closing.is_some();
        let asked = !commits.flushes.is_empty() || commits.sync_pending > 0;
        asked
            || interval
            || many
            || for_anchor
            || for_tail
            || for_replay
            || for_sync
            || commits.blocked == Some(Blocked::Window)
            || commits.blocked == Some(Blocked::Anchor)
    }

    /// Flushes every part of the journal. What it covers is what has been written by now: a record that
    /// is still in flight may miss the flush, and must not count.
    fn flush_journal(&mut self, port: &mut impl Port) {
        self.commits.flushes_begun += 1;
        if cfg!(feature = "broken-flush") {
            self.commits.flushed_through = self.commits.written;
            self.commits.flushes_ended += 1;
            self.again = true;
            return;
        }
        let parts_left = self.geometry.ring.lanes().len();
        self.commits.flush = Some(Flushing {
            parts_left,
            covers: self.commits.written,
            failed: false,
        });
        for part in self.geometry.ring.lanes().iter().map(|lane| lane.part) {
            self.ios.flush(port, part, Purpose::JournalFlush);
        }
        self.counters.journal_flushes += 1;
    }

    pub(super) fn journal_flush_ended(&mut self, port: &mut impl Port, result: Result<(), Errno>) {
        let flush = self.commits.flush.as_mut().expect("a flush is in flight");
        flush.parts_left -= 1;
        flush.failed |= result.is_err();
        let flush = *flush;
        if flush.parts_left > 0 {
            return;
        }
        self.commits.flush = None;
        if flush.failed {
            // Nothing is known about what it covered, and a second flush would answer for less
            // (invariant 7).
            self.counters.journal_flush_errors += 1;
            self.fail(port);
        } else {
            self.commits.flushes_ended += 1;
            self.commits.flushed_through = self.commits.flushed_through.max(flush.covers);
        }
    }

    // The anchor.

    fn anchor_is_far(&self) -> bool {
        let head = self.commits.anchor.durable_head();
        self.commits.head.since(head) >= anchor_span(self.ring_size()) / 2
    }

    fn anchor_wanted(&self) -> bool {
        let anchor = &self.commits.anchor;
        if anchor.in_flight.is_some() {
            return false;
        }
        let moves = self.commits.durable.pos > anchor.durable_head();
        let blocked = self.commits.blocked == Some(Blocked::Anchor);
        let far = self.commits.durable.pos.since(anchor.durable_head())
            >= anchor_span(self.ring_size()) / 2;
        (moves && (far || blocked)) || self.replay.announces() > anchor.replayed_through()
    }

    /// The anchor that the present state gives.
    pub(super) fn anchor_now(&self, replayed_through: Seq, closed: Closed) -> Anchor {
        let commits = &self.commits;
        Anchor {
            uuid: self.uuid,
            generation: commits.anchor.generation + 1,
            tail: self.ring_place(self.replay.tail()),
            head: self.ring_place(commits.durable),
            head_number: commits.durable_number,
            epoch: commits.epoch,
            durable: commits.durable.seq,
            replayed_through,
            closed,
        }
    }

    /// Writes the older copy of the anchor, durable by itself. A crash meanwhile leaves the newer copy.
    fn write_anchor(&mut self, port: &mut impl Port) {
        let through = self
            .commits
            .anchor
            .replayed_through()
            .max(self.replay.announces());
        let anchor = self.anchor_now(through, Closed::No);
        let at = self.window.anchor_at();
        let bytes = anchor.encode();
        self.window
            .arena_mut()
            .range_mut(at..at + bytes.len())
            .copy_from_slice(&bytes);
        let copy = 1 - self.commits.anchor.copy;
        let places = self.geometry.anchors;
        let piece = Piece {
            part: places.part,
            offset: places.copies[copy],
            len: FRAME,
            at: 0,
        };
        self.ios.gather(
            port,
            Transfer::Write(Sync::Data),
            Purpose::Anchor,
            piece,
            Memory::Arena(at),
        );
        let count = self.ios.finish(port);
        assert_eq!(count, 1);
        self.commits.anchor.in_flight = Some((self.commits.durable.pos, through));
        self.counters.anchors += 1;
    }

    pub(super) fn anchor_ended(&mut self, port: &mut impl Port, result: Result<(), Errno>) {
        let anchor = &mut self.commits.anchor;
        let (head, through) = anchor.in_flight.take().expect("an anchor is in flight");
        match result {
            Ok(()) => {
                anchor.generation += 1;
                anchor.copy = 1 - anchor.copy;
                anchor.durable_head = head;
                anchor.replayed_through = through;
            }
            Err(_) => {
                self.counters.journal_write_errors += 1;
                self.fail(port);
            }
        }
    }

    // MARK.

    /// A record without requests is due: to carry a tail that frees space, or because a flush or a new
    /// tail would otherwise be known to nobody but us.
    fn mark_wanted(&self) -> bool {
        let commits = &self.commits;
        if self.closing == Some(Close::Handover) || commits.in_flight() > 0 {
            return false;
        }
        let ring = self.ring_size();
        let limit = Pos(commits.tail_durable.0 + ring - MARKS_RESERVED / 2 * FRAME);
        let anchor_end = commits.anchor.durable_head().plus(anchor_span(ring));
        let end = commits.head.plus(FRAME);
        if end > limit || end > anchor_end {
            return false;
        }
        let tail = self.replay.tail().pos;
        let tail_unknown = tail > commits.carried.1;
        let for_space =
            commits.blocked == Some(Blocked::Space) && tail > commits.tail_durable && tail_unknown;
        let quiet =
            commits.waiting.is_empty() && self.now.saturating_sub(commits.moved_at) >= MARK_AFTER;
        for_space || quiet && (commits.durable.seq > commits.carried.0 || tail_unknown)
    }

    /// Notes that the tail has moved.
    pub(super) fn tail_moved(&mut self) {
        self.commits.moved_at = self.now;
    }
}

fn payload_of(request: &Request) -> u64 {
    match request.op {
        Op::Write => u64::from(request.sectors) * SECTOR,
        Op::Read | Op::Flush | Op::Discard | Op::WriteZeroes(_) => 0,
    }
}

fn frames_of(payload: u64) -> usize {
    to_usize(payload.div_ceil(FRAME))
}

fn record_len(entries: usize, payload: u64) -> u64 {
    header_len(entries, frames_of(payload)) + round_up(payload, FRAME)
}

fn content_of(request: &Request, pos: Pos) -> Content {
    match request.op {
        Op::WriteZeroes(Unmap::Forbidden) => Content::ZeroesNoUnmap,
        Op::WriteZeroes(Unmap::Allowed) | Op::Discard => Content::Zeroes,
        Op::Write | Op::Read | Op::Flush => Content::Payload(pos),
    }
}

fn entry_of(request: &Request, at: u64) -> Entry {
    let (op, at) = match request.op {
        Op::Discard => (EntryOp::Discard, 0),
        Op::WriteZeroes(Unmap::Allowed) => (EntryOp::Zeroes, 0),
        Op::WriteZeroes(Unmap::Forbidden) => (EntryOp::ZeroesKept, 0),
        Op::Write | Op::Read | Op::Flush => (EntryOp::Write, at),
    };
    let payload_at = u32::try_from(at).expect("a payload is at most 1 MiB");
    Entry {
        op,
        lba: request.lba,
        sectors: request.sectors,
        payload_at,
    }
}
