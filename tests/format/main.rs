//! The format on disk is what `docs/format.md` says, and stays so.
//!
//! Method: golden images of two small arrays, kept as text (`golden/`), are decoded by the library and
//! compared field by field with what they must say; a second reader, written from the page alone
//! (`reader.rs`), must agree with the library about them, about arrays that are made on the spot, and
//! about every field that is changed. A test that fails here means that disks of today may not be
//! readable tomorrow: the page, the version and the golden images change only together.

mod agree;
mod array;
mod changed;
mod fields;
mod golden;
mod reader;

use array::{Array, UUID};
use golden::{DETACHED, Golden, MIDDLE};
use std::path::Path;
use ujournal::journal::anchor::{Anchor, Closed, RingPlace};
use ujournal::journal::assemble::{Set, assemble};
use ujournal::journal::geometry::{Geometry, Placement, superblock_places};
use ujournal::journal::record::{
    Entry, EntryOp, Expected, Header, HeaderWriter, Kind, LifeSeed, Record,
};
use ujournal::journal::superblock::{Cleanliness, Health, Marks, Phase, Role, Superblock};
use ujournal::units::{Epoch, FRAME, KIB, Lba, MIB, Seq, to_u64, to_usize};

const GOLDEN: [Golden; 2] = [DETACHED, MIDDLE];

/// The ring of both golden arrays: the smallest for requests of 8 KiB.
const RING: u64 = 458_752;

fn frame_at(image: &[u8], offset: u64) -> &[u8] {
    &image[to_usize(offset)..to_usize(offset + FRAME)]
}

fn assembled(images: Vec<Vec<u8>>) -> Set {
    assemble(Array::disks_of(images)).expect("the parts belong together")
}

fn expected_of(geometry: &Geometry) -> Expected {
    Expected {
        uuid: UUID,
        ring_size: geometry.ring.size(),
        device_sectors: geometry.sectors(),
    }
}

/// `len` bytes of the ring from `offset` on.
fn ring_bytes(geometry: &Geometry, images: &[Vec<u8>], offset: u64, len: u64) -> Vec<u8> {
    let pieces = geometry.ring.pieces(offset, len);
    let bytes = pieces.flat_map(|piece| {
        let at = to_usize(piece.offset.0);
        images[piece.part.index()][at..at + to_usize(piece.len)]
            .iter()
            .copied()
    });
    bytes.collect()
}

// What the golden images say.

/// The superblock of one part after two starts, both of which a crash followed.
fn golden_superblock(golden: &Golden, role: Role, part_size: u64) -> Superblock {
    let middle = golden.shape().placement == Placement::Middle;
    let speaks = role == Role::Journal || middle && role == Role::Member(0);
    Superblock {
        uuid: UUID,
        name: "golden".into(),
        role,
        shape: golden.shape(),
        block_size: 512,
        part_size,
        phase: Phase::Ready,
        epoch: Epoch(2),
        members_at: Epoch(if speaks { 2 } else { 0 }),
        cleanliness: Cleanliness::Dirty,
        health: Health::Ok,
        health_seq: Seq::NONE,
        marks: Marks::default(),
        // Two updates by label; in each start two where it speaks for the journal, else one.
        generation: if speaks { 6 } else { 4 },
        compat: 0,
        ro_compat: 0,
    }
}

