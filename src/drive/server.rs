//! The drive as a ublk server: moves data between the tags, the cache and the store.
//!
//! What is destaged, in order of urgency, as far as operations are free:
//!
//! 1. the sectors of FUA writes, and only these: FUA says nothing about any other write;
//! 2. what a FLUSH covers, in the order of the device;
//! 3. room, when most of the cache is volatile: long runs beginning at random places;
//! 4. at the chosen rate, one to eight sectors at random places.
//!
//! Data departs through a staging area, so that a line can be overwritten while an older version of it is
//! under way. An operation has the number of its staging area; a read of the store has the number of its
//! tag, above those.
//!
//! A read of sectors that the cache has not, or not all of, reads the store first and lays the cache over
//! it. Meanwhile the lines involved stay in the cache: one that was destaged and evicted while the read was
//! under way would leave a hole that the read has not seen filled.
//!
//! With a [`Trip`] the drive stops at a chosen request, so that a power cut can be placed in the midst of
//! something: from that request on it answers nothing any more, while destaging goes on as before.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use tracing::error;

use super::directory::{Directory, LINE_SECTORS, Mask, Number, Slot, bits};
use crate::disk::buffer::{Arena, Residency};
use crate::engine::port::Segment;
use crate::engine::request::{Durability, Errno, Op, Outcome, Request, Tag};
use crate::random::Random;
use crate::ublk::{FileSlot, Needs, Output, Server, WriteMode};
use crate::units::{SECTOR, to_u64, to_usize};

/// The store.
const STORE: FileSlot = FileSlot(0);

/// Bytes in a line.
const LINE: usize = 4096;

/// Bytes in a sector.
const SECTOR_BYTES: usize = 512;

/// Departures in flight at most.
const DEPARTURES: u32 = 32;

/// Those of them that leave room for a FLUSH or FUA.
const DEPARTURES_UNHURRIED: usize = 16;

/// Sectors of one departure at most: 64 KiB, which no disk of the lab splits.
const RUN: u64 = 128;

/// A cache is at least this many times the largest request.
const CACHE_REQUESTS_MIN: u64 = 8;

/// What a drive is like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where in the store it begins, in bytes.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Logical block: 512 or 4096. What one sector of the medium is, too.
    pub block_size: u32,
    /// Bytes of cache.
    pub cache: u64,
    /// Bytes in one request at most.
    pub max_io: u32,
    /// Requests at once.
    pub depth: u16,
    /// Share of the cache that is destaged in a second when nothing else asks for it, in percent.
    pub destage_percent: u32,
    /// Decides what is destaged when.
    pub seed: u64,
    /// How long a write waits for its answer.
    pub write_delay: Duration,
    /// How long a FLUSH does.
    pub flush_delay: Duration,
}

/// What a drive waits for, to fall silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TripOp {
    /// A read that touches the range.
    Read,
    /// A write that does.
    Write,
    /// A FLUSH after a write that does, with no other FLUSH between.
    Flush,
}

/// At which request a drive falls silent: the `count`-th of its kind, counted from 1.
#[derive(Clone, Debug)]
pub struct Trip {
    /// Which kind.
    pub op: TripOp,
    /// Which sectors.
    pub sectors: Range<u64>,
    /// Which one of them.
    pub count: u32,
}

/// A trip on its way.
#[derive(Debug)]
struct Tripwire {
    trip: Trip,
    left: u32,
    /// There was a write to the range since the last FLUSH.
    written: bool,
    /// Told when it happens.
    told: Sender<()>,
}

impl Tripwire {
    fn new(trip: Trip, told: Sender<()>) -> Tripwire {
        Tripwire {
            left: trip.count,
            written: false,
            trip,
            told,
        }
    }

    /// Whether this request is the one.
    fn is_tripped_by(&mut self, request: &Request) -> bool {
        let sectors = sectors_of(request);
        let touched =
            sectors.start < self.trip.sectors.end && self.trip.sectors.start < sectors.end;
        let counts = match (self.trip.op, request.op) {
            (TripOp::Read, Op::Read) => touched,
            (TripOp::Write, Op::Write | Op::Discard | Op::WriteZeroes(_)) => touched,
            (TripOp::Flush, Op::Write | Op::Discard | Op::WriteZeroes(_)) => {
                self.written |= touched;
                false
            }
            (TripOp::Flush, Op::Flush) => std::mem::replace(&mut self.written, false),
            (TripOp::Read | TripOp::Write | TripOp::Flush, _) => false,
        };
        if counts && self.left > 0 {
            self.left -= 1;
            return self.left == 0;
        }
        false
    }
}

