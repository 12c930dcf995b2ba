//! Where everything lies on the parts: a pure function of what `label` was told.
//!
//! ```text
//!   member, detached        [head][ data                       ][bitmap][tail]
//!   member, journal start   [head][ region ][ data             ][bitmap][tail]
//!   member, journal middle  [head][ data   ][ region ][ data   ][bitmap][tail]
//!   member, journal end     [head][ data             ][ region ][bitmap][tail]
//!   detached journal        [head][ region                             ][tail]
//! ```
//!
//! Head and tail are [`MARGIN`] long. All members have the same layout, computed from the smallest;
//! what a larger one has more stays unused. The bitmap area is reserved for a later version (one bit
//! for each 64 KiB of data) and holds nothing today. A region's first and last `guard` bytes are kept
//! out of the ring; those of the first region hold the two anchors.
//!
//! A one-member array with a detached journal therefore has its data in one piece from [`MARGIN`] on,
//! and can be read without this program once it was stopped cleanly.

use super::MARGIN;
use super::record::{HEADER_LEN_MAX, PAYLOAD_MAX};
use crate::disk::raid0::{Gap, Lane, Stripes};
use crate::units::{FRAME, KIB, MIB, Offset, PartIndex, SECTOR, round_down, round_up, to_u64};

/// Most members that an array can have.
pub const MEMBERS_MAX: usize = 32;

/// Smallest and largest chunk.
pub const CHUNK_MIN: u64 = 4 * KIB;
/// See [`CHUNK_MIN`].
pub const CHUNK_MAX: u64 = 1024 * KIB;

/// Data bytes that one bit of the reserved bitmap stands for.
const BITMAP_GRAIN: u64 = 64 * KIB;

/// Where the journal lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// On a disk of its own.
    Detached,
    /// On the members, before their data.
    Start,
    /// On the members, between two halves of their data.
    Middle,
    /// On the members, behind their data.
    End,
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Placement::Detached => "detached",
            Placement::Start => "start",
            Placement::Middle => "middle",
            Placement::End => "end",
        })
    }
}

/// What the layout is computed from; fixed at label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// How many members.
    pub members: u8,
    /// Bytes of a RAID0 chunk.
    pub chunk: u64,
    /// Bytes on the smallest member.
    pub member_size: u64,
    /// Where the journal lies.
    pub placement: Placement,
    /// Bytes for the journal: attached, its regions in all; detached, what it may use of its disk.
    pub journal_size: u64,
}

/// Why a shape cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShapeError {
    /// Nothing is left for data.
    #[error("the smallest member has {found} bytes, the array needs at least {needed}")]
    MemberTooSmall {
        /// Bytes of the smallest member.
        found: u64,
        /// Bytes that it must have.
        needed: u64,
    },
    /// The ring could not hold what must fit.
    #[error("the journal has {found} bytes, it needs at least {needed}")]
    JournalTooSmall {
        /// Bytes of the journal.
        found: u64,
        /// Bytes that it must have.
        needed: u64,
    },
}

/// The layout of one array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// What it was computed from.
    pub shape: Shape,
    /// The members' data, which is the exposed device.
    pub data: Stripes,
    /// The ring.
    pub ring: Stripes,
    /// The two anchor copies, on one part.
    pub anchors: AnchorPlaces,
    /// The area kept for a later bitmap, the same on every member.
    pub bitmap: (Offset, u64),
}

/// Where the two copies of the anchor stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnchorPlaces {
    /// The detached journal, or member 0.
    pub part: PartIndex,
    /// Copy A and copy B.
    pub copies: [Offset; 2],
}

/// A ring holds at least this many of the largest records.
pub const RECORDS_MIN: u64 = 8;

/// What the header of each of them is counted as, in bytes.
pub const HEADER_COUNTED: u64 = 16 * KIB;

/// Header-only records that the ring's reserve holds: each start takes one until replay has moved on.
pub const MARKS_RESERVED: u64 = 64;

