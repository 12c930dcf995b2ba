//! Recovery: from the parts of an array to an engine that can serve.
//!
//! The same steps after a clean stop, a crash of the daemon and a power cut; what differs is how much the
//! scan finds. The caller holds the locks on every part, so that nothing of a dead life is still on its
//! way ([`crate::disk`]), and has begun the takeover of a live device if there is one.
//!
//! 1. Flush every part. Only then does "it was read" imply "it is durable": the daemon may have died
//!    without the machine, and superblocks are believed as well as records.
//! 2. Scan: which records count.
//! 3. Begin a life: raise the epoch on every part.
//! 4. Make room for a START record and for a life behind it, by replaying, if there is too little.
//! 5. Write START at the exact end of the run that was kept, and flush. From here on nothing of what was
//!    dropped can ever come back, since whatever follows must follow START.
//! 6. Write the older anchor: the next recovery begins here.
//!
//! Replay of what was found goes on behind the first requests.

use super::extent_map::{Content, Extent, ExtentMap};
use super::port::Space;
use super::replay::{Waypoint, waypoint_grain};
use super::{Close, Condition, Engine, Place};
use crate::disk::DiskError;
use crate::disk::buffer::AlignedBuffer;
use crate::disk::fill::write_zeroes;
use crate::disk::raid0::Stripes;
use crate::journal::ArrayUuid;
use crate::journal::FRAME_LEN;
use crate::journal::anchor::{Anchor, Closed, RingPlace};
use crate::journal::assemble::{BeginError, Set};
use crate::journal::geometry::{MARKS_RESERVED, anchor_span, record_max};
use crate::journal::record::{
    EntryOp, Expected, Header, HeaderWriter, Kind, LifeSeed, Record, RecordError,
};
use crate::journal::scan::{
    Disks, Found, ScanError, Scope, read_anchors, read_ring, scan, write_anchor,
};
use crate::journal::superblock::Health;
use crate::units::{
    Epoch, FRAME, Offset, Pos, SECTOR, Seq, round_down, round_up, to_u64, to_usize,
};
use std::collections::VecDeque;
use std::time::Duration;

/// Where a life begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartPoint {
    /// Its epoch.
    pub epoch: Epoch,
    /// Where its first record after START goes.
    pub head: Pos,
    /// The last seq of the lives before that was kept.
    pub last_seq: Seq,
    /// The oldest record that is still needed.
    pub tail: Place,
    /// The same, as far as it is durable.
    pub tail_durable: Pos,
    /// Generation of the newest anchor.
    pub anchor_generation: u64,
    /// Which copy it is.
    pub anchor_copy: usize,
    /// No home block holds anything newer.
    pub replayed_through: Seq,
}

/// What recovery hands to an engine.
#[derive(Debug)]
pub struct Recovered {
    /// Where the new life begins.
    pub start: StartPoint,
    /// The newest version of every block that is not known to be at home.
    pub map: ExtentMap,
    /// The checksum of each frame of the ring that holds payload which is still needed.
    pub checksums: Vec<u32>,
    /// Places at which a round of replay can end.
    pub waypoints: VecDeque<Waypoint>,
    /// What the array can do.
    pub condition: Condition,
    /// Which life wrote what is still in the ring, oldest first; the new one is the last.
    lives: Vec<(Pos, Epoch)>,
}

impl Recovered {
    /// The checksum seeds of the lives in the ring.
    pub(super) fn lives(&self, uuid: ArrayUuid) -> Vec<(Pos, LifeSeed)> {
        self.lives
            .iter()
            .map(|(pos, epoch)| (*pos, LifeSeed::new(uuid, *epoch)))
            .collect()
    }
}

/// What becomes of an error state that was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Errors {
    /// It goes on.
    Kept,
    /// The operator has seen it: it ends, if the journal is whole.
    Cleared,
}

