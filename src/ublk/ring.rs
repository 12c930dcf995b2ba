//! The queue thread's ring and the memory that the kernel reads and writes through it.
//!
//! Libublk keeps one ring for each thread and puts its commands there; the server's operations share
//! it, so that one system call submits and waits for both. This file makes that ring, registers files
//! and memory with it, and builds one submission for each operation:
//!
//! ```text
//!   one segment of registered arena    READ_FIXED, WRITE_FIXED
//!   one other segment                  READ, WRITE
//!   several segments                   READV, WRITEV, with the vector kept until the completion
//! ```
//!
//! It holds unsafe code because the kernel is given addresses and goes on using them after the call has
//! returned, which no borrow can express. It is sound because all memory of requests and servers outlives
//! the ring (`memory.rs` says why), and the vectors and the clock's time live in the [`Ring`], which ends
//! the process rather than free them while an operation is in flight.
//!
//! The ring has room for everything that may be in flight at once, so neither of its queues can overflow.

#![expect(
    unsafe_code,
    reason = "the kernel is given addresses that it uses after the call has returned"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, Fixed, FsyncFlags, Timespec};
use io_uring::{IoUring, opcode};
use libublk::{
    UblkError, UblkUringData, ublk_init_task_ring, with_task_io_ring, with_task_io_ring_mut,
};
use tracing::warn;

use super::memory::{ArenaAddress, TagBuffers};
use super::{FileSlot, WriteMode};
use crate::disk::buffer::Arena;
use crate::engine::port::{Memory, Segment};
use crate::engine::request::{Tag, Unmap};
use crate::units::to_usize;

/// The most submissions that the kernel lets one ring hold.
const ENTRIES_MAX: u32 = 32768;

/// The most bytes that the kernel takes as one registered buffer. A larger arena is registered in
/// pieces of this size.
const REGISTERED_PIECE: usize = 1 << 30;

/// Marks a completion as one of ours. Libublk counts any other as a command of its own.
const OURS: u64 = UblkUringData::Target as u64;

/// What of ours a completion belongs to: the bits above the operation's id.
const KIND_TICK: u64 = 1 << 32;
const KIND_WAKE: u64 = 2 << 32;

/// What a completion belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// The command of this tag.
    Command(Tag),
    /// An operation of the server.
    Operation(u32),
    /// The clock.
    Tick,
    /// Another thread's wish.
    Wake,
}

impl Owner {
    /// Whom the kernel gave this number back for. All of them were made in this file or by libublk.
    pub fn of(user_data: u64) -> Owner {
        let low = u32::try_from(user_data & 0xffff_ffff).expect("32 bits");
        if user_data & OURS == 0 {
            return Owner::Command(Tag(u16::try_from(low & 0xffff).expect("16 bits")));
        }
        match user_data & !OURS & !0xffff_ffff {
            0 => Owner::Operation(low),
            KIND_TICK => Owner::Tick,
            KIND_WAKE => Owner::Wake,
            other => unreachable!("no submission carries {other:#x}"),
        }
    }
}

