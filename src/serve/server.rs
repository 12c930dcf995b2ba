//! The engine on the queue thread: requests and completions in, operations and replies out, and what the
//! control plane asks in between.
//!
//! Nothing here decides about data. It translates, counts and measures, and it carries the two things
//! that take long, a sync and an end, from turn to turn until the engine says that they are done.

use super::meter::{Meter, Rate};
use crate::control::port::{Command, RingCommands, Stop};
use crate::control::progress::{Progress, ProgressSink, Stage};
use crate::control::status::{
    Clause, ErrorCounts, Live, MediaStatus, PartTrouble, ReplayStatus, Stalled, State,
};
use crate::engine::port::{IoId, Operation, Port, SEGMENTS_MAX, Space, Sync};
use crate::engine::request::{Errno, Outcome, Request, Tag, Unmap};
use crate::engine::{Close, Condition, Engine, Trouble};
use crate::outcome::Failure;
use crate::ublk::{FileSlot, Needs, Output, Server, WriteMode};
use crate::units::{MIB, PartIndex, Seq};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use tokio::sync::oneshot;

/// A daemon that leaves replays for no longer than this, or until so little is left.
const LEAVE_REPLAY: Duration = Duration::from_secs(20);
const LEAVE_BYTES: u64 = 64 * MIB;

/// A request that has waited for so long is reported.
const STALLED_AFTER: Duration = Duration::from_secs(30);

/// How often the engine looks at the time: the grain of all its triggers.
const TICK: Duration = Duration::from_millis(10);
/// The same while nothing depends on it. The first tick after a request may be so late.
const TICK_AT_REST: Duration = Duration::from_millis(200);

/// Progress is told this often.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Something that goes on until everything up to a seq is home.
#[derive(Debug)]
struct Homing {
    through: Seq,
    /// Bytes of the ring that were in use when it began.
    bytes: u64,
    progress: ProgressSink,
    done: oneshot::Sender<Result<(), Failure>>,
    told_at: Duration,
    then: Then,
}

/// What follows when everything is home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    /// Nothing: it was a sync.
    Serve,
    /// The control thread stops the device.
    Stop,
    /// The engine closes for a takeover, at the latest at this time.
    Leave(Duration),
}

/// An end that was asked for, on its way.
#[derive(Debug)]
enum Ending {
    No,
    /// The device is being stopped; replay follows, and whoever waits is told.
    Stopping(Option<(ProgressSink, oneshot::Sender<Result<(), Failure>>)>),
    /// The engine makes durable what was answered and lets go.
    Leaving(oneshot::Sender<Result<(), Failure>>),
    /// Whoever waited has been told.
    Told,
}

/// See the head of the file.
#[derive(Debug)]
pub struct ArrayServer {
    engine: Engine,
    files: Vec<OwnedFd>,
    commands: RingCommands,
    homing: Vec<Homing>,
    ending: Ending,
    leaves: bool,
    meter: Meter,
    rate: Rate,
    operations: u16,
    /// The parts that hold the journal, whose flushes are left out: a build that must lose data.
    #[cfg(feature = "broken-flush")]
    broken: Vec<PartIndex>,
}

impl ArrayServer {
    /// Serves `engine`, whose parts are `files` in the order of [`PartIndex`].
    pub fn new(
        engine: Engine,
        files: Vec<OwnedFd>,
        commands: RingCommands,
        depth: u16,
        operations: u16,
    ) -> ArrayServer {
        ArrayServer {
            engine,
            files,
            commands,
            homing: Vec::new(),
            ending: Ending::No,
            leaves: false,
            meter: Meter::new(depth),
            rate: Rate::default(),
            operations,
            #[cfg(feature = "broken-flush")]
            broken: Vec::new(),
        }
    }

    /// From now on nothing is done to make the journal on these parts durable, and everybody is told that it is.
    #[cfg(feature = "broken-flush")]
    pub fn break_flushes(&mut self, journal_parts: impl Iterator<Item = PartIndex>) {
        self.broken = journal_parts.collect();
    }

