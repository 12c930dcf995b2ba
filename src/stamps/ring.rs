//! An `io_uring` over one device, with a buffer for each of its requests.
//!
//! It holds unsafe code because the kernel is given addresses and goes on using them after the call has
//! returned, which no borrow can express. What makes it sound: the buffers are cut from one [`Arena`] that
//! belongs to the ring, each has a number, and a buffer whose request is in flight is neither lent out nor
//! freed. If the ring is dropped while requests are in flight, which happens after errors only, the
//! memory stays mapped until the process ends.

#![expect(
    unsafe_code,
    reason = "the kernel is given addresses that it uses after the call has returned"
)]

use super::log::Durability;
use crate::disk::buffer::{Arena, Residency};
use crate::units::{to_u64, to_usize};
use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// What a completion belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// The transfer with this buffer.
    Buffer(u16),
    /// The flush, of which there is one at a time.
    Flush,
}

/// See the head of the file.
pub(super) struct Ring {
    ring: IoUring,
    file: File,
    arena: ManuallyDrop<Arena>,
    buffer_len: usize,
    /// For each buffer, and behind them for the flush, whether a request is in flight.
    in_flight: Vec<bool>,
}

impl Ring {
    /// Over `file`, with `buffers` of `buffer_len` bytes.
    pub fn new(file: File, buffers: u16, buffer_len: usize) -> io::Result<Ring> {
        let count = usize::from(buffers);
        let arena = Arena::new(to_u64(count * buffer_len), Residency::Populated)
            .map_err(io::Error::other)?;
        let entries = (u32::from(buffers) + 1).next_power_of_two();
        Ok(Ring {
            ring: IoUring::new(entries)?,
            file,
            arena: ManuallyDrop::new(arena),
            buffer_len,
            in_flight: vec![false; count + 1],
        })
    }

    /// The first `len` bytes of a buffer that is not in flight.
    pub fn buffer(&mut self, number: u16, len: usize) -> &mut [u8] {
        assert!(
            !self.in_flight[usize::from(number)],
            "the kernel is using buffer {number}"
        );
        let range = self.range(number, len);
        self.arena.range_mut(range)
    }

    fn range(&self, number: u16, len: usize) -> Range<usize> {
        assert!(len <= self.buffer_len, "a request fits its buffer");
        let begin = usize::from(number) * self.buffer_len;
        begin..begin + len
    }

    /// The address of a buffer, for the kernel.
    fn address(&self, number: u16, len: usize) -> *mut u8 {
        let range = self.range(number, len);
        assert!(range.end <= self.arena.len());
        // SAFETY: the range lies within the arena, as was just asserted.
        unsafe { self.arena.base().add(range.start) }.as_ptr()
    }

    /// Writes the first `len` bytes of a buffer at `offset`.
    pub fn write(&mut self, number: u16, len: usize, offset: u64, durability: Durability) {
        let flags = match durability {
            Durability::Later => 0,
            Durability::Now => libc::RWF_DSYNC,
        };
        let bytes = u32::try_from(len).expect("a request is small");
        let write = opcode::Write::new(Fd(self.file.as_raw_fd()), self.address(number, len), bytes)
            .offset(offset)
            .rw_flags(flags)
            .build();
        self.push(usize::from(number), write);
    }

    /// Reads `len` bytes at `offset` into a buffer.
    pub fn read(&mut self, number: u16, len: usize, offset: u64) {
        let bytes = u32::try_from(len).expect("a request is small");
        let read = opcode::Read::new(Fd(self.file.as_raw_fd()), self.address(number, len), bytes)
            .offset(offset)
            .build();
        self.push(usize::from(number), read);
    }

    /// Flushes the device.
    pub fn flush(&mut self) {
        let flush = opcode::Fsync::new(Fd(self.file.as_raw_fd()))
            .flags(FsyncFlags::DATASYNC)
            .build();
        self.push(self.in_flight.len() - 1, flush);
    }

    /// Whether a flush is in flight.
    pub fn is_flushing(&self) -> bool {
        self.in_flight[self.in_flight.len() - 1]
    }

    fn push(&mut self, index: usize, entry: Entry) {
        let was_in_flight = std::mem::replace(&mut self.in_flight[index], true);
        assert!(!was_in_flight, "one request at a time for number {index}");
        let entry = entry.user_data(to_u64(index));
        // SAFETY: the buffer is neither lent out nor freed while its request is in flight.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the ring has room for one of each");
    }

    /// Gives everything to the kernel and waits until something has ended, but no longer than `patience`.
    pub fn enter(&mut self, patience: Duration) -> io::Result<()> {
        let time = Timespec::from(patience);
        let arguments = SubmitArgs::new().timespec(&time);
        match self.ring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => Ok(()),
            Err(error) if passes(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What has ended, each once: the kernel's number of bytes, or its error.
    pub fn next_ended(&mut self) -> Option<(Owner, io::Result<usize>)> {
        let completion = self.ring.completion().next()?;
        let index = to_usize(completion.user_data());
        let was_in_flight = std::mem::replace(&mut self.in_flight[index], false);
        assert!(was_in_flight, "request {index} ends once");
        let owner = if index == self.in_flight.len() - 1 {
            Owner::Flush
        } else {
            Owner::Buffer(u16::try_from(index).expect("as many as were asked for"))
        };
        let result = completion.result();
        let result = usize::try_from(result)
            .map_err(|_| io::Error::from_raw_os_error(result.saturating_neg()));
        Some((owner, result))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.in_flight.contains(&true) {
            return;
        }
        // SAFETY: it is dropped here and nowhere else, and nothing of it is in the kernel's hands.
        unsafe { ManuallyDrop::drop(&mut self.arena) };
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_flight = self.in_flight.iter().filter(|is| **is).count();
        write!(f, "Ring({in_flight} requests in flight)")
    }
}

/// A signal, the end of our patience, or a shortage that passes: one looks, and enters again.
fn passes(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME)
    )
}
