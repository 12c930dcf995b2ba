//! Memory that direct I/O accepts.
//!
//! `O_DIRECT` wants the address of a buffer to be a multiple of what the disk asks for, at most 4096.
//! [`AlignedBuffer`] is a piece of heap for code that waits for its I/O; [`Arena`] is one mapping made
//! at start, from which the engine cuts everything, so that nothing allocates while it serves.
//!
//! Unsafe code is allowed here for the arena alone: a mapping that can be populated and locked in one
//! call, and whose address goes to the kernel, cannot be had from the safe parts of `std`. It is three
//! calls and two views of bytes that were never uninitialised, since anonymous memory begins as zeroes.

#![expect(unsafe_code, reason = "an anonymous mapping: see the module's story")]

use crate::units::{FRAME, round_up, to_u64, to_usize};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What an [`AlignedBuffer`] is made of: the alignment is the type's, so the heap keeps it.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

const _: () = assert!(size_of::<Page>() == 4096);
const _: () = assert!(FRAME == 4096);

/// Zeroed bytes on the heap whose address is a multiple of 4096.
#[derive(Clone)]
pub struct AlignedBuffer {
    pages: Vec<Page>,
    len: usize,
}

impl AlignedBuffer {
    /// `len` zeroes; any length will do, the address is aligned whatever it is.
    pub fn zeroed(len: usize) -> AlignedBuffer {
        AlignedBuffer {
            pages: vec![Page([0; 4096]); len.div_ceil(size_of::<Page>())],
            len,
        }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.pages.as_slice().as_bytes()[..self.len]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages.as_mut_slice().as_mut_bytes()[..self.len]
    }
}

impl std::fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.len)
    }
}

/// When an [`Arena`]'s memory is really there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residency {
    /// Each page when it is first touched.
    OnTouch,
    /// All of it from the beginning, though it may be swapped out.
    Populated,
    /// All of it from the beginning, and it stays: a page fault on the I/O path could wait for the
    /// very device that is being served.
    Locked,
}

/// There is no memory for the arena.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The mapping was refused.
    #[error("cannot map {len} bytes of memory; lower `[memory] window` or free memory")]
    Map {
        /// Bytes asked for.
        len: u64,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The mapping is there, but may not be locked.
    #[error(
        "cannot lock {len} bytes of memory; raise the limit (`ulimit -l`, LimitMEMLOCK=) or lower `[memory] window`"
    )]
    Lock {
        /// Bytes asked for.
        len: u64,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// One large piece of zeroed memory, page-aligned, kept until it is dropped.
///
/// While the kernel reads or writes a part of it, nobody may hold a slice that covers that part:
/// [`Arena::range`] and [`Arena::range_mut`] borrow no more than they are asked for.
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and to no thread in particular; shared borrows give
// shared slices only.
unsafe impl Send for Arena {}

impl Arena {
    /// Maps `len` bytes, rounded up to whole frames. `len` is greater than zero.
    pub fn new(len: u64, residency: Residency) -> Result<Arena, ArenaError> {
        assert!(len > 0, "an arena holds something");
        let len = round_up(len, FRAME);
        let size = to_usize(len);
        let flags = match residency {
            Residency::OnTouch => MapFlags::PRIVATE,
            Residency::Populated | Residency::Locked => MapFlags::PRIVATE | MapFlags::POPULATE,
        };
        // SAFETY: no address is asked for, so no existing mapping is replaced.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        };
        let address = mapped.map_err(|error| ArenaError::Map {
            len,
            source: error.into(),
        })?;
        let base = NonNull::new(address.cast::<u8>())
            .expect("the kernel maps nothing at address zero unasked");
        let arena = Arena { base, len: size };
        if residency == Residency::Locked {
            // SAFETY: the range is exactly the mapping made above.
            let locked = unsafe { rustix::mm::mlock(address, size) };
            locked.map_err(|error| ArenaError::Lock {
                len,
                source: error.into(),
            })?;
        }
        Ok(arena)
    }

    /// Where it begins. Stays the same until the arena is dropped.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: an arena holds something.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// All of it.
    pub fn as_slice(&self) -> &[u8] {
        self.range(0..self.len)
    }

    /// All of it, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.range_mut(0..self.len)
    }

    /// The bytes of `range`, and a borrow of nothing else.
    pub fn range(&self, range: Range<usize>) -> &[u8] {
        self.assert_within(&range);
        // SAFETY: the range lies within the mapping, as was just asserted.
        let first = unsafe { self.base.add(range.start) };
        // SAFETY: these bytes are mapped for as long as `self` lives, initialised (anonymous memory is
        // zeroed), and every change needs `&mut self` or is the kernel's, which the owner keeps apart.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), range.len()) }
    }

    /// The bytes of `range`, to be changed, and a borrow of nothing else.
    pub fn range_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        self.assert_within(&range);
        // SAFETY: the range lies within the mapping, as was just asserted.
        let first = unsafe { self.base.add(range.start) };
        // SAFETY: as in `range`; `&mut self` keeps every other slice of ours away.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), range.len()) }
    }

    fn assert_within(&self, range: &Range<usize>) {
        assert!(range.start <= range.end, "a range begins before it ends");
        assert!(range.end <= self.len, "a range lies within its arena");
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the range is exactly the mapping, and no slice of it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        // Without memory for its own books the kernel may leave the mapping until the process ends,
        // which harms nobody.
        assert!(
            matches!(unmapped, Ok(()) | Err(rustix::io::Errno::NOMEM)),
            "an arena unmaps just what it mapped"
        );
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({} bytes at {:p})", self.len, self.base)
    }
}

