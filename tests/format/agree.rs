//! The library and the reader that was written from the page agree about whole arrays.
//!
//! Method: shapes by the thousand for the geometry; for the rest, small arrays of every placement are
//! served, killed, left and stopped by the real code, and both readers look at the disks after each end.

use crate::array::{Array, Ask, MAX_IO, UUID};
use crate::reader::{self, Found};
use crate::{GOLDEN, assembled, expected_of};
use std::time::Duration;
use ujournal::engine::Close;
use ujournal::journal::assemble::Set;
use ujournal::journal::geometry::{
    Geometry, Placement, Shape, anchor_span, journal_size_min, payload_max, superblock_places,
};
use ujournal::journal::record::{EntryOp, Kind, Record};
use ujournal::journal::scan::{Scope, scan};
use ujournal::units::{Epoch, FRAME, KIB, MIB, to_u64, to_usize};

const PLACEMENTS: [Placement; 4] = [
    Placement::Detached,
    Placement::Start,
    Placement::Middle,
    Placement::End,
];

/// Numbers from a seed (xorshift).
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    /// A size of any magnitude between two powers of two.
    fn size(&mut self, least: u64, most: u64) -> u64 {
        let magnitude = least + self.below(most - least);
        self.below(1 << magnitude)
    }
}

fn placement_number(placement: Placement) -> u8 {
    match placement {
        Placement::Detached => 0,
        Placement::Start => 1,
        Placement::Middle => 2,
        Placement::End => 3,
    }
}

/// What the page computes a geometry from.
fn numbers_of(shape: &Shape) -> reader::Superblock {
    reader::Superblock {
        uuid: [0; 16],
        name: String::new(),
        compat: 0,
        ro_compat: 0,
        generation: 0,
        part_size: shape.member_size,
        member_size: shape.member_size,
        journal_size: shape.journal_size,
        state_seq: 0,
        bitmap: (0, 0),
        chunk: shape.chunk,
        block_size: 512,
        epoch: 0,
        members_at: 0,
        members: u64::from(shape.members),
        role_index: 0,
        role: 0,
        placement: placement_number(shape.placement),
        phase: 1,
        state: 0,
        marks: 0,
        clean: 0,
    }
}

#[test]
fn the_page_and_the_code_lay_arrays_out_alike() {
    let (mut legal, mut refused) = (0, 0);
    for seed in 0..4000 {
        let mut dice = Dice::new(seed);
        let shape = Shape {
            members: u8::try_from(1 + dice.below(32)).unwrap(),
            chunk: (4 * KIB) << dice.below(9),
            member_size: dice.size(18, 48),
            placement: PLACEMENTS[to_usize(dice.below(4))],
            journal_size: dice.size(18, 42),
        };
        match (
            Geometry::new(shape),
            reader::Geometry::new(&numbers_of(&shape)),
        ) {
            (Ok(code), Ok(page)) => {
                compare_geometry(&code, &page, &mut dice);
                legal += 1;
            }
            (Err(_), Err(_)) => refused += 1,
            (code, page) => {
                panic!("seed {seed}: {shape:?}: the code says {code:?}, the page {page:?}")
            }
        }
    }
    assert!(
        legal > 500 && refused > 500,
        "{legal} legal and {refused} refused shapes"
    );
}

fn compare_geometry(code: &Geometry, page: &reader::Geometry, dice: &mut Dice) {
    assert_eq!(code.data.size(), page.device());
    assert_eq!(code.ring.size(), page.ring);
    assert_eq!((code.bitmap.0.0, code.bitmap.1), page.bitmap);
    assert_eq!(code.anchors.part.index(), page.journal_part());
    assert_eq!(code.anchors.copies.map(|copy| copy.0), page.anchors());
    assert_eq!(payload_max(page.ring), page.payload_max());
    assert_eq!(anchor_span(page.ring), page.span());
    for _ in 0..20 {
        let byte = dice.below(page.device());
        let piece = code
            .data
            .pieces(byte, 1)
            .next()
            .expect("a byte lies somewhere");
        let place = page.data(byte);
        assert_eq!(
            (piece.part.index(), piece.offset.0),
            (place.part, place.offset),
            "byte {byte}"
        );
        let byte = dice.below(page.ring);
        let piece = code
            .ring
            .pieces(byte, 1)
            .next()
            .expect("a byte lies somewhere");
        let place = page.ring(byte);
        assert_eq!(
            (piece.part.index(), piece.offset.0),
            (place.part, place.offset),
            "ring offset {byte}"
        );
    }
}

/// Head, last seq, tail, and the records between.
type Scanned = (u64, u64, (u64, u64), Vec<reader::Header>);

