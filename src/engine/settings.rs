//! Every limit of an engine in one place, and the relations between them.

use crate::journal::geometry::{
    MARKS_RESERVED, anchor_span, payload_max, record_max, ring_size_min,
};
use crate::journal::record::PAYLOAD_MAX;
use crate::units::{FRAME, KIB, MIB, to_usize};
use std::time::Duration;

/// What a part can take in one request. Larger ones would be split by the kernel on a worker thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartLimits {
    /// Most bytes of one read or write: a multiple of 4 KiB.
    pub io_max: u64,
    /// Most runs of memory in one read or write.
    pub segments_max: usize,
    /// Most pages of memory that these may lie in, at least as many as `io_max` has: to the disk each may be a
    /// segment of its own.
    pub pages_max: usize,
    /// Whether a range can be zeroed without writing it.
    pub zeroes: bool,
    /// What a durable write does beside making itself durable.
    pub sync: SyncWrite,
    /// For a member: whether the disk that it lies on also holds some of a detached journal, in another
    /// partition or file. Then a flush of it that fails leaves the journal no surer than the member.
    pub shares_journal_disk: bool,
}

/// What a durable write does beside making itself durable, and what its failure means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncWrite {
    /// Nothing: it goes through the cache, or there is none. If it fails, only it has failed.
    Alone,
    /// It is a write and a flush of the whole cache: what had completed before it was submitted is
    /// durable as well. If it fails, a flush may have failed.
    Flushes,
    /// It may flush or not: its success says nothing of others, but its failure may.
    Unknown,
}

/// When a write may be answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Commit {
    /// Once it is in the journal; durable after the next FLUSH.
    Flush,
    /// Only once it is durable.
    Always,
}

/// Extents of the map that each request in flight may need.
const EXTENTS_PER_REQUEST: usize = 4;

/// What keeps an engine from serving requests of some size, so many at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfit {
    /// Nobody could ask.
    #[error("a queue of 0 requests")]
    NoQueue,
    /// The map could not hold what they leave in it.
    #[error(
        "a queue of {depth} requests, which needs a map of {needed} extents, but it has {extents}"
    )]
    Queue {
        /// Requests at once.
        depth: u16,
        /// Extents for so many.
        needed: usize,
        /// Extents that there are.
        extents: usize,
    },
    /// Their payloads would not be whole frames.
    #[error("requests of up to {0} bytes, expected a multiple of {FRAME}")]
    Grain(u64),
    /// One does not fit a record.
    #[error("requests of up to {0} bytes, but a record holds at most {PAYLOAD_MAX}")]
    Record(u64),
    /// Too few records would fit the ring.
    #[error(
        "requests of up to {max_io} bytes, for which the ring must have {needed} bytes, but it has {ring_size}"
    )]
    Ring {
        /// Bytes of one request.
        max_io: u64,
        /// Bytes of a ring for such.
        needed: u64,
        /// Bytes of this ring.
        ring_size: u64,
    },
}

/// Whether requests of up to `max_io` bytes, `depth` of them at once, can be served over a ring of
/// `ring_size` bytes with `extents` in the map.
///
/// # Errors
/// What is wrong first.
pub fn check_requests(
    depth: u16,
    max_io: u64,
    ring_size: u64,
    extents: usize,
) -> Result<(), Unfit> {
    if depth == 0 {
        return Err(Unfit::NoQueue);
    }
    let needed = EXTENTS_PER_REQUEST * usize::from(depth);
    if extents < needed {
        return Err(Unfit::Queue {
            depth,
            needed,
            extents,
        });
    }
    if max_io == 0 || !max_io.is_multiple_of(FRAME) {
        return Err(Unfit::Grain(max_io));
    }
    if max_io > PAYLOAD_MAX {
        return Err(Unfit::Record(max_io));
    }
    let needed = ring_size_min(max_io);
    if ring_size < needed {
        return Err(Unfit::Ring {
            max_io,
            needed,
            ring_size,
        });
    }
    assert!(max_io <= payload_max(ring_size), "the ring is large enough");
    Ok(())
}