/// Whether direct I/O takes this memory: `unit` is a part's block size.
pub(crate) fn is_aligned(buffer: &[u8], unit: u64) -> bool {
    to_u64(buffer.as_ptr().addr()).is_multiple_of(unit)
}

#[cfg(test)]
mod tests {
    //! Goal: memory is zeroed, aligned and as long as asked. Method: ask, look, write, look again.

    use super::*;

    #[test]
    fn a_buffer_of_any_length_is_zeroed_and_aligned() {
        for len in [0, 1, 511, 512, 4096, 4097, 1 << 20] {
            let mut buffer = AlignedBuffer::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert!(is_aligned(&buffer, 4096), "length {len}");
            assert!(buffer.iter().all(|byte| *byte == 0), "length {len}");
            buffer.fill(0xa5);
            assert!(buffer.iter().all(|byte| *byte == 0xa5), "length {len}");
        }
    }

    #[test]
    fn an_arena_is_zeroed_aligned_and_writable_to_its_last_byte() {
        for residency in [Residency::OnTouch, Residency::Populated, Residency::Locked] {
            let mut arena = Arena::new(10_000, residency).unwrap();
            assert_eq!(arena.len(), 12_288, "{residency:?}: rounded up to frames");
            assert!(is_aligned(arena.as_slice(), 4096), "{residency:?}");
            assert!(
                arena.as_slice().iter().all(|byte| *byte == 0),
                "{residency:?}"
            );
            arena.as_mut_slice()[12_287] = 7;
            assert_eq!(arena.range(12_286..12_288), [0, 7], "{residency:?}");
            assert_eq!(
                arena.base().as_ptr().addr(),
                arena.as_slice().as_ptr().addr(),
                "{residency:?}"
            );
        }
    }

    #[test]
    fn an_arena_can_move_to_another_thread() {
        let mut arena = Arena::new(4096, Residency::OnTouch).unwrap();
        arena.range_mut(0..3).copy_from_slice(b"abc");
        let read = std::thread::spawn(move || arena.range(0..3).to_vec())
            .join()
            .unwrap();
        assert_eq!(read, b"abc");
    }

    #[test]
    fn an_arena_larger_than_the_address_space_is_an_error() {
        let error = Arena::new(1 << 60, Residency::OnTouch).unwrap_err();
        assert!(
            matches!(error, ArenaError::Map { len, .. } if len == 1 << 60),
            "{error}"
        );
    }

    #[test]
    #[should_panic(expected = "within its arena")]
    fn a_range_past_the_end_of_an_arena_is_our_bug() {
        let arena = Arena::new(4096, Residency::OnTouch).unwrap();
        arena.range(4000..4097);
    }
}
