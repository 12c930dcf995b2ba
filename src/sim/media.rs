//! A disk that forgets what was not flushed.
//!
//! ```text
//!             begin                  finish                       flush, FUA
//!   write ------------> in flight ------------> volatile versions ----------> durable
//!                           |                        |                           |
//!   a power cut leaves   old, new,               any one of them,             this
//!   each sector as       or unreadable           the durable one,
//!                                                rarely unreadable
//! ```
//!
//! For each sector of 512 bytes there is one durable version and, oldest first, the volatile ones that
//! were written since. What is read is the newest. A flush makes durable what had *completed before it
//! was submitted*, and nothing else; so does a durable write (`RWF_DSYNC`) on a disk without FUA, and on
//! one with FUA it makes only itself durable. A failed flush forgets: what it covered may or may not be
//! on the media, and no later flush cares.
//!
//! The same disk is asked in two ways. The engine's operations are begun and finished at times that the
//! caller chooses ([`SimDisk::begin`], [`SimDisk::finish`]). Recovery waits for each of its operations:
//! it gets a [`BlockingDisk`], with a [`Fuse`] that cuts the power at the k-th of them.
//!
//! Pages are shared between a disk and its forks, and every disk knows a fingerprint of its durable
//! content, so that a million crash images can be made, told apart and thrown away.

use crate::disk::{Disk, DiskError, DiskOp, check_range};
use crate::engine::port::Sync;
use crate::engine::request::Errno;
use crate::engine::settings::SyncWrite;
use crate::random::mix;
use crate::sim::faults::{Fault, Faults, short_len};
use crate::sim::stamp::SECTOR_LEN;
use crate::units::{Offset, SECTOR, to_u64, to_usize};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::rc::Rc;

const PAGE_LEN: usize = 4096;
const SECTORS_PER_PAGE: usize = PAGE_LEN / SECTOR_LEN;

/// What a disk does with a write that has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// It is durable.
    WriteThrough,
    /// It is volatile; a durable write makes itself durable.
    WriteBackWithFua,
    /// It is volatile; a durable write is a write and a flush of what had completed before it began.
    WriteBack,
}

impl Cache {
    /// What an engine is told of it.
    pub fn sync_write(self) -> SyncWrite {
        match self {
            Cache::WriteThrough | Cache::WriteBackWithFua => SyncWrite::Alone,
            Cache::WriteBack => SyncWrite::Flushes,
        }
    }
}

/// Whether a disk keeps its word. Canaries for the oracle do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Honesty {
    /// It does.
    Honest,
    /// It answers flushes and does nothing.
    IgnoresFlush,
    /// It treats durable writes as any other.
    IgnoresSync,
}

/// What a place on a disk is for. The media do not care; power cuts aim by it, statistics count by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Zone {
    /// A superblock.
    Superblock,
    /// An anchor.
    Anchor,
    /// The ring.
    Ring,
    /// Data.
    Home,
    /// Nothing that should ever be written.
    Unused,
}

/// The order of events on all disks of an array.
#[derive(Clone, Debug, Default)]
pub struct Clock(Rc<Cell<u64>>);

impl Clock {
    fn tick(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }

    /// A clock that goes on from here by itself.
    pub fn split(&self) -> Clock {
        Clock(Rc::new(Cell::new(self.0.get())))
    }
}

/// An operation that was begun. Tickets of one disk rise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// What a disk can be asked, with its data.
#[derive(Clone, Debug)]
pub enum Begin {
    /// Read so many bytes.
    Read {
        /// Where.
        offset: Offset,
        /// How many.
        len: u64,
        /// Which moment between begin and finish the bytes are from.
        moment: Moment,
    },
    /// Write these bytes.
    Write {
        /// Where.
        offset: Offset,
        /// What.
        bytes: Rc<[u8]>,
        /// Whether it is durable when it completes.
        sync: Sync,
    },
    /// Make durable what has completed.
    Flush,
    /// Make a range zeroes.
    Zero {
        /// Where.
        offset: Offset,
        /// How many bytes.
        len: u64,
    },
}

/// When a read looks at the media.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// When it begins.
    Begin,
    /// When it is finished.
    Finish,
}

/// How an operation ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct End {
    /// How many bytes were done.
    pub result: Result<u64, Errno>,
    /// What was read.
    pub bytes: Vec<u8>,
}

/// Where a version's bytes are.
#[derive(Clone, Debug)]
enum Source {
    Zeroes,
    /// 512 bytes of a write's data, from here on.
    Data(Rc<[u8]>, usize),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Source::Zeroes => &[0; SECTOR_LEN],
            Source::Data(bytes, at) => &bytes[*at..*at + SECTOR_LEN],
        }
    }
}

/// Which version of a sector is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Which {
    /// The one that was written last.
    Newest,
    /// The one that a cut leaves at the least.
    Durable,
}

/// A volatile version of one sector.
#[derive(Clone, Debug)]
struct Held {
    ticket: Ticket,
    completed: u64,
    /// Whether a flush still makes it durable: not once a flush that covered it has failed.
    dirty: bool,
    source: Source,
}

/// A write of which something is not durable: in flight, or held volatile.
#[derive(Clone, Copy, Debug)]
pub struct AtRisk {
    /// Which one.
    pub ticket: Ticket,
    /// Its first sector.
    pub first: u64,
    /// How many sectors it has.
    pub sectors: u64,
    /// Where it goes.
    pub zone: Zone,
    /// When it completed; `None` while it is in flight.
    pub completed: Option<u64>,
    held: u64,
}

#[derive(Clone, Debug)]
struct Pending {
    begun: u64,
    fault: Option<Fault>,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Read {
        sectors: Range<u64>,
        early: Option<Result<Vec<u8>, Errno>>,
    },
    /// `bytes` is `None` for zeroes.
    Write {
        sectors: Range<u64>,
        bytes: Option<Rc<[u8]>>,
        sync: Sync,
    },
    Flush,
}

#[derive(Clone, Debug)]
struct Page {
    bytes: [u8; PAGE_LEN],
    prints: [u64; SECTORS_PER_PAGE],
}

/// What one sector can be found as after a power cut, besides what is durable; oldest first.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Which sector.
    pub sector: u64,
    /// Which write.
    pub ticket: Ticket,
    /// Whether that write is in flight: such a sector may also be unreadable.
    pub in_flight: bool,
    source: Source,
}

impl Candidate {
    /// A number that tells the content apart from any other content of this sector.
    pub fn print(&self) -> u64 {
        fingerprint(self.sector, self.source.bytes())
    }
}