/// What recovery did, for people and machines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The life that was begun.
    pub epoch: Epoch,
    /// The newest seq that is proven to have been durable.
    pub durable: Seq,
    /// The last seq that was kept: the image is that of all requests up to it.
    pub kept: Seq,
    /// Records from the tail on that are still to be replayed.
    pub records: u64,
    /// Bytes of the ring that they take.
    pub bytes: u64,
    /// Extents that they left in the map.
    pub extents: u64,
    /// Valid records behind the end that were dropped.
    pub dropped: u64,
    /// Why the run of records ended where it did.
    pub ended_by: RecordError,
    /// Whether the array had been stopped cleanly.
    pub was_clean: bool,
    /// Whether both copies of the anchor could be read.
    pub both_anchors: bool,
}

/// Why an array cannot be brought up.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// What is on the parts.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// A disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// All epochs are used up.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// The journal's part is older than the others.
    #[error(
        "{journal} does not know that life {epoch} of the array ended in a stop, all other parts do: it is an old copy"
    )]
    JournalNotStopped {
        /// The part.
        journal: String,
        /// The life.
        epoch: Epoch,
    },
    /// A payload that was valid a moment ago is not any more.
    #[error("the journal changed while it was replayed: frame at ring offset {0}")]
    Changed(u64),
}

/// Looks at an array without changing it: what recovery would keep. `on_read` as in [`scan`].
///
/// # Errors
/// As [`open`], as far as reading goes.
pub fn inspect(set: &mut Set, on_read: &mut dyn FnMut(u64, u64)) -> Result<Report, RecoveryError> {
    let mut kept = Kept::new(set, 0);
    let found = kept.scan(set, on_read)?;
    // A start would need one.
    let epoch = set.journal().epoch;
    epoch.next().ok_or(BeginError::OutOfEpochs)?;
    Ok(kept.report(set, &found, epoch))
}

/// Brings an array up for a new life, with room for `extents` in the map and rounds of `round` bytes.
/// `on_read` as in [`scan`].
///
/// # Errors
/// If acknowledged data is damaged, or a disk fails. Nothing is written before the scan has succeeded.
pub fn open(
    set: &mut Set,
    extents: usize,
    round: u64,
    errors: Errors,
    on_read: &mut dyn FnMut(u64, u64),
) -> Result<(Recovered, Report), RecoveryError> {
    // 1. Flush before belief.
    for disk in &mut set.disks {
        disk.flush()?;
    }
    // 2. Which records count?
    let mut kept = Kept::new(set, round);
    let found = kept.scan(set, on_read)?;
    let was_clean = set.is_clean();
    if errors == Errors::Cleared && set.health() != Health::Ok {
        let all: Vec<_> = set.parts().collect();
        set.update(&all, |sb| {
            sb.health = Health::Ok;
            sb.health_seq = found.last.seq;
        })?;
        tracing::warn!("the error state was cleared by the operator");
    }
    let health = set.health();
    // 3. A new life. From here on things are written.
    let epoch = set.begin_life()?;
    let report = Report {
        was_clean,
        ..kept.report(set, &found, epoch)
    };

    let ring_size = set.geometry.ring.size();
    let mut anchor = found.anchor;
    let mut copy = found.anchor_copy;
    let mut tail = Place {
        seq: found.tail.seq,
        pos: found.tail_pos,
    };
    // 4. Room for START, and for what a full ring needs to become less full.
    if found
        .head
        .plus(FRAME + room_to_serve(ring_size))
        .since(tail.pos)
        > ring_size
    {
        tail = kept.replay_now(set, &found, &mut anchor, &mut copy)?;
    } else if tail.seq == found.last.seq {
        // Everything is home, and behind the tail are STARTs and MARKs alone. No round of replay would ever
        // pass them; START does.
        tail.pos = found.head;
        kept.waypoints.clear();
    }
    // 5. START: durable before anything is served. What was dropped is now behind it for good.
    let head = write_start(set, epoch, &found, tail)?;
    let journal_parts: Vec<_> = set.geometry.journal_parts().collect();
    for part in journal_parts {
        set.disks[part.index()].flush()?;
    }
    // 6. The anchor of this life, in the older copy.
    copy = 1 - copy;
    anchor = Anchor {
        generation: anchor.generation + 1,
        tail: ring_place(tail, ring_size),
        head: RingPlace {
            seq: found.last.seq,
            offset: head.ring_offset(ring_size),
        },
        head_number: 0,
        epoch,
        durable: found.last.seq,
        closed: Closed::No,
        ..anchor
    };
    write_anchor(&mut set.disks, &set.geometry, &anchor, copy)?;
    if !found.both_anchors {
        // The copy that was lost is whole again; the one that led here is the older one and may lie two
        // spans back. Losing the new one must not make the next recovery look further than it does.
        copy = 1 - copy;
        anchor.generation += 1;
        write_anchor(&mut set.disks, &set.geometry, &anchor, copy)?;
    }

    kept.lives.push((found.head, epoch));
    let needed = kept.map.len() + 1024;
    kept.map.grow(needed.max(extents) + 1024);
    let recovered = Recovered {
        start: StartPoint {
            epoch,
            head,
            last_seq: found.last.seq,
            tail,
            tail_durable: tail.pos,
            anchor_generation: anchor.generation,
            anchor_copy: copy,
            replayed_through: anchor.replayed_through,
        },
        map: kept.map,
        checksums: kept.checksums,
        waypoints: kept.waypoints,
        condition: match health {
            Health::Ok => Condition::Ok,
            Health::Degraded => Condition::Degraded,
            Health::Failed => Condition::Failed,
        },
        lives: kept.lives,
    };
    Ok((recovered, report))
}

