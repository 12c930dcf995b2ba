//! The record: one entry of the ring, which proves by itself what it is and where it belongs.
//!
//! ```text
//!   [ fixed part 128 B | entries 32 B each | frame checksums 4 B each | zeroes ]  4, 8 or 12 KiB
//!   [ payload: the entries' bytes one after the other, in frames of 4 KiB, the last zero-padded ]
//! ```
//!
//! A record is valid at a place in the ring iff its header checksum holds, it names this array and this
//! very offset, its lengths agree with each other, every frame's checksum holds, and every range lies
//! on the device. Whether it *follows* the record before it is asked by [`Header::follows`]. All
//! checksums are seeded with the array, the epoch and the ring offset, so that bytes that were written
//! elsewhere, or in another life, do not pass for these.

use super::anchor::RingPlace;
use super::geometry::payload_max;
use super::{ArrayUuid, FRAME_LEN};
use crate::units::{Epoch, FRAME, Lba, SECTOR, Seq, round_up, to_u64, to_usize};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 8] = *b"ujrecord";
const VERSION: u16 = 1;

/// Most entries in a record.
pub const ENTRIES_MAX: usize = 256;
/// Most bytes of payload in a record.
pub const PAYLOAD_MAX: u64 = 1 << 20;
/// Most frames of payload in a record.
pub const FRAMES_MAX: usize = (PAYLOAD_MAX / FRAME) as usize;
/// Longest header that this version writes, in bytes.
pub const HEADER_LEN_MAX: usize =
    (size_of::<RawHeader>() + ENTRIES_MAX * size_of::<RawEntry>() + FRAMES_MAX * 4)
        .div_ceil(FRAME_LEN)
        * FRAME_LEN;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    version: U16,
    kind: u8,
    reserved_a: u8,
    crc: U32,
    uuid: [u8; 16],
    epoch: U32,
    count: U32,
    number: U64,
    offset: U64,
    prev_seq: U64,
    first_seq: U64,
    tail_seq: U64,
    tail_offset: U64,
    durable_seq: U64,
    header_len: U32,
    payload_len: U32,
    reserved_b: [u8; 24],
}
const _: () = assert!(size_of::<RawHeader>() == 128);
const CRC_AT: usize = std::mem::offset_of!(RawHeader, crc);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct RawEntry {
    op: u8,
    codec: u8,
    flags: U16,
    sectors: U32,
    lba: U64,
    payload_at: U32,
    stored_len: U32,
    reserved: U64,
}
const _: () = assert!(size_of::<RawEntry>() == 32);

/// What a record is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Holds requests.
    Requests,
    /// Begins a life, exactly where the run that was kept ends.
    Start,
    /// Carries a newer tail or durable seq when no request does.
    Mark,
    /// The filesystem was frozen and flushed here.
    Switch,
    /// The newest switch can no longer be recovered.
    SwitchLost,
}

/// What an entry asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryOp {
    /// These bytes.
    Write,
    /// Zeroes; the space stays allocated.
    ZeroesKept,
    /// Zeroes; the space may be given back.
    Zeroes,
    /// A discard: zeroes that may be given back.
    Discard,
}

/// One request in a record. Its seq is the record's first plus its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What is asked.
    pub op: EntryOp,
    /// The first sector.
    pub lba: Lba,
    /// How many sectors.
    pub sectors: u32,
    /// Where in the payload its bytes begin; 0 for an entry without.
    pub payload_at: u32,
}

impl Entry {
    /// Bytes of payload that it holds.
    pub fn stored_len(&self) -> u32 {
        match self.op {
            EntryOp::Write => self.sectors * 512,
            EntryOp::ZeroesKept | EntryOp::Zeroes | EntryOp::Discard => 0,
        }
    }
}

/// What stands at the beginning of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What it is for.
    pub kind: Kind,
    /// The life that wrote it.
    pub epoch: Epoch,
    /// Its number within that life; START is 0.
    pub number: u64,
    /// Where in the ring it begins.
    pub offset: u64,
    /// The last seq of the record before it.
    pub prev_seq: Seq,
    /// How many requests it holds.
    pub count: u32,
    /// Bytes of payload, before padding.
    pub payload_len: u32,
    /// The tail when it was built.
    pub tail: RingPlace,
    /// What was durable when it was built.
    pub durable: Seq,
}

