//! The map from device ranges to the newest journaled version of each.
//!
//! It is the overlay of the journal over the members: what it holds is to be read from the journal
//! (or is zeroes), what it does not hold is at home. One entry is an [`Extent`]: a run of sectors
//! that one request changed, with the request's seq and where its bytes are.
//!
//! ```text
//!   before:                  |---- seq 3 ----|       |- seq 5 -|
//!                            0               6       8         12
//!   insert [4, 9) seq 7:     |- seq 3 -|--- seq 7 ---|- seq 5 -|     both neighbours cut,
//!                            0         4             9         12    nothing hidden beneath
//! ```
//!
//! What it promises:
//!
//! * Newest wins. An insert replaces whatever its range held, and never covers a newer seq
//!   (asserted).
//! * One form for one content. Neighbours that are one request's, and contiguous in the ring, are
//!   one extent, so that a discard inserted piece by piece ends as one entry.
//! * Nothing allocates but [`ExtentMap::with_capacity`] and [`ExtentMap::grow`]. `n` extents always
//!   fit in a map of capacity `n`, in less than 64 bytes each, whatever the order of inserts and
//!   removals: `tree` says why.
//! * Work per call is bounded. Whatever can touch many extents takes a limit and tells where to go
//!   on.
//!
//! What it does not do: it does not know which seq is durable or which bytes are in the window, and
//! it does not refuse an insert when it is full. The caller asks [`ExtentMap::len`] first and keeps
//! a reserve, because one insert adds up to two extents (a hole punched into an old one); running
//! out is an assertion.

mod tree;

#[cfg(test)]
mod tests;

use std::fmt;

use crate::units::{Lba, Pos, SECTOR, Seq};

use self::tree::{Path, Spot, Tree};

/// Where the newest bytes of an extent are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// In the journal, contiguous in the ring from here: a multiple of 512.
    Payload(Pos),
    /// Nowhere: the range was discarded or zeroed, and its home may be unmapped.
    Zeroes,
    /// Nowhere: the range was zeroed, and its home must stay allocated.
    ZeroesNoUnmap,
}

impl Content {
    /// The content of what lies `sectors` further on.
    fn advanced(self, sectors: u64) -> Self {
        match self {
            Self::Payload(pos) => Self::Payload(Pos(pos.0 + sectors * SECTOR)),
            Self::Zeroes | Self::ZeroesNoUnmap => self,
        }
    }
}

/// A run of sectors as one request left them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The first sector.
    pub lba: Lba,
    /// How many sectors, never 0.
    pub sectors: u32,
    /// The request that wrote them.
    pub seq: Seq,
    /// Where the bytes of the first sector are; those of the others follow.
    pub content: Content,
}

impl Extent {
    /// The first sector after it.
    #[must_use]
    pub fn end(&self) -> Lba {
        Lba(self.lba.0 + u64::from(self.sectors))
    }

    /// The part of it that lies in `[from, to)`, which must not be empty.
    #[must_use]
    pub fn clipped(&self, from: Lba, to: Lba) -> Self {
        let lba = self.lba.max(from);
        let end = self.end().min(to);
        assert!(lba < end, "no part of {self:?} lies in [{from:?}, {to:?})");
        Self {
            lba,
            sectors: u32::try_from(end.0 - lba.0).expect("a part is no longer than the whole"),
            seq: self.seq,
            content: self.content.advanced(lba.0 - self.lba.0),
        }
    }

    /// This extent and `next` as one, if they are one request's, adjacent, and contiguous in the
    /// ring.
    fn joined(&self, next: &Self) -> Option<Self> {
        let one_run = self.seq == next.seq
            && self.end() == next.lba
            && self.content.advanced(u64::from(self.sectors)) == next.content;
        let sectors = self.sectors.checked_add(next.sectors)?;
        one_run.then_some(Self { sectors, ..*self })
    }
}

/// One piece of a range that was looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Span {
    /// The journal has the newest version; clipped to the range.
    Mapped(Extent),
    /// The newest version is at home.
    Home {
        /// The first sector.
        lba: Lba,
        /// How many sectors, never 0.
        sectors: u64,
    },
}

