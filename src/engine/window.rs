//! The window: the newest part of the ring, held in memory as well.
//!
//! ```text
//!   ring      | seg 0 | seg 1 | seg 2 | seg 3 | seg 4 | seg 5 |
//!                         |       |               |
//!   slots              [ slot 2 ][ slot 0 ]    [ slot 1 ]       one segment of memory each
//! ```
//!
//! Payloads are copied here once, written from here, and served and replayed from here while they last.
//! A slot holds what lies between `valid.start` and `valid.end` of one segment in one lap of the ring. It
//! is pinned while a record in it is not durable, while replay works on it, and while it is being
//! loaded; of those that nobody pins the oldest makes room.
//!
//! The window also knows the checksum of every frame of the ring, so that what has left memory can be
//! verified when it is read back, and how many reads from the ring are in flight in each segment, so that
//! the head does not run over them.

use crate::disk::buffer::{Arena, ArenaError, Residency};
use crate::journal::FRAME_LEN;
use crate::journal::record::LifeSeed;
use crate::units::{FRAME, Pos, to_u64, to_usize};
use std::ops::Range;

/// Where in the arena things lie that are not slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Plan {
    zeroes: usize,
    anchor: usize,
    bounces: usize,
    bounce_len: usize,
    len: u64,
}

/// Bytes of zeroes kept for zeroing by writing.
pub(super) const ZEROES_LEN: usize = 64 << 10;

#[derive(Clone, Debug)]
struct Slot {
    /// Which bytes of the ring it holds; empty if it is free.
    valid: Range<Pos>,
    /// The segment of the ring that it stands for, in this lap.
    start: Pos,
    pins: u32,
    /// From here on it holds what we wrote ourselves; what lies before was read from a disk and has to be
    /// verified before use.
    trusted_from: Pos,
}

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Window {
    arena: Arena,
    plan: Plan,
    ring_size: u64,
    segment: u64,
    slots: Vec<Slot>,
    /// For each segment of the ring, the slot that stands for it.
    slot_of: Vec<Option<u16>>,
    /// For each segment of the ring, reads from it in flight.
    reads: Vec<u32>,
    /// For each frame of the ring, its checksum.
    checksums: Vec<u32>,
    /// Which life wrote what: each begins at a position and goes on to the next.
    lives: Vec<(Pos, LifeSeed)>,
    free_bounces: Vec<u16>,
}

/// What a window is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dimensions {
    pub(super) ring_size: u64,
    pub(super) window: u64,
    pub(super) segment: u64,
    pub(super) bounce: u64,
    pub(super) bounces: usize,
}