/// What other threads see of a drive.
#[derive(Debug, Default)]
pub struct Gauge {
    volatile: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
}

impl Gauge {
    /// Sectors that a power cut at this moment would take, at most.
    pub fn volatile_sectors(&self) -> u64 {
        self.volatile.load(Ordering::Relaxed)
    }

    /// Writes answered so far.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// Flushes answered so far.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }
}

/// Sectors on their way to the store.
#[derive(Clone, Debug)]
struct Departure {
    sectors: Range<u64>,
}

/// A read that waits for the store.
#[derive(Debug)]
struct Read {
    request: Request,
    expected: i32,
    /// Lines that it keeps in the cache. The memory is kept from read to read.
    pinned: Vec<Slot>,
}

/// A FUA write that waits for its sectors.
#[derive(Clone, Debug)]
struct Forced {
    tag: Tag,
    sectors: Range<u64>,
    number: Number,
}

/// Flushes: at most one is under way, later ones wait for the next.
#[derive(Debug, Default)]
struct Flush {
    /// Tags that the flush under way answers.
    covered: Vec<Tag>,
    /// Tags that came later.
    waiting: Vec<Tag>,
    /// What it covers, if one is under way.
    last: Option<Number>,
    /// The lines that may still have something to destage, in order, and how far they were looked at.
    lines: Vec<usize>,
    next: usize,
}

/// Answers that leave after a delay, in order.
#[derive(Debug)]
struct Delayed {
    delay: Duration,
    answers: VecDeque<(Duration, Tag)>,
}

impl Delayed {
    fn new(delay: Duration, depth: usize) -> Delayed {
        Delayed {
            delay,
            answers: VecDeque::with_capacity(depth),
        }
    }

    fn push(&mut self, tag: Tag, now: Duration) {
        self.answers.push_back((now + self.delay, tag));
    }

    fn due(&mut self, now: Duration) -> Option<Tag> {
        let (due, tag) = self.answers.front().copied()?;
        (due <= now).then(|| self.answers.pop_front())?;
        Some(tag)
    }
}

/// The drive.
#[derive(Debug)]
pub struct Drive {
    plan: Plan,
    store: File,
    gauge: Arc<Gauge>,
    random: Random,
    /// The lines of the cache, then the staging areas.
    arena: Arena,
    directory: Directory,

    /// Requests that came in this turn.
    new: Vec<Request>,
    /// Writes that wait for room, and all that came after them.
    writes: VecDeque<Request>,
    departures: Vec<Option<Departure>>,
    free_departures: Vec<u32>,
    reads: Vec<Option<Read>>,
    /// Reads whose data is there: tag and what the store answered.
    read: Vec<(Tag, i32)>,
    /// Memory of past reads.
    spare_pins: Vec<Vec<Slot>>,
    forced: Vec<Forced>,
    flush: Flush,
    answered_writes: Delayed,
    answered_flushes: Delayed,

    /// Most of the cache is volatile, and not yet less than half.
    relieving: bool,
    /// Sectors that may be destaged at leisure, in billionths.
    allowance: u128,
    allowed_until: Duration,
    /// The store failed: nothing is promised any more.
    broken: bool,
    stopped: bool,
    tripwire: Option<Tripwire>,
    /// It fell silent.
    silent: bool,
}

