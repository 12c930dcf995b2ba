//! Which sectors the cache holds, and what of them is stored.
//!
//! The cache is made of slots of one line, 4 KiB, which is eight sectors. Each sector of a slot is:
//!
//! ```text
//!   absent --write--> dirty --depart--> flying --arrive--> clean --evict--> absent
//!                       ^                 |                  |
//!                       +----- write -----+------------------+    a sector may be dirty and flying:
//!                                                                 an older version is under way
//! ```
//!
//! Dirty and flying sectors are volatile. For each the directory remembers `since`: the number of the
//! oldest write in it that is not stored. From that follows what is stored at any time, without copies:
//!
//! * a FLUSH that came after write number S is done when no sector has a `since` of S or less;
//! * a FUA write S is done when none of its own sectors has.
//!
//! An overwrite does not delay either: it makes a new `since` of the dirty state only if there was none, and
//! the flying state keeps its own.

use crate::random::Random;
use crate::units::to_usize;

/// Sectors in a line.
pub(super) const LINE_SECTORS: u64 = 8;

/// One bit for each sector of a line.
pub(super) type Mask = u8;

/// A place in the cache.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Slot(u32);

impl Slot {
    pub fn index(self) -> usize {
        to_usize(u64::from(self.0))
    }
}

/// The number of a write, counted from 1.
pub(super) type Number = u64;

/// In which of the directory's lists a slot is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Free,
    Clean,
    Volatile,
}

const KINDS: usize = 3;

