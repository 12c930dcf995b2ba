//! Operations in flight: who waits for each, what is left of it, and how pieces become operations.
//!
//! Everything that the engine sends to a part goes through [`Ios`]. It owns three rules:
//!
//! * No operation is larger than its part takes in one request: a larger one would be split by the
//!   kernel on a worker thread.
//! * A transfer is whole or failed. A short one is continued where it ended; `EAGAIN` and `EINTR` are
//!   tried again a few times.
//! * Adjacent pieces on one part become one operation ([`Ios::gather`], [`Ios::finish`]).

use super::port::{IoId, Memory, Operation, Port, SEGMENTS_MAX, Segment, Space, Sync};
use super::request::{Errno, Tag};
use super::settings::{PartLimits, SyncWrite};
use crate::disk::DiskOp;
use crate::disk::raid0::Piece;
use crate::journal::FRAME_LEN;
use crate::units::{Lba, Offset, PartIndex, Pos, SECTOR, round_down, to_u64, to_usize};

/// Who waits for an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// A READ of what is at home.
    HomeRead { tag: Tag },
    /// A READ of what is in the journal and no longer in the window.
    JournalRead(JournalRead),
    /// A piece of the record with this number.
    Record { number: u64 },
    /// A flush of the journal.
    JournalFlush,
    /// The anchor.
    Anchor,
    /// A piece of the ring on its way into the window for replay.
    Load,
    /// Replay's writes.
    Home,
    /// Replay's zeroing without writing.
    HomeZeroes(Space),
    /// Replay's flush.
    MemberFlush,
}

/// One run of journaled bytes on its way to a READ, through a bounce buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct JournalRead {
    pub(super) tag: Tag,
    /// Which bounce buffer holds the frames.
    pub(super) bounce: u16,
    /// The frame that the buffer begins with.
    pub(super) first_frame: Pos,
    /// Frames in the buffer.
    pub(super) frames: u16,
    /// Where in the ring the wanted bytes begin.
    pub(super) pos: Pos,
    /// What is wanted.
    pub(super) lba: Lba,
    pub(super) sectors: u32,
    pub(super) attempt: Attempt,
}

/// What is not what was written, or cannot be read, is read once more and no more often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attempt {
    First,
    Second,
}

/// Reading or writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transfer {
    Read,
    Write(Sync),
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Transfer(Transfer),
    Flush,
    Zero { len: u64, space: Space },
}

/// One operation, or one being put together.
#[derive(Clone, Copy, Debug)]
struct Io {
    purpose: Purpose,
    part: PartIndex,
    work: Work,
    offset: Offset,
    segments: [Segment; SEGMENTS_MAX],
    count: usize,
    /// Pages that the segments lie in.
    pages: usize,
    len: u64,
    /// How often it has failed, and how often the part was busy.
    attempts: u8,
    busy_attempts: u8,
}

const NOTHING: Segment = Segment {
    memory: Memory::Arena(0),
    len: 0,
};

impl Io {
    fn new(purpose: Purpose, part: PartIndex, work: Work, offset: Offset) -> Io {
        Io {
            purpose,
            part,
            work,
            offset,
            segments: [NOTHING; SEGMENTS_MAX],
            count: 0,
            pages: 0,
            len: 0,
            attempts: 0,
            busy_attempts: 0,
        }
    }

    fn op(&self) -> DiskOp {
        match self.work {
            Work::Transfer(Transfer::Read) => DiskOp::Read,
            Work::Transfer(Transfer::Write(_)) => DiskOp::Write,
            Work::Flush => DiskOp::Flush,
            Work::Zero { .. } => DiskOp::Zero,
        }
    }