impl Drive {
    /// A drive on `store`, with an empty cache.
    pub fn new(store: File, plan: Plan) -> io::Result<Drive> {
        assert!(
            plan.cache >= CACHE_REQUESTS_MIN * u64::from(plan.max_io),
            "the cache holds {CACHE_REQUESTS_MIN} of the largest requests"
        );
        let lines = plan.size.div_ceil(to_u64(LINE));
        let slots = u32::try_from(plan.cache / to_u64(LINE)).expect("a cache has less than 16 TiB");
        let staging = to_usize(u64::from(DEPARTURES)) * to_usize(RUN) * SECTOR_BYTES;
        let arena = Arena::new(
            to_u64(to_usize(u64::from(slots)) * LINE + staging),
            Residency::Locked,
        )
        .map_err(io::Error::other)?;
        let depth = usize::from(plan.depth);
        let lines_per_request = to_usize(u64::from(plan.max_io)) / LINE + 1;
        let flush = Flush {
            covered: Vec::with_capacity(depth),
            waiting: Vec::with_capacity(depth),
            lines: Vec::with_capacity(to_usize(u64::from(slots))),
            ..Flush::default()
        };
        Ok(Drive {
            gauge: Arc::default(),
            random: Random::new(plan.seed),
            arena,
            directory: Directory::new(to_usize(lines), slots),
            new: Vec::with_capacity(depth),
            writes: VecDeque::with_capacity(depth),
            departures: vec![None; to_usize(u64::from(DEPARTURES))],
            free_departures: (0..DEPARTURES).collect(),
            reads: (0..depth).map(|_| None).collect(),
            read: Vec::with_capacity(depth),
            spare_pins: (0..depth)
                .map(|_| Vec::with_capacity(lines_per_request))
                .collect(),
            forced: Vec::with_capacity(depth),
            flush,
            answered_writes: Delayed::new(plan.write_delay, depth),
            answered_flushes: Delayed::new(plan.flush_delay, depth),
            relieving: false,
            allowance: 0,
            allowed_until: Duration::ZERO,
            broken: false,
            stopped: false,
            tripwire: None,
            silent: false,
            store,
            plan,
        })
    }

    /// Falls silent at a chosen request, and says so.
    pub fn set_trip(&mut self, trip: Trip, told: Sender<()>) {
        self.tripwire = Some(Tripwire::new(trip, told));
    }

    /// What other threads may look at.
    pub fn gauge(&self) -> Arc<Gauge> {
        Arc::clone(&self.gauge)
    }

    /// Takes what came in this turn.
    fn take_new(&mut self, out: &mut Output<'_>) {
        for n in 0..self.new.len() {
            let request = self.new[n];
            self.look_at_tripwire(&request);
            match request.op {
                // What a silent drive takes in may reach the store, as in any cut: writes do, for the rest there
                // is nobody to answer.
                Op::Read | Op::Flush if self.silent => {}
                _ if self.broken => out.reply(request.tag, Outcome::Failed(Errno::IO)),
                Op::Read => self.begin_read(request, out),
                Op::Write | Op::Discard | Op::WriteZeroes(_) => self.writes.push_back(request),
                Op::Flush => self.flush.waiting.push(request.tag),
            }
        }
        self.new.clear();
    }

    fn look_at_tripwire(&mut self, request: &Request) {
        let Some(wire) = &mut self.tripwire else {
            return;
        };
        if wire.is_tripped_by(request) {
            self.silent = true;
            if wire.told.send(()).is_err() {
                error!("nobody hears that the drive fell silent");
            }
        }
    }

    fn begin_read(&mut self, request: Request, out: &mut Output<'_>) {
        let sectors = sectors_of(&request);
        let missing = |drive: &Drive, sector: &u64| {
            let (line, bit) = place_of(*sector);
            let slot = drive.directory.lookup(line);
            slot.is_none_or(|slot| drive.directory.valid(slot) & 1 << bit == 0)
        };
        let first = sectors.clone().find(|sector| missing(self, sector));
        let last = sectors.clone().rev().find(|sector| missing(self, sector));
        let (Some(first), Some(last)) = (first, last) else {
            self.lay_over(&request, out);
            out.reply(request.tag, Outcome::Done);
            return;
        };
        let mut pinned = self.spare_pins.pop().expect("one for each tag");
        for line in lines_of(&sectors) {
            if let Some(slot) = self.directory.lookup(line) {
                self.directory.pin(slot);
                pinned.push(slot);
            }
        }
        let length = to_usize((last + 1 - first) * SECTOR);
        let segment = Segment::buffer(
            request.tag,
            to_usize((first - sectors.start) * SECTOR),
            length,
        );
        let id = DEPARTURES + u32::from(request.tag.0);
        out.read(id, STORE, self.plan.offset + first * SECTOR, &[segment]);
        let expected = i32::try_from(length).expect("at most one request");
        self.reads[request.tag.index()] = Some(Read {
            request,
            expected,
            pinned,
        });
    }