impl Kind {
    fn index(self) -> usize {
        match self {
            Kind::Free => 0,
            Kind::Clean => 1,
            Kind::Volatile => 2,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct SlotState {
    line: usize,
    valid: Mask,
    dirty: Mask,
    flying: Mask,
    /// Reads under way that will look at the slot again: it is not evicted.
    pins: u16,
    kind: Kind,
    /// Where in the list of its kind.
    place: usize,
    /// Oldest write not stored, of the dirty and of the flying version of each sector.
    dirty_since: [Number; 8],
    flying_since: [Number; 8],
}

/// A FLUSH under way.
#[derive(Clone, Copy, Debug)]
struct Barrier {
    last: Number,
    /// Versions, dirty or flying, that are as old as `last` or older.
    remaining: u64,
}

/// The directory of a cache.
#[derive(Debug)]
pub(super) struct Directory {
    /// For each line of the device, its slot.
    slot_of: Vec<Option<Slot>>,
    slots: Vec<SlotState>,
    lists: [Vec<Slot>; KINDS],
    last: Number,
    /// Versions that are not stored: a sector that is dirty and flying has two.
    versions: u64,
    /// Sectors that are dirty or flying.
    volatile: u64,
    barrier: Option<Barrier>,
}

impl Directory {
    /// For a device of `lines`, with a cache of `slots`.
    pub fn new(lines: usize, slots: u32) -> Directory {
        let count = to_usize(u64::from(slots));
        let empty = SlotState {
            line: 0,
            valid: 0,
            dirty: 0,
            flying: 0,
            pins: 0,
            kind: Kind::Free,
            place: 0,
            dirty_since: [0; 8],
            flying_since: [0; 8],
        };
        let mut lists: [Vec<Slot>; KINDS] = Default::default();
        for list in &mut lists {
            list.reserve_exact(count);
        }
        lists[Kind::Free.index()].extend((0..slots).map(Slot));
        let states = (0..count).map(|place| SlotState { place, ..empty });
        Directory {
            slot_of: vec![None; lines],
            slots: states.collect(),
            lists,
            last: 0,
            versions: 0,
            volatile: 0,
            barrier: None,
        }
    }

    /// Sectors that a power cut would take, at most.
    pub fn volatile_sectors(&self) -> u64 {
        self.volatile
    }

    /// Slots with at least one volatile sector.
    pub fn volatile_slots(&self) -> usize {
        self.lists[Kind::Volatile.index()].len()
    }

    /// Slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The volatile slots, in no order.
    pub fn volatile_list(&self) -> &[Slot] {
        &self.lists[Kind::Volatile.index()]
    }

    /// The line that a slot holds.
    pub fn line_of(&self, slot: Slot) -> usize {
        self.slots[slot.index()].line
    }

    /// Where a line is, if the cache has any of it.
    pub fn lookup(&self, line: usize) -> Option<Slot> {
        self.slot_of[line]
    }

    /// The sectors that a slot holds.
    pub fn valid(&self, slot: Slot) -> Mask {
        self.slots[slot.index()].valid
    }

    /// The number that the next write will have, given to it.
    pub fn number_write(&mut self) -> Number {
        self.last += 1;
        self.last
    }

    /// Whether `lines` beginning at `first` find room now.
    pub fn has_room(&self, first: usize, lines: usize) -> bool {
        let missing = self.slot_of[first..first + lines]
            .iter()
            .filter(|slot| slot.is_none())
            .count();
        let free = self.lists[Kind::Free.index()].len();
        if missing <= free {
            return true;
        }
        let clean = &self.lists[Kind::Clean.index()];
        // A clean slot of the range itself must not be counted: it would be evicted for its neighbour.
        let usable = |slot: &&Slot| {
            let state = &self.slots[slot.index()];
            state.pins == 0 && !(first..first + lines).contains(&state.line)
        };
        clean.iter().filter(usable).take(missing - free).count() == missing - free
    }

    /// The slot for a line that is being written; another line may have to go for it. The range that is
    /// being written, for which there is room, keeps its own slots.
    pub fn slot_for(
        &mut self,
        line: usize,
        range: std::ops::Range<usize>,
        random: &mut Random,
    ) -> Slot {
        if let Some(slot) = self.slot_of[line] {
            return slot;
        }
        let slot = match self.lists[Kind::Free.index()].last() {
            Some(&slot) => slot,
            None => self.evict(&range, random),
        };
        self.move_to(slot, Kind::Clean);
        self.slots[slot.index()].line = line;
        self.slots[slot.index()].valid = 0;
        self.slot_of[line] = Some(slot);
        slot
    }

    fn evict(&mut self, range: &std::ops::Range<usize>, random: &mut Random) -> Slot {
        let clean = &self.lists[Kind::Clean.index()];
        let start = random.index(clean.len());
        let slot = (start..clean.len())
            .chain(0..start)
            .map(|n| clean[n])
            .find(|slot| {
                let state = &self.slots[slot.index()];
                state.pins == 0 && !range.contains(&state.line)
            })
            .expect("there is room");
        let line = self.slots[slot.index()].line;
        self.slot_of[line] = None;
        slot
    }

    /// Write `number` has put data into these sectors.
    pub fn wrote(&mut self, slot: Slot, sectors: Mask, number: Number) {
        let state = &mut self.slots[slot.index()];
        let fresh = sectors & !state.dirty;
        for bit in bits(fresh) {
            state.dirty_since[bit] = number;
        }
        self.volatile += u64::from((fresh & !state.flying).count_ones());
        self.versions += u64::from(fresh.count_ones());
        state.valid |= sectors;
        state.dirty |= sectors;
        self.move_to(slot, Kind::Volatile);
    }

    /// Sectors that may depart: dirty, and no older version is under way.
    pub fn may_depart(&self, slot: Slot) -> Mask {
        let state = &self.slots[slot.index()];
        state.dirty & !state.flying
    }

    /// Sectors that may depart and are as old as `number` or older.
    pub fn may_depart_until(&self, slot: Slot, number: Number) -> Mask {
        let since = &self.slots[slot.index()].dirty_since;
        bits(self.may_depart(slot))
            .filter(|&bit| since[bit] <= number)
            .fold(0, |mask, bit| mask | 1 << bit)
    }

    /// The present version of these sectors is on its way to the store.
    pub fn depart(&mut self, slot: Slot, sectors: Mask) {
        assert_eq!(
            sectors & !self.may_depart(slot),
            0,
            "only what may depart does"
        );
        let state = &mut self.slots[slot.index()];
        for bit in bits(sectors) {
            state.flying_since[bit] = state.dirty_since[bit];
        }
        state.dirty &= !sectors;
        state.flying |= sectors;
    }

    /// What departed is stored.
    pub fn arrive(&mut self, slot: Slot, sectors: Mask) {
        let state = &mut self.slots[slot.index()];
        assert_eq!(sectors & !state.flying, 0, "only what departed arrives");
        state.flying &= !sectors;
        self.volatile -= u64::from((sectors & !state.dirty).count_ones());
        self.versions -= u64::from(sectors.count_ones());
        if let Some(barrier) = &mut self.barrier {
            for bit in bits(sectors) {
                if state.flying_since[bit] <= barrier.last {
                    barrier.remaining -= 1;
                }
            }
        }
        if state.dirty | state.flying == 0 {
            self.move_to(slot, Kind::Clean);
        }
    }

    /// Begins a FLUSH of everything written so far. There is one at a time.
    pub fn begin_flush(&mut self) -> Number {
        assert!(self.barrier.is_none(), "one flush at a time");
        self.barrier = Some(Barrier {
            last: self.last,
            remaining: self.versions,
        });
        self.last
    }

    /// Whether everything that the FLUSH under way covers is stored. If so it is over.
    pub fn flush_is_done(&mut self) -> bool {
        let done = self.barrier.is_some_and(|barrier| barrier.remaining == 0);
        if done {
            self.barrier = None;
        }
        done
    }

    /// Whether these sectors are stored as of write `number`.
    pub fn is_stored(&self, slot: Slot, sectors: Mask, number: Number) -> bool {
        let state = &self.slots[slot.index()];
        bits(sectors & state.dirty).all(|bit| state.dirty_since[bit] > number)
            && bits(sectors & state.flying).all(|bit| state.flying_since[bit] > number)
    }

    /// A read will look at the slot again.
    pub fn pin(&mut self, slot: Slot) {
        self.slots[slot.index()].pins += 1;
    }

    /// It has.
    pub fn unpin(&mut self, slot: Slot) {
        self.slots[slot.index()].pins -= 1;
    }

    fn move_to(&mut self, slot: Slot, kind: Kind) {
        let SlotState {
            kind: old, place, ..
        } = self.slots[slot.index()];
        if old == kind {
            return;
        }
        let list = &mut self.lists[old.index()];
        list.swap_remove(place);
        if let Some(moved) = list.get(place) {
            self.slots[moved.index()].place = place;
        }
        let list = &mut self.lists[kind.index()];
        self.slots[slot.index()].place = list.len();
        self.slots[slot.index()].kind = kind;
        list.push(slot);
    }

    /// What must always hold.
    #[cfg(test)]
    fn check_invariants(&self) {
        use crate::units::to_u64;
        let (mut volatile, mut versions) = (0, 0);
        for (index, state) in self.slots.iter().enumerate() {
            let slot = Slot(u32::try_from(index).expect("few"));
            assert_eq!(self.lists[state.kind.index()][state.place], slot);
            assert_eq!((state.dirty | state.flying) & !state.valid, 0);
            assert_eq!(
                state.kind == Kind::Volatile,
                state.dirty | state.flying != 0
            );
            if state.kind != Kind::Free {
                assert_eq!(self.slot_of[state.line], Some(slot));
            }
            volatile += u64::from((state.dirty | state.flying).count_ones());
            versions += u64::from(state.dirty.count_ones() + state.flying.count_ones());
        }
        assert_eq!(self.volatile, volatile);
        assert_eq!(self.versions, versions);
        assert_eq!(
            self.lists.iter().map(Vec::len).sum::<usize>(),
            self.slots.len()
        );
        let used = to_u64(self.slot_of.iter().flatten().count());
        assert_eq!(used, to_u64(self.slots.len() - self.lists[0].len()));
    }
}

/// The numbers of the bits that are set.
pub(super) fn bits(mask: Mask) -> impl Iterator<Item = usize> {
    (0..8).filter(move |bit| mask & 1 << bit != 0)
}

#[cfg(test)]
mod tests {
    //! Goal: what the directory says is stored is stored, whatever the order of events.
    //! Method: random histories against a plain model that knows, for each sector, which write's data is
    //! in the cache, under way and in the store.

    use std::collections::BTreeMap;

    use super::*;

    const LINES: usize = 12;
    const SLOTS: u32 = 8;
    const SECTORS: usize = LINES * 8;

    /// A slot's sectors under way: which, and for each its number on the device and its data.
    type Flight = (Slot, Mask, Vec<(usize, Number)>);

    /// The data of a sector is the number of the write that it came from.
    struct Model {
        directory: Directory,
        random: Random,
        cache: BTreeMap<(usize, usize), Number>,
        flying: Vec<Flight>,
        store: [Number; SECTORS],
        newest: [Number; SECTORS],
        flush: Option<[Number; SECTORS]>,
        forced: Vec<(usize, usize, Number)>,
        flushes: usize,
        forced_done: usize,
    }

    impl Model {
        fn new(seed: u64) -> Model {
            Model {
                directory: Directory::new(LINES, SLOTS),
                random: Random::new(seed),
                cache: BTreeMap::new(),
                flying: Vec::new(),
                store: [0; SECTORS],
                newest: [0; SECTORS],
                flush: None,
                forced: Vec::new(),
                flushes: 0,
                forced_done: 0,
            }
        }

        fn write(&mut self) {
            let first = self.random.index(SECTORS);
            let count = 1 + self.random.index((SECTORS - first).min(24));
            let lines = first / 8..(first + count).div_ceil(8);
            if !self.directory.has_room(lines.start, lines.len()) {
                return;
            }
            let number = self.directory.number_write();
            for line in lines.clone() {
                let slot = self
                    .directory
                    .slot_for(line, lines.clone(), &mut self.random);
                let mut mask = 0;
                for sector in (line * 8).max(first)..(line * 8 + 8).min(first + count) {
                    mask |= 1 << (sector % 8);
                    self.cache.insert((slot.index(), sector % 8), number);
                    self.newest[sector] = number;
                }
                self.directory.wrote(slot, mask, number);
            }
            if self.random.below(4) == 0 {
                self.forced.push((first, count, number));
            }
        }

        fn depart(&mut self) {
            let volatile = self.directory.volatile_list();
            if volatile.is_empty() {
                return;
            }
            let slot = volatile[self.random.index(volatile.len())];
            let chosen = Mask::try_from(self.random.below(256)).expect("eight bits");
            let may = self.directory.may_depart(slot);
            let mask = if self.random.below(2) == 0 {
                may
            } else {
                may & chosen
            };
            self.directory.depart(slot, mask);
            let line = self.directory.line_of(slot);
            let data = bits(mask).map(|bit| (line * 8 + bit, self.cache[&(slot.index(), bit)]));
            self.flying.push((slot, mask, data.collect()));
        }

        fn arrive(&mut self) {
            if self.flying.is_empty() {
                return;
            }
            let n = self.random.index(self.flying.len());
            let (slot, mask, data) = self.flying.swap_remove(n);
            for (sector, number) in data {
                self.store[sector] = number;
            }
            self.directory.arrive(slot, mask);
        }

        /// Whatever is said to be stored must be: the version in question, or a newer one.
        fn check(&mut self) {
            self.directory.check_invariants();
            if let Some(covered) = self.flush {
                let stored = (0..SECTORS).all(|n| self.store[n] >= covered[n]);
                assert_eq!(
                    self.directory.flush_is_done(),
                    stored,
                    "a flush is done when it is, not later"
                );
                if stored {
                    self.flush = None;
                    self.flushes += 1;
                }
            }
            let (directory, store) = (&self.directory, &self.store);
            let before = self.forced.len();
            self.forced.retain(|&(first, count, number)| {
                let stored = (first..first + count).all(|n| store[n] >= number);
                let said = (first..first + count).all(|n| {
                    directory
                        .lookup(n / 8)
                        .is_none_or(|slot| directory.is_stored(slot, 1 << (n % 8), number))
                });
                assert_eq!(
                    said, stored,
                    "write {number} is stored when it is, not later"
                );
                !stored
            });
            self.forced_done += before - self.forced.len();
            for sector in 0..SECTORS {
                let cached = self
                    .directory
                    .lookup(sector / 8)
                    .filter(|slot| self.directory.valid(*slot) & 1 << (sector % 8) != 0);
                let seen = match cached {
                    Some(slot) => self.cache[&(slot.index(), sector % 8)],
                    None => self.store[sector],
                };
                assert_eq!(seen, self.newest[sector], "a read sees the newest write");
            }
        }

        fn step(&mut self) {
            match self.random.below(10) {
                0..2 => self.write(),
                2..5 => self.depart(),
                5..9 => self.arrive(),
                _ if self.flush.is_none() => {
                    self.directory.begin_flush();
                    self.flush = Some(self.newest);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn flushes_and_forced_writes_are_done_exactly_when_their_data_is_stored() {
        let (mut flushes, mut forced) = (0, 0);
        for seed in 0..200 {
            // A failure names the seed that repeats it.
            println!("seed {seed}");
            let mut model = Model::new(seed);
            for _ in 0..500 {
                model.step();
                model.check();
            }
            flushes += model.flushes;
            forced += model.forced_done;
        }
        assert!(flushes > 1000, "only {flushes} flushes were tried");
        assert!(forced > 1000, "only {forced} forced writes were tried");
    }

    #[test]
    fn a_pinned_line_is_not_evicted() {
        let mut random = Random::new(1);
        let mut directory = Directory::new(4, 2);
        for line in 0..2 {
            let number = directory.number_write();
            let slot = directory.slot_for(line, line..line + 1, &mut random);
            directory.wrote(slot, 0xff, number);
            directory.depart(slot, 0xff);
            directory.arrive(slot, 0xff);
            directory.pin(slot);
        }
        assert!(!directory.has_room(2, 1));
        let slot = directory.lookup(1).expect("cached");
        directory.unpin(slot);
        assert!(directory.has_room(2, 1));
        assert_eq!(directory.slot_for(2, 2..3, &mut random), slot);
        assert_eq!(directory.lookup(1), None);
    }
}
