//! The limits of a configuration, and the relations between them.
//!
//! What can be said from the file alone stands here, once; `reader` and `mod` compare with it and
//! messages quote it. What depends on the disks (a whole device that is too small, a part that cannot
//! hold its region) is the business of whoever opens them.

use crate::journal::MARGIN;
use crate::units::{FRAME, KIB, MIB, to_u64};
use std::time::Duration;

/// Bytes of a configuration file.
pub const FILE_BYTES_MAX: u64 = MIB;

/// Characters of an array's name: it becomes a file name and a link name.
pub const NAME_CHARS_MAX: usize = 32;

/// Bytes of a path, as the kernel takes it, without the final NUL.
pub const PATH_BYTES_MAX: usize = 4095;

/// Data parts of one array.
pub const MEMBERS_MAX: usize = 32;

/// The smallest piece that goes round robin over the members.
pub const CHUNK_MIN: u64 = FRAME;
/// The largest one.
pub const CHUNK_MAX: u64 = MIB;

/// Requests that the kernel may have outstanding with us.
pub const QUEUE_DEPTH_MAX: u16 = 1024;

/// The smallest limit on one request: the kernel wants at least one page.
pub const MAX_IO_MIN: u64 = FRAME;
/// The largest one: a request must fit one record, whose payload is at most this.
pub const MAX_IO_MAX: u64 = MIB;

/// The payload of one record.
pub const RECORD_PAYLOAD_MAX: u64 = MIB;
/// The header of one record.
pub const RECORD_HEADER_MAX: u64 = 16 * KIB;
/// A journal holds at least this many of the largest requests, so that a record is at most 1/8 of it.
pub const JOURNAL_REQUESTS_MIN: u64 = 8;
/// Header-only records (flush, replay, START) that must fit beside them: the reserve.
pub const JOURNAL_RESERVE_FRAMES: u64 = 64;
/// What a detached journal needs beside its ring: superblocks and anchors at its two ends.
pub const JOURNAL_METADATA_DETACHED: u64 = 2 * MARGIN + 2 * FRAME;
/// Chunks of each region of an attached journal that are kept out of the ring: the first and the last.
pub const JOURNAL_CHUNKS_KEPT_OUT: u64 = 2;
/// The largest journal: memory takes 1/1024 of it.
pub const JOURNAL_SIZE_MAX: u64 = 16 * (1 << 40);

/// The smallest window, whatever the requests.
pub const WINDOW_MIN: u64 = 16 * MIB;
/// The window holds at least this many of the largest requests with their segment.
pub const WINDOW_REQUESTS_MIN: u64 = 4;
/// A segment of the window.
pub const WINDOW_SEGMENT: u64 = MIB;
/// The largest window.
pub const WINDOW_MAX: u64 = 64 * (1 << 30);

/// The smallest round: one largest record.
pub const ROUND_MIN: u64 = RECORD_PAYLOAD_MAX;
/// A round pins at most this part of the window.
pub const ROUND_WINDOW_DIVISOR: u64 = 2;

/// Extents of the map: fewer cannot hold the splits of one discard and a full queue.
pub const EXTENTS_MIN: u64 = 4096;
/// 64 bytes each: 16 GiB.
pub const EXTENTS_MAX: u64 = 256 * MIB;

/// `replay.fill` in thousandths.
pub const FILL_PERMILLE_MIN: u16 = 50;
/// See [`FILL_PERMILLE_MIN`]; above it the delay of writers (from 3/4 full) would come first.
pub const FILL_PERMILLE_MAX: u16 = 950;

/// The longest time that any key takes.
pub const TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// The shortest `commit.interval`: more often is `sync = "always"`.
pub const INTERVAL_MIN: Duration = Duration::from_millis(10);
/// The shortest `replay.age`.
pub const AGE_MIN: Duration = Duration::from_millis(10);
/// The shortest `replay.idle`.
pub const IDLE_MIN: Duration = Duration::from_millis(1);
/// The shortest `replay.stall_timeout` other than 0: a disk may take seconds to wake up.
pub const STALL_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// Where a journal of a given size must find room for its metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalShape {
    /// A part of its own.
    Detached,
    /// One region on each of `members`, made of chunks.
    Attached {
        /// Bytes of a chunk.
        chunk: u64,
        /// How many members.
        members: usize,
    },
}