    fn end_reads(&mut self, out: &mut Output<'_>) {
        while let Some((tag, result)) = self.read.pop() {
            let Read {
                request,
                expected,
                mut pinned,
            } = self.reads[tag.index()]
                .take()
                .expect("the read was under way");
            for slot in pinned.drain(..) {
                self.directory.unpin(slot);
            }
            self.spare_pins.push(pinned);
            if result == expected {
                self.lay_over(&request, out);
                out.reply(tag, Outcome::Done);
            } else {
                error!(
                    sector = request.lba.0,
                    result, expected, "store: read failed"
                );
                out.reply(tag, Outcome::Failed(Errno::IO));
            }
        }
    }

    /// Copies what the cache has of a read into the tag's buffer.
    fn lay_over(&self, request: &Request, out: &mut Output<'_>) {
        let sectors = sectors_of(request);
        let buffer = out.tag_buffer_mut(request.tag);
        for line in lines_of(&sectors) {
            let Some(slot) = self.directory.lookup(line) else {
                continue;
            };
            let valid = self.directory.valid(slot) & mask_in(line, &sectors);
            for bit in bits(valid) {
                let at = to_usize((first_sector(line) + to_u64(bit) - sectors.start) * SECTOR);
                let from = memory_of(slot, bit);
                buffer[at..at + SECTOR_BYTES]
                    .copy_from_slice(self.arena.range(from..from + SECTOR_BYTES));
            }
        }
    }

    /// Puts writes into the cache, in order, while there is room.
    fn admit_writes(&mut self, out: &mut Output<'_>, now: Duration) {
        while let Some(request) = self.writes.front().copied() {
            if self.broken {
                out.reply(request.tag, Outcome::Failed(Errno::IO));
                self.writes.pop_front();
                continue;
            }
            let sectors = sectors_of(&request);
            let lines = lines_of(&sectors);
            if !self.directory.has_room(lines.start, lines.len()) {
                return;
            }
            self.writes.pop_front();
            let number = self.directory.number_write();
            for line in lines.clone() {
                let slot = self
                    .directory
                    .slot_for(line, lines.clone(), &mut self.random);
                let mask = mask_in(line, &sectors);
                let start = first_sector(line).max(sectors.start);
                let length = bits(mask).count() * SECTOR_BYTES;
                let to = memory_of(slot, place_of(start).1);
                let cache = self.arena.range_mut(to..to + length);
                if request.op == Op::Write {
                    let from = to_usize((start - sectors.start) * SECTOR);
                    cache.copy_from_slice(&out.tag_buffer(request.tag)[from..from + length]);
                } else {
                    cache.fill(0);
                }
                self.directory.wrote(slot, mask, number);
            }
            match request.durability {
                Durability::Later => self.answered_writes.push(request.tag, now),
                Durability::Now => self.forced.push(Forced {
                    tag: request.tag,
                    sectors,
                    number,
                }),
            }
        }
    }

    /// Gives the store sectors beginning with `first`, which may depart: as many as follow and may, up to
    /// `end`.
    fn depart(&mut self, first: u64, end: u64, out: &mut Output<'_>) {
        let id = self.free_departures.pop().expect("the caller has looked");
        let staging =
            self.directory.slots() * LINE + to_usize(u64::from(id)) * to_usize(RUN) * SECTOR_BYTES;
        let end = end.min(first + RUN).min(self.plan.size / SECTOR);
        let mut sector = first;
        while sector < end {
            let (line, _) = place_of(sector);
            let Some(slot) = self.directory.lookup(line) else {
                break;
            };
            let may = self.directory.may_depart(slot);
            let mut mask = 0;
            while sector < end && place_of(sector).0 == line && may & 1 << place_of(sector).1 != 0 {
                let from = memory_of(slot, place_of(sector).1);
                let to = staging + to_usize((sector - first) * SECTOR);
                let mut bytes = [0; SECTOR_BYTES];
                bytes.copy_from_slice(self.arena.range(from..from + SECTOR_BYTES));
                self.arena
                    .range_mut(to..to + SECTOR_BYTES)
                    .copy_from_slice(&bytes);
                mask |= 1 << place_of(sector).1;
                sector += 1;
            }
            if mask == 0 {
                break;
            }
            self.directory.depart(slot, mask);
            if place_of(sector).0 == line {
                break;
            }
        }
        assert!(sector > first, "the first sector may depart");
        let length = to_usize((sector - first) * SECTOR);
        let segment = Segment::arena(staging, length);
        out.write(
            id,
            STORE,
            self.plan.offset + first * SECTOR,
            &[segment],
            WriteMode::Plain,
        );
        self.departures[to_usize(u64::from(id))] = Some(Departure {
            sectors: first..sector,
        });
    }

