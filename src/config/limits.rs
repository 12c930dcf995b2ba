//! The limits of a configuration, and the relations between them.
//!
//! What can be said from the file alone is found here; `reader` and `mod` compare with it and messages
//! quote it. What the format limits stands with the format ([`crate::journal`]) and is only passed on.
//! What depends on the disks (a whole device that is too small, a part that cannot hold its region) is
//! the business of whoever opens them.

pub use crate::journal::geometry::{CHUNK_MAX, CHUNK_MIN, MEMBERS_MAX, journal_size_min};
pub use crate::journal::record::PAYLOAD_MAX as RECORD_PAYLOAD_MAX;
pub use crate::journal::superblock::NAME_MAX as NAME_CHARS_MAX;

use crate::units::{FRAME, MIB};
use std::time::Duration;

/// Bytes of a configuration file.
pub const FILE_BYTES_MAX: u64 = MIB;

/// Bytes of a path, as the kernel takes it, without the final NUL.
pub const PATH_BYTES_MAX: usize = 4095;

/// Requests that the kernel may have outstanding with us.
pub const QUEUE_DEPTH_MAX: u16 = 1024;

/// The smallest limit on one request: the kernel wants at least one page.
pub const MAX_IO_MIN: u64 = FRAME;
/// The largest one: a request must fit one record.
pub const MAX_IO_MAX: u64 = RECORD_PAYLOAD_MAX;

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

/// The smallest window for requests of `max_io` bytes.
pub fn window_min(max_io: u64) -> u64 {
    WINDOW_MIN.max(WINDOW_REQUESTS_MIN * (max_io + WINDOW_SEGMENT))
}

// Requests are whole frames; a round fits the half of any legal window.
const _: () = assert!(MAX_IO_MIN.is_multiple_of(FRAME) && MAX_IO_MAX.is_multiple_of(FRAME));
const _: () = assert!(ROUND_MIN <= WINDOW_MIN / ROUND_WINDOW_DIVISOR);
const _: () = assert!(WINDOW_REQUESTS_MIN * (MAX_IO_MAX + WINDOW_SEGMENT) <= WINDOW_MAX);
const _: () = assert!(FILL_PERMILLE_MIN < FILL_PERMILLE_MAX && FILL_PERMILLE_MAX < 1000);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::KIB;

    #[test]
    fn the_smallest_window_grows_with_the_requests_only_beyond_its_floor() {
        assert_eq!(window_min(4 * KIB), 16 * MIB);
        assert_eq!(window_min(MIB), 16 * MIB);
        assert!(window_min(MIB) >= 4 * (MIB + MIB));
    }
}
