//! A disk in memory, for tests of what stands on [`Disk`].
//!
//! It keeps the contract and does nothing else: what is written is there at once and stays. The disk
//! that loses what was not flushed is the simulator's. A clone is another handle to the same disk, as
//! two processes one after the other have it.

use super::buffer::is_aligned;
use super::{Disk, DiskError, DiskOp, check_range};
use crate::units::{Offset, SECTOR, to_u64, to_usize};
use std::cell::{Ref, RefCell, RefMut};
use std::ops::Range;
use std::rc::Rc;

/// The disk.
#[derive(Clone, Debug)]
pub struct Ram {
    name: String,
    bytes: Rc<RefCell<Vec<u8>>>,
    block_size: u64,
}

impl Ram {
    /// Zeroes, in blocks of 512 bytes. `size` is a multiple of that.
    pub fn new(size: u64) -> Ram {
        Ram::from_bytes(vec![0; to_usize(size)])
    }

    /// A disk that holds `bytes`, in blocks of 512 bytes.
    pub fn from_bytes(bytes: Vec<u8>) -> Ram {
        assert!(
            to_u64(bytes.len()).is_multiple_of(SECTOR),
            "a disk has whole sectors"
        );
        Ram {
            name: "ram".into(),
            bytes: Rc::new(RefCell::new(bytes)),
            block_size: SECTOR,
        }
    }

    /// The same disk with blocks of `block_size` bytes.
    pub fn with_block_size(self, block_size: u64) -> Ram {
        assert!(
            self.size().is_multiple_of(block_size),
            "a disk has whole blocks"
        );
        Ram { block_size, ..self }
    }

    /// The same disk, called `name` in messages.
    pub fn named(self, name: &str) -> Ram {
        Ram {
            name: name.into(),
            ..self
        }
    }

    /// All that it holds.
    pub fn bytes(&self) -> Ref<'_, [u8]> {
        Ref::map(self.bytes.borrow(), Vec::as_slice)
    }

    /// All that it holds, to be damaged at will.
    pub fn bytes_mut(&mut self) -> RefMut<'_, [u8]> {
        RefMut::map(self.bytes.borrow_mut(), Vec::as_mut_slice)
    }

    fn range(&self, op: DiskOp, offset: Offset, len: u64) -> Result<Range<usize>, DiskError> {
        check_range(&self.name, op, offset, len, self.size())?;
        assert!(
            offset.0.is_multiple_of(self.block_size),
            "offset {offset} is a multiple of {}",
            self.block_size
        );
        assert!(
            len.is_multiple_of(self.block_size),
            "length {len} is a multiple of {}",
            self.block_size
        );
        Ok(to_usize(offset.0)..to_usize(offset.0 + len))
    }

    fn assert_aligned(&self, buffer: &[u8]) {
        assert!(
            buffer.is_empty() || is_aligned(buffer, self.block_size),
            "the buffer is aligned"
        );
    }
}

impl Disk for Ram {
    fn size(&self) -> u64 {
        to_u64(self.bytes.borrow().len())
    }

    fn read(&mut self, offset: Offset, buffer: &mut [u8]) -> Result<(), DiskError> {
        let range = self.range(DiskOp::Read, offset, to_u64(buffer.len()))?;
        self.assert_aligned(buffer);
        buffer.copy_from_slice(&self.bytes()[range]);
        Ok(())
    }

    fn write(&mut self, offset: Offset, buffer: &[u8]) -> Result<(), DiskError> {
        let range = self.range(DiskOp::Write, offset, to_u64(buffer.len()))?;
        self.assert_aligned(buffer);
        self.bytes_mut()[range].copy_from_slice(buffer);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DiskError> {
        Ok(())
    }

    fn zero(&mut self, offset: Offset, len: u64) -> Result<(), DiskError> {
        let range = self.range(DiskOp::Zero, offset, len)?;
        self.bytes_mut()[range].fill(0);
        Ok(())
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: memory keeps the contract. Method: the conformance suite, with both sizes of block.

    use super::*;
    use crate::disk::buffer::AlignedBuffer;

    #[test]
    fn a_clone_is_the_same_disk() {
        let mut disk = Ram::new(1 << 20);
        let mut written = AlignedBuffer::zeroed(512);
        written.fill(7);
        disk.clone().write(Offset(512), &written).unwrap();
        let mut read = AlignedBuffer::zeroed(512);
        disk.read(Offset(512), &mut read).unwrap();
        assert_eq!(read[..], written[..]);
    }

    mod small_blocks {
        crate::disk::conformance::suite!((super::super::Ram::new(1 << 20), ()));
    }

    mod large_blocks {
        crate::disk::conformance::suite!((
            super::super::Ram::new(1 << 20).with_block_size(4096),
            ()
        ));
    }
}
