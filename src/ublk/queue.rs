//! The loop of the queue thread: what came is handed to the server, what the server says goes out.
//!
//! ```text
//!   enter: submit all, wait for one -----> events -----> request | completed | woken
//!     ^                                                              |
//!     |                                                           advance
//!     +--- replies <--- operations, already in the ring <------------+
//! ```
//!
//! The life of a loop:
//!
//! ```text
//!   serving   the kernel has a command for each tag that the server does not own
//!      |  STOP_DEV: the kernel waits for all replies, then gives every command back
//!   stopped   no commands; the server's own operations go on
//!      |  the server is idle
//!     end
//! ```
//!
//! When the server leaves, or on an error, the loop ends from `serving`: the commands stay with the
//! kernel, which cancels them when the thread ends and keeps their requests for the next server. In
//! every case it ends only when no operation of the server is in flight, because the memory that these
//! use is freed afterwards.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libublk::io::{BufDesc, BufDescList, UblkDev, UblkQueue};
use libublk::{UblkError, UblkIORes, sys};
use rustix::event::{EventfdFlags, eventfd};
use tracing::{debug, error};

use super::error::Error;
use super::memory::TagBuffers;
use super::request::{Bounds, Refusal, parse};
use super::ring::{AbortOnPanic, Owner, Ring, block_signals, passes};
use super::{FileSlot, Server, WriteMode};
use crate::engine::port::{Memory, Segment};
use crate::engine::request::{Errno, Op, Outcome, Request, Tag, Unmap};

/// The only queue there is.
const QUEUE: u16 = 0;

/// How a loop ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The device was stopped, by this process or another one.
    Stopped,
    /// The server left it for a takeover.
    Left,
}

/// What the queue thread shares with the others: a way to wake it and its signs of life.
#[derive(Debug)]
pub(super) struct Shared {
    wake: OwnedFd,
    began: Instant,
    /// When the oldest request came that waits for its reply, in microseconds after `began`, plus 1;
    /// 0 if none waits. As of the last tick.
    oldest: AtomicU64,
    /// When the last turn ended, in microseconds after `began`.
    turn: AtomicU64,
}

impl Shared {
    /// A thread's clock begins here.
    pub fn new() -> Result<Shared, std::io::Error> {
        Ok(Shared {
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            began: Instant::now(),
            oldest: AtomicU64::new(0),
            turn: AtomicU64::new(0),
        })
    }
}

/// Wakes a queue thread from any other thread.
#[derive(Clone, Debug)]
pub struct Waker(pub(super) Arc<Shared>);

impl Waker {
    /// Makes the loop call [`Server::woken`] soon. Several calls may end in one.
    pub fn wake(&self) {
        // Any number but 0 will do, in whatever order of bytes.
        match rustix::io::write(&self.0.wake, &1_u64.to_le_bytes()) {
            // The counter is full: the thread has not even seen the last 2^64 - 2 calls.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
            Err(error) => unreachable!("an eventfd takes eight bytes: {error}"),
        }
    }
}

/// What a watchdog may look at from outside, at any time.
#[derive(Clone, Debug)]
pub struct Health(pub(super) Arc<Shared>);

impl Health {
    /// How long the oldest request has been waiting for its reply. Which one that is, is as of the last
    /// tick, so a request younger than that may be missing.
    pub fn oldest_owned(&self) -> Option<Duration> {
        match self.0.oldest.load(Ordering::Relaxed) {
            0 => None,
            since => Some(self.age(since - 1)),
        }
    }

    /// How long ago the queue thread ended a turn: not much longer than a tick while it is alive.
    pub fn last_turn(&self) -> Duration {
        self.age(self.0.turn.load(Ordering::Relaxed))
    }

    fn age(&self, since: u64) -> Duration {
        self.0
            .began
            .elapsed()
            .saturating_sub(Duration::from_micros(since))
    }
}

/// A request that the server owns.
#[derive(Clone, Copy)]
struct Owned {
    since: Duration,
    /// What the kernel wants to hear when all of it was done.
    done: i32,
}