/// What a step of the sweep came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sweep {
    /// The next extent that is old enough, whole; the sweep goes on at its end.
    Found(Extent),
    /// As many extents as allowed were looked at, none of them old enough; the sweep goes on here.
    Continue(Lba),
    /// There are no more extents.
    End,
}

/// Where a sweep stands: a device address, and the entry there as long as the map has not changed
/// shape.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    from: Lba,
    /// The first extent that ends after `from`, and the [`Tree::changes`] for which that was true.
    spot: Option<(Spot, u64)>,
}

impl Cursor {
    /// A sweep that begins with the extent at or after `from`.
    #[must_use]
    pub fn at(from: Lba) -> Self {
        Self { from, spot: None }
    }

    /// Everything below this address has been visited.
    #[must_use]
    pub fn lba(&self) -> Lba {
        self.from
    }
}

/// See the head of the file.
pub struct ExtentMap {
    tree: Tree,
}

impl fmt::Debug for ExtentMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtentMap")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

impl ExtentMap {
    /// A map that holds up to `extents`; takes and touches all the memory that it will ever need.
    #[must_use]
    pub fn with_capacity(extents: usize) -> Self {
        Self {
            tree: Tree::with_capacity(extents),
        }
    }

    /// Raises the capacity to `extents`. Allocates and copies: for recovery, before anything is
    /// served.
    pub fn grow(&mut self, extents: usize) {
        self.tree.grow(extents);
    }