// A header is never longer than what is counted for it. The reserve of a running engine is two largest
// records and the header-only ones: it must leave room for others in the smallest ring.
const _: () = assert!(HEADER_LEN_MAX as u64 <= HEADER_COUNTED);
const _: () = assert!(RECORDS_MIN > 2);
// Chunks and payloads are whole frames.
const _: () = assert!(CHUNK_MIN.is_multiple_of(FRAME) && PAYLOAD_MAX.is_multiple_of(FRAME));
const _: () = assert!(CHUNK_MIN.is_power_of_two() && CHUNK_MAX.is_power_of_two());

/// Bytes of the ring that requests of up to `max_io` bytes need: eight of the largest records, and
/// room for the records without payload that keep a full journal going.
pub fn ring_size_min(max_io: u64) -> u64 {
    RECORDS_MIN * (max_io + HEADER_COUNTED) + MARKS_RESERVED * FRAME
}

/// Most bytes of payload of a record in a ring of `ring_size` bytes: a record is at most an eighth of it.
pub fn payload_max(ring_size: u64) -> u64 {
    let room = ring_size.saturating_sub(MARKS_RESERVED * FRAME);
    let eighth = (room / RECORDS_MIN).saturating_sub(to_u64(HEADER_LEN_MAX));
    PAYLOAD_MAX.min(round_down(eighth, FRAME))
}

/// The longest record in a ring of `ring_size` bytes.
pub fn record_max(ring_size: u64) -> u64 {
    payload_max(ring_size) + to_u64(HEADER_LEN_MAX)
}

/// How far the head may run beyond the last durable anchor: what recovery has to look through.
pub fn anchor_span(ring_size: u64) -> u64 {
    round_down((ring_size / 8).min(256 * MIB), FRAME).max(record_max(ring_size))
}

/// The smallest journal `size` that a configuration may ask for: the ring, and what is kept out of it.
///
/// An attached one need not be whole chunks on each member: the layout rounds it up.
pub fn journal_size_min(placement: Placement, members: u64, chunk: u64, max_io: u64) -> u64 {
    let around = match placement {
        Placement::Detached => 2 * MARGIN + 2 * FRAME,
        Placement::Start | Placement::Middle | Placement::End => members * 2 * chunk,
    };
    ring_size_min(max_io) + around
}

impl Geometry {
    /// Lays an array out.
    pub fn new(shape: Shape) -> Result<Geometry, ShapeError> {
        assert!((1..=MEMBERS_MAX).contains(&usize::from(shape.members)));
        assert!(shape.chunk.is_power_of_two());
        assert!((CHUNK_MIN..=CHUNK_MAX).contains(&shape.chunk));
        let members = u64::from(shape.members);
        let chunk = shape.chunk;

        let region_len = match shape.placement {
            Placement::Detached => 0,
            Placement::Start | Placement::Middle | Placement::End => {
                round_up(shape.journal_size, chunk * members) / members
            }
        };
        let usable = shape.member_size.saturating_sub(2 * MARGIN + region_len);
        let data_len = round_down(usable.saturating_sub(bitmap_len(usable)), chunk);
        if data_len == 0 {
            let needed = 2 * MARGIN + region_len + chunk + FRAME;
            return Err(ShapeError::MemberTooSmall {
                found: shape.member_size,
                needed,
            });
        }
        let (data_start, gap_at, region_start) = match shape.placement {
            Placement::Detached => (MARGIN, None, 0),
            Placement::Start => (MARGIN + region_len, None, MARGIN),
            Placement::Middle => {
                let half = round_down(data_len / 2, chunk);
                (MARGIN, Some(half), MARGIN + half)
            }
            Placement::End => (MARGIN, None, MARGIN + data_len),
        };
        let gap = gap_at.map(|at| Gap {
            at,
            len: region_len,
        });
        let lanes = |start: u64, gap: Option<Gap>| -> Vec<Lane> {
            (0..shape.members)
                .map(|i| Lane {
                    part: PartIndex(i),
                    start: Offset(start),
                    gap,
                })
                .collect()
        };
        let data = Stripes::new(lanes(data_start, gap), chunk, data_len);

        let (ring, anchors) = match shape.placement {
            Placement::Detached => {
                let part = PartIndex(shape.members);
                let len = round_down(shape.journal_size.saturating_sub(2 * MARGIN), FRAME);
                Self::region_ring(
                    vec![Lane {
                        part,
                        start: Offset(MARGIN),
                        gap: None,
                    }],
                    len,
                    FRAME,
                    FRAME,
                )
            }
            Placement::Start | Placement::Middle | Placement::End => {
                Self::region_ring(lanes(region_start, None), region_len, chunk, chunk)
            }
        }?;
        let bitmap = (Offset(MARGIN + data_len + region_len), bitmap_len(usable));
        Ok(Geometry {
            shape,
            data,
            ring,
            anchors,
            bitmap,
        })
    }

