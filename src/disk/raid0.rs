//! RAID0 as arithmetic: from a range of bytes to pieces on parts.
//!
//! One pure function serves the members (over their data areas) and the ring (over the journal's
//! regions). Layout version 1: byte `b` lies in chunk `b / chunk`; chunks go round robin over the
//! lanes; a lane keeps its chunks one after the other. A lane may have a hole, where an attached
//! journal lies in the middle of a member.
//!
//! ```text
//!             lane 0                lane 1                lane 2
//!        +-------------+       +-------------+       +-------------+
//!        | chunk 0     |       | chunk 1     |       | chunk 2     |
//!        | chunk 3     |       | chunk 4     |       | chunk 5     |
//!        +-- gap ------+       +-- gap ------+       +-- gap ------+
//!        | chunk 6     |       | chunk 7     |       | chunk 8     |
//! ```

use crate::units::{Offset, PartIndex};

/// The rules by which addresses become places; recorded in every superblock.
pub const LAYOUT_VERSION: u32 = 1;

/// A hole in a lane: `len` bytes that begin `at` bytes into it and belong to somebody else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// Bytes of the lane before the hole; a multiple of the chunk.
    pub at: u64,
    /// Bytes in the hole.
    pub len: u64,
}

/// One part's share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane {
    /// The part.
    pub part: PartIndex,
    /// Where on it the lane begins.
    pub start: Offset,
    /// What is left out.
    pub gap: Option<Gap>,
}

/// Lanes of equal length, striped in chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stripes {
    lanes: Vec<Lane>,
    chunk: u64,
    lane_len: u64,
}

/// A run of bytes on one part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Which part.
    pub part: PartIndex,
    /// Where on it.
    pub offset: Offset,
    /// How many bytes.
    pub len: u64,
    /// Where in the range that was asked for it begins.
    pub at: u64,
}

impl Stripes {
    /// `lane_len` bytes on each of `lanes`, a multiple of `chunk` where there are several.
    pub fn new(lanes: Vec<Lane>, chunk: u64, lane_len: u64) -> Stripes {
        assert!(!lanes.is_empty());
        assert!(chunk.is_power_of_two());
        assert!(lanes.len() == 1 || lane_len.is_multiple_of(chunk));
        for gap in lanes.iter().filter_map(|lane| lane.gap) {
            assert!(gap.at.is_multiple_of(chunk));
        }
        Stripes {
            lanes,
            chunk,
            lane_len,
        }
    }

    /// Bytes in all.
    pub fn size(&self) -> u64 {
        self.lane_len * self.count()
    }

    /// The lanes, in order.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    fn count(&self) -> u64 {
        crate::units::to_u64(self.lanes.len())
    }

    /// The pieces of `len` bytes from `start` on, in order.
    pub fn pieces(&self, start: u64, len: u64) -> Pieces<'_> {
        assert!(start <= self.size());
        assert!(
            len <= self.size() - start,
            "{start}+{len} beyond {}",
            self.size()
        );
        Pieces {
            stripes: self,
            start,
            len,
            done: 0,
        }
    }

    /// For each lane, the one range of it that `len` bytes from `start` on cover, cut only at a gap.
    ///
    /// For work that needs no memory, such as zeroing: a range of any length is at most two runs a lane.
    pub fn runs(&self, start: u64, len: u64) -> impl Iterator<Item = Piece> + '_ {
        assert!(start <= self.size());
        assert!(len <= self.size() - start);
        (0..self.count()).flat_map(move |lane| {
            let from = self.lane_bytes_before(lane, start);
            let to = self.lane_bytes_before(lane, start + len);
            self.lane_runs(lane, from, to)
        })
    }

    /// How many bytes of lane `lane` lie at addresses below `end`.
    fn lane_bytes_before(&self, lane: u64, end: u64) -> u64 {
        let stripe = self.chunk * self.count();
        let (whole, rest) = (end / stripe, end % stripe);
        if self.lanes.len() == 1 {
            return end;
        }
        whole * self.chunk + rest.saturating_sub(lane * self.chunk).min(self.chunk)
    }

    fn lane_runs(&self, lane: u64, from: u64, to: u64) -> impl Iterator<Item = Piece> + '_ {
        let lane = self.lanes[crate::units::to_usize(lane)];
        let cut = lane.gap.map_or(to, |gap| gap.at.clamp(from, to));
        [(from, cut), (cut, to)]
            .into_iter()
            .filter(|(from, to)| from < to)
            .map(move |(from, to)| Piece {
                part: lane.part,
                offset: place(&lane, from),
                len: to - from,
                at: 0,
            })
    }

    /// The piece that begins at `start`, at most `len` bytes of it.
    fn first_piece(&self, start: u64, len: u64) -> Piece {
        let (lane, within, run) = if self.lanes.len() == 1 {
            (0, start, len)
        } else {
            let (chunk, offset) = (start / self.chunk, start % self.chunk);
            let lane = crate::units::to_usize(chunk % self.count());
            (
                lane,
                chunk / self.count() * self.chunk + offset,
                len.min(self.chunk - offset),
            )
        };
        let lane = &self.lanes[lane];
        let run = match lane.gap {
            Some(gap) if within < gap.at => run.min(gap.at - within),
            _ => run,
        };
        Piece {
            part: lane.part,
            offset: place(lane, within),
            len: run,
            at: 0,
        }
    }
}

