//! What a changed field comes to.
//!
//! First as a disk would change it: the checksum stays, and both readers must refuse. Then with the
//! checksum made right again, so that the checks of the fields themselves are reached: both must take it
//! or both refuse, and if they take it they must read the same.

use crate::agree::said;
use crate::array::UUID;
use crate::fields::{ANCHOR, ENTRY, Field, RECORD, SUPERBLOCK};
use crate::reader::{self, CRC_AT, crc};
use crate::{GOLDEN, RING, expected_of, frame_at, golden_records, ring_bytes};
use ujournal::journal::anchor::{Anchor, Closed};
use ujournal::journal::geometry::{Geometry, Placement, superblock_places};
use ujournal::journal::record::Record;
use ujournal::journal::superblock::{Cleanliness, Health, Phase, Role, Superblock};
use ujournal::units::{FRAME, to_u64, to_usize};

/// The fields of the tables cover every byte, in order, up to `len`.
fn check_table(fields: &[Field], len: usize) {
    let mut at = 0;
    for field in fields {
        assert_eq!(field.at, at, "{}", field.name);
        at += field.size;
    }
    assert_eq!(at, len);
}

#[test]
fn the_tables_leave_no_byte_out() {
    check_table(SUPERBLOCK, 4096);
    check_table(ANCHOR, 4096);
    check_table(RECORD, 128);
    check_table(ENTRY, 32);
}

/// The values that a field is given: each bit flipped (of long fields the first and the last bytes),
/// nothing, everything, one more, one less.
fn changes(bytes: &[u8], field: &Field) -> Vec<Vec<u8>> {
    let old = &bytes[field.at..field.at + field.size];
    let mut values = vec![vec![0; field.size], vec![0xff; field.size]];
    for bit in 0..8 * field.size {
        if bit < 64 || bit >= 8 * field.size - 8 {
            let mut value = old.to_vec();
            value[bit / 8] ^= 1 << (bit % 8);
            values.push(value);
        }
    }
    if let Ok(number) =
        <[u8; 8]>::try_from([old, &[0; 8][..8_usize.saturating_sub(field.size)]].concat())
    {
        let number = u64::from_le_bytes(number);
        for near in [number.wrapping_add(1), number.wrapping_sub(1)] {
            values.push(near.to_le_bytes()[..field.size].to_vec());
        }
    }
    values.retain(|value| value != old);
    values
}

/// Gives each field each value and hands the bytes to `check`: as they are, and sealed again.
fn for_each_change(
    bytes: &[u8],
    fields: impl Iterator<Item = Field>,
    seal: impl Fn(&mut [u8]),
    check: impl Fn(&[u8], bool, &str),
) {
    let mut sealed = bytes.to_vec();
    seal(&mut sealed);
    assert!(sealed == bytes, "sealing what is sealed changes nothing");
    for field in fields {
        for value in changes(bytes, &field) {
            let mut bytes = bytes.to_vec();
            bytes[field.at..field.at + field.size].copy_from_slice(&value);
            check(&bytes, false, field.name);
            if field.name != "crc" {
                seal(&mut bytes);
                check(&bytes, true, field.name);
            }
        }
    }
}

