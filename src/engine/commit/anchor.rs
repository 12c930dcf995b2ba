//! The anchor: where recovery begins, written from time to time into the older of its two copies.

use super::Blocked;
use crate::disk::raid0::Piece;
use crate::engine::Engine;
use crate::engine::io::{Purpose, Transfer};
use crate::engine::port::{Memory, Port, Sync};
use crate::engine::recovery::StartPoint;
use crate::engine::request::Errno;
use crate::journal::anchor::{Anchor, Closed};
use crate::journal::geometry::anchor_span;
use crate::units::{FRAME, Pos, Seq};

/// The anchor as it stands on disk, and the one on its way there.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct AnchorState {
    generation: u64,
    /// The copy that was written last.
    copy: usize,
    told: Told,
    in_flight: Option<Told>,
}

/// What an anchor tells the next recovery.
#[derive(Clone, Copy, Debug)]
struct Told {
    /// Records up to here are durable, which are those up to this seq.
    head: Pos,
    durable: Seq,
    /// No home block holds anything newer.
    replayed_through: Seq,
}

impl AnchorState {
    /// As recovery left it.
    pub(super) fn new(start: &StartPoint) -> AnchorState {
        AnchorState {
            generation: start.anchor_generation,
            copy: start.anchor_copy,
            told: Told {
                head: start.head,
                durable: start.last_seq,
                replayed_through: start.replayed_through,
            },
            in_flight: None,
        }
    }

    /// How far the last durable anchor says that records are durable.
    pub(in crate::engine) fn durable_head(&self) -> Pos {
        self.told.head
    }

    /// The same as a seq.
    pub(in crate::engine) fn durable_seq(&self) -> Seq {
        self.told.durable
    }

    /// The highest seq for which home writes have been announced.
    pub(in crate::engine) fn replayed_through(&self) -> Seq {
        self.told.replayed_through
    }

    pub(in crate::engine) fn replayed_through_max(&self) -> Seq {
        let told = self.told.replayed_through;
        self.in_flight
            .map_or(told, |next| next.replayed_through.max(told))
    }

    pub(in crate::engine) fn last(&self) -> (u64, usize) {
        (self.generation, self.copy)
    }
}

impl Engine {
    /// Whether the anchor is so far behind that what is durable should move on.
    pub(super) fn anchor_is_far(&self) -> bool {
        let head = self.commits.anchor.durable_head();
        self.commits.head.since(head) >= anchor_span(self.ring_size()) / 2
    }

    pub(super) fn anchor_wanted(&self) -> bool {
        let anchor = &self.commits.anchor;
        if anchor.in_flight.is_some() {
            return false;
        }
        let moves = self.commits.durable.pos > anchor.durable_head();
        let blocked = self.commits.blocked == Some(Blocked::Anchor);
        let far = self.commits.durable.pos.since(anchor.durable_head())
            >= anchor_span(self.ring_size()) / 2;
        (moves && (far || blocked)) || self.announced_next() > anchor.replayed_through()
    }

    /// Up to which seq the next anchor says that home may hold data. Never further than what is durable,
    /// so that the same anchor proves these records: should one be damaged later, the scan must not take
    /// that for the end of the log, while what came after it is at home already.
    fn announced_next(&self) -> Seq {
        let before = self.commits.anchor.replayed_through();
        let wanted = self.replay.announces();
        if wanted <= self.commits.durable.seq {
            before.max(wanted)
        } else {
            before
        }
    }

    /// The anchor that the present state gives.
    pub(in crate::engine) fn anchor_now(&self, replayed_through: Seq, closed: Closed) -> Anchor {
        let commits = &self.commits;
        Anchor {
            uuid: self.uuid,
            generation: commits.anchor.generation + 1,
            tail: self.ring_place(self.replay.tail()),
            head: self.ring_place(commits.durable),
            head_number: commits.durable_number,
            epoch: commits.epoch,
            durable: commits.durable.seq,
            replayed_through,
            closed,
        }
    }

    /// Writes the older copy of the anchor, durable by itself. A crash meanwhile leaves the newer copy.
    pub(super) fn write_anchor(&mut self, port: &mut impl Port) {
        let through = self.announced_next();
        let anchor = self.anchor_now(through, Closed::No);
        let at = self.window.anchor_at();
        let bytes = anchor.encode();
        self.window
            .arena_mut()
            .range_mut(at..at + bytes.len())
            .copy_from_slice(&bytes);
        let copy = 1 - self.commits.anchor.copy;
        let places = self.geometry.anchors;
        let piece = Piece {
            part: places.part,
            offset: places.copies[copy],
            len: FRAME,
            at: 0,
        };
        self.ios.gather(
            port,
            Transfer::Write(Sync::Data),
            Purpose::Anchor,
            piece,
            Memory::Arena(at),
        );
        let count = self.ios.finish(port);
        assert_eq!(count, 1);
        self.commits.anchor.in_flight = Some(Told {
            head: self.commits.durable.pos,
            durable: self.commits.durable.seq,
            replayed_through: through,
        });
        self.counters.anchors += 1;
    }

    pub(in crate::engine) fn anchor_ended(
        &mut self,
        port: &mut impl Port,
        result: Result<(), Errno>,
    ) {
        let anchor = &mut self.commits.anchor;
        let told = anchor.in_flight.take().expect("an anchor is in flight");
        match result {
            Ok(()) => {
                anchor.generation += 1;
                anchor.copy = 1 - anchor.copy;
                anchor.told = told;
            }
            Err(_) => {
                self.counters.journal_write_errors += 1;
                self.fail(port);
            }
        }
    }
}