    /// The engine, once the queue thread has ended.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn obey(&mut self, command: Command, now: Duration) {
        match command {
            // Nobody may be waiting for the answer any more.
            Command::Status(answer) => drop(answer.send(self.live(now))),
            Command::Sync { progress, done } => self.begin_homing(progress, done, now, Then::Serve),
            Command::Stop {
                how: Stop::Clean,
                progress,
                done,
            } => self.begin_homing(progress, done, now, Then::Stop),
            Command::Stop {
                how: Stop::Leave,
                progress,
                done,
            } => {
                self.begin_homing(progress, done, now, Then::Leave(now + LEAVE_REPLAY));
            }
            Command::Stop {
                how: Stop::Forced,
                progress,
                done,
            } => {
                // The kernel takes the device away once all requests are answered.
                self.engine.wait_no_longer_for_members();
                self.ending = Ending::Stopping(Some((progress, done)));
            }
            Command::StopWithdrawn => {
                self.engine.wait_for_members();
                self.ending = Ending::No;
            }
        }
    }

    fn begin_homing(
        &mut self,
        progress: ProgressSink,
        done: oneshot::Sender<Result<(), Failure>>,
        now: Duration,
        then: Then,
    ) {
        let through = self.engine.begin_sync();
        self.homing.push(Homing {
            through,
            bytes: self.engine.ring_used(),
            progress,
            done,
            told_at: now,
            then,
        });
    }

    /// Looks after everything that somebody waits for.
    fn attend(&mut self, now: Duration) {
        if !self.homing.is_empty() {
            let homing = std::mem::take(&mut self.homing);
            for waiting in homing {
                self.attend_homing(waiting, now);
            }
        }
        if let Ending::Stopping(Some((progress, _))) = &self.ending {
            let used = self.engine.ring_used();
            progress.report(Progress::new(Stage::Replay, 0, used));
        }
        if self.engine.is_closed() || self.given_up() {
            match std::mem::replace(&mut self.ending, Ending::Told) {
                Ending::Stopping(Some((_, done))) => drop(done.send(self.end_result())),
                Ending::Leaving(done) => {
                    self.leaves = true;
                    drop(done.send(self.end_result()));
                }
                other @ (Ending::No | Ending::Stopping(None) | Ending::Told) => self.ending = other,
            }
        }
    }

    fn attend_homing(&mut self, mut waiting: Homing, now: Duration) {
        let home = self.engine.is_home(waiting.through);
        let used = self.engine.ring_used();
        if now.saturating_sub(waiting.told_at) >= PROGRESS_EVERY || home {
            waiting.told_at = now;
            let done = if home {
                waiting.bytes
            } else {
                waiting.bytes.saturating_sub(used)
            };
            waiting
                .progress
                .report(Progress::new(Stage::Replay, done, waiting.bytes));
        }
        let failed = self.engine.condition() == Condition::Failed;
        match waiting.then {
            Then::Leave(deadline) if home || failed || used <= LEAVE_BYTES || now >= deadline => {
                self.engine.begin_close(Close::Handover);
                self.ending = Ending::Leaving(waiting.done);
            }
            Then::Serve | Then::Stop if home => drop(waiting.done.send(Ok(()))),
            Then::Serve | Then::Stop if failed => {
                let message =
                    "the array has FAILED, and what it holds cannot be brought home: see its log";
                drop(waiting.done.send(Err(Failure::failed(message))));
            }
            Then::Serve | Then::Stop if self.engine.is_held_up() => {
                let message = "a member returns errors, so not everything can be brought home now; \
                               the journal keeps it: see the log";
                drop(waiting.done.send(Err(Failure::failed(message))));
            }
            Then::Serve | Then::Stop | Then::Leave(_) => self.homing.push(waiting),
        }
    }

    /// Whether an end was asked for that will never come: members return errors, round after round.
    fn given_up(&self) -> bool {
        matches!(self.ending, Ending::Stopping(_) | Ending::Told)
            && self.engine.is_held_up()
            && self.engine.is_quiet()
    }

    fn end_result(&self) -> Result<(), Failure> {
        if self.engine.condition() == Condition::Failed {
            return Err(Failure::failed(
                "the journal has failed: what was not durable is lost, as its log says",
            ));
        }
        if self.engine.is_held_up() {
            return Err(Failure::failed(
                "a member returns errors, so not everything could be brought home",
            ));
        }
        Ok(())
    }

    fn live(&mut self, now: Duration) -> Live {
        let engine = &self.engine;
        let counters = engine.counters();
        let (extents, _) = engine.extents();
        let mut errors = ErrorCounts::default();
        for (clause, count) in [
            (Clause::JournalWrite, counters.journal_write_errors),
            (Clause::JournalFlush, counters.journal_flush_errors),
            (
                Clause::JournalRead,
                counters.journal_read_errors + counters.checksum_errors,
            ),
            (Clause::MemberWrite, counters.member_write_errors),
            (Clause::MemberStalled, counters.refused_writes),
            (Clause::MemberFlush, counters.member_flush_errors),
            (Clause::MemberRead, counters.member_read_errors),
        ] {
            errors.add(clause, count);
        }
        let state = match engine.condition() {
            Condition::Failed => State::Failed,
            Condition::Degraded => State::Degraded,
            Condition::Ok => State::Dirty,
        };
        let stalled = self.meter.stalled(now, STALLED_AFTER);
        Live {
            state,
            reason: reason(engine.condition()).map(str::to_owned),
            journal_used: engine.ring_used(),
            oldest: Some(engine.oldest_age()).filter(|age| !age.is_zero()),
            last_seq: engine.acked_seq(),
            durable_seq: engine.durable_seq(),
            tail_seq: engine.home_seq(),
            extents: crate::units::to_u64(extents),
            window_used: engine.window_used(),
            replay: ReplayStatus {
                running: engine.is_replaying(),
                rate: self.rate.update(now, counters.home_bytes),
                rounds: counters.rounds,
                bytes: counters.home_bytes,
            },
            requests: self.meter.requests(),
            media: MediaStatus {
                records: counters.records,
                record_bytes: counters.ring_bytes,
                sync_records: counters.sync_records,
                journal_flushes: counters.journal_flushes,
                member_flushes: counters.member_flushes,
            },
            errors,
            stalls: counters.stalls,
            troubles: engine.troubles().map(trouble_of).collect(),
            stalled: stalled
                .map(|(tag, ms)| Stalled { tag: tag.0, ms })
                .collect(),
        }
    }
}