impl Header {
    /// The seq of its first request, if it has one.
    pub fn first_seq(&self) -> Seq {
        self.prev_seq
            .max(Seq::start_of(self.epoch))
            .plus_across_lives(1)
    }

    /// The seq of its last request; without requests, that of the record before.
    pub fn last_seq(&self) -> Seq {
        if self.count == 0 {
            self.prev_seq
        } else {
            self.first_seq().plus(u64::from(self.count) - 1)
        }
    }

    /// Frames of payload.
    pub fn frames(&self) -> usize {
        to_usize(u64::from(self.payload_len).div_ceil(FRAME))
    }

    /// Bytes of the header on disk.
    pub fn header_len(&self) -> u64 {
        header_len(to_usize(self.count.into()), self.frames())
    }

    /// Bytes of the whole record on disk.
    pub fn record_len(&self) -> u64 {
        self.header_len() + round_up(self.payload_len.into(), FRAME)
    }

    /// Whether this record comes directly after one that ends with `before`.
    ///
    /// The same life with the next number, or a START of a later one up to `newest`.
    pub fn follows(&self, before: &Position, newest: Epoch) -> bool {
        let consecutive = Some(self.number) == before.number.checked_add(1);
        let next = self.epoch == before.epoch && consecutive && self.kind != Kind::Start;
        let start = self.kind == Kind::Start
            && self.number == 0
            && self.epoch > before.epoch
            && self.epoch <= newest;
        self.prev_seq == before.seq && (next || start)
    }
}

/// How a run of records ends: what the next one must follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The life of the last record.
    pub epoch: Epoch,
    /// Its number.
    pub number: u64,
    /// Its last seq.
    pub seq: Seq,
}

impl Position {
    /// The end of a run whose last record is `header`.
    pub fn after(header: &Header) -> Position {
        Position {
            epoch: header.epoch,
            number: header.number,
            seq: header.last_seq(),
        }
    }
}

impl Seq {
    /// Like [`Seq::plus`] for numbers read from a disk: saturates instead of asserting.
    fn plus_across_lives(self, n: u64) -> Seq {
        Seq(self.0.saturating_add(n))
    }
}

/// Bytes of a header for so many entries and frames.
pub fn header_len(entries: usize, frames: usize) -> u64 {
    let bytes = size_of::<RawHeader>() + entries * size_of::<RawEntry>() + frames * 4;
    round_up(to_u64(bytes), FRAME)
}

/// What seeds every checksum of one life of one array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LifeSeed(u32);

impl LifeSeed {
    /// The seed of `epoch` in array `uuid`.
    pub fn new(uuid: ArrayUuid, epoch: Epoch) -> LifeSeed {
        LifeSeed(crc32c::crc32c_append(
            crc32c::crc32c(&uuid.0),
            &epoch.0.to_le_bytes(),
        ))
    }

    fn at(self, ring_offset: u64) -> u32 {
        crc32c::crc32c_append(self.0, &ring_offset.to_le_bytes())
    }

    /// The checksum of one frame that stands at `ring_offset`.
    pub fn frame(self, ring_offset: u64, frame: &[u8]) -> u32 {
        debug_assert_eq!(frame.len(), FRAME_LEN);
        crc32c::crc32c_append(self.at(ring_offset), frame)
    }

    fn header(self, ring_offset: u64, bytes: &[u8]) -> u32 {
        let crc = crc32c::crc32c_append(self.at(ring_offset), &bytes[..CRC_AT]);
        let crc = crc32c::crc32c_append(crc, &[0; 4]);
        crc32c::crc32c_append(crc, &bytes[CRC_AT + 4..])
    }
}

/// Builds headers in memory of its own, so that sealing a record allocates nothing.
#[derive(Debug)]
pub struct HeaderWriter {
    uuid: ArrayUuid,
    bytes: Box<[u8]>,
}

impl HeaderWriter {
    /// For records of array `uuid`.
    pub fn new(uuid: ArrayUuid) -> HeaderWriter {
        HeaderWriter {
            uuid,
            bytes: vec![0; HEADER_LEN_MAX].into_boxed_slice(),
        }
    }

