//! The engine: from requests to records, replies and replay. It decides and does not do.
//!
//! Plain state, no clock, no thread, no lock, no randomness. Events come in ([`Engine::request`],
//! [`Engine::completed`], the time with [`Engine::advance`]); commands go out through a [`Port`]. The same
//! code runs on the kernel's ring and in the simulator, where a seed replays any history and any crash.
//!
//! ```text
//!   request ----> waiting --seal--> record in flight --written--> in the map, answered --> durable
//!   (commit)                        (commit)                      (commit)                 (commit)
//!
//!   read   ----> window | journal | members            (read)
//!   replay ----> durable records, in rounds, home; then the tail moves      (replay)
//! ```
//!
//! # Invariants
//!
//! The numbers are those of `ARCHITECTURE.md`.
//!
//! 1. Replies to requests that change the device leave in the order of their seqs, and each request
//!    becomes visible to reads in the step in which its reply is given.
//! 2. A reply to FLUSH or FUA is given only when everything that it covers is durable.
//! 3. A home block is written only from a record that is durable, as are all before it, and an anchor proves it.
//! 4. The tail moves only when what it passes is on the members and flushed there, and when every record
//!    that has taken the place of one that was not copied is durable.
//! 5. Ring space is written again only when the tail beyond it is durable.
//! 6. The head never runs further than one span beyond the last durable anchor.
//! 7. After a failed flush or a journal that cannot be written, nothing more is promised; and while it is
//!    served nobody but the engine flushes a part, or it would not hear of the failure.

mod commit;
pub mod extent_map;
mod io;
mod leisure;
pub mod port;
mod read;
pub mod recovery;
mod replay;
pub mod request;
pub mod settings;
#[cfg(test)]
mod tests;
mod window;

use crate::disk::buffer::{Arena, ArenaError, Residency};

use crate::journal::ArrayUuid;
use crate::journal::anchor::{Anchor, Closed, RingPlace};
use crate::journal::geometry::{Geometry, anchor_span};
use crate::units::{PartIndex, Pos, Seq};
use commit::Commits;
use extent_map::ExtentMap;
pub use io::Trouble;
use io::{Ended, Ios, Purpose};
use leisure::Leisure;
use port::{IoId, Port};
use read::Reads;
use recovery::Recovered;
use replay::Replay;
use request::{Errno, Op, Outcome, Request, Tag};
use settings::Settings;
use std::time::Duration;
use window::{Dimensions, Window};

/// A place in the ring: what was said before it, and where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The last seq before it.
    pub seq: Seq,
    /// Where it is.
    pub pos: Pos,
}

/// How an engine ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Close {
    /// Everything goes home first.
    Stop,
    /// What was answered is made durable; another process goes on.
    Handover,
}

/// Whether writers wait for members that return errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Patience {
    /// As long as `stall_timeout` says.
    AsSet,
    /// Not at all: the array is to end.
    None,
}

/// What an engine can still do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Condition {
    /// All of it.
    Ok,
    /// A member returns errors, or journaled data cannot be read: replay is held up, nothing is lost.
    Degraded,
    /// Writes and flushes are refused: the journal cannot be trusted any more.
    Failed,
}

/// What an engine has done since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Requests answered, by kind, and sectors moved.
    pub reads: u64,
    /// See `reads`.
    pub read_sectors: u64,
    /// Writes answered.
    pub writes: u64,
    /// Sectors written.
    pub write_sectors: u64,
    /// Flushes answered.
    pub flushes: u64,
    /// Discards and write-zeroes answered.
    pub zeroes: u64,
    /// Records written.
    pub records: u64,
    /// Of those, how many were durable by themselves.
    pub sync_records: u64,
    /// Flushes of the journal.
    pub journal_flushes: u64,
    /// Flushes of members, each counted.
    pub member_flushes: u64,
    /// Anchors written.
    pub anchors: u64,
    /// Bytes written to the ring.
    pub ring_bytes: u64,
    /// Rounds of replay that were finished.
    pub rounds: u64,
    /// Bytes written home.
    pub home_bytes: u64,
    /// Bytes read back from the ring for replay.
    pub loaded_bytes: u64,
    /// Turns at whose end a write had to wait for space in the ring.
    pub stalls: u64,
    /// Writes that got an error since they had waited for a member that returns errors.
    pub refused_writes: u64,
    /// Writes of records and anchors that failed for good.
    pub journal_write_errors: u64,
    /// Flushes of the journal that failed.
    pub journal_flush_errors: u64,
    /// Reads from the ring that failed.
    pub journal_read_errors: u64,
    /// Reads from members that failed.
    pub member_read_errors: u64,
    /// Writes and zeroings of members that failed.
    pub member_write_errors: u64,
    /// Flushes of members that failed.
    pub member_flush_errors: u64,
    /// Frames of the journal that were not what had been written.
    pub checksum_errors: u64,
}