fn trouble_of((part, trouble): (PartIndex, Trouble)) -> PartTrouble {
    PartTrouble {
        part: part.index(),
        op: trouble.op.to_string(),
        offset: trouble.offset.0,
        why: io::Error::from_raw_os_error(trouble.errno.0).to_string(),
        count: trouble.count,
    }
}

/// Why an array is in a condition that is not well.
pub fn reason(condition: Condition) -> Option<&'static str> {
    match condition {
        Condition::Ok => None,
        Condition::Degraded => {
            Some("a member returns errors, or journaled data cannot be read: see the log")
        }
        Condition::Failed => Some("the journal cannot be written or flushed"),
    }
}

impl Server for ArrayServer {
    fn needs(&self) -> Needs<'_> {
        Needs {
            files: self.files.iter().map(AsFd::as_fd).collect(),
            arena: Some(self.engine.arena()),
            operations: self.operations.into(),
            segments: u32::try_from(SEGMENTS_MAX).expect("a few segments"),
        }
    }

    fn request(&mut self, request: Request, now: Duration) {
        self.meter.begins(&request, now);
        self.engine.request(request);
    }

    fn completed(&mut self, id: u32, result: i32, _now: Duration) {
        let id = IoId(u16::try_from(id).expect("operations have small numbers"));
        self.engine.completed(
            id,
            u64::try_from(result).map_err(|_| Errno(result.saturating_neg())),
        );
    }

    fn woken(&mut self, now: Duration) {
        while let Some(command) = self.commands.take() {
            self.obey(command, now);
        }
    }

    fn stopped(&mut self, _now: Duration) {
        // By us, or by somebody else: either way no request can come any more.
        if !self.leaves {
            self.engine.begin_close(Close::Stop);
            if matches!(self.ending, Ending::No) {
                self.ending = Ending::Stopping(None);
            }
        }
    }

    fn advance(&mut self, out: &mut Output<'_>, now: Duration) {
        let mut port = EnginePort {
            out,
            meter: &mut self.meter,
            now,
            #[cfg(feature = "broken-flush")]
            broken: &self.broken,
        };
        self.engine.advance(now, &mut port);
        self.attend(now);
    }

    fn wants_turn(&self) -> bool {
        self.engine.wants_turn()
    }

    fn is_idle(&self) -> bool {
        self.engine.is_closed() || self.given_up()
    }

    fn leaves(&self) -> bool {
        self.leaves
    }

    /// An array that nobody uses leaves the processor alone.
    fn tick(&self) -> Duration {
        if self.engine.is_at_rest() && self.homing.is_empty() {
            TICK_AT_REST
        } else {
            TICK
        }
    }
}

/// The engine's port over the ring of the queue thread.
struct EnginePort<'a, 'b> {
    out: &'a mut Output<'b>,
    meter: &'a mut Meter,
    now: Duration,
    #[cfg(feature = "broken-flush")]
    broken: &'a [PartIndex],
}

impl Port for EnginePort<'_, '_> {
    fn buffer(&self, tag: Tag) -> &[u8] {
        self.out.tag_buffer(tag)
    }

    fn buffer_mut(&mut self, tag: Tag, piece: Range<usize>) -> &mut [u8] {
        self.out.tag_piece_mut(tag, piece)
    }

    fn submit(&mut self, id: IoId, part: PartIndex, operation: Operation<'_>) {
        let (id, file) = (u32::from(id.0), FileSlot(part.0));
        match operation {
            #[cfg(feature = "broken-flush")]
            Operation::Flush if self.broken.contains(&part) => self.out.pretend_to_flush(id),
            #[cfg(feature = "broken-flush")]
            Operation::Write {
                offset, segments, ..
            } if self.broken.contains(&part) => {
                self.out
                    .write(id, file, offset.0, segments, WriteMode::Plain);
            }
            Operation::Read { offset, segments } => {
                self.out.read(id, file, offset.0, segments);
            }
            Operation::Write {
                offset,
                segments,
                sync,
            } => {
                let mode = match sync {
                    Sync::No => WriteMode::Plain,
                    Sync::Data => WriteMode::Dsync,
                };
                self.out.write(id, file, offset.0, segments, mode);
            }
            Operation::Flush => self.out.flush(id, file),
            Operation::Zero { offset, len, space } => {
                let unmap = match space {
                    Space::Freed => Unmap::Allowed,
                    Space::Kept => Unmap::Forbidden,
                };
                self.out.zero(id, file, offset.0, len, unmap);
            }
        }
    }

    fn reply(&mut self, tag: Tag, outcome: Outcome) {
        self.meter.ends(tag, outcome, self.now);
        self.out.reply(tag, outcome);
    }
}