/// What is known of a tag.
#[derive(Clone, Copy, Default)]
struct TagState {
    owned: Option<Owned>,
    /// Operations in flight that use its buffer.
    operations: u32,
}

/// Everything that goes out during a turn.
struct Outgoing {
    ring: Ring,
    tags: Box<[TagState]>,
    /// Results in the order in which they will reach the kernel.
    replies: Vec<(Tag, i32)>,
}

impl Outgoing {
    fn owned(&self, tag: Tag) -> Owned {
        self.tags[tag.index()]
            .owned
            .expect("the server owns the tag")
    }

    fn reply(&mut self, tag: Tag, result: i32) {
        let state = &mut self.tags[tag.index()];
        assert!(state.owned.is_some(), "tag {} is answered once", tag.0);
        assert_eq!(
            state.operations, 0,
            "no operation uses the buffer of tag {} when it is answered",
            tag.0
        );
        state.owned = None;
        self.replies.push((tag, result));
    }

    /// The tags whose buffers an operation uses, counted up.
    fn use_tags(&mut self, segments: &[Segment]) {
        for segment in segments {
            if let Memory::Buffer(tag, _) = segment.memory {
                assert!(
                    self.tags[tag.index()].owned.is_some(),
                    "an operation uses the buffer of an owned tag"
                );
                self.tags[tag.index()].operations += 1;
            }
        }
    }

    /// An operation has completed: its id and the buffers it used are free.
    fn release(&mut self, id: u32) {
        for segment in self.ring.segments_of(id) {
            if let Memory::Buffer(tag, _) = segment.memory {
                self.tags[tag.index()].operations -= 1;
            }
        }
        self.ring.release(id);
    }

    fn oldest(&self) -> Option<Duration> {
        self.tags
            .iter()
            .filter_map(|tag| tag.owned)
            .map(|owned| owned.since)
            .min()
    }
}

/// Where a server puts its operations and replies.
#[expect(
    missing_debug_implementations,
    reason = "it lives for one call and holds buffers"
)]
pub struct Output<'a> {
    outgoing: &'a mut Outgoing,
    buffers: &'a mut TagBuffers,
}

impl Output<'_> {
    /// What the kernel put into a tag's buffer: the data of a write. All of the buffer, `max_io` bytes,
    /// whatever the request.
    pub fn tag_buffer(&self, tag: Tag) -> &[u8] {
        self.outgoing.owned(tag);
        self.buffers.bytes(tag)
    }

    /// The buffer that the reply to a read takes its data from.
    pub fn tag_buffer_mut(&mut self, tag: Tag) -> &mut [u8] {
        self.outgoing.owned(tag);
        let operations = self.outgoing.tags[tag.index()].operations;
        assert_eq!(
            operations, 0,
            "the buffer of tag {} is not in flight",
            tag.0
        );
        self.buffers.bytes_mut(tag)
    }

    /// A piece of that buffer, while operations on other pieces of it may be in flight. That none of them
    /// touches this one is the server's promise.
    pub fn tag_piece_mut(&mut self, tag: Tag, piece: Range<usize>) -> &mut [u8] {
        self.outgoing.owned(tag);
        self.buffers.piece_mut(tag, piece)
    }

    /// Reads from a file into the segments, one after the other.
    pub fn read(&mut self, id: u32, file: FileSlot, offset: u64, segments: &[Segment]) {
        self.outgoing.use_tags(segments);
        self.outgoing
            .ring
            .read(id, file, offset, segments, self.buffers);
    }

    /// Writes the segments, one after the other.
    pub fn write(
        &mut self,
        id: u32,
        file: FileSlot,
        offset: u64,
        segments: &[Segment],
        mode: WriteMode,
    ) {
        self.outgoing.use_tags(segments);
        self.outgoing
            .ring
            .write(id, file, offset, segments, mode, self.buffers);
    }

    /// Makes everything durable that was completed on the file before (`fdatasync`).
    pub fn flush(&mut self, id: u32, file: FileSlot) {
        self.outgoing.ring.flush(id, file);
    }

    /// Pretends to have flushed.
    #[cfg(feature = "broken-flush")]
    pub fn pretend_to_flush(&mut self, id: u32) {
        self.outgoing.ring.nothing(id);
    }

    /// Zeroes a range without writing it: a hole where the space may go, else allocated zeroes.
    pub fn zero(&mut self, id: u32, file: FileSlot, offset: u64, length: u64, unmap: Unmap) {
        self.outgoing.ring.zero(id, file, offset, length, unmap);
    }

    /// Answers the request that came in this tag. Replies reach the kernel in the order given, after all
    /// operations of the turn.
    pub fn reply(&mut self, tag: Tag, outcome: Outcome) {
        let result = match outcome {
            Outcome::Done => self.outgoing.owned(tag).done,
            Outcome::Failed(errno) => as_result(errno),
        };
        self.outgoing.reply(tag, result);
    }
}

