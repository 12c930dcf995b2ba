//! The journal on disk: what stands where, when it may be believed, and how it is read back.
//!
//! Everything here is plain bytes and arithmetic. `docs/format.md` says the same byte by byte; change
//! both together.
//!
//! ```text
//!   every part    [ head: superblock A ][ data and, if attached, a journal region ][ tail: superblock B ]
//!   a region      [ guard: anchor A ][ ring ...                        ][ guard: anchor B ]
//!   the ring      [ ...free... | record | record | START | record | record | ...free... ]
//!                              ^ tail                                      ^ head
//!   a record      [ header 4, 8 or 12 KiB ][ payload in frames of 4 KiB ]
//! ```
//!
//! * [`geometry`]: where data, regions and superblocks lie on the parts
//! * [`superblock`]: who a part is, and in which state the array was left
//! * [`anchor`]: where recovery begins to look
//! * [`record`]: one entry of the ring
//! * [`assemble`]: which parts belong together, and how their superblocks change
//! * [`scan`]: which records of the ring count after a crash

pub mod anchor;
pub mod assemble;
pub mod geometry;
pub mod record;
pub mod scan;

pub mod superblock;

use crate::units::{FRAME, MIB};

/// Reserved at the start and at the end of every part for its superblock.
pub const MARGIN: u64 = MIB;

/// Largest generation, or number of a record, that is believed: none comes near it by counting, and sums
/// with it cannot overflow.
const COUNT_MAX: u64 = 1 << 62;

/// Identity of an array, given at label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrayUuid(pub [u8; 16]);

impl std::fmt::Display for ArrayUuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        uuid::Uuid::from_bytes(self.0).fmt(f)
    }
}

impl std::fmt::Debug for ArrayUuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl ArrayUuid {
    /// The first 64 bits, under which a live device is found again.
    pub fn device_flags(&self) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(first)
    }
}

/// The checksum of one block of metadata whose checksum field, four bytes at `at`, counts as zero.
fn checksum_without(bytes: &[u8], at: usize) -> u32 {
    let crc = crc32c::crc32c(&bytes[..at]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[at + 4..])
}

/// A frame as an index: everything on disk that is 4 KiB is this long.
pub const FRAME_LEN: usize = 4096;
const _: () = assert!(FRAME_LEN as u64 == FRAME);
