//! Replay: durable records go home, in rounds, and then the tail moves.
//!
//! ```text
//!   Idle       nothing is under way
//!     |  begin_round: the newest place S that is answered and not further than one round from the tail
//!   Preparing  until every record up to S is durable, and an anchor that says
//!     |        "home may hold anything up to S" is durable as well          (invariant 3)
//!   Loading    what of tail..S is no longer in the window is read into it, in sequence
//!     |
//!   Copying    one sweep over the map in the order of addresses: every extent with seq <= S is written
//!     |        home. What newer requests have covered meanwhile is not: they will be copied later.
//!   Flushing   the members, submitted after the last of those writes has completed; beside it the
//!     |        journal, so that everything that covered an old extent is durable   (invariant 4)
//!   Releasing  a second sweep takes every extent with seq <= S out of the map: reads go home now
//!     |
//!   Idle       the tail is S. The next record carries it; once that is durable the space is free.
//! ```
//!
//! The map keeps the extents of a round until the members are flushed. So whatever fails in between, the
//! journal still serves them, and the round simply begins again after a pause: everything is written
//! once more before another flush is believed.

use super::commit::Commits;
use super::extent_map::{Content, Cursor, Extent, Sweep};
use super::io::{Purpose, Transfer};
use super::port::{Memory, Port, Space, Sync};
use super::request::Errno;
use super::settings::Settings;
use super::window::ZEROES_LEN;
use super::{Close, Condition, Engine, Place};
use crate::disk::raid0::Piece;
use crate::units::{FRAME, Lba, PartIndex, Pos, SECTOR, Seq, round_down, round_up, to_usize};
use std::collections::VecDeque;
use std::time::Duration;

/// A record border, every now and then, at which a round can end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waypoint {
    /// The border.
    pub place: Place,
    /// When the oldest record before it, and after the waypoint before, was sealed.
    pub since: Duration,
}

/// Where a round stands; see the head of the file.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Idle,
    Preparing,
    Loading {
        next: Pos,
        left: u32,
    },
    Copying {
        cursor: Cursor,
        rest: Option<Extent>,
        left: u32,
        swept: bool,
    },
    Flushing {
        /// Flushes of members in flight.
        left: u32,
        /// Attached: the flush of the journal, counted from the start, that is the members' as well.
        shared: u64,
    },
    Releasing {
        from: Lba,
    },
}

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Replay {
    stage: Stage,
    /// Everything before it is at home, flushed there.
    tail: Place,
    /// Where the round under way ends.
    through: Place,
    /// What must be durable before the tail may pass what newer requests have covered.
    covered_by: Seq,
    /// Something of the round failed: it begins again after a pause.
    failed: Option<Failed>,
    /// A member cannot zero without writing: the round begins again, and writes zeroes.
    refused: bool,
    /// Bytes of the round that were sent home, and the head when it began.
    copied: u64,
    begun_at_head: Pos,
    waypoints: VecDeque<Waypoint>,
    /// The end of the newest record, and since when records have followed the last waypoint.
    newest: Place,
    open_since: Option<Duration>,
    grain: u64,
    round: u64,
    ring_size: u64,
    /// Since when every round has failed; and since when, without one in between that failed otherwise,
    /// because members returned errors.
    failing_since: Option<Duration>,
    members_failing_since: Option<Duration>,
    retry_at: Duration,
    pause: Duration,
}

/// What has failed in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failed {
    /// The journal could not be read, or not what had been written there.
    Journal,
    /// A member returned an error.
    Member,
}

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Reads of the ring in flight while a round loads.
const LOADS_IN_FLIGHT: u32 = 16;
/// Zeroes written home in one step where they have to be written.
const ZEROES_A_STEP: u64 = 1 << 20;

/// Bytes between waypoints, for rounds of `round` bytes.
pub(super) fn waypoint_grain(round: u64) -> u64 {
    round_up(round / 32, FRAME)
}

