//! The engine's lower edge: what it asks of the parts, and where it answers.
//!
//! The ring of the real device and the simulator's scheduler both implement [`Port`]. An operation is
//! handed over once, with a number; its end comes back as [`super::Engine::completed`] with the same
//! number. Operations in flight together have no order. Memory named by a [`Segment`] stays as it is
//! (a write), or is not looked at (a read), until then.

use super::request::{Outcome, Tag};
use crate::units::{Offset, PartIndex};
use std::ops::Range;

/// Which operation in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IoId(pub u16);

impl IoId {
    /// As an index into a list of operations.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A run of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// In the engine's arena, at this byte.
    Arena(usize),
    /// In the buffer of a tag, at this byte.
    Buffer(Tag, usize),
}

/// A run of memory and its length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Where it begins.
    pub memory: Memory,
    /// How long it is.
    pub len: usize,
}

impl Segment {
    /// `len` bytes of the arena from `offset` on.
    pub fn arena(offset: usize, len: usize) -> Segment {
        let memory = Memory::Arena(offset);
        Segment { memory, len }
    }

    /// `len` bytes of a tag's buffer from `offset` on.
    pub fn buffer(tag: Tag, offset: usize, len: usize) -> Segment {
        let memory = Memory::Buffer(tag, offset);
        Segment { memory, len }
    }
}

/// Most segments of one operation.
pub const SEGMENTS_MAX: usize = 32;

/// Whether a write is durable once it has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// Only after a flush.
    No,
    /// `RWF_DSYNC`: itself, and nothing else.
    Data,
}

/// What happens to the space of a zeroed range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// Given back.
    Freed,
    /// Kept.
    Kept,
}

/// One operation on one part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation<'a> {
    /// Fill `segments` from `offset` on.
    Read {
        /// Where, in bytes.
        offset: Offset,
        /// Into which memory; at most [`SEGMENTS_MAX`] runs.
        segments: &'a [Segment],
    },
    /// Write `segments` from `offset` on.
    Write {
        /// Where, in bytes.
        offset: Offset,
        /// From which memory; at most [`SEGMENTS_MAX`] runs.
        segments: &'a [Segment],
        /// Whether it must be durable.
        sync: Sync,
    },
    /// Make every completed write durable.
    Flush,
    /// Make a range read as zeroes without writing it.
    Zero {
        /// Where, in bytes.
        offset: Offset,
        /// How many bytes.
        len: u64,
        /// What happens to its space.
        space: Space,
    },
}

/// What carries out the engine's commands.
pub trait Port {
    /// The data of a request: what a WRITE brought.
    fn buffer(&self, tag: Tag) -> &[u8];
    /// A piece of where the data of a READ goes. Operations on other pieces may be in flight.
    fn buffer_mut(&mut self, tag: Tag, piece: Range<usize>) -> &mut [u8];
    /// Begins an operation. `id` is free again once its end has been reported.
    fn submit(&mut self, id: IoId, part: PartIndex, operation: Operation<'_>);
    /// Ends a request. Replies reach the kernel in the order of these calls.
    fn reply(&mut self, tag: Tag, outcome: Outcome);
}