/// What the library's scan says, in the words of the reader. On the way it tells how far it is, and never
/// more than there is.
fn library(images: &[Vec<u8>]) -> Result<Scanned, String> {
    let mut set: Set = assembled(images.to_vec());
    let expected = expected_of(&set.geometry);
    let scope = Scope {
        geometry: &set.geometry,
        expected,
        epoch: set.journal().epoch,
        span: anchor_span(expected.ring_size),
    };
    let mut records = Vec::new();
    let mut note = |_, record: &Record| records.push(said(record));
    let mut read = 0;
    let mut watch = |done, total| {
        assert!(done <= total, "{done} of {total} bytes were read");
        read += 1;
    };
    let found = scan(&mut set.disks, &scope, &mut note, &mut watch);
    let found = found.map_err(|error| error.to_string())?;
    assert!(
        read >= records.len(),
        "{read} reports of {} records",
        records.len()
    );
    let head = found.head.ring_offset(expected.ring_size);
    Ok((
        head,
        found.last.seq.0,
        (found.tail.seq.0, found.tail.offset),
        records,
    ))
}

/// A record of the library in the words of the reader.
pub fn said(record: &Record) -> reader::Header {
    let header = &record.header;
    let entry = |entry: &ujournal::journal::record::Entry| reader::Entry {
        op: match entry.op {
            EntryOp::Write => 1,
            EntryOp::Zeroes | EntryOp::ZeroesKept => 2,
            EntryOp::Discard => 3,
        },
        keep: entry.op == EntryOp::ZeroesKept,
        lba: entry.lba.0,
        sectors: entry.sectors,
        payload_at: entry.payload_at,
        stored_len: entry.stored_len(),
    };
    reader::Header {
        kind: match header.kind {
            Kind::Requests => 0,
            Kind::Start => 1,
            Kind::Mark => 2,
            Kind::Switch => 3,
            Kind::SwitchLost => 4,
        },
        epoch: header.epoch.0,
        count: header.count,
        number: header.number,
        offset: header.offset,
        prev_seq: header.prev_seq.0,
        first_seq: header.first_seq().0,
        tail: (header.tail.seq.0, header.tail.offset),
        durable_seq: header.durable.0,
        header_len: header.header_len(),
        payload_len: header.payload_len.into(),
        entries: record.entries.iter().map(entry).collect(),
        frames: record.frame_checksums.clone(),
    }
}

fn compare(images: &[Vec<u8>], what: &str) -> Option<Found> {
    match (library(images), reader::read(images)) {
        (Ok(code), Ok(page)) => {
            assert_eq!(
                code,
                (
                    page.head_offset,
                    page.last_seq,
                    page.tail,
                    page.records.clone()
                ),
                "{what}"
            );
            Some(page)
        }
        (Err(_), Err(_)) => None,
        (code, page) => panic!(
            "{what}: the code says {code:?}, the page {:?}",
            page.map(|found| found.records)
        ),
    }
}

#[test]
fn both_readers_find_the_same_in_the_golden_arrays() {
    for golden in GOLDEN {
        let found = compare(&golden.load(), golden.name).expect("it is sound");
        assert_eq!(found.records.len(), 6, "{}", golden.name);
    }
}

/// Lives in which the ring goes round several times, each ended in one of three ways.
#[test]
fn both_readers_find_what_was_answered_after_every_end() {
    let mut wrapped = 0;
    for seed in 0..24 {
        let mut dice = Dice::new(seed);
        let placement = PLACEMENTS[to_usize(seed % 4)];
        let mut array = Array::label(shape(&mut dice, placement), &[512, 0, 8192, 0, 1024]);
        for life in 0..4 {
            let what = format!("seed {seed}, life {life}");
            history(&mut array, &mut dice);
            let images = array.images();
            let found = compare(&images, &what).unwrap_or_else(|| panic!("{what}: refused"));
            assert!(
                found.device == array.device,
                "{what}: the reader finds another device"
            );
            wrapped += u64::from(found.tail.1 > found.head_offset);
            if found.anchor.closed {
                assert_eq!(found.head_offset, found.anchor.head_offset, "{what}");
            }
            read_with_one_anchor(images, &found, &what);
        }
    }
    assert!(wrapped > 0, "no run of records went over the ring's end");
}

/// C-ORD-1, C-REC-3: once a round of replay has begun, damage to any of its records is found, never taken
/// for the end of the log: what came after it may be at home already.
#[test]
fn a_damaged_record_undoes_nothing_that_is_home_behind_it() {
    for placement in PLACEMENTS {
        let mut array = Array::label(shape(&mut Dice::new(1), placement), &[0; 5]);
        let mut life = array.start();
        for lba in [1, 1, 9] {
            life.ask(&[Ask::Write(lba, 1)]);
        }
        // Replay begins after 200 ms without a request. A second after its flush a MARK would prove as much.
        life.wait(Duration::from_millis(600));
        drop(life);
        let images = array.images();
        let sound = compare(&images, "sound").expect("nothing is damaged yet");
        assert_eq!(sound.records.len(), 4, "START and three records, no MARK");
        let home = sound.geometry.data(9 * 512);
        let bytes = &images[home.part][to_usize(home.offset)..][..512];
        assert_eq!(bytes, &array.device[9 * 512..][..512], "it is home");
        for record in sound.records.iter().filter(|record| record.count > 0) {
            let mut images = images.clone();
            let place = sound.geometry.ring(record.offset + record.header_len);
            images[place.part][to_usize(place.offset)] ^= 1;
            let found = compare(&images, "damaged");
            assert!(
                found.is_none(),
                "{placement}: damage to record {}",
                record.number
            );
        }
    }
}

