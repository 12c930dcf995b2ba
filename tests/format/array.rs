//! An array that the real code labels, starts, serves and leaves: over disks in memory, one request after
//! the other, without ublk. What was answered is kept beside it as plain bytes.
//!
//! Nothing is ever in flight between two calls, so that dropping a [`Life`] is the crash of the daemon,
//! and what the device holds is known exactly.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use ujournal::disk::buffer::Residency;
use ujournal::disk::{Disk, DiskError};
use ujournal::engine::port::{IoId, Memory, Operation, Port, Segment};
use ujournal::engine::recovery;
use ujournal::engine::request::{Durability, Op, Outcome, Request, Tag, Unmap};
use ujournal::engine::settings::{PartLimits, Settings, SyncWrite};
use ujournal::engine::{Close, Engine};
use ujournal::journal::ArrayUuid;
use ujournal::journal::assemble::{Label, Set, assemble, label};
use ujournal::journal::geometry::{Geometry, Shape, record_max};
use ujournal::units::{FRAME, KIB, Lba, Offset, PartIndex, SECTOR, to_u64, to_usize};

/// The identity of every array here.
pub const UUID: ArrayUuid = ArrayUuid([
    0x6a, 0x0f, 0x3d, 0x51, 0x2b, 0x7e, 0x4c, 0x90, 0x81, 0xd2, 0x5e, 0x44, 0xa9, 0x17, 0xc6, 0x38,
]);

/// Bytes of the largest request.
pub const MAX_IO: u64 = 8 * KIB;

const DEPTH: u16 = 8;

/// A disk in memory that keeps everything.
#[derive(Clone)]
pub struct Ram(Rc<RefCell<Vec<u8>>>);

impl Ram {
    fn change(&self, offset: Offset, bytes: &[u8]) {
        let at = to_usize(offset.0);
        self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Disk for Ram {
    fn size(&self) -> u64 {
        to_u64(self.0.borrow().len())
    }

    fn read(&mut self, offset: Offset, buffer: &mut [u8]) -> Result<(), DiskError> {
        let at = to_usize(offset.0);
        buffer.copy_from_slice(&self.0.borrow()[at..at + buffer.len()]);
        Ok(())
    }

    fn write(&mut self, offset: Offset, buffer: &[u8]) -> Result<(), DiskError> {
        self.change(offset, buffer);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DiskError> {
        Ok(())
    }

    fn zero(&mut self, offset: Offset, len: u64) -> Result<(), DiskError> {
        self.change(offset, &vec![0; to_usize(len)]);
        Ok(())
    }

    fn name(&self) -> String {
        "ram".into()
    }
}

/// The disks of one array, and what the device above them must hold.
pub struct Array {
    disks: Vec<Ram>,
    /// What was answered.
    pub device: Vec<u8>,
    requests: u32,
}

impl Array {
    /// A new array. `more` is what each part is larger than it must be.
    pub fn label(shape: Shape, more: &[u64]) -> Array {
        let geometry = Geometry::new(shape).expect("the shape is legal");
        let disks: Vec<Ram> = (0..geometry.parts())
            .zip(more)
            .map(|(part, more)| {
                let member = part < usize::from(shape.members);
                let least = if member {
                    shape.member_size
                } else {
                    shape.journal_size
                };
                Ram(Rc::new(RefCell::new(vec![0; to_usize(least + more)])))
            })
            .collect();
        let device = vec![0; to_usize(geometry.data.size())];
        let array = Array {
            disks,
            device,
            requests: 0,
        };
        let wanted = Label {
            uuid: UUID,
            name: "golden".into(),
            shape,
            block_size: 512,
        };
        label(array.boxed(), &wanted).expect("memory takes everything");
        array
    }

    /// Disks with these contents.
    pub fn disks_of(parts: Vec<Vec<u8>>) -> Vec<Box<dyn Disk>> {
        let ram = |bytes| Box::new(Ram(Rc::new(RefCell::new(bytes)))) as Box<dyn Disk>;
        parts.into_iter().map(ram).collect()
    }

    fn boxed(&self) -> Vec<Box<dyn Disk>> {
        self.disks
            .iter()
            .map(|disk| Box::new(disk.clone()) as Box<dyn Disk>)
            .collect()
    }

    /// What is on the disks now.
    pub fn images(&self) -> Vec<Vec<u8>> {
        self.disks
            .iter()
            .map(|disk| disk.0.borrow().clone())
            .collect()
    }

    /// Begins a life.
    pub fn start(&mut self) -> Life<'_> {
        let mut set = assemble(self.boxed()).expect("the parts belong together");
        let settings = settings(&set.geometry);
        let (recovered, _) = recovery::open(
            &mut set,
            settings.extents,
            settings.round,
            recovery::Errors::Kept,
            &mut |_, _| {},
        )
        .expect("nothing is damaged");
        let geometry = set.geometry.clone();
        let engine = Engine::new(settings, geometry, UUID, recovered, Residency::OnTouch);
        let engine = engine.expect("there is memory for a small engine");
        let world = World {
            buffers: vec![vec![0; to_usize(MAX_IO)]; usize::from(DEPTH)],
            submitted: Vec::new(),
            replies: Vec::new(),
        };
        Life {
            engine,
            set,
            world,
            now: Duration::ZERO,
            array: self,
        }
    }
}

/// The smallest engine that the ring allows.
fn settings(geometry: &Geometry) -> Settings {
    let ring = geometry.ring.size();
    let limits = PartLimits {
        io_max: 64 * KIB,
        segments_max: 8,
        pages_max: 16,
        zeroes: true,
        sync: SyncWrite::Unknown,
        shares_journal_disk: false,
    };
    let record = record_max(ring);
    let segment = 16 * KIB;
    let mut settings = Settings {
        queue_depth: DEPTH,
        max_io: MAX_IO,
        round: 4 * record,
        window: (8 * record + 4 * segment).next_multiple_of(segment),
        segment,
        extents: 1024,
        bounce: 8 * KIB,
        bounces: 2,
        home_writes: 8,
        ..Settings::new(vec![limits; geometry.parts()])
    };
    let ios = settings.ios_kept(ring) + 2 * settings.ios_for_a_read() + settings.home_writes;
    settings.ios = u16::try_from(ios).expect("a small array needs few operations");
    settings
}

/// What a request asks.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    /// So many sectors from an lba on, stamped.
    Write(u64, u32),
    /// The same with FUA.
    WriteNow(u64, u32),
    /// Zeroes that keep their space.
    ZeroesKept(u64, u32),
    /// Zeroes.
    Zeroes(u64, u32),
    /// A discard.
    Discard(u64, u32),
    /// FLUSH.
    Flush,
}

/// The time between a start and an end of an array.
pub struct Life<'a> {
    engine: Engine,
    set: Set,
    world: World,
    now: Duration,
    array: &'a mut Array,
}