    /// How many extents it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    /// Whether everything is at home.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many extents it may hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.tree.capacity()
    }

    /// How many bytes it occupies: less than 64 for each extent of capacity, and 8 KiB.
    #[cfg(test)]
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.tree.memory_bytes()
    }

    /// Makes `extent` the newest version of its range; returns how many sectors, from its start,
    /// this was done for.
    ///
    /// Those are all of them, unless more than `max_displaced` old extents are in the way; then the
    /// call ends where the next of these begins, and the caller goes on with the rest. Until it
    /// has, the range must be kept from readers: they would see half of a request.
    ///
    /// # Panics
    /// If a covered extent is newer, or the map would exceed its capacity.
    #[must_use = "the rest of the extent may have to be inserted by further calls"]
    pub fn insert(&mut self, extent: Extent, max_displaced: usize) -> u32 {
        assert!(extent.sectors > 0, "an extent has at least one sector");
        assert!(
            extent
                .lba
                .0
                .checked_add(u64::from(extent.sectors))
                .is_some(),
            "{extent:?} ends beyond 2^64 sectors"
        );
        assert!(
            max_displaced > 0,
            "an insert that may displace nothing would never end"
        );

        let path = self.tree.descend(extent.lba);
        if self.replace_same_range(&path, &extent) || self.fill_gap(&path, &extent) {
            return extent.sectors;
        }
        let piece = extent.clipped(extent.lba, self.reach(&path, &extent, max_displaced));
        self.clear(piece.lba, piece.end());
        self.add(piece);
        piece.sectors
    }

    /// Splits `[lba, lba + sectors)` into consecutive spans, in order, that cover exactly the
    /// range.
    pub fn lookup(&self, lba: Lba, sectors: u64) -> impl Iterator<Item = Span> + '_ {
        let end = Lba(lba
            .0
            .checked_add(sectors)
            .expect("a range ends within 2^64 sectors"));
        Lookup {
            tree: &self.tree,
            spot: self.first_ending_after(lba),
            from: lba,
            end,
        }
    }

    /// The first extent that ends after `from` and has a seq up to `through`, among the next
    /// `max_visited`: one step of [`Self::sweep`] from anywhere.
    #[cfg(test)]
    #[must_use]
    pub fn next_through(&self, from: Lba, through: Seq, max_visited: usize) -> Sweep {
        assert!(
            max_visited > 0,
            "a sweep that may visit nothing would never end"
        );
        let mut budget = max_visited;
        self.sweep(&mut Cursor::at(from), through, &mut budget)
    }

    /// The next step of a sweep: the first extent that ends after the cursor and has a seq up to
    /// `through`. Finds it without a search if the map has not changed shape since the last step,
    /// and takes what it visits off `budget`, so that one budget bounds a whole turn. (A write over
    /// exactly the range of an older one changes no shape.)
    ///
    /// The map may change between two steps. An extent that was inserted behind the cursor is not
    /// visited.
    pub fn sweep(&self, cursor: &mut Cursor, through: Seq, budget: &mut usize) -> Sweep {
        let changes = self.tree.changes();
        let mut spot = match cursor.spot {
            Some((spot, seen)) if seen == changes => spot,
            Some(_) | None => self.first_ending_after(cursor.from),
        };
        while let Some(here) = self.tree.settle(spot) {
            if *budget == 0 {
                cursor.spot = Some((here, changes));
                return Sweep::Continue(cursor.from);
            }
            let (visited, found) = self.tree.scan(here, through, *budget);
            let last = self.tree.extent(here.forward(visited - 1));
            *budget -= visited;
            spot = here.forward(visited);
            *cursor = Cursor {
                from: last.end(),
                spot: Some((spot, changes)),
            };
            if found {
                return Sweep::Found(last);
            }
        }
        Sweep::End
    }

    /// Removes the extents with a seq up to `through` among the `max_visited` next ones that end
    /// after `from`.
    ///
    /// Returns where to go on, or `None` when no extents follow.
    pub fn release_through(&mut self, from: Lba, through: Seq, max_visited: usize) -> Option<Lba> {
        assert!(
            max_visited > 0,
            "a release that may visit nothing would never end"
        );
        let mut from = from;
        let mut budget = max_visited;
        while let Some(here) = self.tree.settle(self.first_ending_after(from)) {
            if budget == 0 {
                return Some(from);
            }
            let visited = self.tree.rest_of_leaf(here).min(budget);
            from = self.tree.extent(here.forward(visited - 1)).end();
            budget -= visited;
            self.tree.release(here, visited, through);
        }
        None
    }

    /// Every extent, in the order of their addresses.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        let mut spot = self.tree.first();
        std::iter::from_fn(move || {
            let here = self.tree.settle(spot)?;
            spot = here.forward(1);
            Some(self.tree.extent(here))
        })
    }

    /// Asserts everything that must hold between two calls. Visits every extent, and allocates.
    pub fn check_invariants(&self) {
        self.tree.check_invariants();
        let mut count = 0;
        let mut previous: Option<Extent> = None;
        for extent in self.iter() {
            assert!(extent.sectors > 0, "{extent:?} is empty");
            if let Some(left) = previous {
                assert!(left.end() <= extent.lba, "{left:?} overlaps {extent:?}");
                assert!(
                    left.joined(&extent).is_none(),
                    "{left:?} and {extent:?} are one run"
                );
            }
            previous = Some(extent);
            count += 1;
        }
        assert_eq!(count, self.len(), "the count of extents is wrong");
    }

    // The two ways that nearly every small write goes, with one search: over exactly the range of
    // an older write, and where nothing was. `path` leads to where an extent at `extent.lba` would
    // be added.

    /// Replaces the one extent that has exactly this range, if there is one and nothing is to be
    /// joined.
    fn replace_same_range(&mut self, path: &Path, extent: &Extent) -> bool {
        let after = path.spot();
        let Some(here) = after.back_in_leaf() else {
            return false;
        };
        let old = self.tree.extent(here);
        if old.lba != extent.lba
            || old.sectors != extent.sectors
            || self.joins_neighbour(here, extent, after)
        {
            return false;
        }
        assert_not_newer(&old, extent);
        self.tree.replace(here, extent);
        true
    }

    /// Adds an extent whose range is all at home, if it is and nothing is to be joined.
    fn fill_gap(&mut self, path: &Path, extent: &Extent) -> bool {
        let spot = path.spot();
        let left_in_the_way = self
            .tree
            .before(spot)
            .is_some_and(|left| self.tree.extent(left).end() > extent.lba);
        let right_in_the_way = self
            .tree
            .settle(spot)
            .is_some_and(|right| self.tree.extent(right).lba < extent.end());
        if left_in_the_way || right_in_the_way || self.joins_neighbour(spot, extent, spot) {
            return false;
        }
        self.tree.insert(path, extent);
        true
    }

    /// Whether `extent` is one run with the extent before `start` or the one at or after `end`.
    fn joins_neighbour(&self, start: Spot, extent: &Extent, end: Spot) -> bool {
        let left = self.tree.before(start).map(|left| self.tree.extent(left));
        let right = self.tree.settle(end).map(|right| self.tree.extent(right));
        left.is_some_and(|left| left.joined(extent).is_some())
            || right.is_some_and(|right| extent.joined(&right).is_some())
    }

    /// How far an insert of `extent` gets when it may displace `max_displaced` extents.
    fn reach(&self, path: &Path, extent: &Extent, max_displaced: usize) -> Lba {
        let mut spot = self.ending_after(extent.lba, path);
        let mut displaced = 0;
        while let Some(here) = self.tree.settle(spot) {
            let old = self.tree.extent(here);
            if old.lba >= extent.end() {
                break;
            }
            if displaced == max_displaced {
                return old.lba;
            }
            assert_not_newer(&old, extent);
            displaced += 1;
            spot = here.forward(1);
        }
        extent.end()
    }

    /// Makes `[from, to)` be at home: removes what lies in it, cuts what reaches over its bounds.
    fn clear(&mut self, from: Lba, to: Lba) {
        while let Some(here) = self.tree.settle(self.first_ending_after(from)) {
            let old = self.tree.extent(here);
            if old.lba >= to {
                return;
            }
            let left = (old.lba < from).then(|| old.clipped(old.lba, from));
            let right = (old.end() > to).then(|| old.clipped(to, old.end()));
            match (left, right) {
                (None, None) => self.tree.remove(here, self.tree.run_ending_by(here, to)),
                (Some(left), None) => self.tree.resize(here, left.sectors),
                (Some(left), Some(right)) => {
                    self.tree.resize(here, left.sectors);
                    self.tree.insert(&self.tree.descend(right.lba), &right);
                    return;
                }
                (None, Some(right)) => {
                    if !self.tree.cut_to_rest(here, &right) {
                        self.tree.remove(here, 1);
                        self.tree.insert(&self.tree.descend(right.lba), &right);
                    }
                    return;
                }
            }
        }
    }

    /// Adds an extent whose range is all at home, and joins it with its neighbours.
    fn add(&mut self, extent: Extent) {
        let mut run = extent;
        let mut path = self.tree.descend(run.lba);
        let after = self.tree.settle(path.spot());
        if let Some(right) = after
            && let Some(joined) = run.joined(&self.tree.extent(right))
        {
            self.tree.remove(right, 1);
            run = joined;
            path = self.tree.descend(run.lba);
        }
        let before = self.tree.before(path.spot());
        if let Some(left) = before
            && let Some(joined) = self.tree.extent(left).joined(&run)
        {
            self.tree.resize(left, joined.sectors);
        } else {
            self.tree.insert(&path, &run);
        }
    }

    /// The first extent that ends after `lba`: the one that holds it, else the next one.
    fn first_ending_after(&self, lba: Lba) -> Spot {
        self.ending_after(lba, &self.tree.descend(lba))
    }

    /// [`Self::first_ending_after`] for one who has the way to `lba` already.
    fn ending_after(&self, lba: Lba, path: &Path) -> Spot {
        let after = path.spot();
        match self.tree.before(after) {
            Some(left) if self.tree.extent(left).end() > lba => left,
            Some(_) | None => after,
        }
    }
}

/// The rule of the map: what is newer stays.
fn assert_not_newer(old: &Extent, extent: &Extent) {
    assert!(
        old.seq <= extent.seq,
        "{extent:?} would cover the newer {old:?}"
    );
}

/// The spans of a range that are still to come.
struct Lookup<'a> {
    tree: &'a Tree,
    /// The first extent that ends after `from`.
    spot: Spot,
    from: Lba,
    end: Lba,
}

impl Iterator for Lookup<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        if self.from >= self.end {
            return None;
        }
        let from = self.from;
        let here = self.tree.settle(self.spot);
        if let Some(here) = here {
            let extent = self.tree.extent(here);
            if extent.lba <= from {
                let part = extent.clipped(from, self.end);
                self.spot = here.forward(1);
                self.from = part.end();
                return Some(Span::Mapped(part));
            }
            self.from = extent.lba.min(self.end);
        } else {
            self.from = self.end;
        }
        Some(Span::Home {
            lba: from,
            sectors: self.from.0 - from.0,
        })
    }
}
