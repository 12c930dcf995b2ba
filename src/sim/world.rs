//! The world around an engine: its disks, its requests' buffers, and time.
//!
//! ```text
//!   requests --> [ engine ] --> operations --> in flight --> finished at a time of chance's choice
//!                    ^                                             |
//!                    +---------------------------------------------+
//! ```
//!
//! Time stands still while the engine works and jumps from one event to the next. What the engine
//! promised its port is asserted here: memory of a write stays as it was until the write has ended, no
//! number is used twice at once, no operation is larger than its part takes, and no two operations in
//! flight touch the same bytes if one of them changes them.

use crate::disk::Disk;
use crate::disk::buffer::Residency;
use crate::engine::port::{IoId, Memory, Operation, Port, SEGMENTS_MAX, Segment, Space, Sync};
use crate::engine::recovery::{self, Report};
use crate::engine::request::{Durability, Errno, Op, Outcome, Request, Tag};
use crate::engine::{Close, Engine};
use crate::journal::FRAME_LEN;
use crate::journal::assemble::{Label, Set, assemble, label};
use crate::journal::geometry::Geometry;
use crate::random::Random;
use crate::sim::media::{Begin, BlockingDisk, Fuse, Moment, SimDisk, Ticket, Zone};
use crate::sim::scenario::Scenario;
use crate::sim::stamp::{self, StampError, Version};
use crate::sim::story::{Event, Story};
use crate::units::{Lba, Offset, PartIndex, SECTOR, Seq, to_u64, to_usize};
use std::rc::Rc;
use std::time::Duration;

/// What a buffer holds that nobody may look at any more, and what a read has to write over.
const SCRIBBLE: u8 = 0xa5;

/// Why an array did not come up.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The power went meanwhile, as was asked for.
    #[error("the power went")]
    PowerCut,
    /// It was refused.
    #[error("refused: {0}")]
    Refused(String),
}

/// What is wrong with what the device showed.
#[derive(Debug, thiserror::Error)]
pub enum ShownError {
    /// A read was answered with an error.
    #[error("read of sector {lba} failed with error {}", errno.0)]
    Failed {
        /// The first sector of the read.
        lba: Lba,
        /// The error.
        errno: Errno,
    },
    /// What it showed is no version.
    #[error(transparent)]
    Stamp(#[from] StampError),
}

/// One answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// To which tag.
    pub tag: Tag,
    /// How.
    pub outcome: Outcome,
    /// What the buffer of a READ held when it was given.
    pub bytes: Vec<u8>,
}

/// An operation as the engine gave it.
#[derive(Clone, Debug)]
struct Submitted {
    id: IoId,
    part: PartIndex,
    what: Submission,
}

#[derive(Clone, Debug)]
enum Submission {
    Read(Offset, Vec<Segment>),
    Write(Offset, Vec<Segment>, Sync),
    Flush,
    Zero(Offset, u64, Space),
}

/// The engine's lower edge.
#[derive(Debug)]
struct SimPort {
    buffers: Vec<Vec<u8>>,
    submitted: Vec<Submitted>,
    replies: Vec<(Tag, Outcome)>,
}

impl Port for SimPort {
    fn buffer(&self, tag: Tag) -> &[u8] {
        &self.buffers[tag.index()]
    }

    fn buffer_mut(&mut self, tag: Tag, piece: std::ops::Range<usize>) -> &mut [u8] {
        &mut self.buffers[tag.index()][piece]
    }

    fn submit(&mut self, id: IoId, part: PartIndex, operation: Operation<'_>) {
        let what = match operation {
            Operation::Read { offset, segments } => Submission::Read(offset, segments.to_vec()),
            Operation::Write {
                offset,
                segments,
                sync,
            } => Submission::Write(offset, segments.to_vec(), sync),
            Operation::Flush => Submission::Flush,
            Operation::Zero { offset, len, space } => Submission::Zero(offset, len, space),
        };
        self.submitted.push(Submitted { id, part, what });
    }

    fn reply(&mut self, tag: Tag, outcome: Outcome) {
        self.replies.push((tag, outcome));
    }
}

/// An operation in flight.
#[derive(Clone, Debug)]
struct Flight {
    id: IoId,
    part: usize,
    ticket: Ticket,
    due: Duration,
    kind: Kind,
    segments: Vec<Segment>,
    /// Which bytes of the part.
    place: (u64, u64),
    /// What a write took from memory.
    taken: Option<Rc<[u8]>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Read,
    Write,
    Flush,
    Zero,
}

impl Kind {
    fn changes(self) -> bool {
        matches!(self, Kind::Write | Kind::Zero)
    }
}