    fn operation(&self) -> Operation<'_> {
        let segments = &self.segments[..self.count];
        match self.work {
            Work::Transfer(Transfer::Read) => Operation::Read {
                offset: self.offset,
                segments,
            },
            Work::Transfer(Transfer::Write(sync)) => Operation::Write {
                offset: self.offset,
                segments,
                sync,
            },
            Work::Flush => Operation::Flush,
            Work::Zero { len, space } => Operation::Zero {
                offset: self.offset,
                len,
                space,
            },
        }
    }

    /// Whether it asks the part for a flush, or may: its failure may then be that of a flush.
    fn may_flush(&self, limits: &PartLimits) -> bool {
        match self.work {
            Work::Flush => true,
            Work::Transfer(Transfer::Write(Sync::Data)) => limits.sync != SyncWrite::Alone,
            Work::Transfer(Transfer::Write(Sync::No) | Transfer::Read) | Work::Zero { .. } => false,
        }
    }

    /// Adds a run of memory, if the part still takes it in the same request.
    fn extend(&mut self, memory: Memory, len: u64, limits: &PartLimits) -> bool {
        if self.len + len > limits.io_max {
            return false;
        }
        let bytes = to_usize(len);
        let last = self
            .count
            .checked_sub(1)
            .filter(|last| after(&self.segments[*last]) == memory);
        let (at, longer) = match last {
            Some(last) => {
                let segment = self.segments[last];
                (
                    last,
                    Segment {
                        len: segment.len + bytes,
                        ..segment
                    },
                )
            }
            None => (self.count, Segment { memory, len: bytes }),
        };
        let pages =
            self.pages - last.map_or(0, |last| pages_of(&self.segments[last])) + pages_of(&longer);
        if at == limits.segments_max.min(SEGMENTS_MAX) || pages > limits.pages_max {
            return false;
        }
        self.segments[at] = longer;
        self.count = at + 1;
        self.pages = pages;
        self.len += len;
        true
    }

    /// Takes `done` bytes off the front.
    fn advance(&mut self, done: u64) {
        assert!(done < self.len);
        self.offset = self.offset.plus(done);
        self.len -= done;
        let mut left = to_usize(done);
        let mut kept = 0;
        for i in 0..self.count {
            let mut segment = self.segments[i];
            let cut = left.min(segment.len);
            left -= cut;
            if cut < segment.len {
                segment.memory = shifted(segment.memory, cut);
                segment.len -= cut;
                self.segments[kept] = segment;
                kept += 1;
            }
        }
        self.count = kept;
        self.pages = self.segments[..kept].iter().map(pages_of).sum();
    }
}

/// Bytes from the beginning of its page. The arena and the tags' buffers begin with one.
fn within_page(memory: Memory) -> usize {
    match memory {
        Memory::Arena(at) | Memory::Buffer(_, at) => at % FRAME_LEN,
    }
}

fn pages_of(segment: &Segment) -> usize {
    (within_page(segment.memory) + segment.len).div_ceil(FRAME_LEN)
}

fn after(segment: &Segment) -> Memory {
    shifted(segment.memory, segment.len)
}

/// The memory `bytes` further on.
pub(super) fn shifted(memory: Memory, bytes: usize) -> Memory {
    match memory {
        Memory::Arena(at) => Memory::Arena(at + bytes),
        Memory::Buffer(tag, at) => Memory::Buffer(tag, at + bytes),
    }
}

/// What became of an operation's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// It goes on under the same number.
    GoesOn,
    /// It is over.
    Over(Purpose, PartIndex, Result<(), Errno>),
}

/// The last operation of a part that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// What was asked.
    pub op: DiskOp,
    /// Where.
    pub offset: Offset,
    /// Why not.
    pub errno: Errno,
    /// How many have failed there so far.
    pub count: u64,
}

/// All operations in flight.
#[derive(Debug)]
pub(super) struct Ios {
    limits: Vec<PartLimits>,
    /// Which parts have refused to zero a range and keep its space. Some filesystems can only punch holes.
    frees_only: Vec<bool>,
    slots: Vec<Option<Io>>,
    free: Vec<u16>,
    /// Operations being put together, one for each part.
    drafts: Vec<Option<IoId>>,
    drafted: Vec<PartIndex>,
    /// Operations that were begun since [`Ios::finish`] was called last.
    begun: u32,
    /// For each part, what has failed there.
    troubles: Vec<Option<Trouble>>,
}

/// How often a write to the journal is tried at the same place.
const JOURNAL_ATTEMPTS: u8 = 4;
/// How often an operation is tried again that the kernel had no room for.
const BUSY_ATTEMPTS: u8 = 64;

