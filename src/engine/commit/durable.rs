//! Making durable: flushes of the journal, whether they can be spared, and MARK.
//!
//! A flush covers what had been written when it was begun. Where flushes follow closely on records,
//! records are written with DSYNC from the start ([`Predictor`]). A MARK is a record without requests; it
//! tells the next recovery what no other record has told yet.

use super::Blocked;
use crate::engine::io::Purpose;
use crate::engine::port::{Port, Sync};
use crate::engine::request::Errno;
use crate::engine::{Close, Condition, Engine};
use crate::journal::geometry::{MARKS_RESERVED, anchor_span};
use crate::journal::record::Kind;
use crate::units::{FRAME, Pos};
use std::time::Duration;

/// After so long a flush that no record followed is recorded by a MARK.
const MARK_AFTER: Duration = Duration::from_secs(1);

/// A journal flush in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flushing {
    parts_left: usize,
    /// The newest record that had been written when it was submitted.
    covers: u64,
    failed: bool,
}

/// Guesses whether a FLUSH will follow the next record.
///
/// In sixteenths of a record: the mean distance of the last flushes, and the distance to the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Predictor {
    mean: u32,
    since: u32,
    seen: bool,
}

impl Predictor {
    const LIMIT: u32 = 40;

    pub(super) fn record(&mut self) {
        self.since = self.since.saturating_add(16).min(1 << 20);
    }

    pub(super) fn flush(&mut self) {
        self.mean = if self.seen {
            (3 * self.mean + self.since) / 4
        } else {
            self.since
        };
        self.seen = true;
        self.since = 0;
    }

    pub(super) fn expects_flush(&self) -> bool {
        self.seen && self.mean < Predictor::LIMIT && self.since < Predictor::LIMIT
    }
}

impl Engine {
    /// Begins whatever the state asks for: a flush, an anchor, a MARK.
    pub(in crate::engine) fn make_durable(&mut self, port: &mut impl Port) {
        if self.condition == Condition::Failed {
            return;
        }
        if self.anchor_wanted() {
            self.write_anchor(port);
        }
        if self.flush_wanted() {
            self.flush_journal(port);
        }
        if self.mark_wanted() {
            self.seal_mark(port);
        }
    }

    fn flush_wanted(&self) -> bool {
        let commits = &self.commits;
        if commits.flush.is_some() {
            return false;
        }
        if self.replay.flush_needed() > commits.flushes_begun {
            return true;
        }
        let Some(first) = commits.records.front() else {
            return false;
        };
        if first.number > commits.written {
            return false;
        }
        let interval = self.now.saturating_sub(first.sealed_at) >= self.settings.commit_interval;
        let many = commits.volatile_bytes() >= self.settings.flush_bytes()
            || commits.records.len() * 2 >= commits.records_max;
        let for_anchor = self.anchor_is_far();
        // Tails never go back, so the newest record carries the furthest.
        let newest = commits.records.back();
        let for_tail = commits.blocked == Some(Blocked::Space)
            && newest.is_some_and(|record| record.tail > commits.tail_durable);
        let for_replay = commits.durable.seq < self.replay.durable_needed();
        let for_sync =
            commits.durable.seq < self.sync_through.min(commits.acked) || self.closing.is_some();
        let asked = !commits.flushes.is_empty() || commits.sync_pending > 0;
        asked
            || interval
            || many
            || for_anchor
            || for_tail
            || for_replay
            || for_sync
            || commits.blocked == Some(Blocked::Window)
            || commits.blocked == Some(Blocked::Anchor)
    }

    /// Flushes every part of the journal. What it covers is what has been written by now: a record that
    /// is still in flight may miss the flush, and must not count.
    fn flush_journal(&mut self, port: &mut impl Port) {
        self.commits.flushes_begun += 1;
        let parts_left = self.geometry.ring.lanes().len();
        self.commits.flush = Some(Flushing {
            parts_left,
            covers: self.commits.written,
            failed: false,
        });
        for part in self.geometry.ring.lanes().iter().map(|lane| lane.part) {
            self.ios.flush(port, part, Purpose::JournalFlush);
        }
        self.counters.journal_flushes += 1;
    }

    pub(in crate::engine) fn journal_flush_ended(
        &mut self,
        port: &mut impl Port,
        result: Result<(), Errno>,
    ) {
        let flush = self.commits.flush.as_mut().expect("a flush is in flight");
        flush.parts_left -= 1;
        flush.failed |= result.is_err();
        let flush = *flush;
        if flush.parts_left > 0 {
            return;
        }
        self.commits.flush = None;
        if flush.failed {
            // Nothing is known about what it covered, and a second flush would answer for less
            // (invariant 7).
            self.counters.journal_flush_errors += 1;
            self.fail(port);
        } else {
            self.commits.flushes_ended += 1;
            self.commits.flushed_through = self.commits.flushed_through.max(flush.covers);
        }
    }

    /// Seals a record without requests, which carries the newest tail and durable seq.
    fn seal_mark(&mut self, port: &mut impl Port) {
        let head = self.commits.head;
        if !self.window.open(head..head.plus(FRAME)) {
            return;
        }
        self.submit_record(port, Kind::Mark, 0, 0, Sync::Data, self.commits.sealed);
    }

    /// A record without requests is due: to carry a tail that frees space, or because a flush or a new
    /// tail would otherwise be known to nobody but us.
    fn mark_wanted(&self) -> bool {
        let commits = &self.commits;
        if self.closing == Some(Close::Handover) || commits.in_flight() > 0 {
            return false;
        }
        let ring = self.ring_size();
        let limit = Pos(commits.tail_durable.0 + ring - MARKS_RESERVED / 2 * FRAME);
        let anchor_end = commits.anchor.durable_head().plus(anchor_span(ring));
        let end = commits.head.plus(FRAME);
        if end > limit || end > anchor_end {
            return false;
        }
        let tail = self.replay.tail().pos;
        let for_space = commits.blocked == Some(Blocked::Space)
            && tail > commits.tail_durable
            && tail > commits.carried.1;
        let quiet =
            commits.waiting.is_empty() && self.now.saturating_sub(commits.moved_at) >= MARK_AFTER;
        for_space || quiet && self.knows_more_than_the_journal()
    }

    /// Whether something is durable, or home, of which no record tells yet.
    pub(in crate::engine) fn knows_more_than_the_journal(&self) -> bool {
        let (durable, tail) = self.commits.carried;
        self.commits.durable.seq > durable || self.replay.tail().pos > tail
    }

    /// Notes that the tail has moved.
    pub(in crate::engine) fn tail_moved(&mut self) {
        self.commits.moved_at = self.now;
    }
}
