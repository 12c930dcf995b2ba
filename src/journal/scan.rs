//! The scan: which records of the ring count after a crash.
//!
//! ```text
//!            tail                anchor.head             end            + one span
//!   ..........|===================|=======================|~~~~~~~~~~~~~~~|......
//!              every record here    walked, record by      looked at, frame by frame,
//!              must be valid        record, to the first   for proof that what lies at
//!              (2nd pass)           that is not (1st pass) `end` had been durable
//! ```
//!
//! 1. From the newest anchor's head walk forwards while each record is valid and follows the one before.
//!    The first that is not ends the run, unless something proves that it had been durable: then
//!    acknowledged data is damaged, and that is never mistaken for the end of the log.
//! 2. The newest tail is the newest of those in the anchors and in the records that were walked.
//! 3. From that tail to the anchor's head every record had been durable when the anchor was written. Here
//!    anything that is not valid is damage.
//!
//! Nothing is written, and nothing but live bytes and one span (two if a copy of the anchor is lost) is
//! read. Any bytes at all give a result or a [`ScanError`].

use super::FRAME_LEN;
use super::anchor::{Anchor, AnchorError, Closed, RingPlace};
use super::geometry::Geometry;
use super::record::{Expected, Position, Record, RecordError};
use crate::disk::buffer::AlignedBuffer;
use crate::disk::raid0::Stripes;
use crate::disk::{Disk, DiskError};
use crate::units::{Epoch, FRAME, MIB, Offset, PartIndex, Pos, Seq, to_u64, to_usize};

/// The parts of an array, in the order of [`PartIndex`].
pub type Disks = [Box<dyn Disk>];

/// What the scan looks at and by which rules.
#[derive(Debug)]
pub struct Scope<'a> {
    /// Where the ring lies.
    pub geometry: &'a Geometry,
    /// What records are checked against.
    pub expected: Expected,
    /// The newest epoch that the superblocks know.
    pub epoch: Epoch,
    /// How far records may lie beyond an anchor.
    pub span: u64,
}

/// What the scan found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The newest anchor.
    pub anchor: Anchor,
    /// Which copy it is.
    pub anchor_copy: usize,
    /// Whether the other copy can be read as well.
    pub both_anchors: bool,
    /// Where the run of records that count ends: the next record goes there.
    pub head: Pos,
    /// Its last record.
    pub last: Position,
    /// Where it begins.
    pub tail: RingPlace,
    /// The same as a position.
    pub tail_pos: Pos,
    /// The newest seq that is proven to have been durable before the crash.
    pub durable: Seq,
    /// Why the run ended, and whether anything was dropped.
    pub stopped_by: RecordError,
    /// Valid records behind the end, which are dropped since nothing proves that they were durable.
    pub dropped: u64,
}

/// Why a journal cannot be recovered.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// Neither anchor can be used.
    #[error("both copies of the anchor are lost: copy A: {a}; copy B: {b}")]
    NoAnchor {
        /// What is wrong with copy A.
        a: AnchorProblem,
        /// What is wrong with copy B.
        b: AnchorProblem,
    },
    /// The two copies contradict each other.
    #[error("both copies of the anchor are of generation {0} and differ")]
    AnchorsDiffer(u64),
    /// The anchor is of a life that no superblock knows.
    #[error("the anchor is of life {found}, the superblocks know none after {newest}")]
    AnchorEpoch {
        /// The anchor's.
        found: Epoch,
        /// The superblocks'.
        newest: Epoch,
    },
    /// A record that had been durable is not valid.
    #[error("{0}")]
    Damage(Box<Damage>),
}

/// A record of acknowledged data that is not valid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the journal is damaged: the record after seq {after} at ring offset {offset}: {problem}; it had been durable, \
     as {evidence} shows"
)]
pub struct Damage {
    /// The last seq before it.
    pub after: Seq,
    /// Where it begins.
    pub offset: u64,
    /// What is wrong with it.
    pub problem: RecordError,
    /// What proves that it had been durable.
    pub evidence: Evidence,
    /// Its requests, if its header can be read.
    pub record: Option<Record>,
}