    /// The bytes of a header. `entries` and `frame_checksums` are as many as `header` says.
    pub fn write(
        &mut self,
        seed: LifeSeed,
        header: &Header,
        entries: impl ExactSizeIterator<Item = Entry>,
        frame_checksums: impl ExactSizeIterator<Item = u32>,
    ) -> &[u8] {
        assert_eq!(entries.len(), to_usize(header.count.into()));
        assert_eq!(frame_checksums.len(), header.frames());
        assert!(header.durable <= header.prev_seq);
        assert!(
            header.tail.seq <= header.durable,
            "the tail never passes what is durable"
        );
        let len = to_usize(header.header_len());
        let bytes = &mut self.bytes[..len];
        bytes.fill(0);
        let raw = RawHeader {
            magic: MAGIC,
            version: VERSION.into(),
            kind: match header.kind {
                Kind::Requests => 0,
                Kind::Start => 1,
                Kind::Mark => 2,
                Kind::Switch => 3,
                Kind::SwitchLost => 4,
            },
            reserved_a: 0,
            crc: 0.into(),
            uuid: self.uuid.0,
            epoch: header.epoch.0.into(),
            count: header.count.into(),
            number: header.number.into(),
            offset: header.offset.into(),
            prev_seq: header.prev_seq.0.into(),
            first_seq: header.first_seq().0.into(),
            tail_seq: header.tail.seq.0.into(),
            tail_offset: header.tail.offset.into(),
            durable_seq: header.durable.0.into(),
            header_len: u32::try_from(len).expect("at most 16 KiB").into(),
            payload_len: header.payload_len.into(),
            reserved_b: [0; 24],
        };
        let (fixed, rest) = bytes.split_at_mut(size_of::<RawHeader>());
        fixed.copy_from_slice(raw.as_bytes());
        let (entry_bytes, rest) = rest.split_at_mut(entries.len() * size_of::<RawEntry>());
        for (slot, entry) in entry_bytes
            .chunks_exact_mut(size_of::<RawEntry>())
            .zip(entries)
        {
            slot.copy_from_slice(encode_entry(&entry).as_bytes());
        }
        for (slot, crc) in rest.chunks_exact_mut(4).zip(frame_checksums) {
            slot.copy_from_slice(&crc.to_le_bytes());
        }
        let crc = seed.header(header.offset, bytes);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

fn encode_entry(entry: &Entry) -> RawEntry {
    let (op, flags) = match entry.op {
        EntryOp::Write => (1, 0),
        EntryOp::Zeroes => (2, 0),
        EntryOp::ZeroesKept => (2, FLAG_KEEP),
        EntryOp::Discard => (3, 0),
    };
    RawEntry {
        op,
        codec: 0,
        flags: flags.into(),
        sectors: entry.sectors.into(),
        lba: entry.lba.0.into(),
        payload_at: entry.payload_at.into(),
        stored_len: entry.stored_len().into(),
        reserved: 0.into(),
    }
}

const FLAG_KEEP: u16 = 1;

/// A record as read from the ring: all but its payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its fixed part.
    pub header: Header,
    /// Its requests, in the order of their seqs.
    pub entries: Vec<Entry>,
    /// The checksum of each frame of payload.
    pub frame_checksums: Vec<u32>,
}

/// Why the bytes at a place of the ring are not a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// Nothing that looks like one.
    #[error("no record")]
    Absent,
    /// Looks like one, but its header has changed.
    #[error("header checksum {found:#010x}, expected {expected:#010x}")]
    HeaderChecksum {
        /// What the bytes give.
        expected: u32,
        /// What is recorded.
        found: u32,
    },
    /// Its payload has changed.
    #[error("frame {frame}: checksum {found:#010x}, expected {expected:#010x}")]
    FrameChecksum {
        /// Which frame of its payload.
        frame: usize,
        /// What the header says.
        expected: u32,
        /// What the bytes give.
        found: u32,
    },
    /// Written by a version that this one does not know.
    #[error("record version {0}")]
    Version(u16),
    /// Of another array.
    #[error("a record of array {0}")]
    Foreign(ArrayUuid),
    /// Written for another place.
    #[error("a record for offset {0}")]
    Misplaced(u64),
    /// Whole, but not what comes next.
    #[error("record {number} of life {epoch} after seq {prev_seq}, which is not the next one here")]
    NotNext {
        /// Its life.
        epoch: Epoch,
        /// Its number.
        number: u64,
        /// What it says it follows.
        prev_seq: Seq,
    },
    /// Whole, but it says what no version writes.
    #[error("record field `{field}` holds {found}, which cannot be")]
    Field {
        /// Which.
        field: &'static str,
        /// What it holds.
        found: u64,
    },
    /// The disk gave no bytes.
    #[error("it cannot be read")]
    Unreadable,
}