/// Losing either copy of the anchor costs nothing but a longer scan.
fn read_with_one_anchor(images: Vec<Vec<u8>>, found: &Found, what: &str) {
    for copy in found.geometry.anchors() {
        let mut images = images.clone();
        images[found.geometry.journal_part()][to_usize(copy)] ^= 1;
        let other =
            compare(&images, what).unwrap_or_else(|| panic!("{what}: refused without {copy}"));
        assert_eq!(other.last_seq, found.last_seq, "{what} without {copy}");
        assert!(other.device == found.device, "{what} without {copy}");
    }
}

fn shape(dice: &mut Dice, placement: Placement) -> Shape {
    let members = 1 + dice.below(4);
    let chunk = (4 * KIB) << dice.below(3);
    let journal_size = journal_size_min(placement, members, chunk, MAX_IO) + dice.below(16) * 4096;
    let region = if placement == Placement::Detached {
        0
    } else {
        journal_size.div_ceil(chunk * members) * chunk
    };
    let member_size = 2 * MIB + region + (4 + dice.below(8)) * chunk + FRAME + dice.below(8) * 512;
    Shape {
        members: u8::try_from(members).expect("at most four"),
        chunk,
        member_size,
        placement,
        journal_size,
    }
}

fn history(array: &mut Array, dice: &mut Dice) {
    let sectors = to_u64(array.device.len()) / 512;
    let mut life = array.start();
    for _ in 0..20 + dice.below(60) {
        let asked: Vec<Ask> = (0..1 + dice.below(3)).map(|_| ask(dice, sectors)).collect();
        life.ask(&asked);
        if dice.below(20) == 0 {
            life.wait(Duration::from_millis(dice.below(2500)));
        }
    }
    match dice.below(3) {
        0 => drop(life),
        1 => life.end(Close::Handover),
        _ => life.end(Close::Stop),
    }
}

fn ask(dice: &mut Dice, sectors: u64) -> Ask {
    let len = 1 + dice.below(8.min(sectors - 1));
    let lba = dice.below(sectors - len);
    let len = u32::try_from(len).expect("at most eight");
    match dice.below(10) {
        0 => Ask::Flush,
        1 => Ask::Discard(lba, len),
        2 => Ask::Zeroes(lba, len),
        3 => Ask::ZeroesKept(lba, len),
        4 => Ask::WriteNow(lba, len),
        _ => Ask::Write(lba, len),
    }
}

/// Any frame of the ring, the anchors or the superblocks may change: both readers must come to the same end.
#[test]
fn both_readers_judge_a_damaged_array_alike() {
    let (mut sound, mut refused) = (0, 0);
    for golden in GOLDEN {
        let images = golden.load();
        let geometry = Geometry::new(golden.shape()).unwrap();
        let mut places: Vec<(usize, u64)> = Vec::new();
        for run in geometry.ring.runs(0, geometry.ring.size()) {
            let used = crate::array::used_frames(&images[run.part.index()]);
            let within = run.offset.0..run.offset.0 + run.len;
            places.extend(
                used.map(|(at, _)| (run.part.index(), at))
                    .filter(|(_, at)| within.contains(at)),
            );
        }
        let anchors = geometry.anchors;
        places.extend(anchors.copies.map(|copy| (anchors.part.index(), copy.0)));
        assert!(places.len() > 15, "{places:?}");
        for (part, at) in places {
            for bit in [3, 100 * 8, 4000 * 8 + 1] {
                let mut images = images.clone();
                images[part][to_usize(at) + bit / 8] ^= 1 << (bit % 8);
                let what = format!(
                    "{}: part {part}, byte {}",
                    golden.name,
                    to_usize(at) + bit / 8
                );
                match compare(&images, &what) {
                    Some(_) => sound += 1,
                    None => refused += 1,
                }
            }
        }
    }
    assert!(
        sound > 10 && refused > 30,
        "{sound} sound and {refused} refused"
    );
}

#[test]
fn one_lost_superblock_of_each_part_is_survived() {
    for golden in GOLDEN {
        let images = golden.load();
        for copy in 0..2 {
            let mut images = images.clone();
            for image in &mut images {
                let place = superblock_places(to_u64(image.len()))[copy];
                image[to_usize(place.0) + 40] ^= 0x20;
            }
            let found = compare(&images, golden.name).expect("the other copies are sound");
            assert_eq!(found.records.len(), 6);
            assert_eq!(assembled(images).journal().epoch, Epoch(2));
        }
    }
    assert_eq!(assembled(GOLDEN[0].load()).journal().uuid, UUID);
}

#[test]
fn what_the_page_gives_as_the_checksum_of_nine_digits_is_that() {
    assert_eq!(reader::crc(&[b"1234", b"56789"]), 0xe306_9283);
}