impl Ios {
    pub(super) fn new(count: u16, limits: Vec<PartLimits>) -> Ios {
        let parts = limits.len();
        Ios {
            limits,
            frees_only: vec![false; parts],
            slots: vec![None; usize::from(count)],
            free: (0..count).rev().collect(),
            drafts: vec![None; parts],
            drafted: Vec::with_capacity(parts),
            begun: 0,
            troubles: vec![None; parts],
        }
    }

    /// How many more operations can begin.
    pub(super) fn available(&self) -> usize {
        self.free.len()
    }

    /// How many are in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether a part zeroes a range without writing it.
    pub(super) fn zeroes(&self, part: PartIndex, space: Space) -> bool {
        self.limits[part.index()].zeroes
            && (space == Space::Freed || !self.frees_only[part.index()])
    }

    /// Notes that a part cannot do so after all.
    pub(super) fn cannot_zero(&mut self, part: PartIndex, space: Space) {
        match space {
            Space::Freed => self.limits[part.index()].zeroes = false,
            Space::Kept => self.frees_only[part.index()] = true,
        }
    }

    /// Adds `piece`, with its memory, to the operation being put together for its part.
    pub(super) fn gather(
        &mut self,
        port: &mut impl Port,
        transfer: Transfer,
        purpose: Purpose,
        piece: Piece,
        memory: Memory,
    ) {
        let Piece {
            part,
            mut offset,
            mut len,
            ..
        } = piece;
        let mut memory = memory;
        let limits = self.limits[part.index()];
        while len > 0 {
            let in_pages = limits.pages_max * FRAME_LEN - within_page(memory);
            let step = len.min(limits.io_max).min(to_u64(in_pages));
            let fits = self.drafts[part.index()].is_some_and(|id| {
                let draft = self.io(id);
                draft.offset.plus(draft.len) == offset && draft.extend(memory, step, &limits)
            });
            if !fits {
                self.submit_draft(port, part);
                let id = self.begin(purpose, part, Work::Transfer(transfer), offset);
                let fits = self.io(id).extend(memory, step, &limits);
                assert!(fits, "one step always fits an empty operation");
                self.drafts[part.index()] = Some(id);
                self.drafted.push(part);
                self.begun += 1;
            }
            offset = offset.plus(step);
            memory = shifted(memory, to_usize(step));
            len -= step;
        }
    }

    /// Sends what has been gathered; returns how many operations began since the last call.
    pub(super) fn finish(&mut self, port: &mut impl Port) -> u32 {
        while let Some(part) = self.drafted.last().copied() {
            self.submit_draft(port, part);
        }
        std::mem::take(&mut self.begun)
    }

    fn submit_draft(&mut self, port: &mut impl Port, part: PartIndex) {
        if let Some(id) = self.drafts[part.index()].take() {
            self.drafted.retain(|drafted| *drafted != part);
            self.submit(port, id);
        }
    }

    /// How many operations began since the last [`Ios::finish`], those that are being put together included.
    pub(super) fn begun(&self) -> u32 {
        self.begun
    }

    /// Flushes one part. Not counted by [`Ios::finish`]: who flushes knows how many parts there are.
    pub(super) fn flush(&mut self, port: &mut impl Port, part: PartIndex, purpose: Purpose) {
        let id = self.begin(purpose, part, Work::Flush, Offset(0));
        self.submit(port, id);
    }

    /// Zeroes a range without writing it.
    pub(super) fn zero(
        &mut self,
        port: &mut impl Port,
        part: PartIndex,
        offset: Offset,
        len: u64,
        space: Space,
    ) {
        let purpose = Purpose::HomeZeroes(space);
        let id = self.begin(purpose, part, Work::Zero { len, space }, offset);
        self.submit(port, id);
        self.begun += 1;
    }