fn seal_plainly(bytes: &mut [u8]) {
    bytes[CRC_AT..CRC_AT + 4].fill(0);
    let crc = crc(&[bytes]);
    bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

fn superblock_said(sb: &Superblock, bitmap: (u64, u64)) -> reader::Superblock {
    let (role, role_index) = match sb.role {
        Role::Member(index) => (0, u16::from(index)),
        Role::Journal => (1, 0),
    };
    reader::Superblock {
        uuid: sb.uuid.0,
        name: sb.name.clone(),
        compat: sb.compat,
        ro_compat: sb.ro_compat,
        generation: sb.generation,
        part_size: sb.part_size,
        member_size: sb.shape.member_size,
        journal_size: sb.shape.journal_size,
        state_seq: sb.health_seq.0,
        // The library computes it and does not keep what is written.
        bitmap,
        chunk: sb.shape.chunk,
        block_size: sb.block_size,
        epoch: sb.epoch.0,
        members_at: sb.members_at.0,
        members: u64::from(sb.shape.members),
        role_index,
        role,
        placement: match sb.shape.placement {
            Placement::Detached => 0,
            Placement::Start => 1,
            Placement::Middle => 2,
            Placement::End => 3,
        },
        phase: u8::from(sb.phase == Phase::Ready),
        state: match sb.health {
            Health::Ok => 0,
            Health::Degraded => 1,
            Health::Failed => 2,
        },
        marks: u8::from(sb.marks.acknowledged_writes_lost) + 2 * u8::from(sb.marks.journal_lost),
        clean: u8::from(sb.cleanliness == Cleanliness::Clean),
    }
}

#[test]
fn a_changed_superblock_is_refused_or_read_alike() {
    for golden in GOLDEN {
        for image in golden.load() {
            let [place, _] = superblock_places(to_u64(image.len()));
            let check = |bytes: &[u8], sealed: bool, field: &str| {
                let code = Superblock::decode(bytes);
                let page = reader::Superblock::parse(bytes);
                match (code, page) {
                    (Ok(code), Ok(page)) if sealed => {
                        assert_eq!(superblock_said(&code, page.bitmap), page, "{field}");
                    }
                    (Err(_), Err(_)) => {}
                    (code, page) => panic!("{field}, sealed {sealed}: {code:?}, {page:?}"),
                }
            };
            let fields = SUPERBLOCK.iter().copied();
            for_each_change(frame_at(&image, place.0), fields, seal_plainly, check);
        }
    }
}

fn anchor_said(anchor: &Anchor) -> reader::Anchor {
    reader::Anchor {
        generation: anchor.generation,
        tail: (anchor.tail.seq.0, anchor.tail.offset),
        head_offset: anchor.head.offset,
        head_number: anchor.head_number,
        head_seq: anchor.head.seq.0,
        durable_seq: anchor.durable.0,
        replayed_through: anchor.replayed_through.0,
        epoch: anchor.epoch.0,
        closed: anchor.closed == Closed::Yes,
    }
}

#[test]
fn a_changed_anchor_is_refused_or_read_alike() {
    for golden in GOLDEN {
        let images = golden.load();
        let places = Geometry::new(golden.shape()).unwrap().anchors;
        for copy in places.copies {
            let check = |bytes: &[u8], sealed: bool, field: &str| {
                let code = Anchor::decode(bytes, UUID, RING);
                let page = reader::Anchor::parse(bytes, UUID.0, RING);
                match (code, page) {
                    (Ok(code), Ok(page)) if sealed => {
                        assert_eq!(anchor_said(&code), page, "{field}");
                    }
                    (Err(_), Err(_)) => {}
                    (code, page) => panic!("{field}, sealed {sealed}: {code:?}, {page:?}"),
                }
            };
            let bytes = frame_at(&images[places.part.index()], copy.0);
            for_each_change(bytes, ANCHOR.iter().copied(), seal_plainly, check);
        }
    }
}

#[test]
fn a_changed_header_is_refused_or_read_alike() {
    for golden in GOLDEN {
        let images = golden.load();
        let geometry = Geometry::new(golden.shape()).unwrap();
        let expected = expected_of(&geometry);
        let scope = reader::Scope {
            uuid: UUID.0,
            ring: RING,
            payload_max: 12_288,
            device_sectors: expected.device_sectors,
        };
        for (header, entries) in golden_records() {
            let offset = header.offset;
            // Both look at no more than the header says, or nothing follows that could be one.
            let bytes = ring_bytes(&geometry, &images, offset, header.header_len());
            let seal = |bytes: &mut [u8]| {
                let epoch: [u8; 4] = bytes[32..36].try_into().unwrap();
                bytes[CRC_AT..CRC_AT + 4].fill(0);
                let crc = crc(&[&UUID.0, &epoch, &offset.to_le_bytes(), bytes]);
                bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            };
            let check = |bytes: &[u8], sealed: bool, field: &str| {
                let code = Record::decode(bytes, offset, &expected);
                let page = reader::Header::parse(bytes, offset, &scope);
                match (code, page) {
                    (Ok(code), Ok(page)) if sealed => assert_eq!(said(&code), page, "{field}"),
                    (Err(_), Err(_)) => {}
                    (code, page) => {
                        panic!("{field} at {offset}, sealed {sealed}: {code:?}, {page:?}")
                    }
                }
            };
            let entry_fields = (0..entries.len()).flat_map(|i| {
                ENTRY.iter().map(move |field| Field {
                    at: 128 + 32 * i + field.at,
                    ..*field
                })
            });
            let checksums = 128 + 32 * entries.len();
            let rest = Field {
                name: "checksums and padding",
                at: checksums,
                size: bytes.len() - checksums,
            };
            let fields = RECORD.iter().copied().chain(entry_fields).chain([rest]);
            for_each_change(&bytes, fields, seal, check);
        }
    }
}

#[test]
fn a_changed_byte_of_a_payload_is_noticed_by_both() {
    for golden in GOLDEN {
        let images = golden.load();
        let geometry = Geometry::new(golden.shape()).unwrap();
        let expected = expected_of(&geometry);
        for (header, _) in golden_records() {
            let bytes = ring_bytes(&geometry, &images, header.offset, header.record_len());
            let (head, payload) = bytes.split_at(to_usize(header.header_len()));
            let record = Record::decode(head, header.offset, &expected).unwrap();
            for at in (0..payload.len()).step_by(37) {
                let mut payload = payload.to_vec();
                payload[at] ^= 0x04;
                assert!(
                    record.check_payload(&payload, &expected).is_err(),
                    "byte {at}"
                );

                let frame_start = at / 4096 * 4096;
                let offset = (header.offset + header.header_len() + to_u64(frame_start)) % RING;
                let bytes = &payload[frame_start..frame_start + to_usize(FRAME)];
                let found = crc(&[
                    &UUID.0,
                    &header.epoch.0.to_le_bytes(),
                    &offset.to_le_bytes(),
                    bytes,
                ]);
                assert_ne!(found, record.frame_checksums[at / 4096], "byte {at}");
            }
        }
    }
}
