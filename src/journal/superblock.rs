//! The superblock: who a part is, which array it belongs to, and how the array was left.
//!
//! Every part has two copies, one near each end. An update writes one, flushes, then writes the other,
//! so that a power cut leaves at least one whole; both carry the same generation, one more than the
//! update before. The newest valid copy speaks for the part. It never moves with the tail: it is
//! written at label, start, stop and when an error state is entered, and at no other time.

use super::geometry::{CHUNK_MAX, CHUNK_MIN, Geometry, MEMBERS_MAX, Placement, Shape};
use super::{ArrayUuid, FRAME_LEN, checksum_without};
use crate::disk::raid0::LAYOUT_VERSION;
use crate::units::{Epoch, Seq};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 8] = *b"ujournal";
/// The format's major version: a newer one is refused.
pub const VERSION: u32 = 1;
/// Longest name of an array, in bytes.
pub const NAME_MAX: usize = 32;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    crc: U32,
    uuid: [u8; 16],
    name: [u8; NAME_MAX],
    compat: U64,
    ro_compat: U64,
    incompat: U64,
    generation: U64,
    part_size: U64,
    member_size: U64,
    journal_size: U64,
    state_seq: U64,
    bitmap_offset: U64,
    bitmap_len: U64,
    layout_version: U32,
    chunk: U32,
    block_size: U32,
    epoch: U32,
    members_at: U32,
    members: U16,
    journals: U16,
    role_index: U16,
    role: u8,
    placement: u8,
    phase: u8,
    state: u8,
    marks: u8,
    clean: u8,
    reserved: [u8; 3920],
}
const _: () = assert!(size_of::<Raw>() == FRAME_LEN);

/// What a part is in its array.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Data part number `0` of the array's members.
    Member(u8),
    /// The detached journal.
    Journal,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Role::Member(index) => write!(f, "member {index}"),
            Role::Journal => f.write_str("journal"),
        }
    }
}

/// How far `label` came with this array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Some part may still be blank: the array cannot be started.
    Forming,
    /// Every part has been written.
    Ready,
}

/// The array's health as it was last recorded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Health {
    /// Nothing is known to be wrong.
    Ok,
    /// Something cannot be read or brought home; nothing acknowledged is lost.
    Degraded,
    /// Writes are refused until the operator clears it.
    Failed,
}

impl std::fmt::Display for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Health::Ok => "OK",
            Health::Degraded => "DEGRADED",
            Health::Failed => "FAILED",
        })
    }
}

/// Whether everything that was acknowledged is at home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cleanliness {
    /// The journal holds nothing that the members lack.
    Clean,
    /// The journal may hold what the members lack.
    Dirty,
}

/// Things that an operator has given up and that stay recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// Acknowledged writes were given up by a recovery.
    pub acknowledged_writes_lost: bool,
    /// The journal was lost while it was needed.
    pub journal_lost: bool,
}

/// One superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The array.
    pub uuid: ArrayUuid,
    /// Its name.
    pub name: String,
    /// What this part is.
    pub role: Role,
    /// Layout of the array.
    pub shape: Shape,
    /// Logical block size of the exposed device, in bytes.
    pub block_size: u32,
    /// Bytes of this part when it was labelled.
    pub part_size: u64,
    /// How far label came.
    pub phase: Phase,
    /// The newest life that was begun.
    pub epoch: Epoch,
    /// On the journal: every member is known to have at least this epoch.
    pub members_at: Epoch,
    /// Whether the array was stopped cleanly in this epoch.
    pub cleanliness: Cleanliness,
    /// The recorded health.
    pub health: Health,
    /// The last seq that had been given when `health` was recorded.
    pub health_seq: Seq,
    /// What was given up.
    pub marks: Marks,
    /// Raised by one with every update.
    pub generation: u64,
    /// Features that another version may ignore.
    pub compat: u64,
    /// Features without which another version may only read.
    pub ro_compat: u64,
}

/// Why 4 KiB are not a superblock of this version.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SuperblockError {
    /// Not ours at all.
    #[error("no ujournal superblock")]
    Absent,
    /// Ours once, but its bytes have changed.
    #[error("superblock checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// What the bytes give.
        expected: u32,
        /// What is recorded.
        found: u32,
    },
    /// Written by a version that this one does not know.
    #[error("format version {found}, this program knows up to {VERSION}")]
    Version {
        /// What is recorded.
        found: u32,
    },
    /// Uses something that this version does not know.
    #[error("unknown features {0:#x} that cannot be ignored")]
    Incompatible(u64),
    /// A field that no version writes.
    #[error("superblock field `{field}` holds {found}, which cannot be")]
    Field {
        /// Which.
        field: &'static str,
        /// What it holds.
        found: u64,
    },
}