/// What a power cut leaves in a sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Survivor {
    /// What was durable.
    Durable,
    /// One of the candidates, by its place in the list.
    Candidate(usize),
    /// Nothing that can be read until it is written again.
    Unreadable,
}

/// The state of a disk; shared by the handles of it.
#[derive(Clone, Debug)]
struct Media {
    name: String,
    sectors: u64,
    cache: Cache,
    honesty: Honesty,
    clock: Clock,
    zones: Rc<[(Range<u64>, Zone)]>,
    faults: Faults,
    gone: bool,

    pages: Vec<Option<Rc<Page>>>,
    unreadable: BTreeSet<u64>,
    /// The sum of the fingerprints of all durable sectors: those of zeroes are 0.
    print: u64,

    /// The volatile versions of each sector that has any, oldest first.
    held: BTreeMap<u64, Vec<Held>>,
    /// Every write of which `held` or `in_flight` has a part.
    at_risk: BTreeMap<Ticket, AtRisk>,
    in_flight: BTreeMap<Ticket, Pending>,
    next_ticket: u64,
    /// A failed flush has made the disk forget what had completed before this moment.
    forgot_before: Option<u64>,
}

/// What an unreadable sector counts as in the fingerprint.
const UNREADABLE: u64 = 0x5bad_5ec7_0000_0001;

/// A number for this content at this place; 0 for zeroes anywhere.
fn fingerprint(sector: u64, bytes: &[u8]) -> u64 {
    let mut lanes = [
        0x9e37_79b9_7f4a_7c15_u64,
        0xc2b2_ae3d_27d4_eb4f,
        0x1656_67b1_9e37_79f9,
        0x27d4_eb2f_1656_67c5,
    ];
    let mut any = 0;
    for block in bytes.chunks_exact(32) {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(8)) {
            let mut le = [0; 8];
            le.copy_from_slice(word);
            let word = u64::from_le_bytes(le);
            any |= word;
            *lane = (*lane ^ word)
                .wrapping_mul(0xd6e8_feb8_6659_fd93)
                .rotate_left(29);
        }
    }
    if any == 0 {
        return 0;
    }
    let [a, b, c, d] = lanes;
    mix(a ^ b.rotate_left(17) ^ c.rotate_left(34) ^ d.rotate_left(51) ^ mix(sector)) | 1
}

impl Media {
    fn durable_print(&self, sector: u64) -> u64 {
        if self.unreadable.contains(&sector) {
            return mix(UNREADABLE ^ sector);
        }
        let (page, slot) = split(sector);
        self.pages[page]
            .as_ref()
            .map_or(0, |page| page.prints[slot])
    }

    /// The only place where durable content changes.
    fn set_durable(&mut self, sector: u64, bytes: &[u8]) {
        self.print = self.print.wrapping_sub(self.durable_print(sector));
        self.unreadable.remove(&sector);
        let print = fingerprint(sector, bytes);
        let (page, slot) = split(sector);
        if print != 0 || self.pages[page].is_some() {
            let page = self.pages[page].get_or_insert_with(|| {
                Rc::new(Page {
                    bytes: [0; PAGE_LEN],
                    prints: [0; SECTORS_PER_PAGE],
                })
            });
            let page = Rc::make_mut(page);
            page.bytes[slot * SECTOR_LEN..(slot + 1) * SECTOR_LEN].copy_from_slice(bytes);
            page.prints[slot] = print;
        }
        self.print = self.print.wrapping_add(print);
    }

    fn set_unreadable(&mut self, sector: u64) {
        self.print = self.print.wrapping_sub(self.durable_print(sector));
        self.unreadable.insert(sector);
        self.print = self.print.wrapping_add(self.durable_print(sector));
    }

    /// Copies one version of a sector.
    fn copy_sector(&self, sector: u64, which: Which, out: &mut [u8]) -> Result<(), Errno> {
        if which == Which::Newest
            && let Some(version) = self.held.get(&sector).and_then(|held| held.last())
        {
            out.copy_from_slice(version.source.bytes());
            return Ok(());
        }
        if self.unreadable.contains(&sector) {
            return Err(Errno::IO);
        }
        let (page, slot) = split(sector);
        match &self.pages[page] {
            Some(page) => {
                out.copy_from_slice(&page.bytes[slot * SECTOR_LEN..(slot + 1) * SECTOR_LEN]);
            }
            None => out.fill(0),
        }
        Ok(())
    }