impl Life<'_> {
    /// Gives all of `asked` at once, so that they go into one record, and returns when all are answered.
    pub fn ask(&mut self, asked: &[Ask]) {
        assert!(asked.len() <= usize::from(DEPTH));
        for (ask, tag) in asked.iter().zip(0..) {
            self.give(*ask, Tag(tag));
        }
        for _ in 0..10_000 {
            self.turn(Duration::from_micros(100));
            if self.world.replies.len() == asked.len() {
                let replies = std::mem::take(&mut self.world.replies);
                assert!(
                    replies.iter().all(|(_, outcome)| *outcome == Outcome::Done),
                    "{replies:?}"
                );
                return;
            }
        }
        panic!("{asked:?} were not answered");
    }

    fn give(&mut self, ask: Ask, tag: Tag) {
        let (op, lba, sectors) = match ask {
            Ask::Write(lba, sectors) | Ask::WriteNow(lba, sectors) => (Op::Write, lba, sectors),
            Ask::ZeroesKept(lba, n) => (Op::WriteZeroes(Unmap::Forbidden), lba, n),
            Ask::Zeroes(lba, n) => (Op::WriteZeroes(Unmap::Allowed), lba, n),
            Ask::Discard(lba, n) => (Op::Discard, lba, n),
            Ask::Flush => (Op::Flush, 0, 0),
        };
        let range = to_usize(lba * SECTOR)..to_usize((lba + u64::from(sectors)) * SECTOR);
        if op == Op::Write {
            self.array.requests += 1;
            let data = stamped(self.array.requests, sectors);
            self.world.buffers[tag.index()][..data.len()].copy_from_slice(&data);
            self.array.device[range].copy_from_slice(&data);
        } else {
            self.array.device[range].fill(0);
        }
        let now = matches!(ask, Ask::WriteNow(..));
        let durability = if now {
            Durability::Now
        } else {
            Durability::Later
        };
        self.engine.request(Request {
            tag,
            op,
            lba: Lba(lba),
            sectors,
            durability,
        });
    }

    /// Lets time pass, in steps, with nothing asked.
    pub fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.turn(Duration::from_millis(10));
        }
    }

    /// Ends the life as a stop or for a takeover does.
    pub fn end(mut self, how: Close) {
        self.engine.begin_close(how);
        for _ in 0..10_000 {
            self.turn(Duration::from_millis(10));
            if self.engine.is_closed() {
                recovery::close(&mut self.set, &self.engine, how).expect("memory takes everything");
                return;
            }
        }
        panic!("it does not close");
    }

    fn turn(&mut self, step: Duration) {
        self.now += step;
        loop {
            self.engine.advance(self.now, &mut self.world);
            self.engine.check_invariants();
            let submitted = std::mem::take(&mut self.world.submitted);
            if submitted.is_empty() && !self.engine.wants_turn() {
                return;
            }
            for (id, part, work) in submitted {
                let done = self.carry_out(part, work);
                self.engine.completed(id, Ok(done));
            }
        }
    }

    fn carry_out(&mut self, part: PartIndex, work: Work) -> u64 {
        let disk = &mut self.array.disks[part.index()];
        let mut total = 0;
        match work {
            Work::Flush => {}
            Work::Zero { offset, len } => disk.zero(offset, len).expect("it is inside"),
            Work::Write { offset, segments } => {
                for Segment { memory, len } in segments {
                    let Memory::Arena(at) = memory else {
                        panic!("writes come from the arena")
                    };
                    disk.change(offset.plus(total), self.engine.arena().range(at..at + len));
                    total += to_u64(len);
                }
            }
            Work::Read { offset, segments } => {
                for Segment { memory, len } in segments {
                    let target = match memory {
                        Memory::Arena(at) => self.engine.arena_mut().range_mut(at..at + len),
                        Memory::Buffer(tag, at) => {
                            &mut self.world.buffers[tag.index()][at..at + len]
                        }
                    };
                    disk.read(offset.plus(total), target).expect("it is inside");
                    total += to_u64(len);
                }
            }
        }
        total
    }
}

