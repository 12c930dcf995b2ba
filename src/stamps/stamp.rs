//! What a sector says of itself.
//!
//! ```text
//!   0   magic       8     8   seed      8    16   counter   8    24   lba   8
//!   32  writer      2     34  zero      2    36   checksum  4
//!   40  filler    472     pseudo-random, from seed, counter and lba
//! ```
//!
//! The checksum is CRC32C of the sector with the checksum's own bytes as zero, so that a sector made of two
//! versions, wherever it is cut, is not a stamp. The filler differs from sector to sector: data in the
//! wrong place or of the wrong version never looks right.

use super::{Counter, SECTOR_LEN, Seed, Writer};
use crate::units::Lba;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `ujstamp1`.
const MAGIC: u64 = 0x316d_7061_7473_6a75;

const FILLER_WORDS: usize = 59;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Sector {
    magic: U64,
    seed: U64,
    counter: U64,
    lba: U64,
    writer: U16,
    zero: U16,
    checksum: U32,
    filler: [U64; FILLER_WORDS],
}

const _: () = assert!(size_of::<Sector>() == SECTOR_LEN);

/// Who wrote a sector, and with which of its writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The run.
    pub seed: Seed,
    /// Who.
    pub writer: Writer,
    /// Which write.
    pub counter: Counter,
}

/// What a sector holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Zeroes: as on a disk that was never written.
    Zeroes,
    /// A stamp that belongs here.
    Stamp(Stamp),
    /// A stamp of another sector.
    Elsewhere(Stamp, Lba),
    /// Neither: torn, rotten, or not ours.
    Garbage,
}

fn sector(stamp: Stamp, lba: Lba) -> Sector {
    let mix = stamp.seed.0.rotate_left(32) ^ stamp.counter.0.rotate_left(48) ^ lba.0;
    let mut word = mix | 1;
    let filler = std::array::from_fn(|_| {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(mix);
        U64::new(word)
    });
    let mut sector = Sector {
        magic: U64::new(MAGIC),
        seed: U64::new(stamp.seed.0),
        counter: U64::new(stamp.counter.0),
        lba: U64::new(lba.0),
        writer: U16::new(stamp.writer.0),
        zero: U16::ZERO,
        checksum: U32::ZERO,
        filler,
    };
    sector.checksum = U32::new(crc32c::crc32c(sector.as_bytes()));
    sector
}

/// Fills `bytes`, whole sectors from `lba` on.
pub fn fill(stamp: Stamp, lba: Lba, bytes: &mut [u8]) {
    assert!(bytes.len().is_multiple_of(SECTOR_LEN), "whole sectors");
    for (to, at) in bytes.chunks_exact_mut(SECTOR_LEN).zip(lba.0..) {
        to.copy_from_slice(sector(stamp, Lba(at)).as_bytes());
    }
}

/// What each of the sectors holds that were read from `lba` on.
pub fn read(lba: Lba, bytes: &[u8]) -> impl Iterator<Item = Content> + '_ {
    assert!(bytes.len().is_multiple_of(SECTOR_LEN), "whole sectors");
    bytes
        .chunks_exact(SECTOR_LEN)
        .zip(lba.0..)
        .map(|(bytes, at)| content(Lba(at), bytes))
}

fn content(lba: Lba, bytes: &[u8]) -> Content {
    let mut found = Sector::read_from_bytes(bytes).expect("a sector's length");
    if found.magic.get() != MAGIC {
        let zeroes = bytes.iter().all(|byte| *byte == 0);
        return if zeroes {
            Content::Zeroes
        } else {
            Content::Garbage
        };
    }
    let checksum = found.checksum.get();
    found.checksum = U32::ZERO;
    if crc32c::crc32c(found.as_bytes()) != checksum || found.zero.get() != 0 {
        return Content::Garbage;
    }
    let stamp = Stamp {
        seed: Seed(found.seed.get()),
        writer: Writer(found.writer.get()),
        counter: Counter(found.counter.get()),
    };
    match Lba(found.lba.get()) {
        place if place == lba => Content::Stamp(stamp),
        place => Content::Elsewhere(stamp, place),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: nothing but the very sector that was written passes for it. Method: damage each bit, and cut
    //! and misplace sectors.

    use super::*;

    fn stamp(counter: u64) -> Stamp {
        Stamp {
            seed: Seed(77),
            writer: Writer(3),
            counter: Counter(counter),
        }
    }

    fn written(counter: u64, lba: u64) -> Vec<u8> {
        let mut bytes = vec![0; SECTOR_LEN];
        fill(stamp(counter), Lba(lba), &mut bytes);
        bytes
    }

    #[test]
    fn what_was_written_is_read_back_and_zeroes_are_zeroes() {
        assert_eq!(content(Lba(9), &written(5, 9)), Content::Stamp(stamp(5)));
        assert_eq!(content(Lba(9), &[0; SECTOR_LEN]), Content::Zeroes);
    }

    #[test]
    fn a_stamp_in_the_wrong_place_is_noticed() {
        let found = content(Lba(8), &written(5, 9));
        assert_eq!(found, Content::Elsewhere(stamp(5), Lba(9)));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = written(5, 9);
        for bit in 0..SECTOR_LEN * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(content(Lba(9), &bytes), Content::Garbage, "bit {bit}");
        }
    }

    #[test]
    fn a_sector_of_two_versions_is_noticed_wherever_it_is_cut() {
        let (old, new) = (written(5, 9), written(6, 9));
        for cut in 1..SECTOR_LEN {
            let mut bytes = old.clone();
            bytes[..cut].copy_from_slice(&new[..cut]);
            assert!(
                bytes == old || content(Lba(9), &bytes) == Content::Garbage,
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn neighbours_of_one_write_differ() {
        let mut bytes = vec![0; 4 * SECTOR_LEN];
        fill(stamp(1), Lba(100), &mut bytes);
        assert!(read(Lba(100), &bytes).all(|found| found == Content::Stamp(stamp(1))));
        assert!(read(Lba(101), &bytes).all(|found| matches!(found, Content::Elsewhere(..))));
    }
}