impl Replay {
    /// Replay of what recovery has found between `tail` and `newest`, the end of START.
    pub(super) fn new(
        settings: &Settings,
        ring_size: u64,
        tail: Place,
        newest: Place,
        recovered: VecDeque<Waypoint>,
    ) -> Replay {
        let grain = waypoint_grain(settings.round);
        let mut waypoints = recovered;
        waypoints.reserve(to_usize(ring_size / grain) + 2);
        Replay {
            stage: Stage::Idle,
            tail,
            through: tail,
            covered_by: Seq::NONE,
            failed: None,
            refused: false,
            copied: 0,
            begun_at_head: tail.pos,
            waypoints,
            newest,
            open_since: None,
            grain,
            round: settings.round,
            ring_size,
            failing_since: None,
            members_failing_since: None,
            retry_at: Duration::ZERO,
            pause: PAUSE_MIN,
        }
    }

    pub(super) fn tail(&self) -> Place {
        self.tail
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    /// When the oldest record that is not home was sealed.
    pub(super) fn oldest_since(&self) -> Duration {
        self.waypoints
            .front()
            .map(|first| first.since)
            .or(self.open_since)
            .unwrap_or_default()
    }

    /// For how long every round has failed.
    pub(super) fn failing_for(&self, now: Duration) -> Option<Duration> {
        self.failing_since.map(|since| now.saturating_sub(since))
    }

    /// For how long members have returned errors, if the last that was heard of them is one. A round that is
    /// under way and has heard nothing yet is slow: that alone fails nobody's write (C-ERR-D2).
    pub(super) fn members_failing_for(&self, now: Duration) -> Option<Duration> {
        let since = self.members_failing_since?;
        let heard = self.is_idle() || self.failed == Some(Failed::Member);
        heard.then(|| now.saturating_sub(since))
    }

    /// A record ends at `place`.
    pub(super) fn note_record(&mut self, place: Place, now: Duration) {
        self.newest = place;
        let since = *self.open_since.get_or_insert(now);
        let last = self
            .waypoints
            .back()
            .map_or(self.tail.pos, |last| last.place.pos)
            .max(self.tail.pos);
        if place.pos.since(last) >= self.grain {
            self.waypoints.push_back(Waypoint { place, since });
            self.open_since = None;
        }
    }

    /// The seq that must become durable for the round to go on.
    pub(super) fn durable_needed(&self) -> Seq {
        match self.stage {
            Stage::Preparing => self.through.seq,
            Stage::Flushing { .. } => self.covered_by,
            Stage::Idle
            | Stage::Loading { .. }
            | Stage::Copying { .. }
            | Stage::Releasing { .. } => Seq::NONE,
        }
    }

    /// Which flush of the journal, counted from the start, the round waits for.
    pub(super) fn flush_needed(&self) -> u64 {
        match self.stage {
            Stage::Flushing { shared, .. } => shared,
            Stage::Idle
            | Stage::Preparing
            | Stage::Loading { .. }
            | Stage::Copying { .. }
            | Stage::Releasing { .. } => 0,
        }
    }

    /// The seq up to which home blocks may soon hold data: an anchor has to say so first.
    pub(super) fn announces(&self) -> Seq {
        if self.is_idle() {
            Seq::NONE
        } else {
            self.through.seq
        }
    }

    /// How far writers may go while a round makes room: from three quarters full on, as far as the round
    /// has come, so that free space lasts until it ends.
    pub(super) fn pace(&self, head: Pos, space_end: Pos) -> Pos {
        if self.is_idle() || head.since(self.tail.pos) < self.ring_size / 4 * 3 {
            return space_end;
        }
        let whole = self.through.pos.since(self.tail.pos);
        let free = space_end.0.saturating_sub(self.begun_at_head.0);
        let come = (self.copied + whole / 8).min(whole);
        let share = u128::from(free) * u128::from(come) / u128::from(whole.max(1));
        let paced = self
            .begun_at_head
            .plus(u64::try_from(share).expect("no more than is free"));
        paced.max(head).min(space_end)
    }

    /// The newest place at which a round may end: answered, and not too far. Between it and the tail there
    /// may be no request at all: the STARTs of many short lives can be longer than a round.
    fn next_end(&self, commits: &Commits) -> Option<Place> {
        let acked = commits.acked;
        let limit = self.tail.pos.plus(self.round);
        let fits =
            |place: &Place| place.pos <= limit && place.seq <= acked && place.pos > self.tail.pos;
        if commits.all_acked() && fits(&self.newest) {
            return Some(self.newest);
        }
        let places = self.waypoints.iter().map(|waypoint| waypoint.place);
        places
            .take_while(|place| place.pos <= limit && place.seq <= acked)
            .filter(fits)
            .last()
    }
}

impl Engine {
    /// Takes replay as far as it goes now.
    pub(super) fn replay(&mut self, port: &mut impl Port) {
        if self.closing == Some(Close::Handover) {
            return;
        }
        loop {
            let moved = match self.replay.stage {
                Stage::Idle => self.begin_round(),
                Stage::Preparing => self.prepare(),
                Stage::Loading { next, left } => self.load(port, next, left),
                Stage::Copying { .. } => self.copy(port),
                Stage::Flushing { left, shared } => self.settle(left, shared),
                Stage::Releasing { from } => self.release(from),
            };
            if !moved {
                break;
            }
        }
    }