/// Proof that a record had been durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// It lies before the anchor's head.
    Anchor,
    /// A record further on was built when it was.
    Record {
        /// Where that record stands.
        offset: u64,
        /// What was durable then.
        durable: Seq,
    },
}

impl std::fmt::Display for Evidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Evidence::Anchor => f.write_str("the anchor"),
            Evidence::Record { offset, durable } => {
                write!(
                    f,
                    "the record at ring offset {offset} (durable up to {durable})"
                )
            }
        }
    }
}

/// What is wrong with a copy of the anchor.
#[derive(Debug, thiserror::Error)]
pub enum AnchorProblem {
    /// Its bytes.
    #[error(transparent)]
    Content(#[from] AnchorError),
    /// The disk.
    #[error("{0}")]
    Disk(String),
}

/// Both copies of the anchor, as far as they can be used.
pub fn read_anchors(disks: &mut Disks, scope: &Scope<'_>) -> [Result<Anchor, AnchorProblem>; 2] {
    let places = scope.geometry.anchors;
    places.copies.map(|offset| {
        let mut bytes = AlignedBuffer::zeroed(FRAME_LEN);
        disks[places.part.index()]
            .read(offset, &mut bytes)
            .map_err(|error| AnchorProblem::Disk(format!("{error}: {}", error.source)))?;
        Ok(Anchor::decode(
            &bytes,
            scope.expected.uuid,
            scope.expected.ring_size,
        )?)
    })
}

/// The newest anchor, which copy it is, and whether the other can be read as well.
fn newest_anchor(
    copies: [Result<Anchor, AnchorProblem>; 2],
) -> Result<(Anchor, usize, bool), ScanError> {
    match copies {
        [Ok(a), Ok(b)] if a.generation == b.generation && a != b => {
            Err(ScanError::AnchorsDiffer(a.generation))
        }
        [Ok(a), Ok(b)] if b.generation > a.generation => Ok((b, 1, true)),
        [Ok(a), Ok(_)] => Ok((a, 0, true)),
        [Ok(a), Err(_)] => Ok((a, 0, false)),
        [Err(_), Ok(b)] => Ok((b, 1, false)),
        [Err(a), Err(b)] => Err(ScanError::NoAnchor { a, b }),
    }
}

/// Scans the ring. `on_record` is given every record that counts, from the tail on, with the position at
/// which it begins; `on_read`, time and again, how many bytes were read of how many at most.
///
/// # Errors
/// If the journal cannot be recovered without losing acknowledged data.
pub fn scan(
    disks: &mut Disks,
    scope: &Scope<'_>,
    on_record: &mut dyn FnMut(Pos, &Record),
    on_read: &mut dyn FnMut(u64, u64),
) -> Result<Found, ScanError> {
    let (anchor, anchor_copy, both) = newest_anchor(read_anchors(disks, scope))?;
    if anchor.epoch > scope.epoch {
        return Err(ScanError::AnchorEpoch {
            found: anchor.epoch,
            newest: scope.epoch,
        });
    }
    let ring_size = scope.expected.ring_size;
    let mut ring = RingReader::new(disks, scope);

    // 1. Forwards from the anchor.
    let anchor_pos = Pos(anchor.head.offset + ring_size);
    let reach = match (anchor.closed, both) {
        (Closed::Yes, true) => 0,
        (Closed::No, true) => scope.span,
        // The lost copy may have been the newer one: the first of a life that began where this one was
        // closed, or one a span further on. A life adds its START to what the one before could reach.
        (_, false) => 2 * scope.span + FRAME,
    };
    let limit = anchor_pos.plus(reach.min(ring_size - FRAME));
    let walk = ring.walk(anchor_pos, limit, head_of(&anchor), on_read)?;

    // 2. The newest tail.
    let tails = walk.records.iter().map(|(_, record)| record.header.tail);
    let tail = tails.fold(anchor.tail, |newest, tail| {
        if tail.seq >= newest.seq { tail } else { newest }
    });

    // 3. From it to the anchor, where nothing may be missing.
    let tail_pos = position_before(tail.offset, walk.head, ring_size);
    if tail_pos < anchor_pos {
        ring.connect(tail_pos, tail.seq, anchor_pos, &anchor, on_record, on_read)?;
    }

    for (at, record) in walk.records.iter().filter(|(at, _)| *at >= tail_pos) {
        on_record(*at, record);
    }
    let durable = walk.records.iter().map(|(_, record)| record.header.durable);
    Ok(Found {
        anchor,
        anchor_copy,
        both_anchors: both,
        head: walk.head,
        last: walk.last,
        tail,
        tail_pos,
        durable: durable.fold(anchor.durable, Seq::max),
        stopped_by: walk.stopped_by,
        dropped: walk.dropped,
    })
}

/// What the next record after an anchor follows.
fn head_of(anchor: &Anchor) -> Position {
    Position {
        epoch: anchor.epoch,
        number: anchor.head_number,
        seq: anchor.head.seq,
    }
}

/// Looks at every frame of the ring and reports each record whose header is valid: its ring offset, the
/// record, and whether its payload is whole. For people who look; recovery never reads the whole ring.
pub fn every_record(
    disks: &mut Disks,
    scope: &Scope<'_>,
    report: &mut dyn FnMut(u64, Record, bool),
) {
    let ring_size = scope.expected.ring_size;
    let mut ring = RingReader::new(disks, scope);
    // A record may wrap, so positions go on beyond the end.
    let limit = Pos(2 * ring_size);
    let mut at = Pos(0);
    while at < Pos(ring_size) {
        let Ok(record) = ring.header_within(at, limit) else {
            at = at.plus(FRAME);
            continue;
        };
        let len = record.header.record_len();
        match ring.with_payload(at, limit, record.clone()) {
            Ok(record) => {
                report(at.0, record, true);
                at = at.plus(len);
            }
            Err(_) => {
                report(at.0, record, false);
                at = at.plus(FRAME);
            }
        }
    }
}

/// The position of ring offset `offset` that is the newest one not beyond `head`.
fn position_before(offset: u64, head: Pos, ring_size: u64) -> Pos {
    let head_offset = head.ring_offset(ring_size);
    if offset <= head_offset {
        Pos(head.0 - (head_offset - offset))
    } else {
        Pos(head.0 - head_offset - (ring_size - offset))
    }
}

/// A run of records, each the next of the one before, and what ended it.
#[derive(Debug)]
struct Walk {
    records: Vec<(Pos, Record)>,
    /// Where it ends, and the last record of it.
    head: Pos,
    last: Position,
    stopped_by: RecordError,
    /// Valid records of this array behind its end.
    dropped: u64,
}

/// What lies behind the end of the run.
#[derive(Clone, Copy, Debug)]
struct Behind {
    proof: Option<Evidence>,
    valid_headers: u64,
}

/// Bytes that are read from the ring at once.
const READ_AHEAD: u64 = 4 * MIB;

/// Reads the ring in sequence through one buffer.
struct RingReader<'a, 'b> {
    disks: &'a mut Disks,
    scope: &'a Scope<'b>,
    buffer: AlignedBuffer,
    /// What the buffer holds.
    from: Pos,
    len: u64,
}

impl<'a, 'b> RingReader<'a, 'b> {
    fn new(disks: &'a mut Disks, scope: &'a Scope<'b>) -> Self {
        let len = READ_AHEAD.min(scope.expected.ring_size);
        RingReader {
            disks,
            scope,
            buffer: AlignedBuffer::zeroed(to_usize(len)),
            from: Pos(0),
            len: 0,
        }
    }

