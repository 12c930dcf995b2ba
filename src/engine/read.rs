//! Reads: each block from where its newest answered version is.
//!
//! A request is cut by the map into spans. What the window holds is copied at once; what only the ring
//! holds is read through a bounce buffer in whole frames and verified; the rest comes from the members,
//! straight into the request's buffer. A request that finds no free operation or bounce buffer stops
//! there and goes on in a later turn.

use super::extent_map::{Content, Extent, Span};
use super::io::{Attempt, JournalRead, Purpose, Transfer};
use super::port::{Memory, Port};
use super::request::{Errno, Request, Tag};
use super::{Close, Engine, answer};
use crate::journal::FRAME_LEN;
use crate::units::{FRAME, Lba, Pos, SECTOR, Seq, to_u64, to_usize};
use std::collections::VecDeque;

/// A READ that has not been answered.
#[derive(Clone, Copy, Debug)]
struct Reading {
    request: Request,
    /// Sectors, from its start, for which everything has been begun.
    begun: u64,
    /// Operations in flight for it.
    left: u32,
    /// Of those, how many read from a member.
    home: u32,
    /// The last seq that the map held when the oldest of these was begun.
    home_since: Seq,
    failed: Option<Errno>,
}

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Reads {
    /// Those that have not been begun to their end, oldest first.
    waiting: VecDeque<Tag>,
    reading: Vec<Option<Reading>>,
    /// Those with reads from a member in flight.
    at_home: Vec<Tag>,
    /// Those whose last operation has ended.
    done: Vec<Tag>,
    /// Ranges to be read once more, since what came from the ring was not what had been written.
    retries: VecDeque<Retry>,
    /// For each bounce buffer, its operations in flight.
    bounces: Vec<Bounce>,
    count: usize,
}

#[derive(Clone, Copy, Debug)]
struct Retry {
    tag: Tag,
    lba: Lba,
    sectors: u64,
}

#[derive(Clone, Copy, Debug)]
struct Bounce {
    left: u32,
    failed: Option<Errno>,
}

/// Whether everything of a range was begun.
enum Begun {
    All,
    /// Only so many sectors: something ran out.
    Part(u64),
}

impl Reads {
    pub(super) fn new(tags: usize, bounces: usize) -> Reads {
        Reads {
            waiting: VecDeque::with_capacity(tags),
            reading: vec![None; tags],
            at_home: Vec::with_capacity(tags),
            done: Vec::with_capacity(tags),
            retries: VecDeque::with_capacity(bounces),
            bounces: vec![
                Bounce {
                    left: 0,
                    failed: None
                };
                bounces
            ],
            count: 0,
        }
    }

    pub(super) fn push(&mut self, request: Request) {
        let slot = &mut self.reading[request.tag.index()];
        assert!(slot.is_none(), "a tag holds one request");
        *slot = Some(Reading {
            request,
            begun: 0,
            left: 0,
            home: 0,
            home_since: Seq(0),
            failed: None,
        });
        self.waiting.push_back(request.tag);
        self.count += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    fn get(&mut self, tag: Tag) -> &mut Reading {
        self.reading[tag.index()]
            .as_mut()
            .expect("the tag is being read")
    }

    /// Whether a read in flight may be reading the home of `extent`. One that was begun when the map had
    /// the extent already takes its bytes from the journal, however much else of it comes from a member:
    /// were those to count, two readers could keep replay from a block for ever.
    pub(super) fn may_read_home_of(&self, extent: &Extent) -> bool {
        self.at_home
            .iter()
            .filter_map(|tag| self.reading[tag.index()])
            .any(|reading| {
                let request = reading.request;
                let end = request.lba.plus(request.sectors.into());
                reading.home_since < extent.seq && request.lba < extent.end() && extent.lba < end
            })
    }

    fn ended(&mut self, tag: Tag, result: Result<(), Errno>) {
        let reading = self.get(tag);
        reading.left -= 1;
        if let Err(errno) = result {
            reading.failed = Some(errno);
        }
        self.note_if_done(tag);
    }

    fn note_if_done(&mut self, tag: Tag) {
        let reading = self.get(tag);
        if reading.left == 0 && reading.begun == u64::from(reading.request.sectors) {
            self.done.push(tag);
        }
    }
}

impl Engine {
    /// Begins what waits, oldest first, as far as operations and bounce buffers last.
    pub(super) fn start_reads(&mut self, port: &mut impl Port) {
        // What is not answered before the next process takes over is asked again there.
        if self.closing == Some(Close::Handover) || !self.retry_reads(port) {
            return;
        }
        while let Some(tag) = self.reads.waiting.front().copied() {
            let reading = *self.reads.get(tag);
            let from = reading.request.lba.plus(reading.begun);
            let sectors = u64::from(reading.request.sectors) - reading.begun;
            if self.commits.is_inserting(from, sectors) {
                break;
            }
            match self.read_range(port, tag, from, sectors, Attempt::First) {
                Begun::All => {
                    self.reads.waiting.pop_front();
                    self.reads.get(tag).begun = reading.request.sectors.into();
                    self.reads.note_if_done(tag);
                }
                Begun::Part(begun) => {
                    self.reads.get(tag).begun += begun;
                    break;
                }
            }
        }
    }