/// Ends a life that an engine has closed.
///
/// # Errors
/// If a disk does not take it; the array then stays dirty and loses nothing.
pub fn close(set: &mut Set, engine: &Engine, how: Close) -> Result<(), DiskError> {
    assert!(
        engine.condition() != Condition::Failed && engine.is_closed(),
        "what the anchor says is known to be so"
    );
    let (_, copy) = engine.last_anchor();
    let anchor = engine.final_anchor(Closed::Yes);
    match how {
        Close::Stop => set.end_life(&anchor, 1 - copy),
        Close::Handover => write_anchor(&mut set.disks, &set.geometry, &anchor, 1 - copy),
    }
}

/// Bytes of the ring that a life must find free behind its START. Requests stop before them; the STARTs of
/// lives that ended before they had replayed anything do not, and would fill the ring to its end: then no
/// MARK could carry a tail any more, and the head would come into the tail's segment of the window.
fn room_to_serve(ring_size: u64) -> u64 {
    2 * record_max(ring_size) + MARKS_RESERVED / 2 * FRAME
}

/// Whether the journal may be that of an array whose life ended in a stop: that closes the anchor before it
/// marks any part. An anchor that cannot be read may have been the one.
fn knows_of_a_stop(disks: &mut Disks, scope: &Scope<'_>) -> bool {
    let [Ok(a), Ok(b)] = read_anchors(disks, scope) else {
        return true;
    };
    let newest = if b.generation > a.generation { b } else { a };
    newest.closed == Closed::Yes && newest.epoch == scope.epoch
}

fn ring_place(place: Place, ring_size: u64) -> RingPlace {
    RingPlace {
        seq: place.seq,
        offset: place.pos.ring_offset(ring_size),
    }
}

/// Writes the START record of `epoch` at the end of what was kept; returns where it ends.
fn write_start(set: &mut Set, epoch: Epoch, found: &Found, tail: Place) -> Result<Pos, DiskError> {
    let uuid = set.journal().uuid;
    let ring_size = set.geometry.ring.size();
    let header = Header {
        kind: Kind::Start,
        epoch,
        number: 0,
        offset: found.head.ring_offset(ring_size),
        prev_seq: found.last.seq,
        count: 0,
        payload_len: 0,
        tail: ring_place(tail, ring_size),
        // All that was kept is durable: it was flushed before it was read.
        durable: found.last.seq,
    };
    let mut writer = HeaderWriter::new(uuid);
    let bytes = writer.write(
        LifeSeed::new(uuid, epoch),
        &header,
        [].into_iter(),
        [].into_iter(),
    );
    let mut buffer = AlignedBuffer::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    for piece in set.geometry.ring.pieces(header.offset, header.record_len()) {
        let at = to_usize(piece.at);
        set.disks[piece.part.index()].write(piece.offset, &buffer[at..at + to_usize(piece.len)])?;
    }
    Ok(found.head.plus(header.record_len()))
}

