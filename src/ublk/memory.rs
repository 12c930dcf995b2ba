//! The memory that the kernel reads and writes behind the program's back.
//!
//! Two kinds: one buffer for each tag, for the data of requests, and the server's [`Arena`], for
//! everything else. Both are aligned to pages, zeroed, and locked, so that no transfer waits for memory.
//!
//! This file holds unsafe code because the addresses outlive every borrow. What makes it sound:
//!
//! * The memory outlives the ring. The queue thread hands the tag buffers and the server, which owns the
//!   arena, to whoever joins it, and the kernel cancels all that a thread has in flight before the thread
//!   has ended. If the loop panics the process aborts.
//! * Addresses are computed here alone, from an offset and a length that are asserted to lie inside.
//! * The memory is plain bytes. If a server breaks its promise and looks at a piece that the kernel is
//!   writing, it sees old or new bytes, never an invalid value.

#![expect(
    unsafe_code,
    reason = "the kernel uses addresses after the call that named them has returned"
)]

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use libublk::helpers::IoBuf;

use crate::disk::buffer::Arena;
use crate::engine::request::Tag;

/// Where an arena is, for the ring.
#[derive(Clone, Copy)]
pub(super) struct ArenaAddress {
    base: NonNull<u8>,
    length: usize,
}

impl ArenaAddress {
    /// The ring's users keep the arena for as long as they use this.
    pub fn new(arena: &Arena) -> ArenaAddress {
        ArenaAddress {
            base: arena.base(),
            length: arena.len(),
        }
    }

    /// The address of a piece.
    pub fn of(self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset <= self.length, "a segment begins inside the arena");
        assert!(
            length <= self.length - offset,
            "a segment ends inside the arena"
        );
        // SAFETY: `offset` is within the mapping: asserted above.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

/// One buffer for each tag: where the driver puts the data of a write and takes that of a read.
pub(super) struct TagBuffers {
    buffers: Vec<IoBuf<u8>>,
    length: usize,
}

impl TagBuffers {
    /// Makes, locks and zeroes `depth` buffers of `length` bytes.
    pub fn new(depth: u16, length: usize) -> io::Result<TagBuffers> {
        let mut buffers = Vec::with_capacity(usize::from(depth));
        for _ in 0..depth {
            let mut buffer = IoBuf::<u8>::new(length);
            // Libublk does not look at the answer of the allocator.
            if buffer.as_ptr().is_null() {
                return Err(io::Error::from(io::ErrorKind::OutOfMemory));
            }
            // Locking brings all pages in at once; zeroing first would fault them in one by one.
            if !buffer.mlock() {
                return Err(io::Error::last_os_error());
            }
            buffer.zero_buf();
            buffers.push(buffer);
        }
        Ok(TagBuffers { buffers, length })
    }

    /// As libublk wants them.
    pub fn as_libublk(&self) -> &Vec<IoBuf<u8>> {
        &self.buffers
    }

    /// The bytes of one.
    pub fn bytes(&self, tag: Tag) -> &[u8] {
        self.buffers[tag.index()].as_slice()
    }

    /// The bytes of one.
    pub fn bytes_mut(&mut self, tag: Tag) -> &mut [u8] {
        self.buffers[tag.index()].as_mut_slice()
    }

    /// A piece of one, and a borrow of nothing else: other pieces may be in flight.
    pub fn piece_mut(&mut self, tag: Tag, piece: Range<usize>) -> &mut [u8] {
        let first = self.address(tag, piece.start, piece.len());
        // SAFETY: the piece lies inside the buffer, as `address` has asserted; it is initialised, and
        // `&mut self` keeps every other slice of ours away.
        unsafe { std::slice::from_raw_parts_mut(first, piece.len()) }
    }

    /// The address of a piece of one.
    pub fn address(&self, tag: Tag, offset: usize, length: usize) -> *mut u8 {
        assert!(
            offset <= self.length,
            "a segment begins inside its tag's buffer"
        );
        assert!(
            length <= self.length - offset,
            "a segment ends inside its tag's buffer"
        );
        // SAFETY: `offset` is within the buffer: asserted above.
        unsafe { self.buffers[tag.index()].as_mut_ptr().add(offset) }
    }
}