    /// The ring over `regions` of `len` bytes each, and the anchors in the guards of the first.
    fn region_ring(
        regions: Vec<Lane>,
        len: u64,
        guard: u64,
        chunk: u64,
    ) -> Result<(Stripes, AnchorPlaces), ShapeError> {
        let count = to_u64(regions.len());
        let needed = ring_size_min(FRAME);
        let ring_len = len.saturating_sub(2 * guard);
        if ring_len * count < needed {
            let guards = 2 * guard * count;
            return Err(ShapeError::JournalTooSmall {
                found: len * count,
                needed: needed + guards,
            });
        }
        let first = regions[0];
        let anchors = AnchorPlaces {
            part: first.part,
            copies: [first.start, first.start.plus(len - FRAME)],
        };
        let lanes = regions
            .into_iter()
            .map(|r| Lane {
                start: r.start.plus(guard),
                ..r
            })
            .collect();
        Ok((Stripes::new(lanes, chunk, ring_len), anchors))
    }

    /// Sectors of the exposed device.
    pub fn sectors(&self) -> u64 {
        self.data.size() / SECTOR
    }

    /// How many parts there are: the members, and a detached journal.
    pub fn parts(&self) -> usize {
        usize::from(self.shape.members) + usize::from(self.shape.placement == Placement::Detached)
    }

    /// Whether the ring lies on the members.
    pub fn is_attached(&self) -> bool {
        self.shape.placement != Placement::Detached
    }

    /// The parts that the ring lies on.
    pub fn journal_parts(&self) -> impl Iterator<Item = PartIndex> + '_ {
        self.ring.lanes().iter().map(|lane| lane.part)
    }

    /// The parts that the data lies on.
    pub fn members(&self) -> impl Iterator<Item = PartIndex> + '_ {
        self.data.lanes().iter().map(|lane| lane.part)
    }

    /// The part whose superblock speaks for the journal.
    pub fn journal_part(&self) -> PartIndex {
        self.anchors.part
    }
}

/// Where the two superblocks of a part of `size` bytes stand.
pub fn superblock_places(size: u64) -> [Offset; 2] {
    [Offset(FRAME), Offset(round_down(size, FRAME) - FRAME)]
}

fn bitmap_len(data_len: u64) -> u64 {
    round_up(data_len.div_ceil(BITMAP_GRAIN).div_ceil(8), FRAME)
}

#[cfg(test)]
mod tests {
    //! Nothing overlaps and everything is inside, for every placement, chunk and number of members.

    use super::*;

    fn shapes() -> impl Iterator<Item = Shape> {
        let placements = [
            Placement::Detached,
            Placement::Start,
            Placement::Middle,
            Placement::End,
        ];
        placements.into_iter().flat_map(|placement| {
            [1u8, 2, 3, 32].into_iter().flat_map(move |members| {
                [CHUNK_MIN, 64 * KIB, CHUNK_MAX]
                    .into_iter()
                    .map(move |chunk| Shape {
                        members,
                        chunk,
                        member_size: 64 * MIB + 12345,
                        placement,
                        journal_size: match placement {
                            Placement::Detached => 16 * MIB,
                            Placement::Start | Placement::Middle | Placement::End => {
                                12 * MIB * u64::from(members)
                            }
                        },
                    })
            })
        })
    }