    fn copy_out(&self, sectors: Range<u64>, which: Which) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; to_usize(sectors.end - sectors.start) * SECTOR_LEN];
        for (sector, out) in sectors.zip(bytes.chunks_exact_mut(SECTOR_LEN)) {
            self.copy_sector(sector, which, out)?;
        }
        Ok(bytes)
    }

    fn zone(&self, sector: u64) -> Zone {
        let after = self.zones.partition_point(|(range, _)| range.end <= sector);
        match self.zones.get(after) {
            Some((range, zone)) if range.contains(&sector) => *zone,
            Some(_) | None => Zone::Unused,
        }
    }

    fn sector_range(&self, offset: Offset, len: u64) -> Range<u64> {
        assert!(offset.0.is_multiple_of(SECTOR), "{}: {offset}", self.name);
        assert!(
            len > 0 && len.is_multiple_of(SECTOR),
            "{}: {len}",
            self.name
        );
        let first = offset.0 / SECTOR;
        let end = first + len / SECTOR;
        assert!(end <= self.sectors, "{}: {offset}+{len}", self.name);
        first..end
    }

    fn begin(&mut self, begin: Begin) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let (op, offset, len) = match &begin {
            Begin::Read { offset, len, .. } => (DiskOp::Read, offset.0, *len),
            Begin::Write { offset, bytes, .. } => (DiskOp::Write, offset.0, to_u64(bytes.len())),
            Begin::Flush => (DiskOp::Flush, 0, 0),
            Begin::Zero { offset, len } => (DiskOp::Zero, offset.0, *len),
        };
        let fault = self.faults.verdict(op, offset, len);
        if fault == Some(Fault::Vanish) {
            self.gone = true;
        }
        let what = match begin {
            Begin::Read {
                offset,
                len,
                moment,
            } => {
                let sectors = self.sector_range(offset, len);
                let early = match moment {
                    Moment::Begin => Some(self.copy_out(sectors.clone(), Which::Newest)),
                    Moment::Finish => None,
                };
                What::Read { sectors, early }
            }
            Begin::Write {
                offset,
                bytes,
                sync,
            } => What::Write {
                sectors: self.sector_range(offset, to_u64(bytes.len())),
                bytes: Some(bytes),
                sync,
            },
            Begin::Zero { offset, len } => What::Write {
                sectors: self.sector_range(offset, len),
                bytes: None,
                sync: Sync::No,
            },
            Begin::Flush => What::Flush,
        };
        if let What::Write { sectors, .. } = &what {
            let at_risk = AtRisk {
                ticket,
                first: sectors.start,
                sectors: sectors.end - sectors.start,
                zone: self.zone(sectors.start),
                completed: None,
                held: 0,
            };
            self.at_risk.insert(ticket, at_risk);
        }
        let pending = Pending {
            begun: self.clock.tick(),
            fault,
            what,
        };
        self.in_flight.insert(ticket, pending);
        ticket
    }

    fn finish(&mut self, ticket: Ticket) -> End {
        let pending = self
            .in_flight
            .remove(&ticket)
            .expect("what is finished has begun");
        match pending.what {
            What::Read { sectors, early } => self.finish_read(sectors, early, pending.fault),
            What::Write {
                sectors,
                bytes,
                sync,
            } => End {
                result: self.finish_write(
                    ticket,
                    sectors,
                    bytes,
                    sync,
                    &pending.fault,
                    pending.begun,
                ),
                bytes: Vec::new(),
            },
            What::Flush => End {
                result: self.finish_flush(pending.begun, pending.fault),
                bytes: Vec::new(),
            },
        }
    }

    fn finish_read(
        &mut self,
        sectors: Range<u64>,
        early: Option<Result<Vec<u8>, Errno>>,
        fault: Option<Fault>,
    ) -> End {
        let failed = |errno| End {
            result: Err(errno),
            bytes: Vec::new(),
        };
        if self.gone {
            return failed(Errno::NO_DEVICE);
        }
        let which = match fault {
            Some(Fault::Stale) => Which::Durable,
            Some(_) | None => Which::Newest,
        };
        let bytes = match early {
            Some(bytes) if which == Which::Newest => bytes,
            Some(_) | None => self.copy_out(sectors, which),
        };
        let mut bytes = match bytes {
            Ok(bytes) => bytes,
            Err(errno) => return failed(errno),
        };
        match fault {
            Some(Fault::Error(errno)) => return failed(errno),
            Some(Fault::Short(permille)) => {
                let len = short_len(to_u64(bytes.len()), permille, self.faults.random());
                bytes.truncate(to_usize(len));
            }
            Some(Fault::Flip) => flip(&mut bytes, self.faults.random().bits()),
            Some(Fault::Misdirect | Fault::Stale | Fault::Vanish) | None => {}
        }
        End {
            result: Ok(to_u64(bytes.len())),
            bytes,
        }
    }

    fn finish_write(
        &mut self,
        ticket: Ticket,
        sectors: Range<u64>,
        bytes: Option<Rc<[u8]>>,
        sync: Sync,
        fault: &Option<Fault>,
        begun: u64,
    ) -> Result<u64, Errno> {
        let len = (sectors.end - sectors.start) * SECTOR;
        let mut result = if self.gone {
            Err(Errno::NO_DEVICE)
        } else {
            Ok(len)
        };
        let mut bytes = bytes;
        let mut to = sectors.start;
        match fault {
            Some(Fault::Error(errno)) => result = Err(*errno),
            Some(Fault::Short(permille)) if !self.gone => {
                result = Ok(short_len(len, *permille, self.faults.random()));
            }
            Some(Fault::Misdirect) => {
                to = self
                    .faults
                    .random()
                    .below(self.sectors - (len / SECTOR) + 1);
            }
            Some(Fault::Flip) => {
                let mut copy = bytes.map_or_else(|| vec![0; to_usize(len)], |b| b.to_vec());
                flip(&mut copy, self.faults.random().bits());
                bytes = Some(copy.into());
            }
            Some(Fault::Short(_) | Fault::Stale | Fault::Vanish) | None => {}
        }
        let completed = self.clock.tick();
        let landed = match result {
            Ok(done) => done / SECTOR,
            Err(_) => 0,
        };
        // What lies behind the end that was reported may be written as well, or any of it.
        let beyond = if landed * SECTOR == len || self.gone {
            0
        } else {
            *self.faults.random().pick(&[0, 500, 1000])
        };
        for sector in 0..len / SECTOR {
            if sector < landed || (beyond > 0 && self.faults.random().chance(beyond)) {
                let source = match &bytes {
                    None => Source::Zeroes,
                    Some(bytes) => Source::Data(Rc::clone(bytes), to_usize(sector) * SECTOR_LEN),
                };
                self.hold(ticket, completed, to + sector, source);
            }
        }
        let at_risk = self.at_risk.get_mut(&ticket).expect("entered at begin");
        at_risk.completed = Some(completed);
        if at_risk.held == 0 {
            self.at_risk.remove(&ticket);
        }
        if result.is_ok() {
            self.settle_write(to..to + landed, sync, begun);
        } else if sync == Sync::Data && self.cache == Cache::WriteBack {
            // It may have been the flush that failed.
            self.lose_completed_before(begun);
        }
        result
    }

    /// What a completed write makes durable.
    fn settle_write(&mut self, sectors: Range<u64>, sync: Sync, begun: u64) {
        if self.cache == Cache::WriteThrough {
            self.retire_range(sectors);
        } else if sync == Sync::Data && self.honesty != Honesty::IgnoresSync {
            if self.cache == Cache::WriteBack {
                self.retire_completed_before(begun);
            }
            self.retire_range(sectors);
        }
    }

    fn finish_flush(&mut self, begun: u64, fault: Option<Fault>) -> Result<u64, Errno> {
        if self.gone {
            return Err(Errno::NO_DEVICE);
        }
        if let Some(Fault::Error(errno)) = fault {
            self.lose_completed_before(begun);
            return Err(errno);
        }
        if self.honesty != Honesty::IgnoresFlush {
            self.retire_completed_before(begun);
        }
        Ok(0)
    }

    /// A flush failed: the disk has told it once, and will not write what it covered any more.
    fn lose_completed_before(&mut self, begun: u64) {
        for held in self.held.values_mut().flatten() {
            held.dirty = held.dirty && held.completed >= begun;
        }
        self.forgot_before = Some(begun);
    }

    fn hold(&mut self, ticket: Ticket, completed: u64, sector: u64, source: Source) {
        self.held.entry(sector).or_default().push(Held {
            ticket,
            completed,
            dirty: true,
            source,
        });
        self.at_risk
            .get_mut(&ticket)
            .expect("a write is at risk until all of it is durable")
            .held += 1;
    }

    /// Makes the newest version of each sector durable.
    fn retire_range(&mut self, sectors: Range<u64>) {
        for sector in sectors {
            if let Some(held) = self.held.remove(&sector) {
                self.retire(sector, held);
            }
        }
    }

    /// The last of `held` becomes durable; those before it can no longer come back.
    fn retire(&mut self, sector: u64, held: Vec<Held>) {
        let newest = held.last().expect("a list that is kept is not empty");
        self.set_durable(sector, newest.source.bytes());
        for version in &held {
            self.let_go(version.ticket);
        }
    }

    fn let_go(&mut self, ticket: Ticket) {
        let at_risk = self
            .at_risk
            .get_mut(&ticket)
            .expect("a version that is held belongs to a write at risk");
        at_risk.held -= 1;
        if at_risk.held == 0 && at_risk.completed.is_some() {
            self.at_risk.remove(&ticket);
        }
    }

    fn retire_completed_before(&mut self, begun: u64) {
        let mut retired = Vec::new();
        self.held.retain(|sector, held| {
            let covered = held
                .iter()
                .rposition(|version| version.dirty && version.completed < begun);
            if let Some(last) = covered {
                retired.push((*sector, held.drain(..=last).collect::<Vec<_>>()));
            }
            !held.is_empty()
        });
        for (sector, held) in retired {
            self.retire(sector, held);
        }
    }

    fn candidates(&self) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for (sector, held) in &self.held {
            candidates.extend(held.iter().map(|version| Candidate {
                sector: *sector,
                ticket: version.ticket,
                in_flight: false,
                source: version.source.clone(),
            }));
        }
        let settled = candidates.len();
        for (ticket, pending) in &self.in_flight {
            if let What::Write { sectors, bytes, .. } = &pending.what {
                candidates.extend(sectors.clone().enumerate().map(|(at, sector)| Candidate {
                    sector,
                    ticket: *ticket,
                    in_flight: true,
                    source: match bytes {
                        None => Source::Zeroes,
                        Some(bytes) => Source::Data(Rc::clone(bytes), at * SECTOR_LEN),
                    },
                }));
            }
        }
        if candidates.len() > settled {
            // Stable: of one sector, the order of completion stays, and what is in flight comes last.
            candidates.sort_by_key(|candidate| candidate.sector);
        }
        candidates
    }

    /// What is left after the power was cut: `survivors` says so for each group of candidates.
    fn after_cut(
        &self,
        candidates: &[Candidate],
        mut survivor: impl FnMut(&[Candidate]) -> Survivor,
    ) -> Media {
        let mut after = Media {
            name: self.name.clone(),
            clock: self.clock.split(),
            zones: Rc::clone(&self.zones),
            faults: Faults::none(),
            gone: false,
            pages: self.pages.clone(),
            unreadable: self.unreadable.clone(),
            held: BTreeMap::new(),
            at_risk: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            ..*self
        };
        for group in candidates.chunk_by(|a, b| a.sector == b.sector) {
            match survivor(group) {
                Survivor::Durable => {}
                Survivor::Candidate(index) => {
                    after.set_durable(group[index].sector, group[index].source.bytes());
                }
                Survivor::Unreadable => after.set_unreadable(group[0].sector),
            }
        }
        after
    }
}