/// What an engine is built with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many requests can be in flight.
    pub queue_depth: u16,
    /// Most bytes of one request.
    pub max_io: u64,
    /// When a write may be answered.
    pub commit: Commit,
    /// After so long without a FLUSH the engine flushes by itself.
    pub commit_interval: Duration,
    /// Bytes of the ring that one round of replay covers, at most.
    pub round: u64,
    /// Share of the ring, in thousandths, from which replay runs whatever else happens.
    pub fill: u64,
    /// Replay begins once the oldest write is this old.
    pub age: Duration,
    /// Replay begins after so long without a request.
    pub idle: Duration,
    /// How long writers wait for a member that returns errors before they are told; `None`: for ever.
    pub stall_timeout: Option<Duration>,
    /// Bytes of the window.
    pub window: u64,
    /// Bytes of one segment of the window: a multiple of 4 KiB.
    pub segment: u64,
    /// Most extents in the map.
    pub extents: usize,
    /// How many of them one turn may change or look at.
    pub extents_a_turn: usize,
    /// Bytes of one bounce buffer for reads from the journal: a multiple of 4 KiB.
    pub bounce: u64,
    /// How many bounce buffers there are.
    pub bounces: usize,
    /// Most operations in flight.
    pub ios: u16,
    /// Most records in flight at once.
    pub records_in_flight: usize,
    /// Home writes of a round in flight at once.
    pub home_writes: usize,
    /// The limits of each part, in the order of [`crate::units::PartIndex`].
    pub parts: Vec<PartLimits>,
}

impl Settings {
    /// What a real array of `parts` is built with, before the configuration has its say.
    pub fn new(parts: Vec<PartLimits>) -> Settings {
        Settings {
            queue_depth: 128,
            max_io: 512 * KIB,
            commit: Commit::Flush,
            commit_interval: Duration::from_secs(5),
            round: 64 * MIB,
            fill: 500,
            age: Duration::from_secs(30),
            idle: Duration::from_millis(200),
            stall_timeout: None,
            window: 256 * MIB,
            segment: MIB,
            extents: 1 << 20,
            extents_a_turn: 4096,
            bounce: 128 * KIB,
            bounces: 32,
            ios: 4096,
            records_in_flight: 4,
            home_writes: 32,
            parts,
        }
    }

    /// Bytes not yet durable at which the engine flushes by itself.
    pub fn flush_bytes(&self) -> u64 {
        self.window / 8
    }

    /// Ring bytes that requests may not use: what flush, replay and the next start need.
    pub fn reserve(&self, ring_size: u64) -> u64 {
        2 * record_max(ring_size) + MARKS_RESERVED * FRAME
    }

    /// Operations that one READ, or the replay of one extent, may need at once: two for each frame, if it
    /// lies across two pages of memory and a part takes one at a time.
    pub fn ios_for_a_read(&self) -> usize {
        2 * to_usize(self.max_io.max(self.bounce) / FRAME) + 2 * self.parts.len() + 2
    }

    /// Operations that are kept for records, flushes and the anchor, in a ring of `ring_size` bytes.
    pub fn ios_kept(&self, ring_size: u64) -> usize {
        let record = to_usize(record_max(ring_size) / FRAME) + 2 * self.parts.len() + 2;
        (self.records_in_flight + 1) * record + 2 * self.parts.len() + 2
    }

    /// Asserts that the limits fit each other and a ring of `ring_size` bytes.
    pub fn check(&self, ring_size: u64) {
        assert_eq!(
            check_requests(self.queue_depth, self.max_io, ring_size, self.extents),
            Ok(()),
            "asked before anything is begun"
        );
        assert!(self.reserve(ring_size) + 2 * record_max(ring_size) <= ring_size);
        assert!(2 * anchor_span(ring_size) + record_max(ring_size) <= ring_size);
        assert!(self.segment.is_multiple_of(FRAME));
        assert!(self.window.is_multiple_of(self.segment));
        // A round pins half of the window; the rest must hold the records in flight and the flush that
        // lets go of them.
        assert!(self.round <= self.window / 2);
        assert!(self.window / 2 >= 4 * record_max(ring_size) + 2 * self.segment);
        assert!(self.bounce.is_multiple_of(FRAME));
        assert!(self.bounces > 0);
        assert!(self.extents_a_turn > 0);
        let ios = self.ios_kept(ring_size) + 2 * self.ios_for_a_read() + self.home_writes;
        assert!(
            usize::from(self.ios) >= ios,
            "{} operations, at least {ios} are needed",
            self.ios
        );
        // Head and tail of a full ring are never in one segment: a segment has one place in the window.
        assert!(2 * record_max(ring_size) >= self.segment);
        // Some waypoint always lies within a round of the tail.
        assert!(self.round >= 2 * record_max(ring_size));
        assert!(self.fill < 1000);
        for part in &self.parts {
            assert!(part.io_max >= FRAME && part.io_max.is_multiple_of(FRAME));
            assert!(part.segments_max > 0);
            assert!(part.pages_max >= to_usize(part.io_max / FRAME));
        }
    }
}
