//! The loop of the queue thread.

use super::{FileSlot, Segment, WriteMode};
use crate::engine::request::{Outcome, Tag, Unmap};
use std::time::Duration;

/// Where a server puts its operations and replies.
#[derive(Debug)]
pub struct Output<'a> {
    depth: &'a u16,
}

impl Output<'_> {
    /// What the kernel put into a tag's buffer: the data of a write. `max_io` bytes, whatever the request.
    pub fn tag_buffer(&self, tag: Tag) -> &[u8] {
        unimplemented!("{tag:?}")
    }

    /// The buffer that a reply to a read takes its data from.
    pub fn tag_buffer_mut(&mut self, tag: Tag) -> &mut [u8] {
        unimplemented!("{tag:?}")
    }

    /// Reads from a file into the segments, one after the other.
    pub fn read(&mut self, id: u32, file: FileSlot, offset: u64, segments: &[Segment]) {
        unimplemented!("{id} {file:?} {offset} {segments:?}")
    }

    /// Writes the segments, one after the other.
    pub fn write(
        &mut self,
        id: u32,
        file: FileSlot,
        offset: u64,
        segments: &[Segment],
        mode: WriteMode,
    ) {
        unimplemented!("{id} {file:?} {offset} {segments:?} {mode:?}")
    }

    /// Makes everything durable that was completed on the file before (`fdatasync`).
    pub fn flush(&mut self, id: u32, file: FileSlot) {
        unimplemented!("{id} {file:?}")
    }

    /// Zeroes a range without writing it: a hole where the space may go, else allocated zeroes.
    pub fn zero(&mut self, id: u32, file: FileSlot, offset: u64, length: u64, unmap: Unmap) {
        unimplemented!("{id} {file:?} {offset} {length} {unmap:?}")
    }

    /// Answers the request that came in this tag. Replies reach the kernel in the order given, after all
    /// operations of the turn.
    pub fn reply(&mut self, tag: Tag, outcome: Outcome) {
        unimplemented!("{tag:?} {outcome:?}")
    }

    /// How long the oldest request has been waiting for its reply.
    pub fn oldest_owned(&self, now: Duration) -> Option<Duration> {
        unimplemented!("{now:?} {}", self.depth)
    }
}

/// Wakes a queue thread from any other thread.
#[derive(Clone, Debug)]
pub struct Waker;

impl Waker {
    /// Makes the loop call `Server::woken` soon.
    pub fn wake(&self) {
        unimplemented!()
    }
}

/// What a watchdog may look at from outside, at any time.
#[derive(Clone, Debug)]
pub struct Health;

impl Health {
    /// How long the oldest request has been waiting for its reply, as of the last tick.
    pub fn oldest_owned(&self) -> Option<Duration> {
        unimplemented!()
    }

    /// How long ago the queue thread ended a turn.
    pub fn last_turn(&self) -> Duration {
        unimplemented!()
    }
}