/// What the records that count leave behind.
struct Kept {
    map: ExtentMap,
    checksums: Vec<u32>,
    waypoints: VecDeque<Waypoint>,
    lives: Vec<(Pos, Epoch)>,
    grain: u64,
    records: u64,
}

impl Kept {
    fn new(set: &Set, round: u64) -> Kept {
        let frames = to_usize(set.geometry.ring.size() / FRAME);
        Kept {
            map: ExtentMap::with_capacity(1024),
            checksums: vec![0; frames],
            waypoints: VecDeque::new(),
            lives: Vec::new(),
            grain: waypoint_grain(round),
            records: 0,
        }
    }

    fn scan(
        &mut self,
        set: &mut Set,
        on_read: &mut dyn FnMut(u64, u64),
    ) -> Result<Found, RecoveryError> {
        let sb = set.journal();
        let ring_size = set.geometry.ring.size();
        let scope = Scope {
            geometry: &set.geometry,
            expected: Expected {
                uuid: sb.uuid,
                ring_size,
                device_sectors: set.geometry.sectors(),
            },
            epoch: sb.epoch,
            span: anchor_span(ring_size),
        };
        let only_journal_is_dirty = set.only_journal_is_dirty();
        if only_journal_is_dirty && !knows_of_a_stop(&mut set.disks, &scope) {
            let part = set.geometry.journal_part();
            return Err(RecoveryError::JournalNotStopped {
                journal: set.disks[part.index()].name(),
                epoch: scope.epoch,
            });
        }
        let mut keep = |pos: Pos, record: &Record| self.keep(pos, record, ring_size);
        Ok(scan(&mut set.disks, &scope, &mut keep, on_read)?)
    }

    fn keep(&mut self, pos: Pos, record: &Record, ring_size: u64) {
        let header = &record.header;
        if self
            .lives
            .last()
            .is_none_or(|(_, epoch)| *epoch != header.epoch)
        {
            self.lives.push((pos, header.epoch));
        }
        let payload = pos.plus(header.header_len());
        for (index, crc) in record.frame_checksums.iter().enumerate() {
            let frame = payload.plus(to_u64(index) * FRAME).ring_offset(ring_size) / FRAME;
            self.checksums[to_usize(frame)] = *crc;
        }
        let mut seq = header.first_seq();
        for entry in &record.entries {
            if self.map.len() + 4 > self.map.capacity() {
                self.map.grow(self.map.capacity() * 2);
            }
            let content = match entry.op {
                EntryOp::Write => Content::Payload(payload.plus(entry.payload_at.into())),
                EntryOp::Zeroes | EntryOp::Discard => Content::Zeroes,
                EntryOp::ZeroesKept => Content::ZeroesNoUnmap,
            };
            let extent = Extent {
                lba: entry.lba,
                sectors: entry.sectors,
                seq,
                content,
            };
            let inserted = self.map.insert(extent, usize::MAX);
            assert_eq!(inserted, entry.sectors, "nothing bounds an insert here");
            seq = Seq(seq.0 + 1);
        }
        let end = Place {
            seq: header.last_seq(),
            pos: pos.plus(header.record_len()),
        };
        let last = self.waypoints.back().map(|last| last.place.pos);
        if last.is_none_or(|last| end.pos.since(last) >= self.grain) {
            self.waypoints.push_back(Waypoint {
                place: end,
                since: Duration::ZERO,
            });
        }
        self.records += 1;
    }

    fn report(&self, set: &Set, found: &Found, epoch: Epoch) -> Report {
        Report {
            epoch,
            durable: found.durable,
            kept: found.last.seq,
            records: self.records,
            bytes: found.head.since(found.tail_pos),
            extents: to_u64(self.map.len()),
            dropped: found.dropped,
            ended_by: found.stopped_by,
            was_clean: set.is_clean(),
            both_anchors: found.both_anchors,
        }
    }