fn split(sector: u64) -> (usize, usize) {
    let sector = to_usize(sector);
    (sector / SECTORS_PER_PAGE, sector % SECTORS_PER_PAGE)
}

fn flip(bytes: &mut [u8], which: u64) {
    let bit = to_usize(which % (to_u64(bytes.len()) * 8));
    bytes[bit / 8] ^= 1 << (bit % 8);
}

/// A handle of a simulated disk. Clones are handles of the same disk; see [`SimDisk::fork`].
#[derive(Clone, Debug)]
pub struct SimDisk(Rc<RefCell<Media>>);

impl SimDisk {
    /// A disk of `size` bytes of zeroes.
    pub fn new(name: &str, size: u64, cache: Cache, clock: &Clock) -> SimDisk {
        let pages = to_usize(size.div_ceil(to_u64(PAGE_LEN)));
        SimDisk(Rc::new(RefCell::new(Media {
            name: name.to_owned(),
            sectors: size / SECTOR,
            cache,
            honesty: Honesty::Honest,
            clock: clock.clone(),
            zones: Rc::new([]),
            faults: Faults::none(),
            gone: false,
            pages: vec![None; pages],
            unreadable: BTreeSet::new(),
            print: 0,
            held: BTreeMap::new(),
            at_risk: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            next_ticket: 0,
            forgot_before: None,
        })))
    }

    /// Makes the disk keep its word, or not.
    pub fn set_honesty(&self, honesty: Honesty) {
        self.0.borrow_mut().honesty = honesty;
    }