/// An error as the driver wants it. EAGAIN, which a disk may have answered, would make the block layer
/// put the request back as if it had never been given.
fn as_result(errno: Errno) -> i32 {
    assert!(errno.0 > 0, "an error number is positive");
    if errno.0 == libc::EAGAIN {
        -Errno::IO.0
    } else {
        -errno.0
    }
}

/// Whether the kernel has commands of ours.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Commands {
    With,
    Without,
}

/// All that the loop works on.
struct Queue<'a> {
    commands: UblkQueue<'a>,
    state: Commands,
    /// Commands that the kernel has.
    out: u32,
    bounds: Bounds,
    outgoing: Outgoing,
    buffers: &'a mut TagBuffers,
    shared: &'a Shared,
    /// What the last enter brought; its memory is kept.
    events: Vec<(u64, i32)>,
}

/// Serves `device` on the calling thread, which must be new and is used up: its ring cannot be made twice.
/// Calls `ready` once the kernel has all commands, so that the device may be started.
pub(super) fn run<S: Server>(
    device: &UblkDev,
    server: &mut S,
    buffers: &mut TagBuffers,
    shared: &Shared,
    bounds: Bounds,
    ready: impl FnOnce(),
) -> Result<End, Error> {
    let _guard = AbortOnPanic;
    let mut queue = Queue::new(device, server, buffers, shared, bounds)?;
    ready();
    let result = queue.serve(server);
    if result.is_err() {
        queue.drain();
    }
    result
}

impl<'a> Queue<'a> {
    /// Sets the thread and its ring up and gives the kernel one command for each tag.
    fn new<S: Server>(
        device: &'a UblkDev,
        server: &S,
        buffers: &'a mut TagBuffers,
        shared: &'a Shared,
        bounds: Bounds,
    ) -> Result<Queue<'a>, Error> {
        block_signals().map_err(|source| Error::Thread {
            what: "blocking signals",
            source,
        })?;
        // An allocation on this thread must never wait for dirty pages of our own device to be written.
        rustix::process::configure_io_flusher_behavior(true).map_err(|error| Error::IoFlusher {
            source: error.into(),
        })?;

        let needs = server.needs();
        let depth = device.dev_info.queue_depth;
        let mut ring = Ring::new(depth, needs.operations, needs.segments)
            .map_err(|source| Error::IoUring { source })?;
        let commands =
            UblkQueue::new(QUEUE, device).map_err(|error| Error::command("queue set-up", error))?;
        let thread = |what| move |source| Error::Thread { what, source };
        ring.register_files(device.tgt.fds[0], &needs.files)
            .map_err(thread("registering files"))?;
        if let Some(arena) = needs.arena {
            ring.use_arena(arena);
        }
        let commands = commands
            .submit_fetch_commands_unified(BufDescList::Slices(Some(buffers.as_libublk())))
            .map_err(|error| Error::command("FETCH_REQ", error))?;
        ring.submit().map_err(thread("submitting commands"))?;
        // A command that the driver refuses comes back at once. It would leave START_DEV waiting for ever.
        let mut refused = None;
        ring.reap(|_, result| refused = Some(result));
        if let Some(result) = refused {
            return Err(Error::refused("FETCH_REQ", result));
        }
        ring.arm_wake(shared.wake.as_fd());
        ring.arm_tick(server.tick());