/// An array that is being served.
#[derive(Debug)]
pub struct World {
    scenario: Rc<Scenario>,
    disks: Vec<SimDisk>,
    set: Set,
    engine: Engine,
    port: SimPort,
    flights: Vec<Flight>,
    /// What each tag holds.
    busy: Vec<Option<Op>>,
    now: Duration,
    random: Random,
    story: Story,
    report: Report,
    /// What happened since somebody asked.
    pub since: Since,
}

/// Counts of what a power cut could fall into.
#[derive(Clone, Copy, Debug, Default)]
pub struct Since {
    /// Turns of the engine.
    pub turns: u64,
    /// Operations that ended.
    pub operations: u64,
}

/// What is in flight, by what it is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InFlight {
    /// Writes to the ring.
    pub ring: bool,
    /// Writes of an anchor.
    pub anchor: bool,
    /// Writes home.
    pub home: bool,
    /// Flushes.
    pub flush: bool,
}

fn boxed(disks: &[SimDisk], fuse: &Fuse) -> Vec<Box<dyn Disk>> {
    disks
        .iter()
        .map(|disk| -> Box<dyn Disk> { Box::new(BlockingDisk::new(disk, fuse)) })
        .collect()
}

/// An error under a fuse: the cut that was asked for, or a refusal.
fn judged(fuse: &Fuse, error: &dyn std::error::Error) -> StartError {
    if fuse.blown() {
        return StartError::PowerCut;
    }
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    StartError::Refused(text)
}

/// Labels an array.
///
/// # Errors
/// If the fuse cuts it short, or it is refused.
pub fn label_array(scenario: &Scenario, disks: &[SimDisk], fuse: &Fuse) -> Result<(), StartError> {
    let wanted = Label {
        uuid: scenario.uuid,
        name: "sim".to_owned(),
        shape: scenario.geometry.shape,
        block_size: u32::try_from(scenario.block * SECTOR).expect("at most 4096"),
    };
    label(boxed(disks, fuse), &wanted)
        .map(drop)
        .map_err(|error| judged(fuse, &error))
}