    /// Whether there is a reason to copy now.
    fn round_wanted(&self) -> bool {
        if self.condition == Condition::Failed || self.now < self.replay.retry_at {
            return false;
        }
        let tail = self.replay.tail;
        if tail.seq >= self.commits.acked {
            return false;
        }
        let (extents, extents_max) = self.extents();
        let asked = self.sync_through > tail.seq || self.closing == Some(Close::Stop);
        let full = self.ring_used() >= self.ring_size() / 1000 * self.settings.fill;
        let crowded = extents * 4 >= extents_max * 3;
        let old = self.oldest_age() >= self.settings.age;
        let idle = self.requests_pending() == 0
            && self.now.saturating_sub(self.busy_at) >= self.settings.idle;
        // While it still lies in the window, it need not be read back.
        let handy = self.ring_used() >= self.settings.round && self.leisure.prevails();
        asked || full || crowded || old || idle || handy || self.commits.is_out_of_room()
    }

    fn begin_round(&mut self) -> bool {
        if !self.round_wanted() {
            return false;
        }
        let Some(end) = self.replay.next_end(&self.commits) else {
            return false;
        };
        let replay = &mut self.replay;
        replay.through = end;
        replay.failed = None;
        replay.refused = false;
        replay.copied = 0;
        replay.begun_at_head = self.commits.head;
        replay.stage = Stage::Preparing;
        true
    }

    /// Waits until the round may touch home blocks: first its records are durable, then an anchor that
    /// proves it and announces the round.
    fn prepare(&mut self) -> bool {
        let through = self.replay.through;
        if self.condition == Condition::Failed {
            self.replay.stage = Stage::Idle;
            return false;
        }
        if self.commits.durable.seq < through.seq
            || self.commits.anchor.replayed_through() < through.seq
        {
            return false;
        }
        assert!(
            self.commits.anchor.durable_seq() >= through.seq,
            "what may be home is proven to have been durable"
        );
        let tail = self.replay.tail.pos;
        if !self.window.pin_all(tail..through.pos) {
            return false;
        }
        self.replay.stage = Stage::Loading {
            next: tail,
            left: 0,
        };
        true
    }