/// One line of text at the beginning of each sector, zeros behind it.
fn stamped(request: u32, sectors: u32) -> Vec<u8> {
    let sector = |sector| {
        let mut bytes = format!("request {request}, sector {sector}").into_bytes();
        bytes.resize(to_usize(SECTOR), 0);
        bytes
    };
    (0..sectors).flat_map(sector).collect()
}

/// An operation that was begun and not carried out yet: the engine's memory is its own while it works.
enum Work {
    Read {
        offset: Offset,
        segments: Vec<Segment>,
    },
    Write {
        offset: Offset,
        segments: Vec<Segment>,
    },
    Flush,
    Zero {
        offset: Offset,
        len: u64,
    },
}

struct World {
    buffers: Vec<Vec<u8>>,
    submitted: Vec<(IoId, PartIndex, Work)>,
    replies: Vec<(Tag, Outcome)>,
}

impl Port for World {
    fn buffer(&self, tag: Tag) -> &[u8] {
        &self.buffers[tag.index()]
    }

    fn buffer_mut(&mut self, tag: Tag, piece: Range<usize>) -> &mut [u8] {
        &mut self.buffers[tag.index()][piece]
    }

    fn submit(&mut self, id: IoId, part: PartIndex, operation: Operation<'_>) {
        let work = match operation {
            Operation::Read { offset, segments } => Work::Read {
                offset,
                segments: segments.to_vec(),
            },
            Operation::Write {
                offset, segments, ..
            } => Work::Write {
                offset,
                segments: segments.to_vec(),
            },
            Operation::Flush => Work::Flush,
            Operation::Zero { offset, len, .. } => Work::Zero { offset, len },
        };
        self.submitted.push((id, part, work));
    }

    fn reply(&mut self, tag: Tag, outcome: Outcome) {
        self.replies.push((tag, outcome));
    }
}

/// Frames of an image that hold anything but zeros.
pub fn used_frames(image: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let frames = image.chunks_exact(to_usize(FRAME)).zip(0..);
    frames
        .filter(|(bytes, _)| bytes.iter().any(|b| *b != 0))
        .map(|(bytes, i)| (i * FRAME, bytes))
}