/// What every record of an array is checked against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    /// The array.
    pub uuid: ArrayUuid,
    /// Bytes of the ring.
    pub ring_size: u64,
    /// Sectors of the exposed device.
    pub device_sectors: u64,
}

impl Record {
    /// How long the header at the beginning of `bytes` says it is, if it looks like one.
    pub fn peek_header_len(bytes: &[u8]) -> Option<usize> {
        let (raw, _) = RawHeader::ref_from_prefix(bytes).ok()?;
        let len = to_usize(raw.header_len.get().into());
        let plausible = raw.magic == MAGIC
            && len.is_multiple_of(FRAME_LEN)
            && (FRAME_LEN..=HEADER_LEN_MAX).contains(&len);
        plausible.then_some(len)
    }

    /// Reads the header that stands at `ring_offset`; `bytes` are at least as many as
    /// [`Record::peek_header_len`] says. The payload is checked by [`Record::check_payload`].
    pub fn decode(
        bytes: &[u8],
        ring_offset: u64,
        expected: &Expected,
    ) -> Result<Record, RecordError> {
        let len = Record::peek_header_len(bytes).ok_or(RecordError::Absent)?;
        let bytes = bytes.get(..len).ok_or(RecordError::Absent)?;
        let (raw, rest) = RawHeader::ref_from_prefix(bytes).map_err(|_| RecordError::Absent)?;
        if raw.version.get() != VERSION {
            return Err(RecordError::Version(raw.version.get()));
        }
        if raw.uuid != expected.uuid.0 {
            return Err(RecordError::Foreign(ArrayUuid(raw.uuid)));
        }
        let epoch = Epoch(raw.epoch.get());
        let crc = LifeSeed::new(expected.uuid, epoch).header(ring_offset, bytes);
        if raw.offset.get() != ring_offset {
            return Err(RecordError::Misplaced(raw.offset.get()));
        }
        if raw.crc.get() != crc {
            return Err(RecordError::HeaderChecksum {
                expected: crc,
                found: raw.crc.get(),
            });
        }
        let header = decode_header(raw, epoch, expected)?;
        if header.header_len() != to_u64(len) {
            return Err(RecordError::Field {
                field: "header_len",
                found: to_u64(len),
            });
        }
        let count = to_usize(header.count.into());
        let (entry_bytes, rest) = rest.split_at(count * size_of::<RawEntry>());
        let entries = entry_bytes
            .chunks_exact(size_of::<RawEntry>())
            .map(|bytes| decode_entry(bytes, &header, expected))
            .collect::<Result<Vec<Entry>, RecordError>>()?;
        let frame_checksums = rest[..header.frames() * 4]
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        Ok(Record {
            header,
            entries,
            frame_checksums,
        })
    }

    /// Checks the payload, `bytes` being all its frames.
    pub fn check_payload(&self, bytes: &[u8], expected: &Expected) -> Result<(), RecordError> {
        assert_eq!(bytes.len(), self.header.frames() * FRAME_LEN);
        let seed = LifeSeed::new(expected.uuid, self.header.epoch);
        let mut offset = (self.header.offset + self.header.header_len()) % expected.ring_size;
        for (index, (bytes, crc)) in bytes
            .chunks_exact(FRAME_LEN)
            .zip(&self.frame_checksums)
            .enumerate()
        {
            let found = seed.frame(offset, bytes);
            if found != *crc {
                return Err(RecordError::FrameChecksum {
                    frame: index,
                    expected: *crc,
                    found,
                });
            }
            offset = (offset + FRAME) % expected.ring_size;
        }
        Ok(())
    }
}