    /// Replays everything at once, before anything is served; returns the new tail.
    ///
    /// For a ring in which not even a START has room: no record can carry the new tail, so both anchors
    /// do, with a flush between.
    fn replay_now(
        &mut self,
        set: &mut Set,
        found: &Found,
        anchor: &mut Anchor,
        copy: &mut usize,
    ) -> Result<Place, RecoveryError> {
        let ring_size = set.geometry.ring.size();
        let mut write_next = |set: &mut Set, next: Anchor| -> Result<(), DiskError> {
            *copy = 1 - *copy;
            *anchor = Anchor {
                generation: anchor.generation + 1,
                ..next
            };
            write_anchor(&mut set.disks, &set.geometry, anchor, *copy)
        };
        // Home may hold anything up to the end from now on.
        let head = RingPlace {
            seq: found.last.seq,
            offset: found.head.ring_offset(ring_size),
        };
        let durable = Anchor {
            head,
            head_number: found.last.number,
            epoch: found.last.epoch,
            durable: found.last.seq,
            replayed_through: found.last.seq,
            tail: found.tail,
            closed: Closed::No,
            ..found.anchor
        };
        write_next(set, durable)?;
        for extent in self.map.iter() {
            write_home(set, &extent, |pos| {
                (
                    self.checksums[to_usize(pos.ring_offset(ring_size) / FRAME)],
                    seed_at(&self.lives, pos),
                )
            })?;
        }
        let members: Vec<_> = set.geometry.members().collect();
        for part in members {
            set.disks[part.index()].flush()?;
        }
        // Both copies must know before the space is written again.
        write_next(
            set,
            Anchor {
                tail: head,
                ..durable
            },
        )?;
        write_next(
            set,
            Anchor {
                tail: head,
                ..durable
            },
        )?;
        self.map = ExtentMap::with_capacity(1024);
        self.waypoints.clear();
        self.lives.clear();
        Ok(Place {
            seq: found.last.seq,
            pos: found.head,
        })
    }
}

fn seed_at(lives: &[(Pos, Epoch)], pos: Pos) -> Epoch {
    let index = lives.partition_point(|(start, _)| *start <= pos);
    lives[index.saturating_sub(1)].1
}

/// Copies one extent home, verifying what comes from the ring.
fn write_home(
    set: &mut Set,
    extent: &Extent,
    expected: impl Fn(Pos) -> (u32, Epoch),
) -> Result<(), RecoveryError> {
    let uuid = set.journal().uuid;
    let (start, len) = (extent.lba.0 * SECTOR, u64::from(extent.sectors) * SECTOR);
    let pos = match extent.content {
        Content::Payload(pos) => pos,
        Content::Zeroes => {
            return Ok(zero_home(
                &mut set.disks,
                &set.geometry.data,
                start,
                len,
                Space::Freed,
            )?);
        }
        Content::ZeroesNoUnmap => {
            return Ok(zero_home(
                &mut set.disks,
                &set.geometry.data,
                start,
                len,
                Space::Kept,
            )?);
        }
    };
    let ring_size = set.geometry.ring.size();
    let skip = pos.0 % FRAME;
    let first = Pos(pos.0 - skip);
    let frames_len = round_up(skip + len, FRAME);
    let mut buffer = AlignedBuffer::zeroed(to_usize(frames_len));
    read_ring(
        &mut set.disks,
        &set.geometry.ring,
        first.ring_offset(ring_size),
        &mut buffer,
    )?;
    for (index, bytes) in buffer.chunks_exact(FRAME_LEN).enumerate() {
        let at = first.plus(to_u64(index) * FRAME);
        let (crc, epoch) = expected(at);
        let offset = at.ring_offset(ring_size);
        if LifeSeed::new(uuid, epoch).frame(offset, bytes) != crc {
            return Err(RecoveryError::Changed(offset));
        }
    }
    let pieces: Vec<_> = set.geometry.data.pieces(start, len).collect();
    for piece in pieces {
        let at = to_usize(skip + piece.at);
        set.disks[piece.part.index()].write(piece.offset, &buffer[at..at + to_usize(piece.len)])?;
    }
    Ok(())
}