impl Superblock {
    /// The 4 KiB of both copies.
    pub fn encode(&self) -> [u8; FRAME_LEN] {
        assert!(self.name.len() <= NAME_MAX);
        let mut name = [0; NAME_MAX];
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let (bitmap_offset, bitmap_len) =
            Geometry::new(self.shape).map_or((0, 0), |g| (g.bitmap.0.0, g.bitmap.1));
        let (role, role_index) = match self.role {
            Role::Member(index) => (0, index),
            Role::Journal => (1, 0),
        };
        let mut raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            crc: 0.into(),
            uuid: self.uuid.0,
            name,
            compat: self.compat.into(),
            ro_compat: self.ro_compat.into(),
            incompat: 0.into(),
            generation: self.generation.into(),
            part_size: self.part_size.into(),
            member_size: self.shape.member_size.into(),
            journal_size: self.shape.journal_size.into(),
            state_seq: self.health_seq.0.into(),
            bitmap_offset: bitmap_offset.into(),
            bitmap_len: bitmap_len.into(),
            layout_version: LAYOUT_VERSION.into(),
            chunk: u32::try_from(self.shape.chunk)
                .expect("a chunk is at most 1 MiB")
                .into(),
            block_size: self.block_size.into(),
            epoch: self.epoch.0.into(),
            members_at: self.members_at.0.into(),
            members: u16::from(self.shape.members).into(),
            journals: u16::from(self.shape.placement == Placement::Detached).into(),
            role_index: u16::from(role_index).into(),
            role,
            placement: match self.shape.placement {
                Placement::Detached => 0,
                Placement::Start => 1,
                Placement::Middle => 2,
                Placement::End => 3,
            },
            phase: match self.phase {
                Phase::Forming => 0,
                Phase::Ready => 1,
            },
            state: match self.health {
                Health::Ok => 0,
                Health::Degraded => 1,
                Health::Failed => 2,
            },
            marks: u8::from(self.marks.acknowledged_writes_lost)
                | u8::from(self.marks.journal_lost) << 1,
            clean: match self.cleanliness {
                Cleanliness::Dirty => 0,
                Cleanliness::Clean => 1,
            },
            reserved: [0; 3920],
        };
        raw.crc = checksum_without(raw.as_bytes(), CRC_AT).into();
        let mut bytes = [0; FRAME_LEN];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Reads one copy; every field is bounded before it is believed.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, SuperblockError> {
        let raw = Raw::ref_from_bytes(bytes).map_err(|_| SuperblockError::Absent)?;
        if raw.magic != MAGIC {
            return Err(SuperblockError::Absent);
        }
        let expected = checksum_without(bytes, CRC_AT);
        if raw.crc.get() != expected {
            return Err(SuperblockError::Checksum {
                expected,
                found: raw.crc.get(),
            });
        }
        if raw.version.get() != VERSION {
            return Err(SuperblockError::Version {
                found: raw.version.get(),
            });
        }
        if raw.incompat.get() != 0 {
            return Err(SuperblockError::Incompatible(raw.incompat.get()));
        }
        let field = |field, found: u64| SuperblockError::Field { field, found };
        let members = u8::try_from(raw.members.get())
            .ok()
            .filter(|n| (1..=MEMBERS_MAX).contains(&usize::from(*n)))
            .ok_or(field("members", raw.members.get().into()))?;
        let chunk = u64::from(raw.chunk.get());
        if !chunk.is_power_of_two() || !(CHUNK_MIN..=CHUNK_MAX).contains(&chunk) {
            return Err(field("chunk", chunk));
        }
        if raw.layout_version.get() != LAYOUT_VERSION {
            return Err(field("layout_version", raw.layout_version.get().into()));
        }
        if ![512, 4096].contains(&raw.block_size.get()) {
            return Err(field("block_size", raw.block_size.get().into()));
        }
        let role_index = raw.role_index.get();
        let placement = match raw.placement {
            0 => Placement::Detached,
            1 => Placement::Start,
            2 => Placement::Middle,
            3 => Placement::End,
            other => return Err(field("placement", other.into())),
        };
        let journals = raw.journals.get();
        if journals != u16::from(placement == Placement::Detached) {
            return Err(field("journals", journals.into()));
        }
        let role = match raw.role {
            0 => u8::try_from(role_index)
                .ok()
                .filter(|index| *index < members)
                .map(Role::Member)
                .ok_or(field("role_index", role_index.into()))?,
            1 if role_index == 0 && journals == 1 => Role::Journal,
            other => return Err(field("role", other.into())),
        };
        let shape = Shape {
            members,
            chunk,
            member_size: raw.member_size.get(),
            placement,
            journal_size: raw.journal_size.get(),
        };
        // No part is larger than what an address can name; the layout's sums then cannot overflow.
        const SIZE_MAX: u64 = 1 << 56;
        for (name, size) in [
            ("part_size", raw.part_size.get()),
            ("member_size", shape.member_size),
            ("journal_size", shape.journal_size),
        ] {
            if size > SIZE_MAX {
                return Err(field(name, size));
            }
        }
        let geometry = Geometry::new(shape).map_err(|_| field("member_size", shape.member_size))?;
        let bitmap = (raw.bitmap_offset.get(), raw.bitmap_len.get());
        if bitmap != (geometry.bitmap.0.0, geometry.bitmap.1) {
            return Err(field("bitmap_offset", bitmap.0));
        }
        let least = match role {
            Role::Member(_) => shape.member_size,
            Role::Journal => shape.journal_size,
        };
        if raw.part_size.get() < least {
            return Err(field("part_size", raw.part_size.get()));
        }
        if raw.generation.get() > super::COUNT_MAX {
            return Err(field("generation", raw.generation.get()));
        }
        let epoch = |name, raw: U32| {
            let epoch = Epoch(raw.get());
            if epoch <= Epoch::MAX {
                Ok(epoch)
            } else {
                Err(field(name, epoch.0.into()))
            }
        };
        let length = raw.name.iter().position(|b| *b == 0).unwrap_or(NAME_MAX);
        let name = std::str::from_utf8(&raw.name[..length])
            .map_err(|e| field("name", e.valid_up_to().try_into().unwrap_or(0)))?;
        if raw.reserved.iter().any(|b| *b != 0) {
            return Err(field("reserved", 1));
        }
        Ok(Superblock {
            uuid: ArrayUuid(raw.uuid),
            name: name.to_owned(),
            role,
            shape,
            block_size: raw.block_size.get(),
            part_size: raw.part_size.get(),
            phase: match raw.phase {
                0 => Phase::Forming,
                1 => Phase::Ready,
                other => return Err(field("phase", other.into())),
            },
            epoch: epoch("epoch", raw.epoch)?,
            members_at: epoch("members_at", raw.members_at)?,
            cleanliness: match raw.clean {
                0 => Cleanliness::Dirty,
                1 => Cleanliness::Clean,
                other => return Err(field("clean", other.into())),
            },
            health: match raw.state {
                0 => Health::Ok,
                1 => Health::Degraded,
                2 => Health::Failed,
                other => return Err(field("state", other.into())),
            },
            health_seq: Seq(raw.state_seq.get()),
            marks: match raw.marks {
                0..=3 => Marks {
                    acknowledged_writes_lost: raw.marks & 1 != 0,
                    journal_lost: raw.marks & 2 != 0,
                },
                other => return Err(field("marks", other.into())),
            },
            generation: raw.generation.get(),
            compat: raw.compat.get(),
            ro_compat: raw.ro_compat.get(),
        })
    }
}