    /// Says what goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.0.borrow_mut().faults = faults;
    }

    /// Nothing goes wrong any more, and a disk that has vanished is there again.
    pub fn repair(&self) {
        let mut media = self.0.borrow_mut();
        media.faults = Faults::none();
        media.gone = false;
        for pending in media.in_flight.values_mut() {
            pending.fault = None;
        }
    }

    /// Whether a failed flush has left versions behind that no later flush saves, though they are read.
    pub fn has_forgotten(&self) -> bool {
        let media = self.0.borrow();
        media.held.values().flatten().any(|version| !version.dirty)
    }

    /// How many operations were hit by a fault.
    pub fn faults_hit(&self) -> u64 {
        self.0.borrow().faults.hit()
    }

    /// Says which sectors are for what: ranges in order that do not overlap.
    pub fn set_zones(&self, zones: Vec<(Range<u64>, Zone)>) {
        assert!(zones.is_sorted_by(|a, b| a.0.end <= b.0.start));
        self.0.borrow_mut().zones = zones.into();
    }

    /// What a place is for.
    pub fn zone(&self, offset: Offset) -> Zone {
        self.0.borrow().zone(offset.0 / SECTOR)
    }

    /// Bytes on it.
    pub fn size(&self) -> u64 {
        self.0.borrow().sectors * SECTOR
    }

    /// Begins an operation. Where and how much is whole sectors within the disk.
    pub fn begin(&self, begin: Begin) -> Ticket {
        self.0.borrow_mut().begin(begin)
    }

    /// Ends an operation, now.
    pub fn finish(&self, ticket: Ticket) -> End {
        self.0.borrow_mut().finish(ticket)
    }

    /// Before which moment what had completed was forgotten, if that has happened since it was asked last.
    pub fn take_forgot_before(&self) -> Option<u64> {
        self.0.borrow_mut().forgot_before.take()
    }

    /// A flush of another part of the same disk has failed.
    pub fn forget_completed_before(&self, moment: u64) {
        self.0.borrow_mut().lose_completed_before(moment);
    }

    /// Forgets an operation that never happens: its program died before the disk saw it.
    pub fn abandon(&self, ticket: Ticket) {
        let mut media = self.0.borrow_mut();
        media
            .in_flight
            .remove(&ticket)
            .expect("what is abandoned has begun");
        media.at_risk.remove(&ticket);
    }

    /// The operations in flight, oldest first.
    pub fn in_flight(&self) -> Vec<Ticket> {
        self.0.borrow().in_flight.keys().copied().collect()
    }

    /// Disks of their own with all of these ones' state, also what is volatile and in flight.
    pub fn fork(disks: &[SimDisk]) -> Vec<SimDisk> {
        let Some(first) = disks.first() else {
            return Vec::new();
        };
        let clock = first.0.borrow().clock.split();
        disks
            .iter()
            .map(|disk| {
                let media = disk.0.borrow().clone();
                SimDisk(Rc::new(RefCell::new(Media {
                    clock: clock.clone(),
                    ..media
                })))
            })
            .collect()
    }

    /// The writes of which something is not durable, oldest first.
    pub fn at_risk(&self) -> Vec<AtRisk> {
        self.0.borrow().at_risk.values().copied().collect()
    }

    /// Every volatile version of every sector, by sector, oldest first.
    pub fn candidates(&self) -> Vec<Candidate> {
        self.0.borrow().candidates()
    }

    /// The print of what is durable in a sector, to compare with [`Candidate::print`].
    pub fn durable_print(&self, sector: u64) -> u64 {
        self.0.borrow().durable_print(sector)
    }

    /// The disk as it is once power is back. `candidates` are its own; `survivor` is asked once for each
    /// sector, with that sector's candidates.
    pub fn after_cut(
        &self,
        clock: &Clock,
        candidates: &[Candidate],
        survivor: impl FnMut(&[Candidate]) -> Survivor,
    ) -> SimDisk {
        let mut media = self.0.borrow().after_cut(candidates, survivor);
        media.clock = clock.clone();
        SimDisk(Rc::new(RefCell::new(media)))
    }

    /// A number that tells this durable content from any other.
    pub fn print(&self) -> u64 {
        self.0.borrow().print
    }

    /// The newest content of a range, without an operation: for the oracle.
    pub fn peek(&self, offset: Offset, len: u64) -> Result<Vec<u8>, Errno> {
        let media = self.0.borrow();
        let sectors = media.sector_range(offset, len);
        media.copy_out(sectors, Which::Newest)
    }

    /// Puts content on the disk, durably and without an operation: what was there before anything else.
    pub fn poke(&self, offset: Offset, bytes: &[u8]) {
        let mut media = self.0.borrow_mut();
        let sectors = media.sector_range(offset, to_u64(bytes.len()));
        for (sector, bytes) in sectors.zip(bytes.chunks_exact(SECTOR_LEN)) {
            assert!(!media.held.contains_key(&sector), "nothing was written yet");
            media.set_durable(sector, bytes);
        }
    }

    /// Makes a durable sector unreadable.
    pub fn spoil(&self, offset: Offset) {
        self.0.borrow_mut().set_unreadable(offset.0 / SECTOR);
    }

    /// Flips one bit of the durable content: rot.
    pub fn rot(&self, offset: Offset, bit: u8) {
        let mut media = self.0.borrow_mut();
        let sector = offset.0 / SECTOR;
        let mut bytes = [0; SECTOR_LEN];
        if media
            .copy_sector(sector, Which::Durable, &mut bytes)
            .is_ok()
        {
            bytes[to_usize(offset.0 % SECTOR)] ^= 1 << (bit % 8);
            media.set_durable(sector, &bytes);
        }
    }
}

/// Counts operations, and cuts the power at one of them. Clones are the same fuse.
#[derive(Clone, Debug)]
pub struct Fuse(Rc<Cell<(u64, Option<u64>)>>);

impl Fuse {
    /// Lets everything pass.
    pub fn never() -> Fuse {
        Fuse(Rc::new(Cell::new((0, None))))
    }

    /// Lets `k` operations pass; the one after them is in flight when the power goes.
    pub fn after(k: u64) -> Fuse {
        Fuse(Rc::new(Cell::new((0, Some(k)))))
    }

    /// How many operations were begun.
    pub fn operations(&self) -> u64 {
        self.0.get().0
    }

    /// Whether the power is gone.
    pub fn blown(&self) -> bool {
        let (begun, limit) = self.0.get();
        limit.is_some_and(|limit| begun > limit)
    }

    /// Counts an operation.
    fn step(&self) -> Step {
        if self.blown() {
            return Step::Dead;
        }
        let (begun, limit) = self.0.get();
        self.0.set((begun + 1, limit));
        if self.blown() { Step::Cut } else { Step::Pass }
    }
}

enum Step {
    Pass,
    Cut,
    Dead,
}

/// A simulated disk for code that waits.
#[derive(Clone, Debug)]
pub struct BlockingDisk {
    disk: SimDisk,
    fuse: Fuse,
}

impl BlockingDisk {
    /// The same disk, with a fuse that several may share.
    pub fn new(disk: &SimDisk, fuse: &Fuse) -> BlockingDisk {
        BlockingDisk {
            disk: disk.clone(),
            fuse: fuse.clone(),
        }
    }

    fn error(&self, op: DiskOp, offset: Offset, len: u64, source: io::Error) -> DiskError {
        DiskError {
            part: self.name(),
            op,
            offset,
            len,
            source,
        }
    }

    /// One operation from begin to end. Short transfers are continued.
    fn run(
        &self,
        op: DiskOp,
        offset: Offset,
        len: u64,
        begin: impl Fn(Offset, u64) -> Begin,
        mut got: impl FnMut(u64, &[u8]),
    ) -> Result<(), DiskError> {
        check_range(&self.name(), op, offset, len, self.disk.size())?;
        if op != DiskOp::Flush && len == 0 {
            return Ok(());
        }
        let mut done = 0;
        loop {
            let step = self.fuse.step();
            if matches!(step, Step::Dead) {
                return Err(self.error(op, offset, len, io::Error::other("power is gone")));
            }
            let ticket = self.disk.begin(begin(offset.plus(done), done));
            if matches!(step, Step::Cut) {
                return Err(self.error(op, offset, len, io::Error::other("power goes")));
            }
            let end = self.disk.finish(ticket);
            match end.result {
                Err(errno) => {
                    let source = io::Error::from_raw_os_error(errno.0);
                    return Err(self.error(op, offset, len, source));
                }
                Ok(bytes) => {
                    got(done, &end.bytes);
                    // A transfer goes on from whole sectors.
                    done += bytes / SECTOR * SECTOR;
                    if done == len {
                        return Ok(());
                    }
                }
            }
        }
    }
}

