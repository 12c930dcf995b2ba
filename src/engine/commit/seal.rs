//! Sealing: what waits becomes a record, and the record is written.

use super::{Blocked, Unacked, Volatile};
use crate::engine::extent_map::{Content, Extent};
use crate::engine::io::{Purpose, Transfer};
use crate::engine::port::{Memory, Port, Sync};
use crate::engine::request::{Durability, Errno, Op, Outcome, Request, Unmap};
use crate::engine::settings::{Commit, SyncWrite};
use crate::engine::{Close, Condition, Engine, Patience, Place};
use crate::journal::anchor::RingPlace;
use crate::journal::geometry::{anchor_span, payload_max};
use crate::journal::record::{ENTRIES_MAX, Entry, EntryOp, Header, Kind, header_len};
use crate::units::{FRAME, Pos, SECTOR, Seq, round_up, to_u64, to_usize};
use std::ops::Range;

/// While so many records are in flight, the next one waits until it is full: then one record, and one
/// write, serves all who came meanwhile.
const GROWING_RECORDS: usize = 2;

/// Numbers that a life may give; after the last one the array fails rather than give one twice. Not all of
/// the counter, so that a record never has to be cut at its end.
const SEQS_A_LIFE: u64 = (1 << 44) - 2 * ENTRIES_MAX as u64;

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

impl Engine {
    /// Puts what waits into records, as far as there is room.
    pub(in crate::engine) fn seal(&mut self, port: &mut impl Port) {
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
    pub(in crate::engine) fn count_stall(&mut self) {
        self.counters.stalls += u64::from(self.commits.blocked == Some(Blocked::Space));
    }

    fn is_time_to_seal(&self) -> bool {
        let commits = &self.commits;
        let in_flight = commits.in_flight();
        if commits.waiting.is_empty() || in_flight >= self.settings.records_in_flight {
            return false;
        }
        let full = payload_max(self.ring_size()) - self.settings.max_io;
        in_flight < GROWING_RECORDS || commits.waiting_bytes > full
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
            self.commits.waiting_bytes -= bytes;
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

    /// Seals the newest `count` requests, or none, into the record at the head, and submits it: see
    /// [`Engine::seal_batch`].
    pub(super) fn submit_record(
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
            tail: RingPlace {
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
        range: Range<Pos>,
        sync: Sync,
        purpose: Purpose,
    ) -> u32 {
        let ring_size = self.ring_size();
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
        let given_up = match self.patience {
            Patience::AsSet => {
                let failing = self.replay.members_failing_for(self.now);
                failing
                    .zip(self.settings.stall_timeout)
                    .is_some_and(|(failing, most)| failing >= most)
            }
            Patience::None => self.replay.failing_for(self.now).is_some(),
        };
        if !given_up || !matches!(self.commits.blocked, Some(Blocked::Space | Blocked::Map)) {
            return;
        }
        self.commits.waiting_bytes = 0;
        for waiting in self.commits.waiting.drain(..) {
            self.counters.refused_writes += 1;
            port.reply(waiting.tag, Outcome::Failed(Errno::IO));
        }
    }

    pub(in crate::engine) fn record_piece_ended(
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
}

pub(super) fn payload_of(request: &Request) -> u64 {
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