    /// The `len` bytes at `pos`. Reads ahead, but not beyond `limit`.
    fn bytes(&mut self, pos: Pos, len: u64, limit: Pos) -> Result<&[u8], DiskError> {
        let held = self.from <= pos && pos.plus(len) <= self.from.plus(self.len);
        if !held {
            let ahead = limit
                .0
                .saturating_sub(pos.0)
                .clamp(len, to_u64(self.buffer.len()).max(len));
            let ahead = ahead.min(to_u64(self.buffer.len()));
            self.len = 0;
            self.fill(pos, len, ahead)?;
        }
        let at = to_usize(pos.since(self.from));
        Ok(&self.buffer[at..at + to_usize(len)])
    }

    /// Fills the buffer from `pos` on: `ahead` bytes if the disk gives them, else just `len`, in two tries.
    fn fill(&mut self, pos: Pos, len: u64, ahead: u64) -> Result<(), DiskError> {
        if ahead > len && self.read(pos, ahead).is_ok() {
            return Ok(());
        }
        self.read(pos, len).or_else(|error| {
            tracing::warn!("{error}: {}; trying again", error.source);
            self.read(pos, len)
        })
    }

    fn read(&mut self, pos: Pos, len: u64) -> Result<(), DiskError> {
        let ring = &self.scope.geometry.ring;
        let offset = pos.ring_offset(self.scope.expected.ring_size);
        read_ring(self.disks, ring, offset, &mut self.buffer[..to_usize(len)])?;
        (self.from, self.len) = (pos, len);
        Ok(())
    }