/// See the head of the file.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    geometry: Geometry,
    uuid: ArrayUuid,
    now: Duration,
    /// When the last request came.
    busy_at: Duration,
    leisure: Leisure,
    window: Window,
    map: ExtentMap,
    ios: Ios,
    commits: Commits,
    reads: Reads,
    replay: Replay,
    /// Operations that have ended and were not looked at yet.
    ended: Vec<(IoId, Result<u64, Errno>)>,
    condition: Condition,
    closing: Option<Close>,
    patience: Patience,
    /// Replay is wanted up to here, whatever the triggers say.
    sync_through: Seq,
    /// Work was cut short to keep this turn bounded.
    again: bool,
    counters: Counters,
}

impl Engine {
    /// An engine that goes on where recovery left the array.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(
        settings: Settings,
        geometry: Geometry,
        uuid: ArrayUuid,
        recovered: Recovered,
        residency: Residency,
    ) -> Result<Engine, ArenaError> {
        let ring_size = geometry.ring.size();
        settings.check(ring_size);
        assert_eq!(settings.parts.len(), geometry.parts());
        let seeds = recovered.lives(uuid);
        let window = Window::new(
            Dimensions {
                ring_size,
                window: settings.window,
                segment: settings.segment,
                bounce: settings.bounce,
                bounces: settings.bounces,
            },
            recovered.checksums,
            seeds,
            residency,
        )?;
        let tags = usize::from(settings.queue_depth);
        let commits = Commits::new(&settings, ring_size, uuid, &recovered.start);
        let replay = Replay::new(
            &settings,
            ring_size,
            recovered.start.tail,
            Place {
                seq: recovered.start.last_seq,
                pos: recovered.start.head,
            },
            recovered.waypoints,
        );
        Ok(Engine {
            now: Duration::ZERO,
            busy_at: Duration::ZERO,
            leisure: Leisure::new(settings.idle),
            window,
            map: recovered.map,
            ios: Ios::new(settings.ios, settings.parts.clone()),
            commits,
            reads: Reads::new(tags, settings.bounces),
            replay,
            ended: Vec::with_capacity(usize::from(settings.ios)),
            condition: recovered.condition,
            closing: None,
            patience: Patience::AsSet,
            sync_through: Seq::NONE,
            again: false,
            counters: Counters::default(),
            settings,
            geometry,
            uuid,
        })
    }

    /// A request came in: it lies on the device and its tag is free.
    pub fn request(&mut self, request: Request) {
        self.busy_at = self.now;
        match request.op {
            Op::Read => self.reads.push(request),
            Op::Write | Op::Discard | Op::WriteZeroes(_) => self.commits.push(request),
            Op::Flush => self.commits.push_flush(request.tag),
        }
    }

    /// An operation ended: with so many bytes, or an error.
    pub fn completed(&mut self, id: IoId, result: Result<u64, Errno>) {
        self.ended.push((id, result));
    }

    /// The end of a turn: everything that came is worked on as far as it goes now.
    pub fn advance(&mut self, now: Duration, port: &mut impl Port) {
        assert!(now >= self.now, "time does not run backwards");
        self.now = now;
        self.again = false;
        self.finish_operations(port);
        self.acknowledge(port);
        self.start_reads(port);
        self.seal(port);
        self.replay(port);
        // Replay may just have made room.
        self.seal(port);
        self.count_stall();
        self.make_durable(port);
        self.finish_reads(port);
        self.leisure.note(now, self.requests_pending());
    }

    fn finish_operations(&mut self, port: &mut impl Port) {
        let mut ended = std::mem::take(&mut self.ended);
        for (id, result) in ended.drain(..) {
            let Ended::Over(purpose, part, result) = self.ios.ended(port, id, result) else {
                continue;
            };
            match purpose {
                Purpose::HomeRead { tag } => self.home_read_ended(tag, result),
                Purpose::JournalRead(read) => self.journal_read_ended(port, read, result),
                Purpose::Record { number } => self.record_piece_ended(port, number, result),
                Purpose::JournalFlush => self.journal_flush_ended(port, result),
                Purpose::Anchor => self.anchor_ended(port, result),
                Purpose::Load => self.load_ended(result),
                Purpose::Home => self.home_write_ended(result),
                Purpose::HomeZeroes(space) => self.zeroing_ended(part, space, result),
                Purpose::MemberFlush => self.member_flush_ended(port, part, result),
            }
        }
        self.ended = ended;
    }

    /// Whether there is more to do without waiting for anything.
    pub fn wants_turn(&self) -> bool {
        self.again
    }

    /// The parts on which operations have failed, and the last one of each.
    pub fn troubles(&self) -> impl Iterator<Item = (PartIndex, Trouble)> + '_ {
        self.ios.troubles()
    }

    /// The memory that [`port::Memory::Arena`] names.
    pub fn arena(&self) -> &Arena {
        self.window.arena()
    }

    /// See [`Engine::arena`].
    pub fn arena_mut(&mut self) -> &mut Arena {
        self.window.arena_mut()
    }

    /// Asks that everything answered so far go home; [`Engine::is_home`] says when it is.
    pub fn begin_sync(&mut self) -> Seq {
        self.sync_through = self.sync_through.max(self.commits.acked);
        self.commits.acked
    }

    /// Whether everything up to `seq` is on the members, flushed there.
    pub fn is_home(&self, seq: Seq) -> bool {
        self.replay.tail().seq >= seq
    }

    /// Whether nothing will happen, however much time passes, until somebody asks for something: no trigger
    /// of replay, flush or MARK is set.
    pub fn is_at_rest(&self) -> bool {
        self.requests_pending() == 0
            && self.ios.in_flight() == 0
            && !self.again
            && self.closing.is_none()
            && self.replay.is_idle()
            && self.is_home(self.commits.acked)
            && self.commits.nothing_volatile()
            && !self.knows_more_than_the_journal()
    }

    /// From now on writers that wait for a member which returns errors are told at once, whatever
    /// `stall_timeout` says.
    pub fn wait_no_longer_for_members(&mut self) {
        self.patience = Patience::None;
    }

    /// The opposite: from now on they wait again as `stall_timeout` says.
    pub fn wait_for_members(&mut self) {
        self.patience = Patience::AsSet;
    }

    /// Ends the engine; [`Engine::is_closed`] says when it is over. No request may follow a `Stop`;
    /// requests that come after a `Handover` are left for the next process.
    pub fn begin_close(&mut self, how: Close) {
        self.closing = Some(how);
    }

    /// Whether nothing is in flight and all that [`Engine::begin_close`] asks is done.
    pub fn is_closed(&self) -> bool {
        let quiet = self.ios.in_flight() == 0;
        match self.closing {
            None => false,
            Some(Close::Stop) => {
                quiet
                    && self.reads.is_empty()
                    && self.commits.is_empty()
                    && self.replay.is_idle()
                    && self.all_home()
                    || quiet && self.condition == Condition::Failed
            }
            Some(Close::Handover) => {
                quiet && (self.commits.nothing_volatile() || self.condition == Condition::Failed)
            }
        }
    }

    fn all_home(&self) -> bool {
        self.is_home(self.commits.sealed)
    }

    /// Whether every operation that was begun has ended.
    pub fn is_quiet(&self) -> bool {
        self.ios.in_flight() == 0
    }

    /// Whether replay has failed and pauses before it tries again.
    pub fn is_held_up(&self) -> bool {
        self.replay.is_idle() && self.replay.failing_for(self.now).is_some()
    }

    /// Bytes that the window holds.
    pub fn window_used(&self) -> u64 {
        self.window.used()
    }

    /// The last seq that was answered.
    pub fn acked_seq(&self) -> Seq {
        self.commits.acked
    }

    /// Everything up to this seq is durable.
    pub fn durable_seq(&self) -> Seq {
        self.commits.durable.seq
    }

    /// Everything up to this seq is at home.
    pub fn home_seq(&self) -> Seq {
        self.replay.tail().seq
    }

    /// What can still be done.
    pub fn condition(&self) -> Condition {
        self.condition
    }

    /// What has been done.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Bytes of the ring that hold what is still needed.
    pub fn ring_used(&self) -> u64 {
        self.commits.head.since(self.replay.tail().pos)
    }

    /// Bytes of the ring.
    pub fn ring_size(&self) -> u64 {
        self.geometry.ring.size()
    }

    /// Extents in the map, and how many there may be.
    pub fn extents(&self) -> (usize, usize) {
        (self.map.len(), self.settings.extents)
    }

    /// How long the oldest write that is not home yet has been waiting.
    pub fn oldest_age(&self) -> Duration {
        if self.all_home() {
            Duration::ZERO
        } else {
            self.now.saturating_sub(self.replay.oldest_since())
        }
    }

    /// Whether a round of replay is under way.
    pub fn is_replaying(&self) -> bool {
        !self.replay.is_idle()
    }

    /// Requests that have not been answered.
    pub fn requests_pending(&self) -> usize {
        self.reads.len() + self.commits.requests_pending()
    }

    /// The anchor that says where the ring stands, for a close: everything sealed is durable.
    ///
    /// When all is home, nothing before the head is needed any more.
    pub fn final_anchor(&self, closed: Closed) -> Anchor {
        let anchor = self.anchor_now(self.commits.anchor.replayed_through_max(), closed);
        if self.all_home() {
            Anchor {
                tail: anchor.head,
                ..anchor
            }
        } else {
            anchor
        }
    }

    /// The generation of the newest anchor written, and which copy it went to.
    pub fn last_anchor(&self) -> (u64, usize) {
        self.commits.anchor.last()
    }

    fn ring_place(&self, place: Place) -> RingPlace {
        RingPlace {
            seq: place.seq,
            offset: place.pos.ring_offset(self.geometry.ring.size()),
        }
    }

    /// The journal cannot be trusted any more: everybody who waits is told.
    fn fail(&mut self, port: &mut impl Port) {
        self.condition = Condition::Failed;
        // A request that fails is not there in part: what has been begun is finished.
        if let Some(rest) = self.commits.left_to_insert() {
            let inserted = self.map.insert(rest, usize::MAX);
            assert_eq!(inserted, rest.sectors, "nothing bounds this insert");
        }
        self.commits.refuse_all(port);
    }

    fn degrade(&mut self) {
        self.condition = self.condition.max(Condition::Degraded);
    }

    /// Asserts everything that must hold between two turns.
    pub fn check_invariants(&self) {
        self.ios.check_invariants();
        self.window.check_invariants();
        self.map.check_invariants();
        self.commits.check_invariants();
        let tail = self.replay.tail();
        assert!(
            tail.seq <= self.commits.durable.seq,
            "the tail never passes what is durable"
        );
        assert!(self.commits.tail_durable <= tail.pos);
        assert!(
            self.commits.head.since(self.commits.tail_durable) <= self.ring_size(),
            "the head never runs over what is needed (invariant 5)"
        );
        if self.condition != Condition::Failed {
            assert!(
                self.commits.head.since(self.commits.anchor.durable_head())
                    <= anchor_span(self.ring_size()),
                "recovery looks one span far (invariant 6)"
            );
        }
        assert!(self.commits.acked <= self.commits.sealed);
    }
}

/// An answer that ended well.
fn answer(port: &mut impl Port, tag: Tag, result: Result<(), Errno>) {
    port.reply(tag, result.map_or_else(Outcome::Failed, |()| Outcome::Done));
}