fn decode_header(
    raw: &RawHeader,
    epoch: Epoch,
    expected: &Expected,
) -> Result<Header, RecordError> {
    let field = |field, found: u64| RecordError::Field { field, found };
    if epoch > Epoch::MAX {
        return Err(field("epoch", epoch.0.into()));
    }
    if to_usize(raw.count.get().into()) > ENTRIES_MAX {
        return Err(field("count", raw.count.get().into()));
    }
    if u64::from(raw.payload_len.get()) > payload_max(expected.ring_size) {
        return Err(field("payload_len", raw.payload_len.get().into()));
    }
    let tail_offset = raw.tail_offset.get();
    if tail_offset >= expected.ring_size || !tail_offset.is_multiple_of(FRAME) {
        return Err(field("tail_offset", tail_offset));
    }
    if raw.reserved_a != 0 || raw.reserved_b.iter().any(|byte| *byte != 0) {
        return Err(field("reserved", 1));
    }
    let kind = match raw.kind {
        0 => Kind::Requests,
        1 => Kind::Start,
        2 => Kind::Mark,
        3 => Kind::Switch,
        4 => Kind::SwitchLost,
        other => return Err(field("kind", other.into())),
    };
    let has_requests = raw.count.get() > 0;
    if has_requests != (kind == Kind::Requests) {
        return Err(field("count", raw.count.get().into()));
    }
    let header = Header {
        kind,
        epoch,
        number: raw.number.get(),
        offset: raw.offset.get(),
        prev_seq: Seq(raw.prev_seq.get()),
        count: raw.count.get(),
        payload_len: raw.payload_len.get(),
        tail: RingPlace {
            seq: Seq(raw.tail_seq.get()),
            offset: tail_offset,
        },
        durable: Seq(raw.durable_seq.get()),
    };
    let counter_left = Seq::start_of(Epoch(1)).0 - 1 - header.prev_seq.counter();
    if header.prev_seq.epoch() > u64::from(epoch.0) || counter_left < to_u64(ENTRIES_MAX) {
        return Err(field("prev_seq", header.prev_seq.0));
    }
    if raw.first_seq.get() != header.first_seq().0 {
        return Err(field("first_seq", raw.first_seq.get()));
    }
    if header.durable > header.prev_seq {
        return Err(field("durable_seq", header.durable.0));
    }
    if header.tail.seq > header.durable {
        return Err(field("tail_seq", header.tail.seq.0));
    }
    if header.number > super::COUNT_MAX {
        return Err(field("number", header.number));
    }
    Ok(header)
}