impl Disk for BlockingDisk {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn read(&mut self, offset: Offset, buffer: &mut [u8]) -> Result<(), DiskError> {
        let len = to_u64(buffer.len());
        let begin = |offset, done| Begin::Read {
            offset,
            len: len - done,
            moment: Moment::Finish,
        };
        self.run(DiskOp::Read, offset, len, begin, |done, bytes| {
            let done = to_usize(done);
            buffer[done..done + bytes.len()].copy_from_slice(bytes);
        })
    }

    fn write(&mut self, offset: Offset, buffer: &[u8]) -> Result<(), DiskError> {
        let begin = |offset, done| Begin::Write {
            offset,
            bytes: buffer[to_usize(done)..].into(),
            sync: Sync::No,
        };
        let len = to_u64(buffer.len());
        self.run(DiskOp::Write, offset, len, begin, |_, _| {})
    }

    fn flush(&mut self) -> Result<(), DiskError> {
        let begin = |_, _| Begin::Flush;
        self.run(DiskOp::Flush, Offset(0), 0, begin, |_, _| {})
    }

    fn zero(&mut self, offset: Offset, len: u64) -> Result<(), DiskError> {
        let begin = |offset, done| Begin::Zero {
            offset,
            len: len - done,
        };
        self.run(DiskOp::Zero, offset, len, begin, |_, _| {})
    }

    fn name(&self) -> String {
        self.disk.0.borrow().name.clone()
    }
}

#[cfg(test)]
mod tests {
    //! Each rule of the media, by looking at everything that a cut can leave.

    use super::*;
    use crate::random::Random;
    use crate::sim::cut::{Choices, cut, print};
    use crate::sim::faults::Rule;

    fn disk(cache: Cache) -> SimDisk {
        SimDisk::new("disk", 64 * 1024, cache, &Clock::default())
    }

    fn write(disk: &SimDisk, sector: u64, value: u8, sync: Sync) -> Ticket {
        write_many(disk, sector, &[value], sync)
    }

    fn write_many(disk: &SimDisk, sector: u64, values: &[u8], sync: Sync) -> Ticket {
        let bytes: Vec<u8> = values.iter().flat_map(|v| [*v; SECTOR_LEN]).collect();
        disk.begin(Begin::Write {
            offset: Offset(sector * SECTOR),
            bytes: bytes.into(),
            sync,
        })
    }

    /// The first byte of each of the sectors from 0 on; 255 for one that cannot be read.
    fn look<const N: usize>(disk: &SimDisk) -> [u8; N] {
        let mut found = [0; N];
        for (sector, found) in (0..).zip(&mut found) {
            *found = disk
                .peek(Offset(sector * SECTOR), SECTOR)
                .map_or(255, |bytes| bytes[0]);
        }
        found
    }

    /// Everything that the first sectors can be found as, without unreadable ones.
    fn outcomes<const N: usize>(disk: &SimDisk) -> BTreeSet<[u8; N]> {
        let disks = [disk.clone()];
        let choices = Choices::of(&disks);
        let images = choices.images(1 << 20).unwrap();
        (0..images)
            .map(|n| {
                let picks = choices.numbered(n);
                let image = choices.image(&disks, &picks);
                assert_eq!(print(&image), choices.print(&picks));
                look(&image[0])
            })
            .collect()
    }

    fn all<const N: usize>(list: &[[u8; N]]) -> BTreeSet<[u8; N]> {
        list.iter().copied().collect()
    }

    #[test]
    fn a_completed_write_is_read_back_and_may_be_lost() {
        let disk = disk(Cache::WriteBack);
        disk.finish(write(&disk, 0, 1, Sync::No));
        assert_eq!(look(&disk), [1]);
        assert_eq!(outcomes(&disk), all(&[[0], [1]]));
    }

    #[test]
    fn a_flush_covers_what_completed_before_it_was_submitted_and_nothing_else() {
        let disk = disk(Cache::WriteBackWithFua);
        let in_flight = write(&disk, 1, 1, Sync::No);
        disk.finish(write(&disk, 0, 1, Sync::No));
        let flush = disk.begin(Begin::Flush);
        disk.finish(in_flight);
        disk.finish(write(&disk, 2, 1, Sync::No));
        disk.finish(flush);
        let open = [[1, 0, 0], [1, 0, 1], [1, 1, 0], [1, 1, 1]];
        assert_eq!(outcomes(&disk), all(&open));
    }

    #[test]
    fn a_flush_that_has_not_completed_covers_nothing() {
        let disk = disk(Cache::WriteBack);
        disk.finish(write(&disk, 0, 1, Sync::No));
        disk.begin(Begin::Flush);
        assert_eq!(outcomes(&disk), all(&[[0], [1]]));
    }

    #[test]
    fn every_version_since_the_last_flush_can_come_back_and_none_before() {
        let disk = disk(Cache::WriteBack);
        for value in 1..=2 {
            disk.finish(write(&disk, 0, value, Sync::No));
        }
        disk.finish(disk.begin(Begin::Flush));
        for value in 3..=4 {
            disk.finish(write(&disk, 0, value, Sync::No));
        }
        assert_eq!(outcomes(&disk), all(&[[2], [3], [4]]));
    }

    #[test]
    fn a_later_version_survives_while_an_earlier_write_is_lost() {
        let disk = disk(Cache::WriteBack);
        disk.finish(write(&disk, 0, 1, Sync::No));
        disk.finish(write(&disk, 1, 1, Sync::No));
        assert!(outcomes(&disk).contains(&[0, 1]));
    }

    #[test]
    fn a_durable_write_on_a_disk_with_fua_makes_only_itself_durable() {
        let disk = disk(Cache::WriteBackWithFua);
        disk.finish(write(&disk, 0, 1, Sync::No));
        disk.finish(write(&disk, 1, 1, Sync::Data));
        assert_eq!(outcomes(&disk), all(&[[0, 1], [1, 1]]));
    }