#[test]
fn golden_superblocks_say_what_they_said() {
    let check = |golden: &Golden, image: &[u8], role, part_size| {
        assert_eq!(to_u64(image.len()), part_size);
        let expected = golden_superblock(golden, role, part_size);
        for offset in superblock_places(part_size) {
            let bytes = frame_at(image, offset.0);
            let found = Superblock::decode(bytes);
            assert_eq!(
                found,
                Ok(expected.clone()),
                "{role} of {} at {offset}",
                golden.name
            );
            assert_eq!(
                expected.encode(),
                bytes,
                "{role} of {} at {offset}",
                golden.name
            );
        }
    };
    let images = DETACHED.load();
    let size = 2 * MIB + 16 * 4 * KIB + 4096 + 512;
    check(&DETACHED, &images[0], Role::Member(0), size);
    check(&DETACHED, &images[1], Role::Member(1), size + 12_288);
    check(
        &DETACHED,
        &images[2],
        Role::Journal,
        2 * MIB + 2 * 4096 + RING,
    );

    let images = MIDDLE.load();
    let size = 2 * MIB + RING / 2 + 2 * 8 * KIB + 16 * 8 * KIB + 4096 + 512;
    check(&MIDDLE, &images[0], Role::Member(0), size);
    check(&MIDDLE, &images[1], Role::Member(1), size + 12_288);
}

fn place(seq: Seq, frames: u64) -> RingPlace {
    RingPlace {
        seq,
        offset: frames * FRAME,
    }
}

fn seq(epoch: u32, counter: u64) -> Seq {
    Seq((u64::from(epoch) << 44) + counter)
}

/// Both arrays were given the same requests, so their rings differ in nothing but the places.
fn golden_anchors() -> [Anchor; 2] {
    let of_second_start = Anchor {
        uuid: UUID,
        generation: 6,
        tail: place(seq(1, 3), 4),
        head: place(seq(1, 9), 13),
        head_number: 0,
        epoch: Epoch(2),
        durable: seq(1, 9),
        replayed_through: seq(1, 3),
        closed: Closed::No,
    };
    // Half a span after the one before it.
    let of_first_life = Anchor {
        generation: 5,
        head: place(seq(1, 9), 12),
        head_number: 5,
        epoch: Epoch(1),
        ..of_second_start
    };
    [of_first_life, of_second_start]
}

#[test]
fn golden_anchors_say_what_they_said() {
    for golden in GOLDEN {
        let images = golden.load();
        let places = Geometry::new(golden.shape()).unwrap().anchors;
        for (offset, expected) in places.copies.into_iter().zip(golden_anchors()) {
            let bytes = frame_at(&images[places.part.index()], offset.0);
            assert_eq!(
                Anchor::decode(bytes, UUID, RING),
                Ok(expected),
                "{} at {offset}",
                golden.name
            );
            assert_eq!(expected.encode(), bytes, "{} at {offset}", golden.name);
        }
    }
}

fn entry(op: EntryOp, lba: u64, sectors: u32, payload_at: u32) -> Entry {
    Entry {
        op,
        lba: Lba(lba),
        sectors,
        payload_at,
    }
}

/// Every record in the ring, in order: the first one is at home already.
fn golden_records() -> Vec<(Header, Vec<Entry>)> {
    let begin = place(Seq::NONE, 0);
    let tail = place(seq(1, 3), 4);
    let record = |kind, epoch, number, frames, payload_len, entries: Vec<Entry>| {
        let header = Header {
            kind,
            epoch: Epoch(epoch),
            number,
            offset: frames * FRAME,
            prev_seq: Seq::NONE,
            count: u32::try_from(entries.len()).expect("a few entries"),
            payload_len,
            tail,
            durable: Seq::NONE,
        };
        (header, entries)
    };
    use EntryOp::{Discard, Write, Zeroes, ZeroesKept};
    let requests = Kind::Requests;
    let three_writes = vec![
        entry(Write, 0, 8, 0),
        entry(Write, 21, 3, 4096),
        entry(Write, 100, 5, 5632),
    ];
    let mixed = vec![
        entry(Write, 4, 2, 0),
        entry(Discard, 100, 8, 0),
        entry(ZeroesKept, 40, 24, 0),
    ];
    let overlap = vec![entry(Zeroes, 21, 1, 0), entry(Write, 14, 16, 0)];
    let mut records = vec![
        record(Kind::Start, 1, 0, 0, 0, vec![]),
        record(requests, 1, 1, 1, 8192, three_writes),
        record(Kind::Mark, 1, 2, 4, 0, vec![]),
        record(requests, 1, 3, 5, 1024, mixed),
        record(requests, 1, 4, 7, 512, vec![entry(Write, 200, 1, 0)]),
        record(requests, 1, 5, 9, 8192, overlap),
        record(Kind::Start, 2, 0, 12, 0, vec![]),
        record(requests, 2, 1, 13, 512, vec![entry(Write, 22, 1, 0)]),
    ];
    for (header, _) in &mut records[..2] {
        header.tail = begin;
    }
    let said = [
        (Seq::NONE, Seq::NONE),
        (Seq::NONE, Seq::NONE),
        (seq(1, 3), seq(1, 3)),
        (seq(1, 3), seq(1, 3)),
        (seq(1, 6), seq(1, 6)),
        (seq(1, 7), seq(1, 7)),
        (seq(1, 9), seq(1, 9)),
        (seq(1, 9), seq(1, 9)),
    ];
    for ((header, _), (prev_seq, durable)) in records.iter_mut().zip(said) {
        (header.prev_seq, header.durable) = (prev_seq, durable);
    }
    records
}