        let in_flight = ring.capacity();
        Ok(Queue {
            commands,
            state: Commands::With,
            out: u32::from(depth),
            bounds,
            outgoing: Outgoing {
                ring,
                tags: vec![TagState::default(); usize::from(depth)].into_boxed_slice(),
                replies: Vec::with_capacity(usize::from(depth)),
            },
            buffers,
            shared,
            events: Vec::with_capacity(in_flight),
        })
    }

    /// One turn after the other until the end.
    fn serve<S: Server>(&mut self, server: &mut S) -> Result<End, Error> {
        loop {
            self.enter(if server.wants_turn() { 0 } else { 1 })?;
            let now = self.shared.began.elapsed();
            let ticked = self.hand_over(server, now)?;
            if self.state == Commands::With && self.out == 0 && self.commands.is_stopping() {
                debug!("the kernel has taken its commands back");
                self.state = Commands::Without;
                server.stopped(now);
            }
            let mut output = Output {
                outgoing: &mut self.outgoing,
                buffers: self.buffers,
            };
            server.advance(&mut output, now);
            self.push_replies();
            if ticked {
                self.outgoing.ring.arm_tick(server.tick());
            }
            self.show_signs_of_life(now, ticked);
            if let Some(end) = self.end(server)? {
                return Ok(end);
            }
        }
    }

    /// Submits everything and waits for `want` events. Libublk does it while it has commands out.
    fn enter(&mut self, want: usize) -> Result<(), Error> {
        self.events.clear();
        let events = &mut self.events;
        if self.state == Commands::With {
            let entered = self.commands.flush_and_wake_io_tasks(
                |user_data, completion, _last| events.push((user_data, completion.result())),
                want,
            );
            return match entered {
                Ok(_) => Ok(()),
                Err(UblkError::IOError(error)) if passes(&error) => Ok(()),
                // Its way to say that it has no commands out. We count them ourselves: it says so only if
                // nothing waits to be submitted, and a tick may always do.
                Err(UblkError::QueueIsDown) => unreachable!("the loop has seen the last command"),
                Err(other) => Err(Error::command("queue loop", other)),
            };
        }
        self.outgoing
            .ring
            .enter(want, |user_data, result| events.push((user_data, result)))
            .map_err(|source| Error::Thread {
                what: "waiting for events",
                source,
            })
    }

    /// Gives the server what came. Says whether the clock rang.
    fn hand_over<S: Server>(&mut self, server: &mut S, now: Duration) -> Result<bool, Error> {
        let mut ticked = false;
        for n in 0..self.events.len() {
            let (user_data, result) = self.events[n];
            match Owner::of(user_data) {
                Owner::Operation(id) => {
                    self.outgoing.release(id);
                    server.completed(id, result, now);
                }
                Owner::Command(tag) => self.command_ended(server, tag, result, now)?,
                Owner::Tick => ticked = true,
                Owner::Wake => {
                    self.hear_wake();
                    server.woken(now);
                }
            }
        }
        Ok(ticked)
    }

    /// A command came back: with a request, or for good.
    fn command_ended<S: Server>(
        &mut self,
        server: &mut S,
        tag: Tag,
        result: i32,
        now: Duration,
    ) -> Result<(), Error> {
        self.out -= 1;
        match result {
            0 => self.accept(server, tag, now),
            sys::UBLK_IO_RES_ABORT => {}
            _ if self.commands.is_stopping() => {
                debug!(tag = tag.0, result, "command ended while stopping");
            }
            _ => return Err(Error::refused("COMMIT_AND_FETCH_REQ", result)),
        }
        Ok(())
    }

    fn accept<S: Server>(&mut self, server: &mut S, tag: Tag, now: Duration) {
        // The kernel rewrites the descriptor once the request is answered, so it is read here only.
        let descriptor = *self.commands.get_iod(tag.0);
        let state = &mut self.outgoing.tags[tag.index()];
        assert!(
            state.owned.is_none(),
            "the kernel uses tag {} once at a time",
            tag.0
        );
        match parse(&descriptor, tag, self.bounds) {
            Ok(request) => {
                state.owned = Some(Owned {
                    since: now,
                    done: done_result(&request),
                });
                server.request(request, now);
            }
            Err(refusal) => {
                error!(tag = tag.0, %refusal, "request refused");
                state.owned = Some(Owned {
                    since: now,
                    done: 0,
                });
                let errno = match refusal {
                    Refusal::Operation { .. } => Errno::NOT_SUPPORTED,
                    Refusal::Range { .. } | Refusal::Length { .. } => Errno::IO,
                };
                self.outgoing.reply(tag, as_result(errno));
            }
        }
    }

    /// Empties the eventfd and waits on it again: in this order, so that a call in between is not lost.
    fn hear_wake(&mut self) {
        let mut counter = [0; 8];
        match rustix::io::read(&self.shared.wake, &mut counter) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
            Err(error) => unreachable!("an eventfd gives eight bytes: {error}"),
        }
        self.outgoing.ring.arm_wake(self.shared.wake.as_fd());
    }

    fn push_replies(&mut self) {
        for (tag, result) in self.outgoing.replies.drain(..) {
            // Once the kernel takes its commands back, libublk drops what is given here.
            if !self.commands.is_stopping() {
                self.out += 1;
            }
            let buffer = BufDesc::Slice(self.buffers.bytes(tag));
            let committed =
                self.commands
                    .complete_io_cmd_unified(tag.0, buffer, Ok(UblkIORes::Result(result)));
            assert!(
                committed.is_ok(),
                "a tag's own buffer is what libublk expects"
            );
        }
    }

    fn show_signs_of_life(&self, now: Duration, ticked: bool) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).expect("584000 years");
        self.shared.turn.store(micros(now), Ordering::Relaxed);
        if ticked {
            let oldest = self.outgoing.oldest().map_or(0, |since| micros(since) + 1);
            self.shared.oldest.store(oldest, Ordering::Relaxed);
        }
    }

    /// Whether this was the last turn.
    fn end<S: Server>(&mut self, server: &S) -> Result<Option<End>, Error> {
        let end = match self.state {
            Commands::Without => End::Stopped,
            Commands::With if server.leaves() => End::Left,
            Commands::With => return Ok(None),
        };
        if !server.is_idle() {
            return Ok(None);
        }
        assert_eq!(
            self.outgoing.ring.operations_in_flight(),
            0,
            "an idle server has no operation in flight"
        );
        // The replies of this turn.
        self.outgoing
            .ring
            .submit()
            .map_err(|source| Error::Thread {
                what: "submitting the last replies",
                source,
            })?;
        Ok(Some(end))
    }

    /// Waits for the server's operations without telling it, after an error. What they use is freed next, so
    /// if not even that is possible the process has to end.
    fn drain(&mut self) {
        let outgoing = &mut self.outgoing;
        while outgoing.ring.operations_in_flight() > 0 {
            let events = &mut self.events;
            events.clear();
            outgoing
                .ring
                .enter(1, |user_data, result| events.push((user_data, result)))
                .expect("the ring can be entered");
            for (user_data, _) in events.drain(..) {
                if let Owner::Operation(id) = Owner::of(user_data) {
                    outgoing.release(id);
                }
            }
        }
    }
}

/// What the driver wants to hear of a request that was done: all bytes of a READ or WRITE, never fewer,
/// since some kernels take a short write for a whole one.
fn done_result(request: &Request) -> i32 {
    match request.op {
        Op::Read | Op::Write => i32::try_from(u64::from(request.sectors) * crate::units::SECTOR)
            .expect("at most `max_io` bytes"),
        Op::Flush | Op::Discard | Op::WriteZeroes(_) => 0,
    }
}