/// Makes `len` bytes of the device from `start` on read as zeroes at home. Members are asked to free whole
/// frames only: ragged edges are written, and so is all that has to keep its space.
fn zero_home(
    disks: &mut Disks,
    home: &Stripes,
    start: u64,
    len: u64,
    space: Space,
) -> Result<(), DiskError> {
    for run in home.runs(start, len) {
        let disk = disks[run.part.index()].as_mut();
        let end = run.offset.plus(run.len);
        let freed = match space {
            Space::Freed => round_up(run.offset.0, FRAME)..round_down(end.0, FRAME),
            Space::Kept => 0..0,
        };
        if freed.is_empty() {
            write_zeroes(disk, run.offset..end, &mut |_| {})?;
            continue;
        }
        let (first, last) = (Offset(freed.start), Offset(freed.end));
        write_zeroes(disk, run.offset..first, &mut |_| {})?;
        disk.zero(first, last.0 - first.0)?;
        write_zeroes(disk, last..end, &mut |_| {})?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    //! Goal: what recovery zeroes before START keeps its space where it must. Method: disks that tell
    //! a range that was zeroed from one that was written.

    use super::*;
    use crate::disk::Disk;
    use crate::disk::raid0::Lane;
    use crate::disk::ram::Ram;
    use crate::units::{KIB, PartIndex};

    /// Fills with this what it was asked to zero.
    const FREED: u8 = 0xf0;
    const UNTOUCHED: u8 = 0x55;

    struct TellsFreed(Ram);

    impl Disk for TellsFreed {
        fn size(&self) -> u64 {
            self.0.size()
        }
        fn read(&mut self, offset: Offset, buffer: &mut [u8]) -> Result<(), DiskError> {
            self.0.read(offset, buffer)
        }
        fn write(&mut self, offset: Offset, buffer: &[u8]) -> Result<(), DiskError> {
            self.0.write(offset, buffer)
        }
        fn flush(&mut self) -> Result<(), DiskError> {
            self.0.flush()
        }
        fn zero(&mut self, offset: Offset, len: u64) -> Result<(), DiskError> {
            let mut freed = AlignedBuffer::zeroed(to_usize(len));
            freed.fill(FREED);
            self.0.write(offset, &freed)
        }
        fn name(&self) -> String {
            self.0.name()
        }
    }

    /// What two members of 64 KiB hold after a range of the device was zeroed.
    fn zeroed(start: u64, len: u64, space: Space) -> [Vec<u8>; 2] {
        let lane = |part| Lane {
            part: PartIndex(part),
            start: Offset(0),
            gap: None,
        };
        let home = Stripes::new(vec![lane(0), lane(1)], 16 * KIB, 64 * KIB);
        let rams = [0, 1].map(|_| Ram::from_bytes(vec![UNTOUCHED; 64 << 10]));
        let mut disks = rams
            .clone()
            .map(|ram| Box::new(TellsFreed(ram)) as Box<dyn Disk>);
        zero_home(&mut disks, &home, start, len, space).unwrap();
        rams.map(|ram| ram.bytes().to_vec())
    }

    #[test]
    fn zeroes_that_keep_their_space_are_written() {
        let [first, second] = zeroed(4 * KIB, 24 * KIB, Space::Kept);
        let mut expected = vec![UNTOUCHED; 64 << 10];
        expected[4 << 10..16 << 10].fill(0);
        assert!(first == expected, "exactly the range, and nothing is freed");
        let mut expected = vec![UNTOUCHED; 64 << 10];
        expected[..12 << 10].fill(0);
        assert!(
            second == expected,
            "exactly the range, and nothing is freed"
        );
    }

    #[test]
    fn only_whole_frames_are_freed_and_the_edges_are_written() {
        let [first, second] = zeroed(3584, 16 * KIB, Space::Freed);
        let mut expected = vec![UNTOUCHED; 64 << 10];
        expected[3584..4096].fill(0);
        expected[4096..16 << 10].fill(FREED);
        assert!(
            first == expected,
            "the frame that is hit in part is written"
        );
        let mut expected = vec![UNTOUCHED; 64 << 10];
        expected[..3584].fill(0);
        assert!(
            second == expected,
            "nothing is freed that is not a whole frame"
        );
    }
}