    fn arrive(&mut self, id: u32, result: i32) {
        let Departure { sectors } = self.departures[to_usize(u64::from(id))]
            .take()
            .expect("it was under way");
        self.free_departures.push(id);
        let expected =
            i64::try_from((sectors.end - sectors.start) * SECTOR).expect("at most one run");
        if i64::from(result) != expected {
            error!(
                sector = sectors.start,
                result, expected, "store: write failed, the drive is broken"
            );
            self.broken = true;
        }
        for line in lines_of(&sectors) {
            let slot = self
                .directory
                .lookup(line)
                .expect("volatile lines stay in the cache");
            self.directory.arrive(slot, mask_in(line, &sectors));
        }
    }

    /// Sends what FUA writes wait for, and answers those that have it.
    fn force(&mut self, out: &mut Output<'_>, now: Duration) {
        for n in 0..self.forced.len() {
            let Forced {
                sectors, number, ..
            } = self.forced[n].clone();
            for line in lines_of(&sectors) {
                let Some(slot) = self.directory.lookup(line) else {
                    continue;
                };
                // Sectors of one block have one age, so they depart together.
                while let Some(bit) =
                    bits(self.directory.may_depart_until(slot, number) & mask_in(line, &sectors))
                        .next()
                {
                    if self.free_departures.is_empty() {
                        break;
                    }
                    self.depart(first_sector(line) + to_u64(bit), sectors.end, out);
                }
            }
        }
        let (directory, broken) = (&self.directory, self.broken);
        let answered = &mut self.answered_writes;
        self.forced.retain(|forced| {
            if broken {
                out.reply(forced.tag, Outcome::Failed(Errno::IO));
                return false;
            }
            let stored = lines_of(&forced.sectors).all(|line| {
                let mask = mask_in(line, &forced.sectors);
                directory
                    .lookup(line)
                    .is_none_or(|slot| directory.is_stored(slot, mask, forced.number))
            });
            if stored {
                answered.push(forced.tag, now);
            }
            !stored
        });
    }

    /// Sends what the FLUSH under way covers, answers it when all is stored, and begins the next.
    fn work_on_flush(&mut self, out: &mut Output<'_>, now: Duration) {
        if self.flush.last.is_none() && (!self.flush.waiting.is_empty() || self.must_empty()) {
            self.begin_flush();
        }
        let Some(last) = self.flush.last else { return };
        while !self.free_departures.is_empty() && self.flush.next < self.flush.lines.len() {
            let line = self.flush.lines[self.flush.next];
            let slot = self.directory.lookup(line);
            let old = slot.map_or(0, |slot| self.directory.may_depart_until(slot, last));
            match bits(old).next() {
                Some(bit) => {
                    self.depart(first_sector(line) + to_u64(bit), u64::MAX, out);
                }
                None => self.flush.next += 1,
            }
        }
        if self.broken {
            for tag in self
                .flush
                .covered
                .drain(..)
                .chain(self.flush.waiting.drain(..))
            {
                out.reply(tag, Outcome::Failed(Errno::IO));
            }
        }
        if self.directory.flush_is_done() {
            self.flush.last = None;
            for tag in self.flush.covered.drain(..) {
                self.answered_flushes.push(tag, now);
            }
        } else if self.flush.next == self.flush.lines.len() && !self.flush.lines.is_empty() {
            // Lines with an older version under way are looked at again once it has arrived.
            let directory = &self.directory;
            self.flush.lines.retain(|&line| {
                directory
                    .lookup(line)
                    .is_some_and(|slot| !directory.is_stored(slot, Mask::MAX, last))
            });
            self.flush.next = 0;
        }
    }

    fn begin_flush(&mut self) {
        let Flush {
            covered,
            waiting,
            last,
            lines,
            next,
        } = &mut self.flush;
        assert!(covered.is_empty(), "the flush before was answered");
        std::mem::swap(covered, waiting);
        *last = Some(self.directory.begin_flush());
        lines.clear();
        lines.extend(
            self.directory
                .volatile_list()
                .iter()
                .map(|&slot| self.directory.line_of(slot)),
        );
        lines.sort_unstable();
        *next = 0;
    }