fn decode_entry(bytes: &[u8], header: &Header, expected: &Expected) -> Result<Entry, RecordError> {
    let field = |field, found: u64| RecordError::Field { field, found };
    let raw = RawEntry::ref_from_bytes(bytes).map_err(|_| RecordError::Absent)?;
    let flags = raw.flags.get();
    let op = match (raw.op, flags) {
        (1, 0) => EntryOp::Write,
        (2, 0) => EntryOp::Zeroes,
        (2, FLAG_KEEP) => EntryOp::ZeroesKept,
        (3, 0) => EntryOp::Discard,
        (op, _) => return Err(field("op", op.into())),
    };
    if raw.reserved.get() != 0 {
        return Err(field("reserved", raw.reserved.get()));
    }
    if raw.codec != 0 {
        return Err(field("codec", raw.codec.into()));
    }
    let (lba, sectors) = (raw.lba.get(), raw.sectors.get());
    let end = lba.saturating_add(sectors.into());
    if sectors == 0 || end > expected.device_sectors {
        return Err(field("lba", lba));
    }
    let stored = u64::from(raw.stored_len.get());
    let expected = if op == EntryOp::Write {
        u64::from(sectors) * SECTOR
    } else {
        0
    };
    if stored != expected {
        return Err(field("stored_len", stored));
    }
    let at = raw.payload_at.get();
    if !u64::from(at).is_multiple_of(SECTOR)
        || u64::from(at) + stored > u64::from(header.payload_len)
    {
        return Err(field("payload_at", at.into()));
    }
    Ok(Entry {
        op,
        lba: Lba(lba),
        sectors,
        payload_at: at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expected = Expected {
        uuid: ArrayUuid([3; 16]),
        ring_size: 1 << 20,
        device_sectors: 10_000,
    };

    fn header() -> Header {
        Header {
            kind: Kind::Requests,
            epoch: Epoch(2),
            number: 5,
            offset: 8192,
            prev_seq: Seq::start_of(Epoch(2)).plus(40),
            count: 2,
            payload_len: 4096 + 512,
            tail: RingPlace {
                seq: Seq::start_of(Epoch(2)).plus(1),
                offset: 4096,
            },
            durable: Seq::start_of(Epoch(2)).plus(30),
        }
    }

    fn entries() -> [Entry; 2] {
        [
            Entry {
                op: EntryOp::Write,
                lba: Lba(9),
                sectors: 9,
                payload_at: 0,
            },
            Entry {
                op: EntryOp::ZeroesKept,
                lba: Lba(9_000),
                sectors: 1_000,
                payload_at: 0,
            },
        ]
    }

    fn image() -> (Vec<u8>, Vec<u8>) {
        let header = header();
        let seed = LifeSeed::new(EXPECTED.uuid, header.epoch);
        let payload: Vec<u8> = (0..8192u32)
            .map(|i| u8::try_from(i % 251).unwrap())
            .collect();
        let crcs: Vec<u32> = payload
            .chunks_exact(FRAME_LEN)
            .zip(0..)
            .map(|(frame, i)| seed.frame(header.offset + header.header_len() + i * FRAME, frame))
            .collect();
        let mut writer = HeaderWriter::new(EXPECTED.uuid);
        let bytes = writer
            .write(seed, &header, entries().into_iter(), crcs.into_iter())
            .to_vec();
        (bytes, payload)
    }

    #[test]
    fn what_is_written_is_read_back() {
        let (bytes, payload) = image();
        let record = Record::decode(&bytes, 8192, &EXPECTED).unwrap();
        assert_eq!(record.header, header());
        assert_eq!(record.entries, entries());
        assert_eq!(record.check_payload(&payload, &EXPECTED), Ok(()));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let (good, _) = image();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(
                Record::decode(&bytes, 8192, &EXPECTED).is_err(),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn every_flipped_byte_of_a_payload_is_noticed() {
        let (bytes, payload) = image();
        let record = Record::decode(&bytes, 8192, &EXPECTED).unwrap();
        for at in 0..payload.len() {
            let mut payload = payload.clone();
            payload[at] ^= 0x10;
            assert!(
                record.check_payload(&payload, &EXPECTED).is_err(),
                "byte {at}"
            );
        }
    }

    #[test]
    fn a_record_at_another_place_is_not_believed() {
        let (bytes, _) = image();
        assert_eq!(
            Record::decode(&bytes, 4096, &EXPECTED),
            Err(RecordError::Misplaced(8192))
        );
    }

    #[test]
    fn a_start_follows_any_earlier_life_and_nothing_else_crosses_lives() {
        let before = Position {
            epoch: Epoch(1),
            number: 7,
            seq: Seq(50),
        };
        let start = Header {
            kind: Kind::Start,
            epoch: Epoch(3),
            number: 0,
            prev_seq: Seq(50),
            count: 0,
            ..header()
        };
        assert!(start.follows(&before, Epoch(3)));
        assert!(
            !start.follows(&before, Epoch(2)),
            "an epoch that was never begun"
        );
        assert!(
            !Header {
                prev_seq: Seq(49),
                ..start
            }
            .follows(&before, Epoch(3))
        );
        assert!(
            !Header {
                epoch: Epoch(1),
                ..start
            }
            .follows(&before, Epoch(3))
        );
        let next = Header {
            kind: Kind::Mark,
            epoch: Epoch(1),
            number: 8,
            ..start
        };
        assert!(next.follows(&before, Epoch(3)));
        assert!(
            !Header { number: 9, ..next }.follows(&before, Epoch(3)),
            "one record is missing"
        );
        assert!(
            !Header {
                epoch: Epoch(2),
                ..next
            }
            .follows(&before, Epoch(3))
        );
    }

    #[test]
    fn the_first_request_of_a_life_counts_from_its_epoch() {
        let header = Header {
            epoch: Epoch(4),
            number: 1,
            prev_seq: Seq(77),
            ..header()
        };
        assert_eq!(header.first_seq(), Seq::start_of(Epoch(4)).plus(1));
        assert_eq!(header.last_seq(), Seq::start_of(Epoch(4)).plus(2));
    }
}
