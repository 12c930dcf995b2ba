//! Stamps: what every written sector says about itself.
//!
//! ```text
//!    0        8          16        24                                          512
//!    | magic  | version  | sector  | filler, a function of version and sector  |
//! ```
//!
//! A version is one write of the whole history, across all lives; it is never used twice, so a sector
//! read back names the one write that it came from. A sector of zeroes is a version too
//! ([`Version::ZEROES`]), the only one that several requests can write.
//!
//! The filler is the stamp's checksum: all of it is compared. It must not be a CRC. The journal's frames
//! carry CRC32C, and bytes that end with their own CRC32C have the same CRC32C whatever they are: with
//! such stamps, no frame that is lost or stale would ever be noticed.

use crate::random::mix;
use crate::units::{Lba, SECTOR, to_u64, to_usize};

/// Bytes of a sector, as an index.
pub const SECTOR_LEN: usize = 512;
const _: () = assert!(SECTOR_LEN as u64 == SECTOR);

const MAGIC: u64 = u64::from_le_bytes(*b"uj-stamp");

/// Which write a sector's content came from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version(pub u64);

impl Version {
    /// A sector of zeroes, whoever wrote it.
    pub const ZEROES: Version = Version(0);
    /// What the members held before the array was made.
    pub const BEFORE: Version = Version(1);
    /// The first number that a write can have.
    pub const FIRST: Version = Version(2);
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Version::ZEROES => f.write_str("zeroes"),
            Version::BEFORE => f.write_str("the content before label"),
            Version(n) => write!(f, "write {n}"),
        }
    }
}

/// Why a sector cannot be what any write left there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StampError {
    /// It is neither zeroes nor a whole stamp.
    #[error("sector {at} holds neither zeroes nor a stamp")]
    Garbage {
        /// The sector that was read.
        at: Lba,
    },
    /// It is a whole stamp, of another sector.
    #[error("sector {at} holds {version} to sector {found}")]
    Elsewhere {
        /// The sector that was read.
        at: Lba,
        /// The write that it came from.
        version: Version,
        /// The sector that this was meant for.
        found: Lba,
    },
}

/// The words of a stamp.
fn words(version: Version, lba: Lba) -> impl Iterator<Item = u64> {
    let seed = mix(version.0 ^ lba.0.rotate_left(40));
    let filler = (1..).map(move |n: u64| seed.wrapping_mul(2 * n + 1).rotate_left(23) ^ seed);
    [MAGIC, version.0, lba.0].into_iter().chain(filler)
}

/// Fills one sector with the stamp of `version` at `lba`.
pub fn stamp_sector(version: Version, lba: Lba, sector: &mut [u8]) {
    assert_eq!(sector.len(), SECTOR_LEN);
    for (bytes, word) in sector.chunks_exact_mut(8).zip(words(version, lba)) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// Fills `bytes`, whole sectors from `lba` on, with the stamps of `version`.
pub fn stamp(version: Version, lba: Lba, bytes: &mut [u8]) {
    assert!(to_u64(bytes.len()).is_multiple_of(SECTOR));
    for (sector, at) in bytes.chunks_exact_mut(SECTOR_LEN).zip(lba.0..) {
        stamp_sector(version, Lba(at), sector);
    }
}

/// Which version a sector read at `lba` holds.
pub fn read_sector(lba: Lba, sector: &[u8]) -> Result<Version, StampError> {
    assert_eq!(sector.len(), SECTOR_LEN);
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&sector[at..at + 8]);
        u64::from_le_bytes(word)
    };
    if word(0) != MAGIC {
        return if sector.iter().all(|byte| *byte == 0) {
            Ok(Version::ZEROES)
        } else {
            Err(StampError::Garbage { at: lba })
        };
    }
    let (version, found) = (Version(word(8)), Lba(word(16)));
    let whole = sector
        .chunks_exact(8)
        .zip(words(version, found))
        .all(|(bytes, word)| bytes == word.to_le_bytes());
    if !whole {
        return Err(StampError::Garbage { at: lba });
    }
    if found == lba {
        Ok(version)
    } else {
        Err(StampError::Elsewhere {
            at: lba,
            version,
            found,
        })
    }
}

/// The versions of whole sectors read from `lba` on.
pub fn read(lba: Lba, bytes: &[u8]) -> impl Iterator<Item = Result<Version, StampError>> + '_ {
    assert_eq!(to_usize(to_u64(bytes.len()) % SECTOR), 0);
    bytes
        .chunks_exact(SECTOR_LEN)
        .zip(lba.0..)
        .map(|(sector, at)| read_sector(Lba(at), sector))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamped(version: u64, lba: u64) -> [u8; SECTOR_LEN] {
        let mut sector = [0; SECTOR_LEN];
        stamp_sector(Version(version), Lba(lba), &mut sector);
        sector
    }

    #[test]
    fn a_stamp_names_its_write_and_zeroes_are_a_version() {
        assert_eq!(read_sector(Lba(9), &stamped(5, 9)), Ok(Version(5)));
        assert_eq!(read_sector(Lba(9), &[0; SECTOR_LEN]), Ok(Version::ZEROES));
    }

    #[test]
    fn a_stamp_of_another_sector_is_noticed() {
        let found = read_sector(Lba(8), &stamped(5, 9));
        assert!(matches!(found, Err(StampError::Elsewhere { .. })));
    }

    #[test]
    fn frames_of_stamps_differ_in_the_checksum_of_the_journal() {
        let mut checksums: Vec<u32> = (0..1000)
            .map(|version| {
                let mut frame = [0; 4096];
                stamp(Version(version), Lba(8), &mut frame);
                crc32c::crc32c(&frame)
            })
            .collect();
        checksums.sort_unstable();
        checksums.dedup();
        assert_eq!(checksums.len(), 1000);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = stamped(5, 9);
        for bit in 0..SECTOR_LEN * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(read_sector(Lba(9), &bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_sector_made_of_two_versions_is_noticed_wherever_it_is_cut() {
        let (old, new) = (stamped(5, 9), stamped(6, 9));
        for cut in (8..SECTOR_LEN).step_by(8) {
            let mut bytes = old;
            bytes[..cut].copy_from_slice(&new[..cut]);
            assert!(
                read_sector(Lba(9), &bytes).is_err() || bytes == new || bytes == old,
                "cut at {cut}"
            );
        }
    }
}