    /// Switched off in an orderly way with data in the cache.
    fn must_empty(&self) -> bool {
        self.stopped && !self.broken && self.directory.volatile_sectors() > 0
    }

    /// Makes room when most of the cache is volatile.
    fn relieve(&mut self, out: &mut Output<'_>) {
        let (volatile, slots) = (self.directory.volatile_slots(), self.directory.slots());
        if volatile * 4 > slots * 3 {
            self.relieving = true;
        }
        if volatile * 2 < slots {
            self.relieving = false;
        }
        while self.relieving && self.unhurried_departure_is_free() {
            if !self.depart_somewhere(RUN, out) {
                return;
            }
        }
    }

    /// Destages at the chosen rate.
    fn destage(&mut self, out: &mut Output<'_>, now: Duration) {
        let elapsed = now.saturating_sub(self.allowed_until);
        self.allowed_until = now;
        let sectors_per_second =
            self.plan.cache / SECTOR * u64::from(self.plan.destage_percent) / 100;
        self.allowance += elapsed.as_nanos() * u128::from(sectors_per_second);
        // What could not be used in a second is forgotten.
        self.allowance = self
            .allowance
            .min(u128::from(sectors_per_second) * 1_000_000_000);
        while self.unhurried_departure_is_free() {
            let sectors = 1 + self.random.below(8);
            let price = u128::from(sectors) * 1_000_000_000;
            if self.allowance < price || !self.depart_somewhere(sectors, out) {
                return;
            }
            self.allowance -= price;
        }
    }

    fn unhurried_departure_is_free(&self) -> bool {
        self.free_departures.len() + DEPARTURES_UNHURRIED > to_usize(u64::from(DEPARTURES))
    }

    /// Destages at most so many sectors beginning at a random one. Says whether there was one.
    fn depart_somewhere(&mut self, sectors: u64, out: &mut Output<'_>) -> bool {
        let volatile = self.directory.volatile_list();
        if volatile.is_empty() {
            return false;
        }
        // A line may have nothing but sectors under way; of a few, one will have others.
        for _ in 0..8 {
            let slot = volatile[self.random.index(volatile.len())];
            let may = self.directory.may_depart(slot);
            let count = bits(may).count();
            if count == 0 {
                continue;
            }
            let bit = bits(may)
                .nth(self.random.index(count))
                .expect("there are so many");
            let block = u64::from(self.plan.block_size) / SECTOR;
            let sector = first_sector(self.directory.line_of(slot)) + to_u64(bit);
            // The medium of a disk with larger blocks has larger sectors.
            let first = sector / block * block;
            self.depart(first, first + sectors.next_multiple_of(block), out);
            return true;
        }
        false
    }

    fn answer(&mut self, out: &mut Output<'_>, now: Duration) {
        while !self.silent
            && let Some(tag) = self.answered_writes.due(now)
        {
            out.reply(tag, Outcome::Done);
            self.gauge.writes.fetch_add(1, Ordering::Relaxed);
        }
        while !self.silent
            && let Some(tag) = self.answered_flushes.due(now)
        {
            out.reply(tag, Outcome::Done);
            self.gauge.flushes.fetch_add(1, Ordering::Relaxed);
        }
        self.gauge
            .volatile
            .store(self.directory.volatile_sectors(), Ordering::Relaxed);
    }
}