fn place(lane: &Lane, within: u64) -> Offset {
    let skip = lane
        .gap
        .map_or(0, |gap| if within >= gap.at { gap.len } else { 0 });
    lane.start.plus(within + skip)
}

/// See [`Stripes::pieces`].
#[derive(Debug)]
pub struct Pieces<'a> {
    stripes: &'a Stripes,
    start: u64,
    len: u64,
    done: u64,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.done == self.len {
            return None;
        }
        let piece = self
            .stripes
            .first_piece(self.start + self.done, self.len - self.done);
        let at = self.done;
        self.done += piece.len;
        Some(Piece { at, ..piece })
    }
}

#[cfg(test)]
mod tests {
    //! The map against the obvious one: chunk by chunk, byte by byte.

    use super::*;

    fn stripes(lanes: u8, chunk: u64, chunks_per_lane: u64, gap: Option<Gap>) -> Stripes {
        let lanes = (0..lanes)
            .map(|i| Lane {
                part: PartIndex(i),
                start: Offset(1 << 20),
                gap,
            })
            .collect();
        Stripes::new(lanes, chunk, chunk * chunks_per_lane)
    }

    /// Where one byte lies, said slowly.
    fn obvious(s: &Stripes, byte: u64) -> (PartIndex, u64) {
        let n = s.count();
        let (chunk, offset) = (byte / s.chunk, byte % s.chunk);
        let lane = s.lanes[crate::units::to_usize(chunk % n)];
        let within = (chunk / n) * s.chunk + offset;
        let skip = match lane.gap {
            Some(gap) if within >= gap.at => gap.len,
            _ => 0,
        };
        (lane.part, (1 << 20) + within + skip)
    }

    #[test]
    fn every_range_maps_to_the_bytes_that_the_obvious_map_names() {
        for lanes in [1, 2, 3] {
            for gap in [
                None,
                Some(Gap { at: 16, len: 100 }),
                Some(Gap { at: 0, len: 4 }),
            ] {
                let s = stripes(lanes, 8, 4, gap);
                for start in 0..s.size() {
                    for len in 0..=s.size() - start {
                        let mut at = 0;
                        for piece in s.pieces(start, len) {
                            assert_eq!(piece.at, at);
                            for byte in 0..piece.len {
                                let found = (piece.part, piece.offset.0 + byte);
                                assert_eq!(found, obvious(&s, start + at + byte));
                            }
                            at += piece.len;
                        }
                        assert_eq!(at, len);
                    }
                }
            }
        }
    }

    #[test]
    fn runs_cover_exactly_the_bytes_of_the_pieces() {
        for gap in [None, Some(Gap { at: 16, len: 100 })] {
            for lanes in [1, 3] {
                let s = stripes(lanes, 8, 4, gap);
                for start in 0..s.size() {
                    for len in 0..=s.size() - start {
                        let mut pieces: Vec<_> =
                            (start..start + len).map(|b| obvious(&s, b)).collect();
                        let mut runs: Vec<_> = s
                            .runs(start, len)
                            .flat_map(|r| (0..r.len).map(move |b| (r.part, r.offset.0 + b)))
                            .collect();
                        pieces.sort_unstable();
                        runs.sort_unstable();
                        assert_eq!(pieces, runs);
                    }
                }
            }
        }
    }
}