/// The smallest journal that can serve requests of `max_io` bytes.
pub fn journal_size_min(max_io: u64, shape: JournalShape) -> u64 {
    assert!(max_io <= MAX_IO_MAX);
    let requests = JOURNAL_REQUESTS_MIN * (max_io + RECORD_HEADER_MAX);
    let reserve = JOURNAL_RESERVE_FRAMES * FRAME;
    let metadata = match shape {
        JournalShape::Detached => JOURNAL_METADATA_DETACHED,
        JournalShape::Attached { chunk, members } => {
            JOURNAL_CHUNKS_KEPT_OUT * chunk * to_u64(members)
        }
    };
    requests + reserve + metadata
}

/// The smallest window for requests of `max_io` bytes.
pub fn window_min(max_io: u64) -> u64 {
    WINDOW_MIN.max(WINDOW_REQUESTS_MIN * (max_io + WINDOW_SEGMENT))
}

// A request fits one record; a chunk is whole frames; a round fits the half of any legal window.
const _: () = assert!(MAX_IO_MAX <= RECORD_PAYLOAD_MAX);
const _: () = assert!(CHUNK_MIN.is_multiple_of(FRAME) && MAX_IO_MIN.is_multiple_of(FRAME));
const _: () = assert!(RECORD_HEADER_MAX.is_multiple_of(FRAME));
const _: () = assert!(CHUNK_MIN.is_power_of_two() && CHUNK_MAX.is_power_of_two());
const _: () = assert!(ROUND_MIN <= WINDOW_MIN / ROUND_WINDOW_DIVISOR);
const _: () = assert!(WINDOW_REQUESTS_MIN * (MAX_IO_MAX + WINDOW_SEGMENT) <= WINDOW_MAX);
// The reserve of a running engine is two largest records and the header-only ones: it must leave
// room for others in the smallest journal.
const _: () = assert!(JOURNAL_REQUESTS_MIN > 2);
const _: () = assert!(FILL_PERMILLE_MIN < FILL_PERMILLE_MAX && FILL_PERMILLE_MAX < 1000);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::geometry::{Geometry, Placement, Shape, ring_size_min};

    /// The ring of a journal of `size` bytes, where there can be one.
    fn ring(size: u64, placement: Placement, members: u8, chunk: u64) -> Option<u64> {
        let shape = Shape {
            members,
            chunk,
            member_size: 1 << 30,
            placement,
            journal_size: size,
        };
        Geometry::new(shape)
            .ok()
            .map(|geometry| geometry.ring.size())
    }

    #[test]
    fn the_smallest_journal_has_a_ring_that_is_just_large_enough() {
        for max_io in [4 * KIB, 124 * KIB, 512 * KIB, MIB] {
            let least = journal_size_min(max_io, JournalShape::Detached);
            let needed = ring_size_min(max_io);
            assert_eq!(ring(least, Placement::Detached, 1, CHUNK_MIN), Some(needed));
            let smaller = ring(least - FRAME, Placement::Detached, 1, CHUNK_MIN);
            assert!(smaller.is_none_or(|ring| ring < needed), "{smaller:?}");

            for (members, chunk) in [(1, CHUNK_MIN), (3, 64 * KIB), (32, CHUNK_MAX)] {
                let shape = JournalShape::Attached {
                    chunk,
                    members: usize::from(members),
                };
                // Rounded up, as the layout does, to whole chunks on each member.
                let whole =
                    journal_size_min(max_io, shape).next_multiple_of(chunk * u64::from(members));
                let found = ring(whole, Placement::End, members, chunk).expect("a ring");
                assert!(
                    found >= needed && found < needed + chunk * u64::from(members),
                    "{found} {needed}"
                );
            }
        }
    }

    #[test]
    fn the_smallest_window_grows_with_the_requests_only_beyond_its_floor() {
        assert_eq!(window_min(4 * KIB), 16 * MIB);
        assert_eq!(window_min(MIB), 16 * MIB);
        assert!(window_min(MIB) >= 4 * (MIB + MIB));
    }
}