#[test]
fn golden_records_say_what_they_said() {
    for golden in GOLDEN {
        let images = golden.load();
        let geometry = Geometry::new(golden.shape()).unwrap();
        let expected = expected_of(&geometry);
        for (header, entries) in golden_records() {
            let bytes = ring_bytes(&geometry, &images, header.offset, header.record_len());
            let what = format!("{} at {}", golden.name, header.offset);
            let record = Record::decode(&bytes, header.offset, &expected);
            let record = record.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(
                (record.header, &record.entries),
                (header, &entries),
                "{what}"
            );
            let (head, payload) = bytes.split_at(to_usize(header.header_len()));
            assert_eq!(record.check_payload(payload, &expected), Ok(()), "{what}");

            let seed = LifeSeed::new(UUID, header.epoch);
            let checksums = record.frame_checksums.into_iter();
            let mut writer = HeaderWriter::new(UUID);
            let again = writer.write(seed, &header, entries.into_iter(), checksums);
            assert!(
                again == head,
                "{what}: the same header is written in other bytes"
            );
        }
    }
}

/// The sectors of the golden devices that are not zero.
fn golden_device(sectors: u64) -> Vec<u8> {
    let mut device = vec![0; to_usize(sectors * 512)];
    let mut write = |request: u64, lba: u64, of_request: std::ops::Range<u64>| {
        for sector in of_request {
            let text = format!("request {request}, sector {sector}");
            let at = to_usize((lba + sector) * 512);
            device[at..at + 512].fill(0);
            device[at..at + text.len()].copy_from_slice(text.as_bytes());
        }
    };
    write(1, 0, 0..8);
    write(4, 4, 0..2);
    write(5, 200, 0..1);
    write(6, 14, 0..16);
    write(7, 22, 0..1);
    device
}

#[test]
fn golden_devices_hold_what_was_written() {
    for golden in GOLDEN {
        let found = reader::read(&golden.load()).unwrap();
        let expected = golden_device(found.geometry.device() / 512);
        assert!(found.device == expected, "{}", golden.name);
    }
}

/// With the folder's name in `GOLDEN_OUT` they are also kept: see `golden/README.md`.
#[test]
fn the_golden_arrays_can_be_made_again() {
    for golden in GOLDEN {
        let array = golden.make();
        let found = reader::read(&array.images()).unwrap();
        assert!(found.device == array.device, "{}", golden.name);
        assert!(
            array.device == golden_device(to_u64(array.device.len()) / 512),
            "{}",
            golden.name
        );
        if let Some(folder) = std::env::var_os("GOLDEN_OUT") {
            golden.store(Path::new(&folder), &array.images());
        }
    }
}