    fn load(&mut self, port: &mut impl Port, next: Pos, left: u32) -> bool {
        // The segment in which the round ends may also be the one that the head stands in. What a slot
        // holds is one run, so all of it up to the head is loaded, or the next record would leave a gap.
        let through = self.replay.through.pos;
        let end = self.window.segment_end_of(through).min(self.commits.head);
        let round = self.replay.tail.pos..through.max(end);
        let (mut next, mut left) = (next, left);
        while left < LOADS_IN_FLIGHT && self.has_spare_ios() && self.replay.failed.is_none() {
            let Some(missing) = self.window.first_missing(round.clone(), next) else {
                next = round.end;
                break;
            };
            left += self.load_run(port, missing.clone());
            next = missing.end;
        }
        self.replay.stage = Stage::Loading { next, left };
        if left > 0 || (next < round.end && self.replay.failed.is_none()) {
            return false;
        }
        if self.replay.failed.is_some() {
            self.pause_round();
            return false;
        }
        let mut from = round.start;
        while let Some(missing) = self.window.first_missing(round.clone(), from) {
            from = missing.end;
            self.window.loaded(missing);
        }
        self.replay.stage = Stage::Copying {
            cursor: Cursor::at(Lba(0)),
            rest: None,
            left: 0,
            swept: false,
        };
        true
    }

    fn load_run(&mut self, port: &mut impl Port, range: std::ops::Range<Pos>) -> u32 {
        let ring_size = self.ring_size();
        self.counters.loaded_bytes += range.end.since(range.start);
        let mut pos = range.start;
        for (at, len) in self.window.runs(range) {
            for piece in self.geometry.ring.pieces(pos.ring_offset(ring_size), len) {
                let memory = Memory::Arena(at + to_usize(piece.at));
                self.ios
                    .gather(port, Transfer::Read, Purpose::Load, piece, memory);
            }
            pos = pos.plus(len);
        }
        self.ios.finish(port)
    }

    pub(super) fn load_ended(&mut self, result: Result<(), Errno>) {
        if result.is_err() {
            self.counters.journal_read_errors += 1;
            self.degrade();
            self.replay.failed = Some(Failed::Journal);
        }
        let Stage::Loading { left, .. } = &mut self.replay.stage else {
            unreachable!("loads end before {:?}", self.replay.stage)
        };
        *left -= 1;
    }

    fn has_spare_ios(&self) -> bool {
        self.ios.available()
            >= self.settings.ios_for_a_read() + self.settings.ios_kept(self.ring_size())
    }

    /// Sends the next extents home, as many as may be in flight.
    fn copy(&mut self, port: &mut impl Port) -> bool {
        let Stage::Copying {
            mut cursor,
            mut rest,
            mut left,
            mut swept,
        } = self.replay.stage
        else {
            unreachable!("only called while copying")
        };
        let through = self.replay.through;
        let in_flight_max = u32::try_from(self.settings.home_writes).expect("a few home writes");
        let mut budget = self.settings.extents_a_turn;
        while !swept && left + self.ios.begun() < in_flight_max && self.has_spare_ios() {
            let extent = match rest.take() {
                Some(extent) => extent,
                None => match self.map.sweep(&mut cursor, through.seq, &mut budget) {
                    Sweep::Found(extent) => extent,
                    Sweep::Continue(_) => {
                        self.again = true;
                        break;
                    }
                    Sweep::End => {
                        swept = true;
                        break;
                    }
                },
            };
            if self.reads.may_read_home_of(&extent) {
                // A read of the old bytes is on its way; it must not see half of these.
                rest = Some(extent);
                break;
            }
            rest = self.copy_extent(port, extent);
        }
        left += self.ios.finish(port);
        self.replay.stage = Stage::Copying {
            cursor,
            rest,
            left,
            swept,
        };
        if !swept || left > 0 {
            return false;
        }
        if self.replay.failed.is_some() {
            self.pause_round();
            return false;
        }
        if std::mem::take(&mut self.replay.refused) {
            // Nothing is wrong with the member, so there is nothing to wait for. It happens once for each
            // kind of zeroing: from now on none of that kind is sent.
            self.replay.copied = 0;
            self.replay.stage = Stage::Copying {
                cursor: Cursor::at(Lba(0)),
                rest: None,
                left: 0,
                swept: false,
            };
            return true;
        }
        // Every write of the round has completed, so this flush covers them all. What was not copied
        // because something newer covers it must not be given up before that is durable.
        self.replay.covered_by = self.commits.inserted_seq();
        if self.geometry.is_attached() {
            // The journal lies on these very disks, and a flush that fails leaves nothing on a disk sure,
            // records as little as home blocks. So there is one flush for both, and one failure.
            self.replay.stage = Stage::Flushing {
                left: 0,
                shared: self.commits.next_flush(),
            };
            return true;
        }
        let mut members = 0;
        for lane in self.geometry.data.lanes() {
            self.ios.flush(port, lane.part, Purpose::MemberFlush);
            members += 1;
            self.counters.member_flushes += 1;
        }
        self.replay.stage = Stage::Flushing {
            left: members,
            shared: 0,
        };
        true
    }