    /// The header at `pos`, if there is a valid one.
    fn header(&mut self, pos: Pos) -> Result<Record, RecordError> {
        let limit = pos.plus(self.scope.span);
        self.header_within(pos, limit)
    }

    fn header_within(&mut self, pos: Pos, limit: Pos) -> Result<Record, RecordError> {
        let expected = self.scope.expected;
        let offset = pos.ring_offset(expected.ring_size);
        let first = self
            .bytes(pos, FRAME, limit)
            .map_err(|_| RecordError::Unreadable)?;
        let len = Record::peek_header_len(first).ok_or(RecordError::Absent)?;
        let bytes = self
            .bytes(pos, to_u64(len), limit)
            .map_err(|_| RecordError::Unreadable)?;
        Record::decode(bytes, offset, &expected)
    }

    /// The valid record at `pos` that follows `before`.
    fn record(&mut self, pos: Pos, limit: Pos, before: &Position) -> Result<Record, RecordError> {
        let record = self.header_within(pos, limit)?;
        if !record.header.follows(before, self.scope.epoch) {
            return Err(not_next(&record));
        }
        self.with_payload(pos, limit, record)
    }

    /// The valid record at `pos`, of which only the seq before it is known.
    fn first_record(&mut self, pos: Pos, limit: Pos, prev_seq: Seq) -> Result<Record, RecordError> {
        let record = self.header_within(pos, limit)?;
        if record.header.prev_seq != prev_seq || record.header.epoch > self.scope.epoch {
            return Err(not_next(&record));
        }
        self.with_payload(pos, limit, record)
    }

    fn with_payload(
        &mut self,
        pos: Pos,
        limit: Pos,
        record: Record,
    ) -> Result<Record, RecordError> {
        let expected = self.scope.expected;
        let payload = record.header.record_len() - record.header.header_len();
        if payload > 0 {
            let at = pos.plus(record.header.header_len());
            let bytes = self
                .bytes(at, payload, limit)
                .map_err(|_| RecordError::Unreadable)?;
            record.check_payload(bytes, &expected)?;
        }
        Ok(record)
    }

    /// Follows the records from `from` on, the first of which is the next after `before`, to the first that
    /// does not count, at most to `limit`; and makes sure that none which had been durable is missing.
    fn walk(
        &mut self,
        from: Pos,
        limit: Pos,
        before: Position,
        on_read: &mut dyn FnMut(u64, u64),
    ) -> Result<Walk, ScanError> {
        let mut records = Vec::new();
        let (mut head, mut last) = (from, before);
        let stopped_by = loop {
            if head >= limit {
                break RecordError::Absent;
            }
            match self.record(head, limit, &last) {
                Ok(record) => {
                    let at = head;
                    head = head.plus(record.header.record_len());
                    on_read(head.since(from), limit.since(from));
                    last = Position::after(&record.header);
                    records.push((at, record));
                }
                Err(error) => break error,
            }
        };
        let behind = self.look_for_evidence(head, limit, &last);
        if let Some(evidence) = behind.proof {
            let record = self.header(head).ok();
            return Err(damage(Damage {
                after: last.seq,
                offset: head.ring_offset(self.scope.expected.ring_size),
                problem: stopped_by,
                evidence,
                record: record.filter(|record| record.header.prev_seq == last.seq),
            }));
        }
        Ok(Walk {
            records,
            head,
            last,
            stopped_by,
            dropped: behind.valid_headers,
        })
    }

