//! Preparing a file to be written fast: real zeroes in every block of it.
//!
//! A file that was made by `truncate` or `fallocate` has holes or unwritten extents, and the first
//! write to each costs the filesystem a transaction of its own. Writing zeroes once, in order, moves
//! that cost to where nobody waits for it.

use super::buffer::AlignedBuffer;
use super::{Disk, DiskError};
use crate::units::{MIB, Offset, to_u64, to_usize};
use std::ops::Range;

/// Written at a time.
const PIECE: u64 = 8 * MIB;

/// How far the filling is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes written.
    pub done: u64,
    /// Bytes to write.
    pub total: u64,
}

/// Writes zeroes over a range, and flushes: when it returns, they are durable.
///
/// `progress` is called after each piece, the last one included.
pub fn fill_with_zeroes(
    disk: &mut dyn Disk,
    range: Range<Offset>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), DiskError> {
    write_zeroes(disk, range, progress)?;
    disk.flush()
}

/// The same without the flush. Unlike [`Disk::zero`] this always writes, so that the range has all its space.
pub fn write_zeroes(
    disk: &mut dyn Disk,
    range: Range<Offset>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), DiskError> {
    assert!(range.start <= range.end, "a range begins before it ends");
    let total = range.end.0 - range.start.0;
    let zeroes = AlignedBuffer::zeroed(to_usize(total.min(PIECE)));
    let mut done = 0;
    while done < total {
        let piece = (total - done).min(to_u64(zeroes.len()));
        disk.write(range.start.plus(done), &zeroes[..to_usize(piece)])?;
        done += piece;
        progress(Progress { done, total });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    //! Goal: exactly the range is written, and a file has all its space afterwards. Method: a disk in
    //! memory for the bytes, a sparse file for the space.

    use super::super::part::{Access, Part};
    use super::super::ram::Ram;
    use super::*;

    #[test]
    fn exactly_the_range_becomes_zeroes() {
        let mut disk = Ram::from_bytes(vec![0xa5; to_usize(3 * PIECE)]);
        let (start, end) = (4096, 2 * PIECE + 8192);
        let mut reports = Vec::new();
        fill_with_zeroes(&mut disk, Offset(start)..Offset(end), &mut |progress| {
            reports.push(progress.done);
        })
        .unwrap();
        let nonzero_outside = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0xa5);
        assert!(nonzero_outside(&disk.bytes()[..to_usize(start)]));
        assert!(
            disk.bytes()[to_usize(start)..to_usize(end)]
                .iter()
                .all(|byte| *byte == 0)
        );
        assert!(nonzero_outside(&disk.bytes()[to_usize(end)..]));
        assert_eq!(reports, [PIECE, 2 * PIECE, 2 * PIECE + 4096]);
    }

    #[test]
    fn an_empty_range_is_nothing_to_do() {
        let mut disk = Ram::from_bytes(vec![0xa5; 8192]);
        fill_with_zeroes(&mut disk, Offset(4096)..Offset(4096), &mut |_| {
            panic!("nothing was written")
        })
        .unwrap();
        assert!(disk.bytes().iter().all(|byte| *byte == 0xa5));
    }

    #[test]
    fn a_range_beyond_the_end_is_an_error() {
        let mut disk = Ram::new(8192);
        fill_with_zeroes(&mut disk, Offset(4096)..Offset(12_288), &mut |_| {}).unwrap_err();
    }

    #[test]
    fn a_sparse_file_has_all_its_space_afterwards() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MIB).unwrap();
        let mut part = Part::open(file.path(), Access::ReadWrite).unwrap();
        assert_eq!(part.unallocated().unwrap(), Some(MIB));
        fill_with_zeroes(&mut part, Offset(0)..Offset(MIB), &mut |_| {}).unwrap();
        assert_eq!(part.unallocated().unwrap(), None);
    }
}