    /// Begins reading `sectors` from `from` on into their place in the tag's buffer.
    fn read_range(
        &mut self,
        port: &mut impl Port,
        tag: Tag,
        from: Lba,
        sectors: u64,
        attempt: Attempt,
    ) -> Begun {
        let end = from.plus(sectors);
        let mut at = from;
        while at < end {
            let span = self
                .map
                .lookup(at, end.since(at))
                .next()
                .expect("spans cover the range");
            let begun = match span {
                Span::Home { lba, sectors } => self.read_home(port, tag, lba, sectors),
                Span::Mapped(extent) => self.read_mapped(port, tag, extent, attempt),
            };
            at = at.plus(begun);
            if begun == 0 {
                return Begun::Part(at.since(from));
            }
        }
        Begun::All
    }

    fn buffer_at(&mut self, tag: Tag, lba: Lba) -> usize {
        to_usize(lba.since(self.reads.get(tag).request.lba) * SECTOR)
    }

    /// Begins reading a span from the members; returns how many sectors of it.
    fn read_home(&mut self, port: &mut impl Port, tag: Tag, lba: Lba, sectors: u64) -> u64 {
        if self.ios.available()
            < self.settings.ios_for_a_read() + self.settings.ios_kept(self.ring_size())
        {
            return 0;
        }
        let buffer = self.buffer_at(tag, lba);
        for piece in self.geometry.data.pieces(lba.0 * SECTOR, sectors * SECTOR) {
            let memory = Memory::Buffer(tag, buffer + to_usize(piece.at));
            self.ios.gather(
                port,
                Transfer::Read,
                Purpose::HomeRead { tag },
                piece,
                memory,
            );
        }
        let count = self.ios.finish(port);
        let reading = self.reads.get(tag);
        reading.left += count;
        reading.home += count;
        if reading.home == count {
            reading.home_since = self.commits.acked;
            self.reads.at_home.push(tag);
        }
        sectors
    }

    /// Takes, or begins reading, what the journal holds; returns how many sectors of it.
    fn read_mapped(
        &mut self,
        port: &mut impl Port,
        tag: Tag,
        extent: Extent,
        attempt: Attempt,
    ) -> u64 {
        let buffer = self.buffer_at(tag, extent.lba);
        let sectors = u64::from(extent.sectors);
        let len = sectors * SECTOR;
        match extent.content {
            Content::Zeroes | Content::ZeroesNoUnmap => {
                port.buffer_mut(tag, buffer..buffer + to_usize(len)).fill(0);
                sectors
            }
            // What was read from a disk for replay is verified on its own way; read it again rather
            // than trust it.
            Content::Payload(pos)
                if self.window.holds(pos, len) && !self.window.unverified(pos, len) =>
            {
                self.window
                    .copy(pos, port.buffer_mut(tag, buffer..buffer + to_usize(len)));
                sectors
            }
            Content::Payload(pos) => self.read_journal(port, tag, extent, pos, attempt),
        }
    }

    /// Begins reading the first bounce buffer's worth of an extent from the ring.
    fn read_journal(
        &mut self,
        port: &mut impl Port,
        tag: Tag,
        extent: Extent,
        pos: Pos,
        attempt: Attempt,
    ) -> u64 {
        if self.ios.available()
            < self.settings.ios_for_a_read() + self.settings.ios_kept(self.ring_size())
        {
            return 0;
        }
        let Some(bounce) = self.window.take_bounce() else {
            return 0;
        };
        let skip = pos.0 % FRAME;
        let first_frame = Pos(pos.0 - skip);
        let ring_left = self.ring_size() - first_frame.ring_offset(self.ring_size());
        let room = self.window.bounce_len().min(ring_left);
        let bytes = (u64::from(extent.sectors) * SECTOR).min(room - skip);
        let frames = (skip + bytes).div_ceil(FRAME);
        let read = JournalRead {
            tag,
            bounce,
            first_frame,
            frames: u16::try_from(frames).expect("a bounce buffer has few frames"),
            pos,
            lba: extent.lba,
            sectors: u32::try_from(bytes / SECTOR).expect("a bounce buffer has few sectors"),
            attempt,
        };
        let range = first_frame..first_frame.plus(frames * FRAME);
        let at = self.window.bounce_at(bounce);
        self.window.read_begins(range.clone());
        let offset = first_frame.ring_offset(self.ring_size());
        for piece in self.geometry.ring.pieces(offset, frames * FRAME) {
            let memory = Memory::Arena(at + to_usize(piece.at));
            self.ios.gather(
                port,
                Transfer::Read,
                Purpose::JournalRead(read),
                piece,
                memory,
            );
        }
        let left = self.ios.finish(port);
        self.reads.bounces[usize::from(bounce)] = Bounce { left, failed: None };
        self.reads.get(tag).left += 1;
        bytes / SECTOR
    }

