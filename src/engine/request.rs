//! What the device is asked and what it answers: the engine's upper edge.

use crate::units::Lba;

/// Which of the kernel's slots a request came in. It is answered under the same number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tag(pub u16);

impl Tag {
    /// As an index into a list of tags.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Fill the tag's buffer.
    Read,
    /// Take what is in the tag's buffer.
    Write,
    /// Make everything that was answered so far durable.
    Flush,
    /// Zeroes from now on; the space may be given back.
    Discard,
    /// Zeroes from now on; the space is kept.
    WriteZeroes(Unmap),
}

/// Whether zeroing may give the space back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmap {
    /// It may.
    Allowed,
    /// `NOUNMAP`: the zeroes stay allocated.
    Forbidden,
}

/// Whether an answer may come before the data is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// It may: a later FLUSH decides.
    Later,
    /// `FUA`: only once this request, and all before it, are durable.
    Now,
}

/// One request, as it came from the kernel, within the device and a multiple of its logical block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Where the answer goes.
    pub tag: Tag,
    /// What is asked.
    pub op: Op,
    /// The first sector; 0 for FLUSH.
    pub lba: Lba,
    /// How many sectors; 0 for FLUSH.
    pub sectors: u32,
    /// When it may be answered.
    pub durability: Durability,
}

/// A request's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All of it was done.
    Done,
    /// None of it counts; the kernel is told this error number (positive, as in `errno.h`).
    Failed(Errno),
}

/// A positive error number of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// The general input/output error.
    pub const IO: Errno = Errno(5);
    /// An operation that the device does not know.
    pub const NOT_SUPPORTED: Errno = Errno(95);
    /// No room just now.
    pub const AGAIN: Errno = Errno(11);
    /// A signal came in between.
    pub const INTERRUPTED: Errno = Errno(4);
    /// Stored data whose checksum does not match.
    pub const BAD_DATA: Errno = Errno(84);
    /// There is no such device or place any more.
    pub const NO_ADDRESS: Errno = Errno(6);
    /// The same, in the words of other drivers.
    pub const NO_DEVICE: Errno = Errno(19);

    /// Whether it says that the device has gone, and not just that something went wrong.
    pub fn is_of_a_device_gone(self) -> bool {
        self == Errno::NO_ADDRESS || self == Errno::NO_DEVICE
    }
}
