//! Parts: the disks and files that an array is made of.
//!
//! [`Disk`] is the seam under everything that waits for its I/O: label, check, dump, recovery, stop.
//! What is served goes through the ring instead and never through here. The simulator's disks
//! implement the same trait, so recovery runs unchanged over a disk that loses what was not flushed.
//!
//! ```text
//!   a path ──> identity ──> alias: is anything given twice?
//!                 |
//!                 v
//!               lock: the fence, before the first byte is read
//!                 |
//!                 v
//!               part: a Disk, its descriptor and its limits ──> probe: what does it carry already?
//! ```

pub mod alias;
pub mod buffer;
pub mod error;
pub mod fill;
pub mod identity;
pub mod limits;
pub mod lock;
pub mod part;
pub mod probe;
pub mod raid0;
#[cfg(any(test, feature = "sim"))]
pub mod ram;

#[cfg(test)]
pub(crate) mod conformance;
#[cfg(test)]
mod device_tests;

pub use error::PartError;
pub use part::{Access, Part};

use crate::units::Offset;
use std::io;

/// One part, read and written by code that may wait.
///
/// * Offsets, lengths and the addresses of buffers are multiples of the part's block size
///   ([`crate::units::SECTOR`] or 4096); anything else is our bug.
/// * A range that does not lie within [`Disk::size`] is refused with an error, never a panic.
/// * A completed write is not durable. [`Disk::flush`] covers every write that completed before it was
///   called. After a failed flush nothing may be assumed about what it covered.
/// * Transfers are whole: a short one is continued, or fails.
pub trait Disk {
    /// Bytes on it.
    fn size(&self) -> u64;
    /// Fills `buffer` from `offset` on.
    fn read(&mut self, offset: Offset, buffer: &mut [u8]) -> Result<(), DiskError>;
    /// Writes `buffer` at `offset`.
    fn write(&mut self, offset: Offset, buffer: &[u8]) -> Result<(), DiskError>;
    /// Makes what was written durable.
    fn flush(&mut self) -> Result<(), DiskError>;
    /// Makes a range read as zeroes: without writing it where the part can, else by writing.
    fn zero(&mut self, offset: Offset, len: u64) -> Result<(), DiskError>;
    /// What messages call it: the path.
    fn name(&self) -> String;
}

/// What was being done to a part when it failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskOp {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Flushing its cache.
    Flush,
    /// Zeroing a range.
    Zero,
}

impl std::fmt::Display for DiskOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DiskOp::Read => "read",
            DiskOp::Write => "write",
            DiskOp::Flush => "flush",
            DiskOp::Zero => "zero",
        })
    }
}

/// A part did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("{part}: cannot {op} {len} bytes at offset {offset}")]
pub struct DiskError {
    /// The part's name.
    pub part: String,
    /// What was asked.
    pub op: DiskOp,
    /// Where.
    pub offset: Offset,
    /// How much.
    pub len: u64,
    /// Why not.
    #[source]
    pub source: io::Error,
}

/// Refuses a range that does not lie within a disk of `size` bytes; for those who implement [`Disk`].
pub fn check_range(
    part: &dyn std::fmt::Display,
    op: DiskOp,
    offset: Offset,
    len: u64,
    size: u64,
) -> Result<(), DiskError> {
    if offset.0.checked_add(len).is_some_and(|end| end <= size) {
        return Ok(());
    }
    let reason = format!("the range goes beyond the end, at {size} bytes");
    let source = io::Error::new(io::ErrorKind::InvalidInput, reason);
    Err(DiskError {
        part: part.to_string(),
        op,
        offset,
        len,
        source,
    })
}