impl Window {
    pub(super) fn new(
        dimensions: Dimensions,
        checksums: Vec<u32>,
        lives: Vec<(Pos, LifeSeed)>,
        residency: Residency,
    ) -> Result<Window, ArenaError> {
        let Dimensions {
            ring_size,
            window,
            segment,
            bounce,
            bounces,
        } = dimensions;
        assert_eq!(to_u64(checksums.len()), ring_size / FRAME);
        assert!(!lives.is_empty());
        let segments = to_usize(ring_size.div_ceil(segment));
        let count = to_usize(window / segment).min(segments);
        let slots_len = count * to_usize(segment);
        let plan = Plan {
            zeroes: slots_len,
            anchor: slots_len + ZEROES_LEN,
            bounces: slots_len + ZEROES_LEN + FRAME_LEN,
            bounce_len: to_usize(bounce),
            len: to_u64(slots_len + ZEROES_LEN + FRAME_LEN) + bounce * to_u64(bounces),
        };
        let free = Slot {
            valid: Pos(0)..Pos(0),
            start: Pos(0),
            pins: 0,
            trusted_from: Pos(0),
        };
        Ok(Window {
            arena: Arena::new(plan.len, residency)?,
            plan,
            ring_size,
            segment,
            slots: vec![free; count],
            slot_of: vec![None; segments],
            reads: vec![0; segments],
            checksums,
            lives,
            free_bounces: (0..u16::try_from(bounces).expect("a few bounce buffers")).collect(),
        })
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(super) fn arena_mut(&mut self) -> &mut Arena {
        &mut self.arena
    }

    /// Bytes of the ring that it holds.
    pub(super) fn used(&self) -> u64 {
        self.slots
            .iter()
            .map(|slot| slot.valid.end.since(slot.valid.start))
            .sum()
    }

    // Segments of the ring.

    fn segment_of(&self, pos: Pos) -> usize {
        to_usize(pos.ring_offset(self.ring_size) / self.segment)
    }

    fn segment_start(&self, pos: Pos) -> Pos {
        Pos(pos.0 - pos.ring_offset(self.ring_size) % self.segment)
    }

    /// Where the segment that holds `pos` ends: at the next segment, or at the ring's end.
    fn segment_end(&self, pos: Pos) -> Pos {
        let offset = pos.ring_offset(self.ring_size);
        let end = (offset / self.segment + 1) * self.segment;
        Pos(pos.0 - offset + end.min(self.ring_size))
    }

    /// Where the segment ends whose last bytes before `pos` are; `pos` itself at a border.
    pub(super) fn segment_end_of(&self, pos: Pos) -> Pos {
        if pos == self.segment_start(pos) {
            pos
        } else {
            self.segment_end(pos)
        }
    }

    /// The slot that holds the segment of `pos` in the lap of `pos`.
    fn slot(&self, pos: Pos) -> Option<usize> {
        let slot = usize::from(self.slot_of[self.segment_of(pos)]?);
        (self.slots[slot].start == self.segment_start(pos)).then_some(slot)
    }

    /// Cuts a range of the ring at the borders of its segments.
    fn by_segment(&self, range: Range<Pos>) -> impl Iterator<Item = Range<Pos>> + use<> {
        let (segment, ring_size) = (self.segment, self.ring_size);
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let offset = at.ring_offset(ring_size);
            let end = ((offset / segment + 1) * segment).min(ring_size);
            let piece = at..Pos(at.0 - offset + end).min(range.end);
            at = piece.end;
            Some(piece)
        })
    }

    // Room for new records.

    /// Whether records may be written to `range`, after making room for it in memory.
    ///
    /// Not while reads of an earlier lap are in flight there, nor while every slot is pinned.
    pub(super) fn open(&mut self, range: Range<Pos>) -> bool {
        let read = self.by_segment(range.clone()).any(|piece| {
            self.slot(piece.start).is_none() && self.reads[self.segment_of(piece.start)] > 0
        });
        if read {
            return false;
        }
        for piece in self.by_segment(range.clone()) {
            if self.slot(piece.start).is_none() && self.take_slot(piece.start).is_none() {
                return false;
            }
        }
        // With next to no slots left, the last one taken may have been the first one's.
        self.by_segment(range)
            .all(|piece| self.slot(piece.start).is_some())
    }

    /// Makes some slot stand for the segment of `pos`: the one that held an earlier lap of it, a free
    /// one, or the oldest that nobody pins.
    fn take_slot(&mut self, pos: Pos) -> Option<usize> {
        let segment = self.segment_of(pos);
        let chosen = match self.slot_of[segment] {
            Some(slot) => {
                let slot = usize::from(slot);
                if self.slots[slot].pins > 0 {
                    return None;
                }
                slot
            }
            None => (0..self.slots.len())
                .filter(|i| self.slots[*i].pins == 0)
                .min_by_key(|i| self.slots[*i].valid.end)?,
        };
        self.forget(chosen);
        self.slot_of[segment] =
            Some(u16::try_from(chosen).expect("a window has at most 2^16 segments"));
        self.slots[chosen] = Slot {
            valid: pos..pos,
            start: self.segment_start(pos),
            pins: 0,
            trusted_from: pos,
        };
        Some(chosen)
    }

    fn forget(&mut self, slot: usize) {
        let segment = self.segment_of(self.slots[slot].start);
        if self.slot_of[segment].map(usize::from) == Some(slot) {
            self.slot_of[segment] = None;
        }
    }

    /// Says that `range` holds its bytes now: it adjoins what its slots already hold.
    pub(super) fn filled(&mut self, range: Range<Pos>) {
        for piece in self.by_segment(range) {
            let slot = self
                .slot(piece.start)
                .expect("only open segments are filled");
            let valid = &mut self.slots[slot].valid;
            assert!(valid.is_empty() || valid.end == piece.start || valid.start == piece.end);
            *valid = if valid.is_empty() {
                piece
            } else {
                valid.start.min(piece.start)..valid.end.max(piece.end)
            };
        }
    }

    // Pins.

    pub(super) fn pin(&mut self, range: Range<Pos>) {
        for piece in self.by_segment(range) {
            let slot = self.slot(piece.start).expect("only what is held is pinned");
            self.slots[slot].pins += 1;
        }
    }

    pub(super) fn unpin(&mut self, range: Range<Pos>) {
        for piece in self.by_segment(range) {
            let slot = self.slot(piece.start).expect("what is pinned is held");
            let pins = &mut self.slots[slot].pins;
            *pins = pins.checked_sub(1).expect("what is unpinned was pinned");
        }
    }

    // Loading for replay.

    /// Makes every segment of `range` stand in the window and pins it. On failure nothing is pinned.
    pub(super) fn pin_all(&mut self, range: Range<Pos>) -> bool {
        // First those that are here, so that making room for the others does not push them out.
        let mut missing = false;
        for piece in self.by_segment(range.clone()) {
            match self.slot(piece.start) {
                Some(slot) => self.slots[slot].pins += 1,
                None => missing = true,
            }
        }
        if !missing {
            return true;
        }
        for piece in self.by_segment(range.clone()) {
            if self.slot(piece.start).is_some() {
                continue;
            }
            let Some(slot) = self.take_slot(piece.start) else {
                self.unpin_present(range);
                return false;
            };
            self.slots[slot].pins = 1;
        }
        true
    }

    /// Takes back what [`Window::pin_all`] has done so far, and the slots that it took for nothing.
    fn unpin_present(&mut self, range: Range<Pos>) {
        for piece in self.by_segment(range) {
            if let Some(slot) = self.slot(piece.start) {
                self.slots[slot].pins -= 1;
                if self.slots[slot].pins == 0 && self.slots[slot].valid.is_empty() {
                    self.forget(slot);
                    self.slots[slot].valid = Pos(0)..Pos(0);
                    self.slots[slot].start = Pos(0);
                }
            }
        }
    }

    /// The first run of `range`, from `from` on, that is not in memory yet, within one segment.
    pub(super) fn first_missing(&self, range: Range<Pos>, from: Pos) -> Option<Range<Pos>> {
        self.by_segment(from.max(range.start)..range.end)
            .find_map(|piece| {
                let valid = self
                    .slot(piece.start)
                    .map(|slot| self.slots[slot].valid.clone())?;
                if valid.is_empty() || valid.start >= piece.end || valid.end <= piece.start {
                    // What is held must stay in one run, so load up to where it begins.
                    let end = if valid.is_empty() || valid.end <= piece.start {
                        piece.end
                    } else {
                        valid.start
                    };
                    return Some(piece.start..end.min(self.segment_end(piece.start)));
                }
                if piece.start < valid.start {
                    return Some(piece.start..valid.start);
                }
                (valid.end < piece.end).then_some(valid.end..piece.end)
            })
    }

    /// Says that `range` holds its bytes now, as read from a disk.
    pub(super) fn loaded(&mut self, range: Range<Pos>) {
        for piece in self.by_segment(range.clone()) {
            let slot = self.slot(piece.start).expect("what is loaded is pinned");
            let slot = &mut self.slots[slot];
            slot.trusted_from = slot.trusted_from.max(piece.end);
        }
        self.filled(range);
    }

    /// Forgets what of `range` was read from a disk, so that it is read again.
    pub(super) fn distrust(&mut self, range: Range<Pos>) {
        for piece in self.by_segment(range) {
            let slot = self
                .slot(piece.start)
                .expect("a round's segments are pinned");
            let slot = &mut self.slots[slot];
            let start = slot.valid.start.max(slot.trusted_from).min(slot.valid.end);
            slot.valid.start = start;
        }
    }

    // Bytes.

    /// Whether all of `len` bytes from `pos` on are in memory.
    pub(super) fn holds(&self, pos: Pos, len: u64) -> bool {
        self.by_segment(pos..pos.plus(len)).all(|piece| {
            self.slot(piece.start).is_some_and(|slot| {
                let valid = &self.slots[slot].valid;
                valid.start <= piece.start && piece.end <= valid.end
            })
        })
    }

    /// Whether any of `len` bytes from `pos` on was read from a disk and has to be verified.
    pub(super) fn unverified(&self, pos: Pos, len: u64) -> bool {
        self.by_segment(pos..pos.plus(len)).any(|piece| {
            self.slot(piece.start)
                .is_some_and(|slot| piece.start < self.slots[slot].trusted_from)
        })
    }

    /// The runs of arena memory that `range` of the ring lies in, in order: (at, len).
    pub(super) fn runs(&self, range: Range<Pos>) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.by_segment(range).map(move |piece| {
            let slot = self
                .slot(piece.start)
                .expect("only what is in the window has memory");
            let at =
                slot * to_usize(self.segment) + to_usize(piece.start.since(self.slots[slot].start));
            (at, piece.end.since(piece.start))
        })
    }

    /// The memory of the frame at `pos`.
    pub(super) fn frame(&self, pos: Pos) -> &[u8] {
        let (at, len) = self
            .runs(pos..pos.plus(FRAME))
            .next()
            .expect("a frame is one run");
        assert_eq!(len, FRAME);
        self.arena.range(at..at + FRAME_LEN)
    }

    /// Copies `bytes` to `pos` on.
    pub(super) fn store(&mut self, pos: Pos, bytes: &[u8]) {
        let mut pos = pos;
        let mut bytes = bytes;
        while !bytes.is_empty() {
            let (at, len) = self
                .runs(pos..pos.plus(to_u64(bytes.len())))
                .next()
                .expect("it has memory");
            let (now, later) = bytes.split_at(to_usize(len));
            self.arena
                .range_mut(at..at + now.len())
                .copy_from_slice(now);
            pos = pos.plus(len);
            bytes = later;
        }
    }

    /// Fills `range` with zeroes.
    pub(super) fn store_zeroes(&mut self, range: Range<Pos>) {
        let mut pos = range.start;
        while pos < range.end {
            let (at, len) = self.runs(pos..range.end).next().expect("it has memory");
            self.arena.range_mut(at..at + to_usize(len)).fill(0);
            pos = pos.plus(len);
        }
    }

    /// Copies what lies at `pos` on into `target`.
    pub(super) fn copy(&self, pos: Pos, target: &mut [u8]) {
        let mut done = 0;
        for (at, len) in self.runs(pos..pos.plus(to_u64(target.len()))) {
            let len = to_usize(len);
            target[done..done + len].copy_from_slice(self.arena.range(at..at + len));
            done += len;
        }
    }

    // Checksums.

    fn seed(&self, pos: Pos) -> LifeSeed {
        let index = self.lives.partition_point(|(start, _)| *start <= pos);
        self.lives[index
            .checked_sub(1)
            .expect("the oldest life begins at or before the tail")]
        .1
    }

    fn checksum_index(&self, pos: Pos) -> usize {
        to_usize(pos.ring_offset(self.ring_size) / FRAME)
    }

    /// Computes and keeps the checksum of the frame at `pos`, which is in the window.
    pub(super) fn seal_frame(&mut self, pos: Pos) {
        let crc = self
            .seed(pos)
            .frame(pos.ring_offset(self.ring_size), self.frame(pos));
        let index = self.checksum_index(pos);
        self.checksums[index] = crc;
    }

    /// The kept checksum of the frame at `pos`.
    pub(super) fn checksum(&self, pos: Pos) -> u32 {
        self.checksums[self.checksum_index(pos)]
    }

    /// Whether `bytes` are what was written to the frame at `pos`.
    pub(super) fn verify(&self, pos: Pos, bytes: &[u8]) -> bool {
        self.seed(pos).frame(pos.ring_offset(self.ring_size), bytes) == self.checksum(pos)
    }

    /// Whether every frame of the window that `len` bytes from `pos` on touch is what was written.
    pub(super) fn verify_held(&self, pos: Pos, len: u64) -> bool {
        let mut frame = Pos(pos.0 - pos.0 % FRAME);
        let end = pos.plus(len);
        while frame < end {
            if !self.verify(frame, self.frame(frame)) {
                return false;
            }
            frame = frame.plus(FRAME);
        }
        true
    }

    /// Forgets lives of which nothing is left behind `tail`. Not while a read from the ring is in flight:
    /// it may have begun when they were still needed.
    pub(super) fn drop_lives_before(&mut self, tail: Pos) {
        if self.reads.iter().any(|reads| *reads > 0) {
            return;
        }
        while self.lives.len() > 1 && self.lives[1].0 <= tail {
            self.lives.remove(0);
        }
    }

    // Reads from the ring.

    pub(super) fn read_begins(&mut self, range: Range<Pos>) {
        for piece in self.by_segment(range) {
            let segment = self.segment_of(piece.start);
            self.reads[segment] += 1;
        }
    }

    pub(super) fn read_ends(&mut self, range: Range<Pos>) {
        for piece in self.by_segment(range) {
            let segment = self.segment_of(piece.start);
            self.reads[segment] -= 1;
        }
    }

    /// Takes a bounce buffer, if one is free.
    pub(super) fn take_bounce(&mut self) -> Option<u16> {
        self.free_bounces.pop()
    }

    pub(super) fn return_bounce(&mut self, bounce: u16) {
        self.free_bounces.push(bounce);
    }

    /// Where in the arena a bounce buffer begins.
    pub(super) fn bounce_at(&self, bounce: u16) -> usize {
        self.plan.bounces + usize::from(bounce) * self.plan.bounce_len
    }

    /// Bytes of a bounce buffer.
    pub(super) fn bounce_len(&self) -> u64 {
        to_u64(self.plan.bounce_len)
    }

    /// Where in the arena [`ZEROES_LEN`] zeroes stand.
    pub(super) fn zeroes_at(&self) -> usize {
        self.plan.zeroes
    }

    /// Where in the arena the anchor is put together.
    pub(super) fn anchor_at(&self) -> usize {
        self.plan.anchor
    }

    pub(super) fn check_invariants(&self) {
        for (segment, slot) in self.slot_of.iter().enumerate() {
            if let Some(slot) = slot {
                assert_eq!(
                    self.segment_of(self.slots[usize::from(*slot)].start),
                    segment
                );
            }
        }
        for slot in self.slots.iter().filter(|slot| !slot.valid.is_empty()) {
            assert!(slot.valid.start >= slot.start);
            assert!(slot.valid.end <= self.segment_end(slot.start));
        }
        assert!(self.lives.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
