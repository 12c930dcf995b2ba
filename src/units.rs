//! The numbers of a journal, one type each.
//!
//! An address on the device, a byte offset on a part, a place in the ring and the number of a request
//! are all 64-bit integers, and mixing two of them loses data. They are different types everywhere and
//! meet only in the functions of this file.
//!
//! ```text
//!   Lba      where on the exposed device           512-byte sectors
//!   Offset   where on one part                     bytes
//!   Pos      where in the ring, never wrapping     bytes; ring offset = pos mod ring size
//!   Seq      which state-changing request          epoch (20 bits) and counter (44 bits)
//!   Epoch    which life of the array
//! ```

use std::fmt;

/// Bytes in a sector: the unit of [`Lba`], and the smallest thing that a disk writes whole.
pub const SECTOR: u64 = 512;

/// Bytes in a frame: the unit of checksums, of record headers and of places in the ring.
pub const FRAME: u64 = 4096;

/// One kibibyte and one mebibyte, in bytes.
pub const KIB: u64 = 1 << 10;
/// See [`KIB`].
pub const MIB: u64 = 1 << 20;

/// An address on the exposed device, in sectors of 512 bytes whatever the logical block size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lba(pub u64);

impl Lba {
    /// The address `sectors` further on.
    pub fn plus(self, sectors: u64) -> Lba {
        Lba(self.0 + sectors)
    }

    /// Sectors from `earlier` to here.
    pub fn since(self, earlier: Lba) -> u64 {
        self.0 - earlier.0
    }
}

impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A place on one part, in bytes from its beginning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Offset(pub u64);

impl Offset {
    /// The place `bytes` further on.
    pub fn plus(self, bytes: u64) -> Offset {
        Offset(self.0 + bytes)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A place in the ring as if it never wrapped, in bytes.
///
/// It lives in memory only: on disk there are ring offsets. Of two positions the greater one is the
/// newer one, whatever the laps between them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Pos(pub u64);

impl Pos {
    /// The position `bytes` further on.
    pub fn plus(self, bytes: u64) -> Pos {
        Pos(self.0 + bytes)
    }

    /// Bytes from `earlier` to here.
    pub fn since(self, earlier: Pos) -> u64 {
        self.0 - earlier.0
    }

    /// Where in a ring of `ring_size` bytes this is.
    pub fn ring_offset(self, ring_size: u64) -> u64 {
        self.0 % ring_size
    }
}

impl fmt::Display for Pos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Bits of a [`Seq`] that count requests within one life.
pub const SEQ_COUNTER_BITS: u32 = 44;

/// The number of the time between one start of the array and its stop or crash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The last epoch there can be: 20 bits.
    pub const MAX: Epoch = Epoch((1 << 20) - 1);

    /// The life after this one, or `None` after the last.
    pub fn next(self) -> Option<Epoch> {
        (self < Epoch::MAX).then(|| Epoch(self.0 + 1))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The number of one state-changing request, never reused in the array's life.
///
/// The upper 20 bits are the epoch, the lower 44 a counter that starts at 1 in each life, so that any
/// number given after a recovery is greater than any that a lost life can have given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Seq(pub u64);

impl Seq {
    /// Before the first request of a new array.
    pub const NONE: Seq = Seq(0);

    /// The number from which a life counts: its first request has the one after it.
    pub fn start_of(epoch: Epoch) -> Seq {
        Seq(u64::from(epoch.0) << SEQ_COUNTER_BITS)
    }

    /// The life that gave this number.
    pub fn epoch(self) -> u64 {
        self.0 >> SEQ_COUNTER_BITS
    }

    /// Which request of its life this is.
    pub fn counter(self) -> u64 {
        self.0 & ((1 << SEQ_COUNTER_BITS) - 1)
    }

    /// The number `n` further on. Panics rather than run into the next epoch: the engine ends the
    /// life long before (see `engine::commit`).
    pub fn plus(self, n: u64) -> Seq {
        let next = Seq(self.0 + n);
        assert_eq!(
            next.epoch(),
            self.epoch(),
            "a life never outgrows its numbers"
        );
        next
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch(), self.counter())
    }
}

/// Which part of the array: the members are 0 to n-1 in the order of their roles, a detached journal
/// comes after them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PartIndex(pub u8);

impl PartIndex {
    /// As an index into a list of parts.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for PartIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// `bytes` as an index into memory. This program runs on 64-bit machines only.
pub fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("the address space has 64 bits")
}

/// `n` as a number on disk.
pub fn to_u64(n: usize) -> u64 {
    u64::try_from(n).expect("the address space has 64 bits")
}

/// `n` rounded up to a multiple of `unit`.
pub fn round_up(n: u64, unit: u64) -> u64 {
    n.div_ceil(unit) * unit
}

/// `n` rounded down to a multiple of `unit`.
pub fn round_down(n: u64, unit: u64) -> u64 {
    n / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_of_a_later_life_has_a_greater_seq() {
        let last = Seq(Seq::start_of(Epoch(2)).0 - 1);
        assert!(last < Seq::start_of(Epoch(2)).plus(1));
        assert_eq!(last.epoch(), 1);
    }

    #[test]
    #[should_panic(expected = "outgrows")]
    fn a_seq_never_runs_into_the_next_epoch() {
        Seq(Seq::start_of(Epoch(2)).0 - 1).plus(1);
    }

    #[test]
    fn the_last_epoch_has_no_next() {
        assert_eq!(Epoch::MAX.next(), None);
        assert_eq!(Epoch(0).next(), Some(Epoch(1)));
    }
}