    /// Reads every record from `tail_pos`, before which `tail_seq` was the last, to the anchor. They were
    /// durable when it was written: each that is missing is damage.
    fn connect(
        &mut self,
        tail_pos: Pos,
        tail_seq: Seq,
        anchor_pos: Pos,
        anchor: &Anchor,
        on_record: &mut dyn FnMut(Pos, &Record),
        on_read: &mut dyn FnMut(u64, u64),
    ) -> Result<(), ScanError> {
        let ring_size = self.scope.expected.ring_size;
        let mut at = tail_pos;
        let mut before: Option<Position> = None;
        while at < anchor_pos {
            let result = match before {
                Some(before) => self.record(at, anchor_pos, &before),
                None => self.first_record(at, anchor_pos, tail_seq),
            };
            let record = result.map_err(|problem| {
                damage(Damage {
                    after: before.map_or(tail_seq, |before| before.seq),
                    offset: at.ring_offset(ring_size),
                    problem,
                    evidence: Evidence::Anchor,
                    record: self.header(at).ok(),
                })
            })?;
            on_record(at, &record);
            before = Some(Position::after(&record.header));
            at = at.plus(record.header.record_len());
            on_read(at.since(tail_pos), anchor_pos.since(tail_pos));
        }
        if before != Some(head_of(anchor)) || at != anchor_pos {
            let found = before.unwrap_or(head_of(anchor));
            return Err(damage(Damage {
                after: found.seq,
                offset: anchor.head.offset,
                problem: RecordError::NotNext {
                    epoch: found.epoch,
                    number: found.number,
                    prev_seq: found.seq,
                },
                evidence: Evidence::Anchor,
                record: None,
            }));
        }
        Ok(())
    }

    /// Looks at every frame behind the end of the run for a header of this array's history which proves
    /// that the record that should stand at `end` had been durable.
    ///
    /// A record says what was durable when it was built; a START says what the recovery before it kept.
    fn look_for_evidence(&mut self, end: Pos, limit: Pos, last: &Position) -> Behind {
        let mut behind = Behind {
            proof: None,
            valid_headers: 0,
        };
        let mut at = end;
        while at < limit {
            if let Ok(record) = self.header_within(at, limit) {
                let header = record.header;
                let ours = header.epoch <= self.scope.epoch && header.epoch >= last.epoch;
                let later = header.prev_seq > last.seq
                    || (header.prev_seq == last.seq && header.number > last.number + 1);
                if ours && header.durable > last.seq {
                    let offset = at.ring_offset(self.scope.expected.ring_size);
                    behind.proof.get_or_insert(Evidence::Record {
                        offset,
                        durable: header.durable,
                    });
                }
                behind.valid_headers += u64::from(ours && later);
            }
            at = at.plus(FRAME);
        }
        behind
    }
}

fn damage(damage: Damage) -> ScanError {
    ScanError::Damage(Box::new(damage))
}

fn not_next(record: &Record) -> RecordError {
    let header = record.header;
    RecordError::NotNext {
        epoch: header.epoch,
        number: header.number,
        prev_seq: header.prev_seq,
    }
}

/// Reads a range of the ring that may wrap.
///
/// # Errors
/// If a disk does not give it.
pub fn read_ring(
    disks: &mut Disks,
    ring: &Stripes,
    offset: u64,
    buffer: &mut [u8],
) -> Result<(), DiskError> {
    let len = to_u64(buffer.len());
    let first = len.min(ring.size() - offset);
    let mut rest = buffer;
    for (start, len) in [(offset, first), (0, len - first)] {
        for piece in ring.pieces(start, len) {
            let (now, later) = rest.split_at_mut(to_usize(piece.len));
            disks[piece.part.index()].read(piece.offset, now)?;
            rest = later;
        }
    }
    Ok(())
}

/// Writes an anchor to one of its two places and makes it durable.
///
/// # Errors
/// If the disk does not take it.
pub fn write_anchor(
    disks: &mut Disks,
    geometry: &Geometry,
    anchor: &Anchor,
    copy: usize,
) -> Result<(), DiskError> {
    let places = geometry.anchors;
    write_durably(disks, places.part, places.copies[copy], &anchor.encode())
}

/// Writes `bytes` to a part and flushes it.
///
/// # Errors
/// If the disk does not take them.
pub fn write_durably(
    disks: &mut Disks,
    part: PartIndex,
    offset: Offset,
    bytes: &[u8],
) -> Result<(), DiskError> {
    let mut buffer = AlignedBuffer::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    let disk = &mut disks[part.index()];
    disk.write(offset, &buffer)?;
    disk.flush()
}

#[cfg(test)]
mod tests {
    //! Goal: what cannot be read is asked for again as often as is said. Method: a disk in memory with a
    //! rotten place, which counts. What a scan finds is tested by the simulator and `tests/format`.