    /// What has failed on each part, where something has.
    pub(super) fn troubles(&self) -> impl Iterator<Item = (PartIndex, Trouble)> + '_ {
        let parts = (0..).map(PartIndex).zip(&self.troubles);
        parts.filter_map(|(part, trouble)| Some((part, (*trouble)?)))
    }

    fn note_trouble(&mut self, part: PartIndex, op: DiskOp, offset: Offset, errno: Errno) {
        // A part that cannot zero without writing is not ill.
        if (op, errno) == (DiskOp::Zero, Errno::NOT_SUPPORTED) {
            return;
        }
        let before = self.troubles[part.index()].map_or(0, |trouble| trouble.count);
        self.troubles[part.index()] = Some(Trouble {
            op,
            offset,
            errno,
            count: before + 1,
        });
    }

    /// Takes a slot, in which an operation is put together and stays until it ends.
    fn begin(&mut self, purpose: Purpose, part: PartIndex, work: Work, offset: Offset) -> IoId {
        let id = IoId(
            self.free
                .pop()
                .expect("nobody begins more than `available` operations"),
        );
        self.slots[id.index()] = Some(Io::new(purpose, part, work, offset));
        id
    }

    fn io(&mut self, id: IoId) -> &mut Io {
        self.slots[id.index()]
            .as_mut()
            .expect("it was begun and has not ended")
    }

    fn submit(&mut self, port: &mut impl Port, id: IoId) {
        let io = self.io(id);
        port.submit(id, io.part, io.operation());
    }

    /// Takes note of an operation's end.
    pub(super) fn ended(
        &mut self,
        port: &mut impl Port,
        id: IoId,
        result: Result<u64, Errno>,
    ) -> Ended {
        let io = self.slots[id.index()]
            .as_mut()
            .expect("only operations in flight end");
        let whole = match io.work {
            Work::Transfer(_) => io.len,
            Work::Flush | Work::Zero { .. } => 0,
        };
        let failed = match result {
            Ok(done) if done >= whole => None,
            // A part that ends within a sector is continued from that sector: direct I/O knows no smaller
            // step.
            Ok(done) if done < SECTOR => Some(Errno::IO),
            Ok(done) => {
                io.advance(round_down(done, SECTOR));
                port.submit(id, io.part, io.operation());
                return Ended::GoesOn;
            }
            Err(errno) => Some(errno),
        };
        if let Some(errno) = failed {
            let busy = errno == Errno::AGAIN || errno == Errno::INTERRUPTED;
            // Each has its own count: who was busy for a while has not failed yet.
            let attempts = if busy {
                &mut io.busy_attempts
            } else {
                &mut io.attempts
            };
            *attempts = attempts.saturating_add(1);
            let attempts = *attempts;
            let limit = match io.purpose {
                // After a failed flush nothing is known, so it is never asked again. A durable write that
                // may have been a flush as well is one.
                _ if io.may_flush(&self.limits[io.part.index()]) => 1,
                _ if busy => BUSY_ATTEMPTS,
                Purpose::Record { .. } | Purpose::Anchor => JOURNAL_ATTEMPTS,
                Purpose::Load => 2,
                Purpose::HomeRead { .. }
                | Purpose::JournalRead(_)
                | Purpose::Home
                | Purpose::HomeZeroes(_)
                | Purpose::JournalFlush
                | Purpose::MemberFlush => 1,
            };
            if attempts < limit {
                port.submit(id, io.part, io.operation());
                return Ended::GoesOn;
            }
        }
        let (purpose, part) = (io.purpose, io.part);
        if let Some(errno) = failed {
            let (op, offset) = (io.op(), io.offset);
            self.note_trouble(part, op, offset, errno);
        }
        self.slots[id.index()] = None;
        self.free.push(id.0);
        Ended::Over(purpose, part, failed.map_or(Ok(()), Err))
    }

    pub(super) fn check_invariants(&self) {
        assert!(self.drafted.is_empty(), "what was gathered was sent");
        assert_eq!(
            self.slots.iter().flatten().count() + self.free.len(),
            self.slots.len()
        );
        for io in self.slots.iter().flatten() {
            assert!(io.len <= self.limits[io.part.index()].io_max);
            let sum: usize = io.segments[..io.count].iter().map(|s| s.len).sum();
            assert_eq!(to_u64(sum), io.len);
        }
    }
}