    #[test]
    fn data_ring_anchors_superblocks_and_bitmap_never_overlap() {
        for shape in shapes() {
            let g = Geometry::new(shape).unwrap();
            let part_size = |p: PartIndex| {
                if p.0 < shape.members {
                    shape.member_size
                } else {
                    shape.journal_size
                }
            };
            let mut extents: Vec<(PartIndex, u64, u64, &str)> = Vec::new();
            for run in g.data.runs(0, g.data.size()) {
                extents.push((run.part, run.offset.0, run.len, "data"));
            }
            for run in g.ring.runs(0, g.ring.size()) {
                extents.push((run.part, run.offset.0, run.len, "ring"));
            }
            for copy in g.anchors.copies {
                extents.push((g.anchors.part, copy.0, FRAME, "anchor"));
            }
            for member in g.members() {
                extents.push((member, g.bitmap.0.0, g.bitmap.1, "bitmap"));
            }
            for part in 0..g.parts() {
                let part = PartIndex(u8::try_from(part).unwrap());
                extents.push((part, 0, 512, "first sector"));
                for copy in superblock_places(part_size(part)) {
                    extents.push((part, copy.0, FRAME, "superblock"));
                }
            }
            extents.sort_unstable();
            for (part, offset, len, what) in &extents {
                assert!(offset + len <= part_size(*part), "{what} of {shape:?}");
            }
            for pair in extents.windows(2) {
                let ((p, o, l, a), (q, r, _, b)) = (pair[0], pair[1]);
                assert!(p != q || o + l <= r, "{a} runs into {b}: {shape:?}");
            }
        }
    }

    #[test]
    fn a_member_without_room_for_data_is_refused() {
        let shape = Shape {
            members: 2,
            chunk: 64 * KIB,
            member_size: 2 * MIB,
            placement: Placement::Detached,
            journal_size: 64 * MIB,
        };
        let found = Geometry::new(shape).unwrap_err();
        assert!(
            matches!(found, ShapeError::MemberTooSmall { .. }),
            "{found}"
        );
    }

    #[test]
    fn the_least_journal_size_has_a_ring_that_is_just_large_enough() {
        for shape in shapes() {
            let members = u64::from(shape.members);
            for max_io in [4 * KIB, 124 * KIB, 512 * KIB, MIB] {
                let ring = |journal_size| {
                    let shape = Shape {
                        journal_size,
                        member_size: 256 * MIB,
                        ..shape
                    };
                    Geometry::new(shape).ok().map(|g| g.ring.size())
                };
                let least = journal_size_min(shape.placement, members, shape.chunk, max_io);
                let needed = ring_size_min(max_io);
                let found = ring(least).expect("a ring");
                // An attached ring is whole chunks on each member, so the layout may round it up.
                let more = match shape.placement {
                    Placement::Detached => 0,
                    Placement::Start | Placement::Middle | Placement::End => {
                        members * shape.chunk - 1
                    }
                };
                assert!(
                    (needed..=needed + more).contains(&found),
                    "{shape:?} {max_io}: {found}, needed {needed}"
                );
                let smaller = ring(least - more - FRAME);
                assert!(smaller.is_none_or(|ring| ring < needed), "{shape:?}");
            }
        }
    }

    #[test]
    fn a_member_of_a_detached_array_has_its_data_in_one_piece() {
        let shape = shapes()
            .find(|s| s.placement == Placement::Detached && s.members == 1)
            .unwrap();
        let g = Geometry::new(shape).unwrap();
        let runs: Vec<_> = g.data.runs(0, g.data.size()).collect();
        assert_eq!(runs.len(), 1);
        assert_eq!(runs[0].offset, Offset(MARGIN));
    }
}