/// Ends the process when dropped by a panic: nothing may unwind past memory that the kernel is using.
pub(super) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Keeps signals away from the calling thread: they are the control plane's, and one that interrupts the
/// wait for events costs a turn.
pub(super) fn block_signals() -> io::Result<()> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` only writes the set it is given.
    let filled = unsafe { libc::sigfillset(all.as_mut_ptr()) };
    assert_eq!(filled, 0, "sigfillset cannot fail");
    // SAFETY: the set was filled above; the old set is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// What an operation does with memory.
#[derive(Clone, Copy)]
enum Transfer {
    Read,
    Write(WriteMode),
}

/// The server's side of the thread's ring.
pub(super) struct Ring {
    /// Own files, after libublk's one.
    files: usize,
    /// The server's arena.
    arena: Option<ArenaAddress>,
    /// Bytes of the arena, from its beginning, that are registered.
    registered: usize,
    /// For each id: how many segments are in flight, or `None` if the id is free.
    in_flight: Box<[Option<u32>]>,
    /// For each id: its segments.
    segments: Box<[Segment]>,
    /// For each id: the vector that the kernel reads them from.
    vectors: Box<[libc::iovec]>,
    /// Segments of one operation at most: the stride of the two lists above.
    segments_max: usize,
    /// How many ids are in flight.
    count: usize,
    /// The time until the next tick. The kernel reads it when the submission is taken.
    tick: Box<Timespec>,
}

impl Ring {
    /// Makes the calling thread's ring. It must not have one.
    ///
    /// `DEFER_TASKRUN` wants `TASKRUN_FLAG`: while stopping, libublk enters with nothing to wait for,
    /// and the `io-uring` crate then asks for events only if it sees that flag.
    pub fn new(commands: u16, operations: u32, segments_max: u32) -> Result<Ring, io::Error> {
        // One submission at most for each command, each operation, the tick and the wake-up.
        let entries = (u32::from(commands) + operations + 2).next_power_of_two();
        assert!(
            entries <= ENTRIES_MAX,
            "commands and operations fit into one ring"
        );
        let made = ublk_init_task_ring(|cell| {
            let ring = IoUring::<Entry>::builder()
                .setup_cqsize(entries)
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag()
                .build(entries)
                .map_err(UblkError::IOError)?;
            assert!(
                cell.set(std::cell::RefCell::new(ring)).is_ok(),
                "a queue thread is new"
            );
            Ok(())
        });
        match made {
            Ok(()) => {}
            Err(UblkError::IOError(error)) => return Err(error),
            Err(other) => unreachable!("only the closure fails: {other}"),
        }
        let operations = to_usize(u64::from(operations));
        let segments_max = to_usize(u64::from(segments_max));
        let none = Segment::arena(0, 0);
        let empty = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Ok(Ring {
            files: 0,
            arena: None,
            registered: 0,
            in_flight: vec![None; operations].into_boxed_slice(),
            segments: vec![none; operations * segments_max].into_boxed_slice(),
            vectors: vec![empty; operations * segments_max].into_boxed_slice(),
            segments_max,
            count: 0,
            tick: Box::new(Timespec::new()),
        })
    }

    /// Registers the server's files after `device`, which libublk expects in the first place. Its own
    /// table has room for 31 others, so the table is made anew.
    pub fn register_files(&mut self, device: RawFd, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut table = Vec::with_capacity(1 + files.len());
        table.push(device);
        table.extend(files.iter().map(AsRawFd::as_raw_fd));
        with_task_io_ring(|ring| {
            ring.submitter().unregister_files()?;
            ring.submitter().register_files(&table)
        })?;
        self.files = files.len();
        Ok(())
    }

    /// Takes the arena for [`Segment::Arena`] and registers its memory. If the kernel refuses that, the
    /// arena is used all the same, at the price of looking its pages up each time.
    pub fn use_arena(&mut self, arena: &Arena) {
        let size = arena.len();
        let address = ArenaAddress::new(arena);
        self.arena = Some(address);
        let pieces: Vec<libc::iovec> = (0..size)
            .step_by(REGISTERED_PIECE)
            .map(|offset| {
                let length = REGISTERED_PIECE.min(size - offset);
                libc::iovec {
                    iov_base: address.of(offset, length).cast(),
                    iov_len: length,
                }
            })
            .collect();
        // SAFETY: the arena outlives the ring: see the module's story.
        match with_task_io_ring(|ring| unsafe { ring.submitter().register_buffers(&pieces) }) {
            Ok(()) => self.registered = size,
            Err(error) => warn!(bytes = size, %error, "memory not registered with the ring"),
        }
    }

    /// Hands out completions that are there already, without asking the kernel.
    pub fn reap(&mut self, mut each: impl FnMut(u64, i32)) {
        while let Some(completion) = with_task_io_ring_mut(|ring| ring.completion().next()) {
            each(completion.user_data(), completion.result());
        }
    }

    /// Completions that there may be at once.
    pub fn capacity(&self) -> usize {
        with_task_io_ring(|ring| to_usize(u64::from(ring.params().cq_entries())))
    }

    /// Operations in flight.
    pub fn operations_in_flight(&self) -> usize {
        self.count
    }

    /// The segments of an operation in flight.
    pub fn segments_of(&self, id: u32) -> &[Segment] {
        let first = self.index(id) * self.segments_max;
        let count = self.in_flight[self.index(id)].expect("the operation is in flight");
        &self.segments[first..first + to_usize(u64::from(count))]
    }

    /// Frees the id of an operation that has completed.
    pub fn release(&mut self, id: u32) {
        let ended = self.in_flight[self.index(id)].take();
        assert!(ended.is_some(), "operation {id} completed once");
        self.count -= 1;
    }

    /// Reads into the segments.
    pub fn read(
        &mut self,
        id: u32,
        file: FileSlot,
        offset: u64,
        segments: &[Segment],
        tags: &TagBuffers,
    ) {
        self.transfer(id, file, offset, segments, tags, Transfer::Read);
    }

    /// Writes the segments.
    pub fn write(
        &mut self,
        id: u32,
        file: FileSlot,
        offset: u64,
        segments: &[Segment],
        mode: WriteMode,
        tags: &TagBuffers,
    ) {
        self.transfer(id, file, offset, segments, tags, Transfer::Write(mode));
    }

    /// `fdatasync`.
    pub fn flush(&mut self, id: u32, file: FileSlot) {
        let file = self.file(file);
        self.take(id, &[]);
        self.push(
            opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
            u64::from(id),
        );
    }

    /// Nothing at all, which then ends like everything else.
    #[cfg(feature = "broken-flush")]
    pub fn nothing(&mut self, id: u32) {
        self.take(id, &[]);
        self.push(opcode::Nop::new().build(), u64::from(id));
    }

    /// `fallocate`.
    pub fn zero(&mut self, id: u32, file: FileSlot, offset: u64, length: u64, unmap: Unmap) {
        let file = self.file(file);
        let how = match unmap {
            Unmap::Allowed => libc::FALLOC_FL_PUNCH_HOLE,
            Unmap::Forbidden => libc::FALLOC_FL_ZERO_RANGE,
        };
        self.take(id, &[]);
        self.push(
            opcode::Fallocate::new(file, length)
                .offset(offset)
                .mode(how | libc::FALLOC_FL_KEEP_SIZE)
                .build(),
            u64::from(id),
        );
    }

    /// Sets the clock.
    pub fn arm_tick(&mut self, after: Duration) {
        *self.tick = Timespec::from(after);
        let sqe = opcode::Timeout::new(&raw const *self.tick).build();
        self.push(sqe, KIND_TICK);
    }

    /// Waits for the descriptor to become readable. A poll rather than a read: it needs no memory that
    /// would have to outlive the ring.
    pub fn arm_wake(&mut self, descriptor: BorrowedFd<'_>) {
        let readable = u32::try_from(libc::POLLIN).expect("a small flag");
        let sqe = opcode::PollAdd::new(Fd(descriptor.as_raw_fd()), readable).build();
        self.push(sqe, KIND_WAKE);
    }

    /// Hands everything over to the kernel without waiting.
    pub fn submit(&mut self) -> io::Result<()> {
        while with_task_io_ring_mut(|ring| !ring.submission().is_empty()) {
            match with_task_io_ring(|ring| ring.submit()) {
                Ok(_) => {}
                Err(error) if passes(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Submits, waits for `want` completions and hands all there are to `each`: what libublk does while
    /// it has commands in flight, for the time when it has none.
    pub fn enter(&mut self, want: usize, each: impl FnMut(u64, i32)) -> io::Result<()> {
        match with_task_io_ring(|ring| ring.submit_and_wait(want)) {
            Ok(_) => {}
            Err(error) if passes(&error) => {}
            Err(error) => return Err(error),
        }
        self.reap(each);
        Ok(())
    }

    fn transfer(
        &mut self,
        id: u32,
        file: FileSlot,
        offset: u64,
        segments: &[Segment],
        tags: &TagBuffers,
        transfer: Transfer,
    ) {
        assert!(!segments.is_empty(), "operation {id} has memory");
        let file = self.file(file);
        let flags = match transfer {
            Transfer::Read | Transfer::Write(WriteMode::Plain) => 0,
            Transfer::Write(WriteMode::Dsync) => libc::RWF_DSYNC,
        };
        self.take(id, segments);
        let first = self.index(id) * self.segments_max;
        let mut total = 0;
        for (n, segment) in segments.iter().enumerate() {
            self.vectors[first + n] = self.vector_of(*segment, tags);
            total += segment.len;
        }
        assert!(
            i32::try_from(total).is_ok(),
            "operation {id} is answered by a byte count"
        );
        let base = self.vectors[first].iov_base.cast::<u8>();
        let sqe = if let [segment] = segments {
            let length = u32::try_from(segment.len).expect("asserted above");
            match (transfer, self.registered_as(*segment)) {
                (Transfer::Read, Some(piece)) => opcode::ReadFixed::new(file, base, length, piece)
                    .offset(offset)
                    .build(),
                (Transfer::Read, None) => {
                    opcode::Read::new(file, base, length).offset(offset).build()
                }
                (Transfer::Write(_), Some(piece)) => {
                    opcode::WriteFixed::new(file, base, length, piece)
                        .offset(offset)
                        .rw_flags(flags)
                        .build()
                }
                (Transfer::Write(_), None) => opcode::Write::new(file, base, length)
                    .offset(offset)
                    .rw_flags(flags)
                    .build(),
            }
        } else {
            let vectors = &raw const self.vectors[first];
            let count = u32::try_from(segments.len()).expect("at most `segments_max`");
            match transfer {
                Transfer::Read => opcode::Readv::new(file, vectors, count)
                    .offset(offset)
                    .build(),
                Transfer::Write(_) => opcode::Writev::new(file, vectors, count)
                    .offset(offset)
                    .rw_flags(flags)
                    .build(),
            }
        };
        self.push(sqe, u64::from(id));
    }

    /// Takes a free id and remembers what memory it uses.
    fn take(&mut self, id: u32, segments: &[Segment]) {
        assert!(
            segments.len() <= self.segments_max,
            "operation {id} has few enough segments"
        );
        let index = self.index(id);
        assert!(
            self.in_flight[index].is_none(),
            "operation {id} is not in flight already"
        );
        let first = index * self.segments_max;
        self.segments[first..first + segments.len()].copy_from_slice(segments);
        self.in_flight[index] =
            Some(u32::try_from(segments.len()).expect("at most `segments_max`"));
        self.count += 1;
    }

    fn index(&self, id: u32) -> usize {
        let index = to_usize(u64::from(id));
        assert!(
            index < self.in_flight.len(),
            "operation {id} is below the limit"
        );
        index
    }

    fn file(&self, file: FileSlot) -> Fixed {
        assert!(
            usize::from(file.0) < self.files,
            "file {} is registered",
            file.0
        );
        Fixed(1 + u32::from(file.0))
    }

    fn vector_of(&self, segment: Segment, tags: &TagBuffers) -> libc::iovec {
        assert!(segment.len > 0, "a segment has bytes");
        let base = match segment.memory {
            Memory::Arena(offset) => self
                .arena
                .expect("the server has an arena")
                .of(offset, segment.len),
            Memory::Buffer(tag, offset) => tags.address(tag, offset, segment.len),
        };
        libc::iovec {
            iov_base: base.cast(),
            iov_len: segment.len,
        }
    }

    /// Which registered buffer holds the whole segment.
    fn registered_as(&self, segment: Segment) -> Option<u16> {
        let Memory::Arena(offset) = segment.memory else {
            return None;
        };
        let piece = offset / REGISTERED_PIECE;
        let inside = offset + segment.len <= self.registered.min((piece + 1) * REGISTERED_PIECE);
        inside.then(|| u16::try_from(piece).expect("an arena is less than 64 TiB"))
    }

    /// Puts a submission into the ring. Libublk's ring must not be borrowed.
    fn push(&mut self, sqe: Entry, user_data: u64) {
        let sqe = sqe.user_data(OURS | user_data);
        // SAFETY: the memory that the submission names lives until its completion: see the module's story.
        let pushed = with_task_io_ring_mut(|ring| unsafe { ring.submission().push(&sqe) });
        assert!(
            pushed.is_ok(),
            "the ring has room for everything that may be in flight"
        );
    }
}

impl Drop for Ring {
    /// The kernel must be done with the vectors before they are freed.
    fn drop(&mut self) {
        if self.count > 0 {
            std::process::abort();
        }
    }
}

/// Errors of `io_uring_enter` after which one simply enters again: a signal, or a shortage that passes.
pub(super) fn passes(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME)
    )
}

#[cfg(test)]
mod tests {
    //! Goal: every kind of operation does on a real file what it says, through a real ring.
    //! Method: a fresh thread for each test, since a thread has one ring; a file in memory or on disk.

    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::thread;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::disk::buffer::Residency;

    const FILE: FileSlot = FileSlot(0);
    const SIZE: usize = 1 << 20;

    /// What a test works with.
    struct Bench {
        ring: Ring,
        arena: Arena,
        tags: TagBuffers,
        file: File,
    }

    impl Bench {
        /// Waits for one completion of ours.
        fn complete(&mut self) -> (Owner, i32) {
            let mut completed = Vec::new();
            while completed.is_empty() {
                let each = |user_data, result| completed.push((Owner::of(user_data), result));
                self.ring.enter(1, each).expect("the ring can be entered");
            }
            assert_eq!(completed.len(), 1);
            if let Owner::Operation(id) = completed[0].0 {
                self.ring.release(id);
            }
            completed[0]
        }

        fn on_file(&self, offset: u64, length: usize) -> Vec<u8> {
            let mut bytes = vec![0; length];
            self.file
                .read_exact_at(&mut bytes, offset)
                .expect("the file is long enough");
            bytes
        }
    }

    fn check(test: impl FnOnce(&mut Bench) + Send + 'static) {
        let body = move || {
            let file = tempfile::tempfile().expect("a temporary file");
            file.set_len(SIZE.try_into().expect("small"))
                .expect("its length");
            let arena = Arena::new(64 * 1024, Residency::Locked).expect("memory");
            let tags = TagBuffers::new(2, 16 * 1024).expect("memory");
            let mut ring = Ring::new(2, 4, 3).expect("a ring");
            // Stands for the ublk character device in the first place of the table.
            let other = File::open("/dev/null").expect("/dev/null");
            with_task_io_ring(|ring| ring.submitter().register_files(&[other.as_raw_fd()]))
                .expect("libublk's registration");
            ring.register_files(other.as_raw_fd(), &[file.as_fd()])
                .expect("registration");
            ring.use_arena(&arena);
            test(&mut Bench {
                ring,
                arena,
                tags,
                file,
            });
        };
        if let Err(panic) = thread::spawn(body).join() {
            std::panic::resume_unwind(panic);
        }
    }

    fn pattern(bytes: &mut [u8], seed: u8) {
        for (n, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::try_from(n % 251).expect("small") ^ seed;
        }
    }

    #[test]
    fn one_segment_of_the_arena_goes_to_the_file_and_back() {
        check(|bench| {
            pattern(bench.arena.as_mut_slice(), 1);
            let out = [Segment::arena(4096, 8192)];
            bench
                .ring
                .write(3, FILE, 512, &out, WriteMode::Dsync, &bench.tags);
            assert_eq!(bench.complete(), (Owner::Operation(3), 8192));
            assert_eq!(
                bench.on_file(512, 8192),
                bench.arena.as_slice()[4096..12288]
            );
            let back = [Segment::arena(40960, 8192)];
            bench.ring.read(3, FILE, 512, &back, &bench.tags);
            assert_eq!(bench.complete(), (Owner::Operation(3), 8192));
            let (written, read) = bench.arena.as_slice().split_at(40960);
            assert_eq!(written[4096..12288], read[..8192]);
        });
    }

    #[test]
    fn several_segments_go_out_and_come_in_one_after_the_other() {
        check(|bench| {
            pattern(bench.arena.as_mut_slice(), 2);
            pattern(bench.tags.bytes_mut(Tag(1)), 3);
            let segments = [
                Segment::arena(100, 1000),
                Segment::buffer(Tag(1), 8192, 4096),
                Segment::arena(0, 24),
            ];
            bench
                .ring
                .write(0, FILE, 4096, &segments, WriteMode::Plain, &bench.tags);
            assert_eq!(bench.complete(), (Owner::Operation(0), 5120));
            let mut expected = bench.arena.as_slice()[100..1100].to_vec();
            expected.extend(&bench.tags.bytes(Tag(1))[8192..12288]);
            expected.extend(&bench.arena.as_slice()[..24]);
            assert_eq!(bench.on_file(4096, 5120), expected);

            bench.tags.bytes_mut(Tag(0)).fill(0);
            let back = [
                Segment::buffer(Tag(0), 0, 4096),
                Segment::buffer(Tag(0), 8192, 1024),
            ];
            bench.ring.read(0, FILE, 4096, &back, &bench.tags);
            assert_eq!(bench.complete(), (Owner::Operation(0), 5120));
            assert_eq!(bench.tags.bytes(Tag(0))[..4096], expected[..4096]);
            assert_eq!(bench.tags.bytes(Tag(0))[4096..8192], [0; 4096]);
            assert_eq!(bench.tags.bytes(Tag(0))[8192..9216], expected[4096..]);
        });
    }

    #[test]
    fn zeroing_zeroes_its_range_and_nothing_else() {
        check(|bench| {
            for unmap in [Unmap::Allowed, Unmap::Forbidden] {
                let ones = vec![1; 16384];
                bench.file.write_all_at(&ones, 0).expect("a write");
                bench.ring.zero(1, FILE, 4096, 8192, unmap);
                let (owner, result) = bench.complete();
                assert_eq!(owner, Owner::Operation(1));
                let mut expected = ones;
                // A filesystem in memory has holes but no allocated zeroes.
                if unmap == Unmap::Allowed || result != -libc::EOPNOTSUPP {
                    assert_eq!(result, 0, "{unmap:?}");
                    expected[4096..12288].fill(0);
                }
                assert_eq!(bench.on_file(0, 16384), expected, "{unmap:?}");
            }
        });
    }

    #[test]
    fn a_flush_the_clock_and_a_wake_up_each_come_back_once() {
        check(|bench| {
            bench.ring.flush(2, FILE);
            assert_eq!(bench.complete(), (Owner::Operation(2), 0));
            bench.ring.arm_tick(Duration::from_millis(1));
            assert_eq!(bench.complete(), (Owner::Tick, -libc::ETIME));
            let wake =
                eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
            bench.ring.arm_wake(wake.as_fd());
            rustix::io::write(&wake, &[1; 8]).expect("a wake-up");
            assert_eq!(bench.complete(), (Owner::Wake, i32::from(libc::POLLIN)));
        });
    }

    #[test]
    fn a_read_beyond_the_file_comes_back_short() {
        check(|bench| {
            let segments = [Segment::arena(0, 8192)];
            bench
                .ring
                .read(0, FILE, 1024 * 1024 - 4096, &segments, &bench.tags);
            assert_eq!(bench.complete(), (Owner::Operation(0), 4096));
        });
    }

    #[test]
    #[should_panic(expected = "ends inside the arena")]
    fn a_segment_beyond_the_arena_is_refused() {
        check(|bench| {
            let segments = [Segment::arena(61440, 4097)];
            bench.ring.vector_of(segments[0], &bench.tags);
        });
    }

    #[test]
    #[should_panic(expected = "ends inside its tag's buffer")]
    fn a_segment_beyond_its_buffer_is_refused() {
        check(|bench| {
            let segments = [Segment::buffer(Tag(0), 12288, 8192)];
            bench.ring.vector_of(segments[0], &bench.tags);
        });
    }

    #[test]
    fn more_files_than_libublk_has_room_for_are_told_apart() {
        check(|bench| {
            let files: Vec<File> = (0..40)
                .map(|n| {
                    let file = tempfile::tempfile().expect("a temporary file");
                    file.write_all_at(&[n; 512], 0).expect("a write");
                    file
                })
                .collect();
            let other = File::open("/dev/null").expect("/dev/null");
            let table: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
            bench
                .ring
                .register_files(other.as_raw_fd(), &table)
                .expect("registration");
            for n in [0, 31, 32, 39] {
                let segments = [Segment::arena(0, 512)];
                bench.ring.read(0, FileSlot(n), 0, &segments, &bench.tags);
                assert_eq!(bench.complete(), (Owner::Operation(0), 512));
                assert_eq!(bench.arena.range(0..512), [n; 512]);
            }
        });
    }

    #[test]
    fn a_segment_is_registered_if_one_registered_piece_holds_all_of_it() {
        check(|bench| {
            bench.ring.registered = 3 * REGISTERED_PIECE;
            let registered =
                |offset, length| bench.ring.registered_as(Segment::arena(offset, length));
            assert_eq!(registered(0, REGISTERED_PIECE), Some(0));
            assert_eq!(registered(REGISTERED_PIECE - 512, 1024), None);
            assert_eq!(registered(2 * REGISTERED_PIECE, 4096), Some(2));
            assert_eq!(registered(3 * REGISTERED_PIECE - 512, 1024), None);
            let tag = Segment::buffer(Tag(0), 0, 512);
            assert_eq!(bench.ring.registered_as(tag), None);
        });
    }
}