    #[test]
    fn a_durable_write_on_a_disk_without_fua_flushes_what_had_completed_before_it_was_submitted() {
        let disk = disk(Cache::WriteBack);
        disk.finish(write(&disk, 0, 1, Sync::No));
        let durable = write(&disk, 1, 1, Sync::Data);
        disk.finish(write(&disk, 2, 1, Sync::No));
        disk.finish(durable);
        assert_eq!(outcomes(&disk), all(&[[1, 1, 0], [1, 1, 1]]));
    }

    #[test]
    fn a_write_through_disk_loses_nothing_that_completed() {
        let disk = disk(Cache::WriteThrough);
        disk.finish(write(&disk, 0, 1, Sync::No));
        write(&disk, 1, 1, Sync::No);
        assert_eq!(outcomes(&disk), all(&[[1, 0], [1, 1]]));
    }

    #[test]
    fn a_failed_flush_forgets_what_it_covered_and_the_next_one_does_not_save_it() {
        let disk = disk(Cache::WriteBack);
        disk.set_faults(Faults::new(
            vec![Rule::nth(DiskOp::Flush, 0, Fault::Error(Errno::IO))],
            Vec::new(),
            Random::new(1),
        ));
        disk.finish(write(&disk, 0, 1, Sync::No));
        assert!(disk.finish(disk.begin(Begin::Flush)).result.is_err());
        assert!(disk.finish(disk.begin(Begin::Flush)).result.is_ok());
        assert_eq!(look(&disk), [1], "it is still what is read");
        assert!(disk.has_forgotten());
        assert_eq!(outcomes(&disk), all(&[[0], [1]]));
        // Written again, it is saved.
        disk.finish(write(&disk, 0, 1, Sync::No));
        assert!(disk.finish(disk.begin(Begin::Flush)).result.is_ok());
        assert_eq!(outcomes(&disk), all(&[[1]]));
    }

    #[test]
    fn a_disk_that_ignores_flushes_loses_what_was_flushed() {
        let disk = disk(Cache::WriteBack);
        disk.set_honesty(Honesty::IgnoresFlush);
        disk.finish(write(&disk, 0, 1, Sync::No));
        assert!(disk.finish(disk.begin(Begin::Flush)).result.is_ok());
        assert_eq!(outcomes(&disk), all(&[[0], [1]]));
    }

    #[test]
    fn random_cuts_reach_every_outcome_and_nothing_durable_becomes_unreadable() {
        let disk = disk(Cache::WriteBack);
        disk.finish(write(&disk, 4, 7, Sync::Data));
        disk.finish(write_many(&disk, 0, &[1, 1], Sync::No));
        disk.finish(write(&disk, 1, 2, Sync::No));
        write_many(&disk, 2, &[3, 3], Sync::No);
        let mut random = Random::new(7);
        let found: BTreeSet<[u8; 5]> = (0..60_000)
            .map(|_| look(&cut(std::slice::from_ref(&disk), &mut random)[0]))
            .collect();
        for a in [0, 1] {
            for b in [0, 1, 2] {
                for c in [0, 3, 255] {
                    for d in [0, 3, 255] {
                        let two_torn = c == 255 && d == 255;
                        assert!(two_torn || found.contains(&[a, b, c, d, 7]), "{a}{b}{c}{d}");
                    }
                }
            }
        }
        for torn in 0..2 {
            assert!(
                found.iter().any(|image| image[torn] == 255),
                "sector {torn}"
            );
        }
        assert!(found.iter().all(|image| image[4] == 7));
    }

    #[test]
    fn an_unreadable_sector_fails_reads_until_it_is_written_and_survives_cuts() {
        let disk = disk(Cache::WriteBack);
        write(&disk, 0, 1, Sync::No);
        let torn = disk.after_cut(&Clock::default(), &disk.candidates(), |_| {
            Survivor::Unreadable
        });
        let again = torn.after_cut(&Clock::default(), &torn.candidates(), |_| Survivor::Durable);
        let fuse = Fuse::never();
        let mut buffer = [0; 1024];
        assert!(
            BlockingDisk::new(&again, &fuse)
                .read(Offset(0), &mut buffer)
                .is_err()
        );
        again.finish(write(&again, 0, 2, Sync::No));
        assert_eq!(look(&again), [2]);
        assert_eq!(outcomes(&again), all(&[[255], [2]]));
    }

    #[test]
    fn the_print_of_an_image_is_that_of_a_disk_with_the_same_content() {
        let mut random = Random::new(5);
        let tested = disk(Cache::WriteBack);
        for round in 0..300 {
            let sector = random.below(60);
            let sync = *random.pick(&[Sync::No, Sync::No, Sync::Data]);
            let values = [random.below(3); 4].map(|v| u8::try_from(v).unwrap());
            tested.finish(write_many(&tested, sector, &values, sync));
            if random.chance(200) {
                tested.finish(tested.begin(Begin::Flush));
            }
            let disks = std::slice::from_ref(&tested);
            let choices = Choices::of(disks);
            let image = &choices.image(disks, &choices.sample(&mut random))[0];
            let same = disk(Cache::WriteBack);
            same.poke(Offset(0), &image.peek(Offset(0), image.size()).unwrap());
            assert_eq!(image.print(), same.print(), "round {round}");
        }
    }

    #[test]
    fn images_that_differ_in_one_sector_or_in_its_place_have_different_prints() {
        let mut prints = BTreeSet::new();
        for part in 0..2 {
            for sector in 0..64 {
                for value in 1..=3 {
                    let disks = [disk(Cache::WriteBack), disk(Cache::WriteBack)];
                    disks[part].poke(Offset(sector * SECTOR), &[value; SECTOR_LEN]);
                    prints.insert(print(&disks));
                }
            }
        }
        assert_eq!(prints.len(), 2 * 64 * 3);
    }

    #[test]
    fn a_fork_and_its_origin_go_their_own_ways() {
        let origin = disk(Cache::WriteBack);
        origin.finish(write(&origin, 0, 1, Sync::No));
        let late = write(&origin, 1, 1, Sync::No);
        let [fork] = &SimDisk::fork(std::slice::from_ref(&origin))[..] else {
            unreachable!("one disk has one fork")
        };
        fork.finish(late);
        fork.finish(fork.begin(Begin::Flush));
        assert_eq!(outcomes(fork), all(&[[1, 1]]));
        assert_eq!(look(&origin), [1, 0]);
        origin.abandon(late);
        assert_eq!(outcomes(&origin), all(&[[0, 0], [1, 0]]));
    }