    use super::*;
    use crate::disk::DiskOp;
    use crate::disk::ram::Ram;
    use crate::journal::ArrayUuid;
    use crate::journal::geometry::{Placement, Shape, anchor_span, journal_size_min};
    use std::cell::RefCell;
    use std::rc::Rc;

    /// Fails reads of one frame; notes where each read began and how long it was.
    struct Rotten {
        ram: Ram,
        place: Offset,
        reads: Rc<RefCell<Vec<(u64, u64)>>>,
    }

    impl Disk for Rotten {
        fn size(&self) -> u64 {
            self.ram.size()
        }
        fn read(&mut self, offset: Offset, buffer: &mut [u8]) -> Result<(), DiskError> {
            let len = to_u64(buffer.len());
            self.reads.borrow_mut().push((offset.0, len));
            if (offset.0..offset.0 + len).contains(&self.place.0) {
                return Err(DiskError {
                    part: self.name(),
                    op: DiskOp::Read,
                    offset,
                    len,
                    source: std::io::Error::from_raw_os_error(libc::EIO),
                });
            }
            self.ram.read(offset, buffer)
        }
        fn write(&mut self, offset: Offset, buffer: &[u8]) -> Result<(), DiskError> {
            self.ram.write(offset, buffer)
        }
        fn flush(&mut self) -> Result<(), DiskError> {
            self.ram.flush()
        }
        fn zero(&mut self, offset: Offset, len: u64) -> Result<(), DiskError> {
            self.ram.zero(offset, len)
        }
        fn name(&self) -> String {
            self.ram.name()
        }
    }

    #[test]
    fn what_cannot_be_read_ahead_is_read_alone_and_that_twice() {
        let shape = Shape {
            members: 1,
            chunk: 4096,
            member_size: 4 * MIB,
            placement: Placement::Detached,
            journal_size: journal_size_min(Placement::Detached, 1, 4096, 4096),
        };
        let geometry = Geometry::new(shape).unwrap();
        let ring_size = geometry.ring.size();
        let ring_start = geometry.ring.lanes()[0].start;
        let scope = Scope {
            expected: Expected {
                uuid: ArrayUuid([1; 16]),
                ring_size,
                device_sectors: geometry.sectors(),
            },
            epoch: Epoch(1),
            span: anchor_span(ring_size),
            geometry: &geometry,
        };
        let reads = Rc::default();
        let mut disks: Vec<Box<dyn Disk>> = vec![
            Box::new(Ram::new(shape.member_size)),
            Box::new(Rotten {
                ram: Ram::new(shape.journal_size),
                place: ring_start.plus(4 * FRAME),
                reads: Rc::clone(&reads),
            }),
        ];
        let mut ring = RingReader::new(&mut disks, &scope);
        let mut lengths = |pos: u64, limit: u64| {
            let result = ring.bytes(Pos(pos), FRAME, Pos(limit)).map(<[u8]>::len);
            let taken: Vec<u64> = reads.take().into_iter().map(|(_, len)| len).collect();
            (result.ok(), taken)
        };
        let (ahead, one) = (8 * FRAME, Some(4096));
        assert_eq!(lengths(0, ahead), (one, vec![ahead, FRAME]));
        assert_eq!(
            lengths(4 * FRAME, 4 * FRAME + ahead),
            (None, vec![ahead, FRAME, FRAME])
        );
        // Nothing to read ahead.
        assert_eq!(lengths(4 * FRAME, 5 * FRAME), (None, vec![FRAME, FRAME]));
        assert_eq!(lengths(5 * FRAME, 5 * FRAME + ahead), (one, vec![ahead]));
    }
}