    /// Sends one extent home, or the first part of a long run of zeroes; returns what is left of it.
    fn copy_extent(&mut self, port: &mut impl Port, extent: Extent) -> Option<Extent> {
        let start = extent.lba.0 * SECTOR;
        let len = u64::from(extent.sectors) * SECTOR;
        match extent.content {
            Content::Payload(pos) => {
                if self.window.unverified(pos, len) && !self.window.verify_held(pos, len) {
                    self.counters.checksum_errors += 1;
                    self.degrade();
                    self.replay.failed.get_or_insert(Failed::Journal);
                    return None;
                }
                let mut done = 0;
                for (at, run) in self.window.runs(pos..pos.plus(len)) {
                    for piece in self.geometry.data.pieces(start + done, run) {
                        let memory = Memory::Arena(at + to_usize(piece.at));
                        self.ios.gather(
                            port,
                            Transfer::Write(Sync::No),
                            Purpose::Home,
                            piece,
                            memory,
                        );
                    }
                    done += run;
                }
                self.counters.home_bytes += len;
                self.replay.copied += len;
                None
            }
            Content::Zeroes => self.zero_extent(port, extent, Space::Freed),
            Content::ZeroesNoUnmap => self.zero_extent(port, extent, Space::Kept),
        }
    }

    /// Zeroes a range at home: without writing it where the members can, and its ragged edges with writes.
    fn zero_extent(
        &mut self,
        port: &mut impl Port,
        extent: Extent,
        space: Space,
    ) -> Option<Extent> {
        let by_writing = self
            .geometry
            .members()
            .any(|part| !self.ios.zeroes(part, space));
        let most = if by_writing {
            ZEROES_A_STEP / SECTOR
        } else {
            u64::from(extent.sectors)
        };
        let now = extent.clipped(extent.lba, extent.lba.plus(most));
        let (start, len) = (now.lba.0 * SECTOR, u64::from(now.sectors) * SECTOR);
        for run in self.geometry.data.runs(start, len) {
            let (from, to) = (run.offset.0, run.offset.0 + run.len);
            let (inner, inner_end) = (round_up(from, FRAME), round_down(to, FRAME));
            if by_writing || inner >= inner_end {
                write_zeroes(&mut self.ios, port, run, self.window.zeroes_at());
                continue;
            }
            let edge = |offset: u64, len: u64| Piece {
                offset: crate::units::Offset(offset),
                len,
                ..run
            };
            write_zeroes(
                &mut self.ios,
                port,
                edge(from, inner - from),
                self.window.zeroes_at(),
            );
            self.ios.zero(
                port,
                run.part,
                crate::units::Offset(inner),
                inner_end - inner,
                space,
            );
            write_zeroes(
                &mut self.ios,
                port,
                edge(inner_end, to - inner_end),
                self.window.zeroes_at(),
            );
        }
        (now.end() < extent.end()).then(|| extent.clipped(now.end(), extent.end()))
    }

    /// A member that says that it cannot zero after all is not ill: the sweep writes zeroes instead.
    pub(super) fn zeroing_ended(
        &mut self,
        part: PartIndex,
        space: Space,
        result: Result<(), Errno>,
    ) {
        let refused = result == Err(Errno::NOT_SUPPORTED);
        if refused {
            self.ios.cannot_zero(part, space);
            self.replay.refused = true;
        }
        self.home_write_ended(if refused { Ok(()) } else { result });
    }