impl World {
    /// Brings an array up.
    ///
    /// # Errors
    /// If the fuse cuts it short, or it is refused.
    pub fn start(
        scenario: &Rc<Scenario>,
        disks: Vec<SimDisk>,
        fuse: &Fuse,
        story: &Story,
        mut random: Random,
    ) -> Result<World, StartError> {
        let mut given = boxed(&disks, fuse);
        // Found by their roles, not by the order in which they are given.
        let turn = random.index(given.len());
        given.rotate_left(turn);
        let mut set = assemble(given).map_err(|error| judged(fuse, &error))?;
        let settings = scenario.settings.clone();
        let (recovered, report) = recovery::open(
            &mut set,
            settings.extents,
            settings.round,
            recovery::Errors::Kept,
            &mut |_, _| {},
        )
        .map_err(|error| judged(fuse, &error))?;
        story.note(Duration::ZERO, format!("started: {report:?}"));
        let depth = usize::from(settings.queue_depth);
        let max_io = to_usize(settings.max_io);
        let engine = Engine::new(
            settings,
            scenario.geometry.clone(),
            scenario.uuid,
            recovered,
            Residency::OnTouch,
        )
        .map_err(|error| StartError::Refused(error.to_string()))?;
        engine.check_invariants();
        Ok(World {
            scenario: Rc::clone(scenario),
            disks,
            set,
            engine,
            port: SimPort {
                buffers: vec![vec![SCRIBBLE; max_io]; depth],
                submitted: Vec::new(),
                replies: Vec::new(),
            },
            flights: Vec::new(),
            busy: vec![None; depth],
            now: Duration::ZERO,
            random,
            story: story.clone(),
            report,
            since: Since::default(),
        })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The array's layout.
    pub fn geometry(&self) -> &Geometry {
        &self.scenario.geometry
    }

    /// What recovery said.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The disks.
    pub fn disks(&self) -> &[SimDisk] {
        &self.disks
    }

    /// The time.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// A tag that holds no request.
    pub fn free_tag(&self) -> Option<Tag> {
        let free = self.busy.iter().position(Option::is_none)?;
        Some(Tag(u16::try_from(free).expect("tags are few")))
    }

    /// How many tags hold a request.
    pub fn busy_tags(&self) -> usize {
        self.busy.iter().flatten().count()
    }

    /// When the next operation ends.
    pub fn next_end(&self) -> Option<Duration> {
        self.flights.iter().map(|flight| flight.due).min()
    }

    /// What is in flight.
    pub fn in_flight(&self) -> InFlight {
        let mut found = InFlight::default();
        for flight in &self.flights {
            let zone = self.disks[flight.part].zone(Offset(flight.place.0));
            match flight.kind {
                Kind::Read => {}
                Kind::Flush => found.flush = true,
                Kind::Write | Kind::Zero => match zone {
                    Zone::Ring => found.ring = true,
                    Zone::Anchor => found.anchor = true,
                    Zone::Home => found.home = true,
                    Zone::Superblock | Zone::Unused => {}
                },
            }
        }
        found
    }

    /// Gives a request to the engine; a WRITE's buffer is filled with the stamps of `version`.
    pub fn request(&mut self, request: Request, version: Version) {
        let tag = request.tag;
        assert!(self.busy[tag.index()].is_none(), "a tag holds one request");
        self.busy[tag.index()] = Some(request.op);
        let buffer = &mut self.port.buffers[tag.index()];
        buffer.fill(SCRIBBLE);
        if request.op == Op::Write {
            let len = to_usize(u64::from(request.sectors) * SECTOR);
            stamp::stamp(version, request.lba, &mut buffer[..len]);
        }
        self.story.tell(
            self.now,
            Event::Request {
                tag: tag.0,
                op: request.op,
                sectors: (request.lba.0, request.sectors.into()),
                fua: request.durability == Durability::Now,
                version,
            },
        );
        self.engine.request(request);
    }

    /// Lets the engine work until it waits; its answers, in their order.
    pub fn turn(&mut self) -> Vec<Reply> {
        let mut replies = Vec::new();
        loop {
            self.engine.advance(self.now, &mut self.port);
            self.since.turns += 1;
            self.take_replies(&mut replies);
            self.take_submissions();
            self.engine.check_invariants();
            if !self.engine.wants_turn() {
                return replies;
            }
        }
    }

    /// Goes on to `until`, or to the next end of an operation if that comes first, and takes the turn.
    pub fn step(&mut self, until: Duration) -> Vec<Reply> {
        let next = self.next_end().filter(|due| *due <= until);
        self.now = self.now.max(next.unwrap_or(until));
        if next.is_some() {
            self.finish_due();
        }
        self.turn()
    }

    /// Ends an operation that is due, mostly all of them.
    fn finish_due(&mut self) {
        let together = self.random.chance(700);
        while let Some(index) = self.flights.iter().position(|f| f.due <= self.now) {
            let flight = self.flights.swap_remove(index);
            self.finish(flight);
            if !together {
                return;
            }
        }
    }

    fn finish(&mut self, flight: Flight) {
        self.since.operations += 1;
        let end = self.disks[flight.part].finish(flight.ticket);
        if let Some(moment) = self.disks[flight.part].take_forgot_before()
            && let Some(other) = self.scenario.on_the_disk_of(flight.part)
        {
            self.disks[other].forget_completed_before(moment);
            self.disks[other].take_forgot_before();
        }
        self.story.tell(
            self.now,
            Event::End {
                id: flight.id.0,
                error: end.result.err(),
            },
        );
        match flight.kind {
            Kind::Read => self.put(&flight.segments, &end.bytes),
            Kind::Write => {
                let taken = flight.taken.as_deref().expect("a write took its bytes");
                assert!(
                    self.take(&flight.segments) == taken,
                    "memory of a write changed while it was in flight"
                );
            }
            Kind::Flush | Kind::Zero => {}
        }
        // The kernel returns 0 for a flush and for a zeroed range.
        let result = match flight.kind {
            Kind::Flush | Kind::Zero => end.result.map(|_| 0),
            Kind::Read | Kind::Write => end.result,
        };
        self.engine.completed(flight.id, result);
    }

    fn take_replies(&mut self, replies: &mut Vec<Reply>) {
        for (tag, outcome) in self.port.replies.drain(..) {
            let op = self.busy[tag.index()].take();
            assert!(op.is_some(), "tag {} is answered once", tag.0);
            let buffer = &mut self.port.buffers[tag.index()];
            let read = op == Some(Op::Read);
            replies.push(Reply {
                tag,
                outcome,
                bytes: if read { buffer.clone() } else { Vec::new() },
            });
            // From here on it is the kernel's again.
            buffer.fill(SCRIBBLE);
            self.story.tell(
                self.now,
                Event::Reply {
                    tag: tag.0,
                    error: match outcome {
                        Outcome::Done => None,
                        Outcome::Failed(errno) => Some(errno),
                    },
                },
            );
        }
    }

    fn take_submissions(&mut self) {
        for submitted in std::mem::take(&mut self.port.submitted) {
            let flight = self.launch(submitted);
            self.flights.push(flight);
        }
    }

    fn launch(&mut self, submitted: Submitted) -> Flight {
        let Submitted { id, part, what } = submitted;
        let part_limits = self.scenario.settings.parts[part.index()];
        assert!(
            self.flights.iter().all(|flight| flight.id != id),
            "a number is free again only after its end"
        );
        let (kind, offset, segments, len) = match &what {
            Submission::Read(offset, segments) => {
                (Kind::Read, *offset, segments.clone(), sum(segments))
            }
            Submission::Write(offset, segments, _) => {
                (Kind::Write, *offset, segments.clone(), sum(segments))
            }
            Submission::Flush => (Kind::Flush, Offset(0), Vec::new(), 0),
            Submission::Zero(offset, len, _) => (Kind::Zero, *offset, Vec::new(), *len),
        };
        if matches!(kind, Kind::Read | Kind::Write) {
            assert!(len <= part_limits.io_max);
            assert!(segments.len() <= part_limits.segments_max.min(SEGMENTS_MAX));
            let pages = |segment: &Segment| {
                let (Memory::Arena(at) | Memory::Buffer(_, at)) = segment.memory;
                (at + segment.len).div_ceil(FRAME_LEN) - at / FRAME_LEN
            };
            assert!(segments.iter().map(pages).sum::<usize>() <= part_limits.pages_max);
            assert!(
                segments
                    .iter()
                    .all(|s| to_u64(s.len).is_multiple_of(SECTOR))
            );
        }
        if kind == Kind::Zero {
            assert!(part_limits.zeroes, "only where the part can");
        }
        let place = (offset.0, offset.0 + len);
        for other in &self.flights {
            let touch =
                other.part == part.index() && other.place.0 < place.1 && place.0 < other.place.1;
            assert!(
                !touch || !(kind.changes() || other.kind.changes()),
                "io {} and io {} are in flight on the same bytes",
                id.0,
                other.id.0
            );
        }
        let disk = &self.disks[part.index()];
        let zone = disk.zone(offset);
        assert!(
            kind == Kind::Flush || zone != Zone::Unused && zone != Zone::Superblock,
            "io {} touches what belongs to nobody",
            id.0
        );
        self.story.tell(
            self.now,
            Event::Begin {
                id: id.0,
                part: part.index(),
                what: match &what {
                    Submission::Read(..) => "read",
                    Submission::Write(_, _, Sync::No) => "write",
                    Submission::Write(_, _, Sync::Data) => "write DSYNC",
                    Submission::Flush => "flush",
                    Submission::Zero(_, _, Space::Freed) => "zero",
                    Submission::Zero(_, _, Space::Kept) => "zero, kept",
                },
                zone,
                bytes: (offset.0, len),
            },
        );
        let mut taken = None;
        let begin = match what {
            Submission::Read(offset, _) => Begin::Read {
                offset,
                len,
                moment: *self.random.pick(&[Moment::Begin, Moment::Finish]),
            },
            Submission::Write(offset, _, sync) => {
                let bytes: Rc<[u8]> = self.take(&segments).into();
                taken = Some(Rc::clone(&bytes));
                Begin::Write {
                    offset,
                    bytes,
                    sync,
                }
            }
            Submission::Flush => Begin::Flush,
            Submission::Zero(offset, len, _) => Begin::Zero { offset, len },
        };
        let ticket = self.disks[part.index()].begin(begin);
        let latency = self.scenario.latencies[part.index()].sample(&mut self.random);
        Flight {
            id,
            part: part.index(),
            ticket,
            due: self.now + latency,
            kind,
            segments,
            place,
            taken,
        }
    }

    /// The bytes that segments name.
    fn take(&self, segments: &[Segment]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(segments.iter().map(|s| s.len).sum());
        for segment in segments {
            bytes.extend_from_slice(match segment.memory {
                Memory::Arena(at) => self.engine.arena().range(at..at + segment.len),
                Memory::Buffer(tag, at) => &self.port.buffers[tag.index()][at..at + segment.len],
            });
        }
        bytes
    }

    /// Fills what segments name, as far as `bytes` go.
    fn put(&mut self, segments: &[Segment], bytes: &[u8]) {
        let mut rest = bytes;
        for segment in segments {
            let (now, later) = rest.split_at(segment.len.min(rest.len()));
            rest = later;
            match segment.memory {
                Memory::Arena(at) => self
                    .engine
                    .arena_mut()
                    .range_mut(at..at + now.len())
                    .copy_from_slice(now),
                Memory::Buffer(tag, at) => {
                    assert!(
                        self.busy[tag.index()].is_some(),
                        "a buffer belongs to a request"
                    );
                    self.port.buffers[tag.index()][at..at + now.len()].copy_from_slice(now);
                }
            }
        }
    }

    /// The whole device, read through the engine while nothing else is asked.
    ///
    /// # Errors
    /// If a read fails, or shows what no write has left.
    pub fn read_all(&mut self) -> Result<Vec<Version>, ShownError> {
        assert_eq!(self.busy_tags(), 0);
        let sectors = self.scenario.geometry.sectors();
        let step = self.scenario.settings.max_io / SECTOR;
        let mut image = vec![Version::ZEROES; to_usize(sectors)];
        let mut asked: Vec<Lba> = vec![Lba(0); self.busy.len()];
        let mut next = 0;
        loop {
            while next < sectors
                && let Some(tag) = self.free_tag()
            {
                let count = step.min(sectors - next);
                asked[tag.index()] = Lba(next);
                let request = Request {
                    tag,
                    op: Op::Read,
                    lba: Lba(next),
                    sectors: u32::try_from(count).expect("at most max_io"),
                    durability: Durability::Later,
                };
                self.request(request, Version::ZEROES);
                next += count;
            }
            let mut replies = self.turn();
            if replies.is_empty() {
                let until = self
                    .next_end()
                    .unwrap_or(self.now + Duration::from_millis(1));
                replies = self.step(until);
            }
            for reply in replies {
                let lba = asked[reply.tag.index()];
                if let Outcome::Failed(errno) = reply.outcome {
                    return Err(ShownError::Failed { lba, errno });
                }
                let count = step.min(sectors - lba.0);
                let bytes = &reply.bytes[..to_usize(count * SECTOR)];
                for (sector, version) in (lba.0..).zip(stamp::read(lba, bytes)) {
                    image[to_usize(sector)] = version?;
                }
            }
            if next == sectors && self.busy_tags() == 0 {
                return Ok(image);
            }
        }
    }

    /// What is at home, read from the members themselves.
    ///
    /// # Errors
    /// If a sector cannot be read, or shows what no write has left.
    pub fn read_home(scenario: &Scenario, disks: &[SimDisk]) -> Result<Vec<Version>, ShownError> {
        let geometry = &scenario.geometry;
        let mut image = Vec::with_capacity(to_usize(geometry.sectors()));
        for piece in geometry.data.pieces(0, geometry.data.size()) {
            let lba = Lba(piece.at / SECTOR);
            let bytes = disks[piece.part.index()]
                .peek(piece.offset, piece.len)
                .map_err(|errno| ShownError::Failed { lba, errno })?;
            for version in stamp::read(lba, &bytes) {
                image.push(version?);
            }
        }
        Ok(image)
    }

    /// Asks that everything answered so far go home.
    pub fn begin_sync(&mut self) -> Seq {
        self.story.note(self.now, "sync");
        self.engine.begin_sync()
    }

    /// Asks the engine to end.
    pub fn begin_close(&mut self, how: Close) {
        self.story.note(self.now, format!("closing: {how:?}"));
        self.engine.begin_close(how);
    }

    /// Whether the engine has ended.
    pub fn is_closed(&self) -> bool {
        self.engine.is_closed() && self.flights.is_empty()
    }

    /// Ends the life of an engine that is closed, on `disks`: its own or forks of them.
    ///
    /// # Errors
    /// If the fuse cuts it short.
    pub fn close(&self, disks: &[SimDisk], how: Close, fuse: &Fuse) -> Result<(), StartError> {
        assert!(self.is_closed());
        let mut set = Set {
            disks: boxed(disks, fuse),
            superblocks: self.set.superblocks.clone(),
            geometry: self.set.geometry.clone(),
        };
        recovery::close(&mut set, &self.engine, how).map_err(|error| judged(fuse, &error))
    }

    /// Kills the program: what was in flight may still happen, in any order, until the fence.
    pub fn kill(self, random: &mut Random) -> Vec<SimDisk> {
        self.story.note(self.now, "killed");
        fence(&self.disks, random);
        self.disks
    }
}

/// The end of what a dead program had in flight: each operation has happened, or never will. None fails:
/// of a flush that fails when nobody is left to hear of it, no program can know.
pub fn fence(disks: &[SimDisk], random: &mut Random) {
    let landing = *random.pick(&[0, 500, 1000]);
    for disk in disks {
        disk.repair();
        let mut tickets = disk.in_flight();
        while !tickets.is_empty() {
            let ticket = tickets.swap_remove(random.index(tickets.len()));
            if random.chance(landing) {
                disk.finish(ticket);
            } else {
                disk.abandon(ticket);
            }
        }
    }
}

fn sum(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| to_u64(segment.len)).sum()
}