    #[test]
    fn a_fuse_leaves_the_operation_that_it_hits_in_flight() {
        for (k, expected) in [
            (0, all(&[[0, 0], [1, 0]])),
            (1, all(&[[0, 0], [0, 2], [1, 0], [1, 2]])),
            (2, all(&[[0, 0], [0, 2], [1, 0], [1, 2]])),
            (3, all(&[[1, 2]])),
        ] {
            let sim = disk(Cache::WriteBack);
            let fuse = Fuse::after(k);
            let mut blocking = BlockingDisk::new(&sim, &fuse);
            let results = [
                blocking.write(Offset(0), &[1; SECTOR_LEN]).is_ok(),
                blocking.write(Offset(512), &[2; SECTOR_LEN]).is_ok(),
                blocking.flush().is_ok(),
            ];
            let passed = [k > 0, k > 1, k > 2];
            assert_eq!(results, passed, "{k} operations pass");
            assert_eq!(outcomes(&sim), expected, "after {k} operations");
        }
    }

    #[test]
    fn a_blocking_transfer_that_is_cut_short_goes_on() {
        let sim = disk(Cache::WriteBack);
        let short = |op| Rule::nth(op, 0, Fault::Short(400));
        sim.set_faults(Faults::new(
            vec![short(DiskOp::Write), short(DiskOp::Read)],
            Vec::new(),
            Random::new(1),
        ));
        let mut blocking = BlockingDisk::new(&sim, &Fuse::never());
        let data: Vec<u8> = (1..=4).flat_map(|v| [v; SECTOR_LEN]).collect();
        blocking.write(Offset(0), &data).unwrap();
        let mut found = vec![0; data.len()];
        blocking.read(Offset(0), &mut found).unwrap();
        assert_eq!(found, data);
        assert_eq!(sim.faults_hit(), 2);
    }

    #[test]
    fn a_range_beyond_the_end_is_refused() {
        let sim = disk(Cache::WriteBack);
        let mut blocking = BlockingDisk::new(&sim, &Fuse::never());
        let size = sim.size();
        for offset in [size, size - 512, u64::MAX - 511] {
            assert!(blocking.write(Offset(offset), &[0; 1024]).is_err());
            assert!(blocking.read(Offset(offset), &mut [0; 1024]).is_err());
            assert!(blocking.zero(Offset(offset), 1024).is_err());
        }
    }

    #[test]
    fn a_failed_or_short_write_may_have_reached_any_of_its_sectors() {
        for (fault, first_is_sure) in [(Fault::Error(Errno::IO), false), (Fault::Short(500), true)]
        {
            let mut found = BTreeSet::new();
            for seed in 0..200 {
                let sim = disk(Cache::WriteBack);
                let rule = Rule::nth(DiskOp::Write, 0, fault);
                sim.set_faults(Faults::new(vec![rule], Vec::new(), Random::new(seed)));
                sim.finish(write_many(&sim, 0, &[1, 1], Sync::No));
                found.insert(look(&sim));
            }
            let mut expected = all(&[[1, 0], [1, 1]]);
            if !first_is_sure {
                expected.extend([[0, 0], [0, 1]]);
            } else {
                // Half of 1024 bytes, or not even whole sectors of it: the reported part is sure.
                assert!(!found.contains(&[0, 1]), "{found:?}");
            }
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn rot_misdirection_stale_reads_and_vanishing_do_what_they_say() {
        let sim = disk(Cache::WriteBack);
        sim.finish(write(&sim, 0, 1, Sync::No));
        sim.finish(sim.begin(Begin::Flush));
        sim.finish(write(&sim, 0, 2, Sync::No));
        let read = |sim: &SimDisk| {
            sim.finish(sim.begin(Begin::Read {
                offset: Offset(0),
                len: SECTOR,
                moment: Moment::Finish,
            }))
        };
        let nth =
            |op, fault| Faults::new(vec![Rule::nth(op, 0, fault)], Vec::new(), Random::new(2));
        sim.set_faults(nth(DiskOp::Read, Fault::Stale));
        assert_eq!(read(&sim).bytes[0], 1);
        assert_eq!(read(&sim).bytes[0], 2);

        sim.set_faults(nth(DiskOp::Read, Fault::Flip));
        let ones = |bytes: &[u8]| bytes.iter().map(|b| (b ^ 2).count_ones()).sum::<u32>();
        assert_eq!(ones(&read(&sim).bytes), 1);

        sim.set_faults(nth(DiskOp::Write, Fault::Misdirect));
        sim.finish(write(&sim, 0, 9, Sync::No));
        assert_eq!(look(&sim), [2], "the place itself is untouched");
        let everything = sim.peek(Offset(0), sim.size()).unwrap();
        assert_eq!(everything.iter().filter(|b| **b == 9).count(), SECTOR_LEN);

        sim.finish(sim.begin(Begin::Flush));
        sim.rot(Offset(5), 3);
        assert_eq!(sim.peek(Offset(0), 512).unwrap()[5], 2 ^ 8);

        sim.set_faults(nth(DiskOp::Write, Fault::Vanish));
        assert_eq!(
            sim.finish(write(&sim, 0, 1, Sync::No)).result,
            Err(Errno::NO_DEVICE)
        );
        assert_eq!(read(&sim).result, Err(Errno::NO_DEVICE));
        assert_eq!(
            sim.finish(sim.begin(Begin::Flush)).result,
            Err(Errno::NO_DEVICE)
        );
    }

    #[test]
    fn zones_are_found_by_place() {
        let sim = disk(Cache::WriteBack);
        sim.set_zones(vec![(2..4, Zone::Ring), (4..6, Zone::Home)]);
        let zones = [1, 2, 3, 4, 5, 6].map(|sector| sim.zone(Offset(sector * SECTOR)));
        let expected = [
            Zone::Unused,
            Zone::Ring,
            Zone::Ring,
            Zone::Home,
            Zone::Home,
            Zone::Unused,
        ];
        assert_eq!(zones, expected);
    }

    /// What recovery sees is a disk like any other, whatever its cache.
    mod conformance {
        use super::*;

        fn blocking(cache: Cache) -> BlockingDisk {
            BlockingDisk::new(&disk(cache), &Fuse::never())
        }

        mod write_through {
            crate::disk::conformance::suite!((super::blocking(super::Cache::WriteThrough), ()));
        }

        mod write_back {
            crate::disk::conformance::suite!((super::blocking(super::Cache::WriteBack), ()));
        }

        mod write_back_with_fua {
            crate::disk::conformance::suite!((super::blocking(super::Cache::WriteBackWithFua), ()));
        }
    }
}