    pub(super) fn home_read_ended(&mut self, tag: Tag, result: Result<(), Errno>) {
        self.counters.member_read_errors += u64::from(result.is_err());
        if result.is_err_and(Errno::is_of_a_device_gone) {
            self.degrade();
        }
        let reading = self.reads.get(tag);
        reading.home -= 1;
        if reading.home == 0 {
            self.reads.at_home.retain(|other| *other != tag);
        }
        self.reads.ended(tag, result);
    }

    pub(super) fn journal_read_ended(
        &mut self,
        port: &mut impl Port,
        read: JournalRead,
        result: Result<(), Errno>,
    ) {
        let bounce = &mut self.reads.bounces[usize::from(read.bounce)];
        bounce.left -= 1;
        bounce.failed = bounce.failed.or(result.err());
        if bounce.left > 0 {
            return;
        }
        let result = bounce.failed.map_or(Ok(()), Err);
        let range = read.first_frame..read.first_frame.plus(u64::from(read.frames) * FRAME);
        let at = self.window.bounce_at(read.bounce);
        let good = result.is_ok()
            && (0..usize::from(read.frames)).all(|frame| {
                let at = at + frame * FRAME_LEN;
                let bytes = self.window.arena().range(at..at + FRAME_LEN);
                self.window
                    .verify(read.first_frame.plus(to_u64(frame) * FRAME), bytes)
            });
        if good {
            let from = at + to_usize(read.pos.since(read.first_frame));
            let len = to_usize(u64::from(read.sectors) * SECTOR);
            let buffer = self.buffer_at(read.tag, read.lba);
            port.buffer_mut(read.tag, buffer..buffer + len)
                .copy_from_slice(self.window.arena().range(from..from + len));
        }
        self.window.read_ends(range);
        self.window.return_bounce(read.bounce);
        if good {
            self.reads.ended(read.tag, Ok(()));
            return;
        }
        match result {
            Ok(()) => self.counters.checksum_errors += 1,
            Err(_) => self.counters.journal_read_errors += 1,
        }
        if read.attempt == Attempt::Second {
            self.degrade();
            let errno = result.err().unwrap_or(Errno::BAD_DATA);
            self.reads.ended(read.tag, Err(errno));
            return;
        }
        // Once more, from wherever the newest version is by then.
        self.reads.retries.push_back(Retry {
            tag: read.tag,
            lba: read.lba,
            sectors: read.sectors.into(),
        });
    }

    /// Reads once more what was not what had been written; returns whether all of it was begun.
    fn retry_reads(&mut self, port: &mut impl Port) -> bool {
        while let Some(retry) = self.reads.retries.front().copied() {
            if self.commits.is_inserting(retry.lba, retry.sectors) {
                return false;
            }
            match self.read_range(port, retry.tag, retry.lba, retry.sectors, Attempt::Second) {
                Begun::All => {
                    self.reads.retries.pop_front();
                    self.reads.ended(retry.tag, Ok(()));
                }
                Begun::Part(begun) => {
                    let rest = Retry {
                        lba: retry.lba.plus(begun),
                        sectors: retry.sectors - begun,
                        ..retry
                    };
                    self.reads.retries[0] = rest;
                    return false;
                }
            }
        }
        true
    }

    /// Answers the reads whose last operation has ended.
    pub(super) fn finish_reads(&mut self, port: &mut impl Port) {
        while let Some(tag) = self.reads.done.pop() {
            let reading = self.reads.reading[tag.index()]
                .take()
                .expect("it was being read");
            self.reads.count -= 1;
            self.counters.reads += 1;
            self.counters.read_sectors += u64::from(reading.request.sectors);
            answer(port, tag, reading.failed.map_or(Ok(()), Err));
        }
    }
}