impl Server for Drive {
    fn needs(&self) -> Needs<'_> {
        Needs {
            files: vec![self.store.as_fd()],
            arena: Some(&self.arena),
            operations: DEPARTURES + u32::from(self.plan.depth),
            segments: 1,
        }
    }

    fn request(&mut self, request: Request, _now: Duration) {
        self.new.push(request);
    }

    fn completed(&mut self, id: u32, result: i32, _now: Duration) {
        if id < DEPARTURES {
            self.arrive(id, result);
        } else {
            let tag = Tag(u16::try_from(id - DEPARTURES).expect("reads are numbered by tag"));
            self.read.push((tag, result));
        }
    }

    fn woken(&mut self, _now: Duration) {}

    fn advance(&mut self, out: &mut Output<'_>, now: Duration) {
        self.end_reads(out);
        self.take_new(out);
        self.admit_writes(out, now);
        self.force(out, now);
        self.work_on_flush(out, now);
        self.relieve(out);
        self.destage(out, now);
        self.answer(out, now);
    }

    fn stopped(&mut self, _now: Duration) {
        self.stopped = true;
    }

    fn wants_turn(&self) -> bool {
        false
    }

    fn is_idle(&self) -> bool {
        let in_flight = to_usize(u64::from(DEPARTURES)) - self.free_departures.len();
        in_flight == 0 && self.reads.iter().all(Option::is_none) && !self.must_empty()
    }

    fn leaves(&self) -> bool {
        false
    }

    fn tick(&self) -> Duration {
        let answers_wait =
            !self.answered_writes.answers.is_empty() || !self.answered_flushes.answers.is_empty();
        Duration::from_millis(match (answers_wait, self.plan.destage_percent) {
            (true, _) => 1,
            (false, 0) => 20,
            (false, _) => 4,
        })
    }
}

/// The sectors of a request.
fn sectors_of(request: &Request) -> Range<u64> {
    request.lba.0..request.lba.0 + u64::from(request.sectors)
}

/// The lines that hold them.
fn lines_of(sectors: &Range<u64>) -> Range<usize> {
    to_usize(sectors.start / LINE_SECTORS)..to_usize(sectors.end.div_ceil(LINE_SECTORS))
}

fn first_sector(line: usize) -> u64 {
    to_u64(line) * LINE_SECTORS
}

/// The line of a sector and which of the line's sectors it is.
fn place_of(sector: u64) -> (usize, usize) {
    (
        to_usize(sector / LINE_SECTORS),
        to_usize(sector % LINE_SECTORS),
    )
}

/// Those of a line's sectors that are in the range.
fn mask_in(line: usize, sectors: &Range<u64>) -> Mask {
    let first = first_sector(line);
    (0..LINE_SECTORS)
        .filter(|n| sectors.contains(&(first + n)))
        .fold(0, |mask, n| mask | 1 << n)
}

/// Where in the arena a sector of a slot is.
fn memory_of(slot: Slot, bit: usize) -> usize {
    slot.index() * LINE + bit * SECTOR_BYTES
}

#[cfg(test)]
mod tests {
    //! Goal: a drive falls silent at the request that was chosen, and at no other. Method: a list of requests,
    //! and which of them trips.

    use super::*;
    use crate::units::Lba;
    use std::sync::mpsc::channel;

    fn request(op: Op, first: u64, sectors: u32) -> Request {
        Request {
            tag: Tag(0),
            op,
            lba: Lba(first),
            sectors,
            durability: Durability::Later,
        }
    }

    fn tripped_by(op: TripOp, count: u32, requests: &[Request]) -> Option<usize> {
        let trip = Trip {
            op,
            sectors: 100..200,
            count,
        };
        let mut wire = Tripwire::new(trip, channel().0);
        requests
            .iter()
            .position(|request| wire.is_tripped_by(request))
    }

    #[test]
    fn the_chosen_request_is_the_one_that_touches_the_range_for_the_nth_time() {
        let requests = [
            request(Op::Write, 0, 100),
            request(Op::Read, 100, 1),
            request(Op::Write, 99, 2),
            request(Op::Read, 200, 8),
            request(Op::Read, 0, 300),
            request(Op::Write, 199, 1),
        ];
        assert_eq!(tripped_by(TripOp::Write, 1, &requests), Some(2));
        assert_eq!(tripped_by(TripOp::Write, 2, &requests), Some(5));
        assert_eq!(tripped_by(TripOp::Write, 3, &requests), None);
        assert_eq!(tripped_by(TripOp::Read, 1, &requests), Some(1));
        assert_eq!(tripped_by(TripOp::Read, 2, &requests), Some(4));
    }

    #[test]
    fn a_flush_counts_if_it_covers_a_write_to_the_range() {
        let requests = [
            request(Op::Flush, 0, 0),
            request(Op::Write, 0, 8),
            request(Op::Flush, 0, 0),
            request(Op::Write, 150, 8),
            request(Op::Flush, 0, 0),
            request(Op::Flush, 0, 0),
        ];
        assert_eq!(tripped_by(TripOp::Flush, 1, &requests), Some(4));
        assert_eq!(tripped_by(TripOp::Flush, 2, &requests), None);
    }
}