    pub(super) fn home_write_ended(&mut self, result: Result<(), Errno>) {
        if result.is_err() {
            self.counters.member_write_errors += 1;
            self.replay.failed = Some(Failed::Member);
            self.degrade();
        }
        let Stage::Copying { left, .. } = &mut self.replay.stage else {
            unreachable!("home writes end before {:?}", self.replay.stage)
        };
        *left -= 1;
    }

    pub(super) fn member_flush_ended(
        &mut self,
        port: &mut impl Port,
        part: PartIndex,
        result: Result<(), Errno>,
    ) {
        if result.is_err() {
            // What it covered may be gone: all of the round is written again before the next flush.
            self.counters.member_flush_errors += 1;
            self.replay.failed = Some(Failed::Member);
            if self.settings.parts[part.index()].shares_journal_disk {
                // And records that were written since the last flush may be gone with it (invariant 7).
                self.fail(port);
            } else {
                self.degrade();
            }
        }
        let Stage::Flushing { left, .. } = &mut self.replay.stage else {
            unreachable!("member flushes end before {:?}", self.replay.stage)
        };
        *left -= 1;
    }

    /// Waits for the members' flush, and for the journal to hold what covered the round's extents.
    fn settle(&mut self, left: u32, shared: u64) -> bool {
        if left > 0 {
            return false;
        }
        if self.replay.failed.is_some() || self.condition == Condition::Failed {
            self.pause_round();
            return false;
        }
        if !self.commits.flush_has_ended(shared)
            || self.commits.durable.seq < self.replay.covered_by
        {
            return false;
        }
        self.replay.stage = Stage::Releasing { from: Lba(0) };
        true
    }

    fn release(&mut self, from: Lba) -> bool {
        let most = self.settings.extents_a_turn;
        if let Some(from) = self
            .map
            .release_through(from, self.replay.through.seq, most)
        {
            self.replay.stage = Stage::Releasing { from };
            self.again = true;
            return false;
        }
        let round = self.replay.tail.pos..self.replay.through.pos;
        self.window.unpin(round);
        let replay = &mut self.replay;
        replay.tail = replay.through;
        while replay
            .waypoints
            .front()
            .is_some_and(|first| first.place.pos <= replay.tail.pos)
        {
            replay.waypoints.pop_front();
        }
        if replay.tail.pos >= replay.newest.pos {
            replay.open_since = None;
        }
        replay.stage = Stage::Idle;
        replay.failing_since = None;
        replay.members_failing_since = None;
        replay.pause = PAUSE_MIN;
        self.window.drop_lives_before(self.replay.tail.pos);
        self.tail_moved();
        self.counters.rounds += 1;
        true
    }

    /// Gives the round up for now; it begins again, from its first block, after a pause.
    fn pause_round(&mut self) {
        let round = self.replay.tail.pos..self.replay.through.pos;
        self.window.distrust(round.clone());
        self.window.unpin(round);
        let replay = &mut self.replay;
        replay.stage = Stage::Idle;
        replay.failing_since.get_or_insert(self.now);
        match replay.failed {
            Some(Failed::Member) => {
                replay.members_failing_since.get_or_insert(self.now);
            }
            Some(Failed::Journal) | None => replay.members_failing_since = None,
        }
        replay.retry_at = self.now + replay.pause;
        replay.pause = (replay.pause * 2).min(PAUSE_MAX);
    }
}

fn write_zeroes(ios: &mut super::Ios, port: &mut impl Port, run: Piece, zeroes_at: usize) {
    let page = crate::units::to_u64(ZEROES_LEN);
    let mut done = 0;
    while done < run.len {
        let len = page.min(run.len - done);
        let piece = Piece {
            offset: run.offset.plus(done),
            len,
            ..run
        };
        ios.gather(
            port,
            Transfer::Write(Sync::No),
            Purpose::Home,
            piece,
            Memory::Arena(zeroes_at),
        );
        done += len;
    }
}