const CRC_AT: usize = std::mem::offset_of!(Raw, crc);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MIB;

    fn sample() -> Superblock {
        Superblock {
            uuid: ArrayUuid([7; 16]),
            name: "vol0".into(),
            role: Role::Member(1),
            shape: Shape {
                members: 2,
                chunk: 65536,
                member_size: 64 * MIB,
                placement: Placement::Detached,
                journal_size: 32 * MIB,
            },
            block_size: 512,
            part_size: 65 * MIB,
            phase: Phase::Ready,
            epoch: Epoch(3),
            members_at: Epoch(2),
            cleanliness: Cleanliness::Clean,
            health: Health::Degraded,
            health_seq: Seq(99),
            marks: Marks {
                acknowledged_writes_lost: true,
                journal_lost: false,
            },
            generation: 12,
            compat: 1,
            ro_compat: 0,
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let sb = sample();
        assert_eq!(Superblock::decode(&sb.encode()), Ok(sb));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = sample().encode();
        for bit in 0..FRAME_LEN * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn any_byte_of_any_field_gives_a_superblock_or_an_error() {
        // The checksum is made right again, so that the checks of the fields themselves are reached.
        let good = sample().encode();
        for at in 0..200 {
            for value in 0..=255 {
                let mut bytes = good;
                bytes[at] = value;
                let crc = checksum_without(&bytes, CRC_AT);
                bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
                if let Ok(sb) = Superblock::decode(&bytes) {
                    assert!(Geometry::new(sb.shape).is_ok());
                }
            }
        }
    }
}
