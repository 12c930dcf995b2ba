//! The anchor: where recovery begins to look.
//!
//! Two copies at the two ends of the ring's first region, written alternately, each by itself durable.
//! It is a starting point, not the truth: the tail moves with every record, and the anchor only says
//! "every record before `head` is durable; look from there". Losing one copy costs a longer scan.

use super::{ArrayUuid, FRAME_LEN, checksum_without};
use crate::units::{Epoch, Seq};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 8] = *b"ujanchor";
const VERSION: u32 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    crc: U32,
    uuid: [u8; 16],
    generation: U64,
    tail_seq: U64,
    tail_offset: U64,
    head_offset: U64,
    head_number: U64,
    head_seq: U64,
    durable_seq: U64,
    replayed_through: U64,
    epoch: U32,
    closed: U32,
    reserved: [u8; 3992],
}
const _: () = assert!(size_of::<Raw>() == FRAME_LEN);
const CRC_AT: usize = std::mem::offset_of!(Raw, crc);

/// Whether records may follow the anchor's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closed {
    /// They may: recovery walks on from there.
    No,
    /// A planned end: nothing follows.
    Yes,
}

/// A place in the ring on disk, with what had been said by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingPlace {
    /// The last seq before this place.
    pub seq: Seq,
    /// Bytes from the ring's beginning.
    pub offset: u64,
}

/// One anchor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// The array.
    pub uuid: ArrayUuid,
    /// Raised by one with every update.
    pub generation: u64,
    /// The oldest record still needed begins here.
    pub tail: RingPlace,
    /// The last durable record ends here.
    pub head: RingPlace,
    /// The number of that record within its life.
    pub head_number: u64,
    /// The life of that record.
    pub epoch: Epoch,
    /// Everything up to this seq was durable.
    pub durable: Seq,
    /// No home block holds anything newer than this seq.
    pub replayed_through: Seq,
    /// Whether anything may follow.
    pub closed: Closed,
}

/// Why 4 KiB are not an anchor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AnchorError {
    /// Not an anchor at all.
    #[error("no anchor")]
    Absent,
    /// Its bytes have changed.
    #[error("anchor checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// What the bytes give.
        expected: u32,
        /// What is recorded.
        found: u32,
    },
    /// Another version's.
    #[error("anchor version {found}, this program knows up to {VERSION}")]
    Version {
        /// What is recorded.
        found: u32,
    },
    /// Another array's.
    #[error("the anchor belongs to array {found}")]
    Foreign {
        /// Whose it is.
        found: ArrayUuid,
    },
    /// A field that no version writes.
    #[error("anchor field `{field}` holds {found}, which cannot be")]
    Field {
        /// Which.
        field: &'static str,
        /// What it holds.
        found: u64,
    },
}

impl Anchor {
    /// The 4 KiB of a copy.
    pub fn encode(&self) -> [u8; FRAME_LEN] {
        let mut raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            crc: 0.into(),
            uuid: self.uuid.0,
            generation: self.generation.into(),
            tail_seq: self.tail.seq.0.into(),
            tail_offset: self.tail.offset.into(),
            head_offset: self.head.offset.into(),
            head_number: self.head_number.into(),
            head_seq: self.head.seq.0.into(),
            durable_seq: self.durable.0.into(),
            replayed_through: self.replayed_through.0.into(),
            epoch: self.epoch.0.into(),
            closed: u32::from(self.closed == Closed::Yes).into(),
            reserved: [0; 3992],
        };
        raw.crc = checksum_without(raw.as_bytes(), CRC_AT).into();
        let mut bytes = [0; FRAME_LEN];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads a copy of array `uuid`, whose ring has `ring_size` bytes.
    pub fn decode(bytes: &[u8], uuid: ArrayUuid, ring_size: u64) -> Result<Anchor, AnchorError> {
        let raw = Raw::ref_from_bytes(bytes).map_err(|_| AnchorError::Absent)?;
        if raw.magic != MAGIC {
            return Err(AnchorError::Absent);
        }
        let expected = checksum_without(bytes, CRC_AT);
        if raw.crc.get() != expected {
            return Err(AnchorError::Checksum {
                expected,
                found: raw.crc.get(),
            });
        }
        if raw.version.get() != VERSION {
            return Err(AnchorError::Version {
                found: raw.version.get(),
            });
        }
        if raw.uuid != uuid.0 {
            return Err(AnchorError::Foreign {
                found: ArrayUuid(raw.uuid),
            });
        }
        let place = |name, seq: U64, offset: U64| {
            let offset = offset.get();
            let fits = offset < ring_size && offset.is_multiple_of(crate::units::FRAME);
            let place = RingPlace {
                seq: Seq(seq.get()),
                offset,
            };
            if fits {
                Ok(place)
            } else {
                Err(AnchorError::Field {
                    field: name,
                    found: offset,
                })
            }
        };
        let field = |field, found: u64| AnchorError::Field { field, found };
        let anchor = Anchor {
            uuid,
            generation: raw.generation.get(),
            tail: place("tail_offset", raw.tail_seq, raw.tail_offset)?,
            head: place("head_offset", raw.head_seq, raw.head_offset)?,
            head_number: raw.head_number.get(),
            epoch: Epoch(raw.epoch.get()),
            durable: Seq(raw.durable_seq.get()),
            replayed_through: Seq(raw.replayed_through.get()),
            closed: match raw.closed.get() {
                0 => Closed::No,
                1 => Closed::Yes,
                other => return Err(field("closed", other.into())),
            },
        };
        if anchor.epoch > Epoch::MAX {
            return Err(field("epoch", anchor.epoch.0.into()));
        }
        for (name, number) in [
            ("generation", anchor.generation),
            ("head_number", anchor.head_number),
        ] {
            if number > super::COUNT_MAX {
                return Err(field(name, number));
            }
        }
        if raw.reserved.iter().any(|byte| *byte != 0) {
            return Err(field("reserved", 1));
        }
        if anchor.tail.seq > anchor.head.seq {
            return Err(field("tail_seq", anchor.tail.seq.0));
        }
        Ok(anchor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: u64 = 1 << 20;

    fn sample() -> Anchor {
        Anchor {
            uuid: ArrayUuid([9; 16]),
            generation: 4,
            tail: RingPlace {
                seq: Seq(10),
                offset: 4096,
            },
            head: RingPlace {
                seq: Seq(20),
                offset: 65536,
            },
            head_number: 6,
            epoch: Epoch(2),
            durable: Seq(20),
            replayed_through: Seq(12),
            closed: Closed::No,
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let anchor = sample();
        assert_eq!(
            Anchor::decode(&anchor.encode(), anchor.uuid, RING),
            Ok(anchor)
        );
    }

    #[test]
    fn an_anchor_of_another_array_is_named() {
        let found = Anchor::decode(&sample().encode(), ArrayUuid([1; 16]), RING);
        assert_eq!(
            found,
            Err(AnchorError::Foreign {
                found: ArrayUuid([9; 16])
            })
        );
    }

    #[test]
    fn a_place_outside_the_ring_is_refused() {
        let mut anchor = sample();
        anchor.tail.offset = RING;
        let found = Anchor::decode(&anchor.encode(), anchor.uuid, RING);
        assert_eq!(
            found,
            Err(AnchorError::Field {
                field: "tail_offset",
                found: RING
            })
        );
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = sample().encode();
        for bit in 0..FRAME_LEN * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(
                Anchor::decode(&bytes, sample().uuid, RING).is_err(),
                "bit {bit}"
            );
        }
    }
}
