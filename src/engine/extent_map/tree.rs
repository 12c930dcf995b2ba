//! The ordered store beneath the extent map: a B+tree keyed by lba, in two arenas of fixed size.
//!
//! ```text
//!   inner:                [ first 0 | first 4096 | first 9000 ]      child i holds the keys in
//!                          /            |               \            [first i, first i+1)
//!   leaf:      [ 8 16 .. ] <-> [ 4096 .. 8800 ] <-> [ 9000 .. ]      linked both ways, in order
//! ```
//!
//! It knows nothing of overlap: it keeps entries sorted by the lba where they begin, and what the
//! entries mean is the parent module's business. Note what follows: an extent may reach over the
//! lower bound of the next leaf, so the one that holds an lba may be the last of the leaf *before*
//! the one that a search for this lba ends in.
//!
//! # Memory: why `n` extents always fit in a tree of capacity `n`
//!
//! A node holds up to 63 entries and, unless it is the root, at least 32:
//!
//! * a full node that takes one more becomes two of exactly 32;
//! * a node that falls below 32 is merged with a neighbour if both together make no more than 63,
//!   which is at least the 32 that the neighbour had; otherwise both share 64 or more, 32 each at
//!   least.
//!
//! This holds after each single insert and after each removal of a run, not only between calls of
//! the map, and nodes are taken by inserts alone. So at no moment are there more than `max(1, n /
//! 32)` leaves, nor, on any level above, more than 1/32 of the nodes below it, or one.
//! [`Tree::with_capacity`] takes exactly that many: a node can never be lacking, and the free lists
//! assert it.
//!
//! A leaf is 1792 bytes, an inner node 768. In the worst case, all at minimum fill, an extent costs
//! 1792/32 = 56 bytes in the leaves and (768/32) * (1/31) = 0.8 bytes above them: less than 57, of
//! the 64 promised, and 8 KiB for the few nodes that are there anyway.
//!
//! Within a node each field is an array of its own: a search reads only keys, a sweep reads only
//! seqs.

use crate::units::{Lba, Pos, Seq};

use super::{Content, Extent, SECTOR};

/// The most entries of a node.
const FULL: usize = 63;
/// The fewest entries of a node that is not the root: half of a full one that has to take one more.
const HALF: usize = 32;
/// The most levels above the leaves.
const HEIGHT_MAX: usize = 6;
/// The most extents of a tree.
const EXTENTS_MAX: usize = 1 << 32;
/// No node.
const NONE: u32 = u32::MAX;

const _: () = assert!(HALF * 2 == FULL + 1);
// The bound of the head of the file, times 32 * 31: no more than 64 bytes for an extent.
const _: () =
    assert!(size_of::<Leaf>() * (HALF - 1) + size_of::<Inner>() <= 64 * HALF * (HALF - 1));
// A tree one level higher than allowed has a root of 2 at least, and 32 at least in each node below
// it.
const _: () = assert!(2 * HALF.pow(7) > EXTENTS_MAX && HEIGHT_MAX == 6);
// Every leaf has a number, and none of them is `NONE`.
const _: () = assert!(EXTENTS_MAX / HALF < (1 << 32) - 1);

/// Where an entry is, or would be: `slot` may be one beyond the last entry of the leaf.
///
/// It holds until an entry is added or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spot {
    leaf: u32,
    slot: usize,
}

impl Spot {
    /// `slots` further on, at most one beyond the last entry of this leaf.
    pub(super) fn forward(self, slots: usize) -> Self {
        Self {
            leaf: self.leaf,
            slot: self.slot + slots,
        }
    }

    /// The entry before this one, if it is in the same leaf.
    pub(super) fn back_in_leaf(self) -> Option<Self> {
        Some(Self {
            leaf: self.leaf,
            slot: self.slot.checked_sub(1)?,
        })
    }
}

/// The way from the root to the place of a key. It holds until an entry is added or removed.
pub(super) struct Path {
    /// The inner node of each level and the child taken there, root first; only [`Tree::height`] of
    /// them are used.
    steps: [Step; HEIGHT_MAX],
    spot: Spot,
}

#[derive(Clone, Copy)]
struct Step {
    node: u32,
    slot: usize,
}

impl Path {
    /// Behind the last entry of its leaf whose lba is at or before the key.
    pub(super) fn spot(&self) -> Spot {
        self.spot
    }
}

/// Up to 63 entries, sorted by lba.
#[repr(C, align(64))]
#[derive(Clone)]
struct Leaf {
    lba: [u64; FULL],
    /// Beside the keys, because no search does without it.
    len: u32,
    prev: u32,
    seq: [u64; FULL],
    content: [PackedContent; FULL],
    sectors: [u32; FULL],
    /// The leaf to the right; in a free leaf, the next free one.
    next: u32,
}

const _: () = assert!(size_of::<Leaf>() == 1792);

/// Up to 63 children, each with the lower bound of its keys.
///
/// `first[0]` is the node's own lower bound, the same as its parent has for it; 0 in the root.
#[repr(C, align(64))]
#[derive(Clone)]
struct Inner {
    first: [u64; FULL],
    /// Numbers of inner nodes, or of leaves on the lowest level; in a free node, `child[0]` is the
    /// next free one.
    child: [u32; FULL],
    len: u32,
}

const _: () = assert!(size_of::<Inner>() == 768);

/// A [`Content`] in 8 bytes: positions are whole sectors, so that the values below 512 but above 0
/// are free for the places without one.
#[derive(Clone, Copy)]
struct PackedContent(u64);

impl PackedContent {
    const ZEROES: u64 = 1;
    const ZEROES_NO_UNMAP: u64 = 2;

    fn pack(content: Content) -> Self {
        match content {
            Content::Payload(pos) => {
                assert!(
                    pos.0.is_multiple_of(SECTOR),
                    "{pos:?} is not at a sector of the ring"
                );
                Self(pos.0)
            }
            Content::Zeroes => Self(Self::ZEROES),
            Content::ZeroesNoUnmap => Self(Self::ZEROES_NO_UNMAP),
        }
    }

    fn unpack(self) -> Content {
        match self.0 {
            Self::ZEROES => Content::Zeroes,
            Self::ZEROES_NO_UNMAP => Content::ZeroesNoUnmap,
            pos => Content::Payload(Pos(pos)),
        }
    }
}

/// See the head of the file.
pub(super) struct Tree {
    leaves: Box<[Leaf]>,
    inners: Box<[Inner]>,
    free_leaf: u32,
    free_inner: u32,
    /// An inner node, or a leaf while `height` is 0.
    root: u32,
    /// How many levels are above the leaves.
    height: usize,
    len: usize,
    capacity: usize,
    changes: u64,
}

impl Tree {
    pub(super) fn with_capacity(extents: usize) -> Self {
        let mut tree = Self {
            leaves: Box::default(),
            inners: Box::default(),
            free_leaf: NONE,
            free_inner: NONE,
            root: NONE,
            height: 0,
            len: 0,
            capacity: 0,
            changes: 0,
        };
        tree.grow(extents);
        tree.root = tree.take_leaf();
        tree
    }

    /// Raises the capacity. The nodes that exist keep their numbers.
    pub(super) fn grow(&mut self, extents: usize) {
        assert!(
            extents >= self.capacity,
            "a capacity of {} does not shrink to {extents}",
            self.capacity
        );
        assert!(
            extents <= EXTENTS_MAX,
            "{extents} extents are more than a tree can hold"
        );
        let (leaves, inners) = nodes_for(extents);

        let old_leaves = self.leaves.len();
        resize(&mut self.leaves, leaves, Leaf::EMPTY);
        for number in (old_leaves..leaves).rev() {
            self.give_leaf(number_of(number));
        }
        let old_inners = self.inners.len();
        resize(&mut self.inners, inners, Inner::EMPTY);
        for number in (old_inners..inners).rev() {
            self.give_inner(number_of(number));
        }
        self.capacity = extents;
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The bytes of both arenas.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.leaves) + size_of_val(&*self.inners)
    }

    /// Grows with every change after which a [`Spot`] may mean another extent, or another range of
    /// it.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    // Finding and reading.

    /// The way to the leaf that holds `lba` if anything does, and behind the last entry there at or
    /// before it.
    pub(super) fn descend(&self, lba: Lba) -> Path {
        let mut steps = [Step {
            node: NONE,
            slot: 0,
        }; HEIGHT_MAX];
        let mut node = self.root;
        for step in &mut steps[..self.height] {
            let inner = self.inner(node);
            // The lower bound of the root is 0, and a child's lower bound is its parent's for it:
            // one is found.
            let slot = rank(inner.keys(), lba.0) - 1;
            *step = Step { node, slot };
            node = inner.child[slot];
        }
        let slot = rank(self.leaf(node).keys(), lba.0);
        Path {
            steps,
            spot: Spot { leaf: node, slot },
        }
    }

    /// The place of the first entry.
    pub(super) fn first(&self) -> Spot {
        Spot {
            slot: 0,
            ..self.descend(Lba(0)).spot
        }
    }

    /// The entry at `spot`, or the next one if that is beyond the last of its leaf.
    pub(super) fn settle(&self, spot: Spot) -> Option<Spot> {
        let leaf = self.leaf(spot.leaf);
        if spot.slot < leaf.len() {
            return Some(spot);
        }
        // Only a root is ever empty, and it has no next leaf.
        (leaf.next != NONE).then_some(Spot {
            leaf: leaf.next,
            slot: 0,
        })
    }

    /// The entry before `spot`.
    pub(super) fn before(&self, spot: Spot) -> Option<Spot> {
        spot.back_in_leaf().or_else(|| {
            let prev = self.leaf(spot.leaf).prev;
            (prev != NONE).then(|| Spot {
                leaf: prev,
                slot: self.leaf(prev).len() - 1,
            })
        })
    }

    pub(super) fn extent(&self, spot: Spot) -> Extent {
        self.leaf(spot.leaf).get(spot.slot)
    }

    /// How many entries there are from `spot` to the end of its leaf.
    pub(super) fn rest_of_leaf(&self, spot: Spot) -> usize {
        self.leaf(spot.leaf).len() - spot.slot
    }

    /// How many entries, from `spot` on within its leaf, end at or before `end`.
    pub(super) fn run_ending_by(&self, spot: Spot, end: Lba) -> usize {
        let leaf = self.leaf(spot.leaf);
        (spot.slot..leaf.len())
            .take_while(|slot| leaf.get(*slot).end() <= end)
            .count()
    }

    /// Looks from `spot` on, within its leaf and at `most` entries, for the first with a seq up to
    /// `through`. Returns how many it looked at, and whether the last of these is the one.
    pub(super) fn scan(&self, spot: Spot, through: Seq, most: usize) -> (usize, bool) {
        let leaf = self.leaf(spot.leaf);
        let seqs = &leaf.seq[spot.slot..leaf.len()];
        let seqs = &seqs[..seqs.len().min(most)];
        match seqs.iter().position(|seq| *seq <= through.0) {
            Some(position) => (position + 1, true),
            None => (seqs.len(), false),
        }
    }

    // Changing an entry in its place.

    /// Gives the entry at `spot` the seq and content of `extent`, which has its range.
    pub(super) fn replace(&mut self, spot: Spot, extent: &Extent) {
        let leaf = self.leaf_mut(spot.leaf);
        assert_eq!(
            leaf.lba[spot.slot], extent.lba.0,
            "an entry is replaced by one of the same range"
        );
        assert_eq!(
            leaf.sectors[spot.slot], extent.sectors,
            "an entry is replaced by one of the same range"
        );
        leaf.set(spot.slot, extent);
    }

    /// Moves the end of the entry at `spot`.
    pub(super) fn resize(&mut self, spot: Spot, sectors: u32) {
        self.leaf_mut(spot.leaf).sectors[spot.slot] = sectors;
        self.changes += 1;
    }

    /// Moves the beginning of the entry at `spot` to that of `rest`, its last part.
    ///
    /// Refuses it for the last entry of a leaf, because the new key may belong into the next one.
    pub(super) fn cut_to_rest(&mut self, spot: Spot, rest: &Extent) -> bool {
        let leaf = self.leaf_mut(spot.leaf);
        if spot.slot + 1 >= leaf.len() {
            return false;
        }
        leaf.set(spot.slot, rest);
        self.changes += 1;
        true
    }

    // Adding.

    /// Adds `extent`; `path` is [`Self::descend`] of its lba.
    pub(super) fn insert(&mut self, path: &Path, extent: &Extent) {
        assert!(
            self.len < self.capacity,
            "the extent map is full with {}: its user keeps no reserve",
            self.len
        );
        self.len += 1;
        self.changes += 1;
        let Spot { leaf: number, slot } = path.spot;
        let leaf = self.leaf_mut(number);
        if leaf.len() < FULL {
            leaf.insert(slot, extent);
            return;
        }
        let added = self.take_leaf();
        let [left, right] = pair(&mut self.leaves, number, added);
        if slot < HALF {
            left.give(right, FULL - (HALF - 1));
            left.insert(slot, extent);
        } else {
            left.give(right, FULL - HALF);
            right.insert(slot - HALF, extent);
        }
        let first = right.lba[0];
        let next = left.next;
        right.prev = number;
        right.next = next;
        left.next = added;
        if next != NONE {
            self.leaf_mut(next).prev = added;
        }
        self.insert_child(path, first, added);
    }

    /// Enters a node that was split off the one where `path` ends, level by level until one has
    /// room.
    fn insert_child(&mut self, path: &Path, first: u64, child: u32) {
        let mut first = first;
        let mut child = child;
        for step in path.steps[..self.height].iter().rev() {
            let slot = step.slot + 1;
            let inner = self.inner_mut(step.node);
            if inner.len() < FULL {
                inner.insert(slot, first, child);
                return;
            }
            let added = self.take_inner();
            let [left, right] = pair(&mut self.inners, step.node, added);
            if slot < HALF {
                left.give(right, FULL - (HALF - 1));
                left.insert(slot, first, child);
            } else {
                left.give(right, FULL - HALF);
                right.insert(slot - HALF, first, child);
            }
            first = right.first[0];
            child = added;
        }
        self.raise(first, child);
    }

    /// Puts a new root above the old one and `child`.
    fn raise(&mut self, first: u64, child: u32) {
        assert!(
            self.height < HEIGHT_MAX,
            "a tree within its capacity is not that high"
        );
        let old = self.root;
        self.root = self.take_inner();
        self.height += 1;
        let root = self.inner_mut(self.root);
        root.insert(0, 0, old);
        root.insert(1, first, child);
    }

    // Removing.

    /// Removes `count` entries of one leaf, from `spot` on.
    pub(super) fn remove(&mut self, spot: Spot, count: usize) {
        let leaf = self.leaf_mut(spot.leaf);
        let key = leaf.lba[spot.slot];
        leaf.remove(spot.slot, count);
        self.removed(spot.leaf, key, count);
    }

    /// Removes, of the `count` entries of one leaf from `spot` on, those with a seq up to
    /// `through`.
    pub(super) fn release(&mut self, spot: Spot, count: usize, through: Seq) {
        let leaf = self.leaf_mut(spot.leaf);
        let key = leaf.lba[spot.slot];
        let removed = leaf.release(spot.slot, count, through);
        if removed > 0 {
            self.removed(spot.leaf, key, removed);
        }
    }

    /// Counts what was removed from a leaf, and restores its minimum fill. `key` was in it.
    fn removed(&mut self, number: u32, key: u64, count: usize) {
        self.len -= count;
        self.changes += 1;
        if self.leaf(number).len() >= HALF || self.height == 0 {
            return;
        }
        // The bounds of the leaves have not changed, so that the way to the key still leads here.
        let path = self.descend(Lba(key));
        assert_eq!(
            path.spot.leaf, number,
            "a search for a key of a leaf ends in that leaf"
        );
        self.fill_leaf(&path);
    }

    /// Merges or levels the leaf at the end of `path`, which has too few entries, with a neighbour.
    fn fill_leaf(&mut self, path: &Path) {
        let Step { node: parent, slot } = path.steps[self.height - 1];
        let left_slot = self.inner(parent).left_of_pair(slot);
        let right_slot = left_slot + 1;
        let [left_number, right_number] = self.inner(parent).children(left_slot);

        let [left, right] = pair(&mut self.leaves, left_number, right_number);
        if left.len() + right.len() > FULL {
            left.level(right);
            let first = right.lba[0];
            self.inner_mut(parent).first[right_slot] = first;
            return;
        }
        left.take(right, right.len());
        left.next = right.next;
        let next = right.next;
        if next != NONE {
            self.leaf_mut(next).prev = left_number;
        }
        self.give_leaf(right_number);
        self.remove_child(path, right_slot);
    }

    /// Takes a child out of the lowest inner node of `path`, and fills up what becomes too empty,
    /// level by level.
    fn remove_child(&mut self, path: &Path, slot: usize) {
        let mut slot = slot;
        for level in (0..self.height).rev() {
            let node = path.steps[level].node;
            self.inner_mut(node).remove(slot);
            if level == 0 {
                self.lower();
                return;
            }
            if self.inner(node).len() >= HALF {
                return;
            }
            let Step {
                node: parent,
                slot: own,
            } = path.steps[level - 1];
            let left_slot = self.inner(parent).left_of_pair(own);
            let [left_number, right_number] = self.inner(parent).children(left_slot);
            let [left, right] = pair(&mut self.inners, left_number, right_number);
            if left.len() + right.len() > FULL {
                left.level(right);
                let first = right.first[0];
                self.inner_mut(parent).first[left_slot + 1] = first;
                return;
            }
            left.take(right, right.len());
            self.give_inner(right_number);
            slot = left_slot + 1;
        }
    }

    /// Drops the root if it has only one child.
    fn lower(&mut self) {
        let root = self.inner(self.root);
        if root.len() == 1 {
            let child = root.child[0];
            self.give_inner(self.root);
            self.root = child;
            self.height -= 1;
        }
    }

    // The arenas.

    fn leaf(&self, number: u32) -> &Leaf {
        &self.leaves[index_of(number)]
    }

    fn leaf_mut(&mut self, number: u32) -> &mut Leaf {
        &mut self.leaves[index_of(number)]
    }

    fn inner(&self, number: u32) -> &Inner {
        &self.inners[index_of(number)]
    }

    fn inner_mut(&mut self, number: u32) -> &mut Inner {
        &mut self.inners[index_of(number)]
    }

    fn take_leaf(&mut self) -> u32 {
        let number = self.free_leaf;
        assert!(
            number != NONE,
            "there are leaves for every extent within the capacity"
        );
        let leaf = self.leaf_mut(number);
        let next = leaf.next;
        leaf.next = NONE;
        self.free_leaf = next;
        number
    }

    fn give_leaf(&mut self, number: u32) {
        let next = self.free_leaf;
        let leaf = self.leaf_mut(number);
        leaf.len = 0;
        leaf.prev = NONE;
        leaf.next = next;
        self.free_leaf = number;
    }

    fn take_inner(&mut self) -> u32 {
        let number = self.free_inner;
        assert!(
            number != NONE,
            "there are inner nodes for every extent within the capacity"
        );
        self.free_inner = self.inner(number).child[0];
        number
    }

    fn give_inner(&mut self, number: u32) {
        let next = self.free_inner;
        let inner = self.inner_mut(number);
        inner.len = 0;
        inner.child[0] = next;
        self.free_inner = number;
    }

    #[cfg(test)]
    pub(super) fn free_leaves(&self) -> usize {
        let mut count = 0;
        let mut free = self.free_leaf;
        while free != NONE {
            count += 1;
            free = self.leaf(free).next;
        }
        count
    }

    /// Asserts the shape of the tree: bounds, fill, links, counts and free lists. Visits every
    /// node, and allocates.
    pub(super) fn check_invariants(&self) {
        let mut leaf_seen = vec![false; self.leaves.len()];
        let mut inner_seen = vec![false; self.inners.len()];

        // Level by level, each node with the bounds of its keys: [first, end), no end for the last
        // one.
        let mut level = vec![(self.root, 0, None)];
        for _ in 0..self.height {
            let mut below = Vec::new();
            for (number, first, end) in level {
                mark(&mut inner_seen, number);
                let inner = self.inner(number);
                let fewest = if number == self.root { 2 } else { HALF };
                assert!(
                    inner.len() >= fewest,
                    "inner node {number} has only {} children",
                    inner.len()
                );
                assert_eq!(
                    inner.first[0], first,
                    "inner node {number} has not its parent's lower bound"
                );
                assert_ascending(inner.keys(), first, end);
                for (slot, child) in inner.child[..inner.len()].iter().enumerate() {
                    let child_end = inner.keys().get(slot + 1).copied().or(end);
                    below.push((*child, inner.first[slot], child_end));
                }
            }
            level = below;
        }

        let mut len = 0;
        let mut prev = NONE;
        let mut expected = level[0].0;
        for (number, first, end) in level {
            mark(&mut leaf_seen, number);
            let leaf = self.leaf(number);
            assert!(
                leaf.len() >= HALF || self.height == 0,
                "leaf {number} has only {} entries",
                leaf.len()
            );
            assert_ascending(leaf.keys(), first, end);
            assert_eq!(
                number, expected,
                "leaf {prev} is linked to another than its right neighbour"
            );
            assert_eq!(
                leaf.prev, prev,
                "leaf {number} is linked to another than its left neighbour"
            );
            prev = number;
            expected = leaf.next;
            len += leaf.len();
        }
        assert_eq!(expected, NONE, "the last leaf is linked to another");
        assert_eq!(len, self.len, "the count of entries is wrong");
        assert!(
            len <= self.capacity,
            "there are more entries than the capacity"
        );

        let mut free = self.free_leaf;
        while free != NONE {
            mark(&mut leaf_seen, free);
            free = self.leaf(free).next;
        }
        let mut free = self.free_inner;
        while free != NONE {
            mark(&mut inner_seen, free);
            free = self.inner(free).child[0];
        }
        assert!(
            leaf_seen.iter().all(|seen| *seen),
            "a leaf is neither in the tree nor free"
        );
        assert!(
            inner_seen.iter().all(|seen| *seen),
            "an inner node is neither in the tree nor free"
        );
    }
}

impl Leaf {
    const EMPTY: Self = Self {
        lba: [0; FULL],
        len: 0,
        prev: NONE,
        seq: [0; FULL],
        content: [PackedContent(0); FULL],
        sectors: [0; FULL],
        next: NONE,
    };

    fn len(&self) -> usize {
        index_of(self.len)
    }

    fn keys(&self) -> &[u64] {
        &self.lba[..self.len()]
    }

    fn get(&self, slot: usize) -> Extent {
        assert!(
            slot < self.len(),
            "there is no entry {slot} in a leaf of {}",
            self.len
        );
        Extent {
            lba: Lba(self.lba[slot]),
            sectors: self.sectors[slot],
            seq: Seq(self.seq[slot]),
            content: self.content[slot].unpack(),
        }
    }

    fn set(&mut self, slot: usize, extent: &Extent) {
        self.lba[slot] = extent.lba.0;
        self.sectors[slot] = extent.sectors;
        self.seq[slot] = extent.seq.0;
        self.content[slot] = PackedContent::pack(extent.content);
    }

    fn insert(&mut self, slot: usize, extent: &Extent) {
        let len = self.len();
        self.move_within(slot, len, slot + 1);
        self.set(slot, extent);
        self.len += 1;
    }

    fn remove(&mut self, slot: usize, count: usize) {
        let len = self.len();
        self.move_within(slot + count, len, slot);
        self.len = number_of(len - count);
    }

    /// Removes, of `count` entries from `slot` on, those with a seq up to `through`; returns how
    /// many.
    fn release(&mut self, slot: usize, count: usize, through: Seq) -> usize {
        let mut kept = slot;
        for from in slot..slot + count {
            if self.seq[from] > through.0 {
                self.move_within(from, from + 1, kept);
                kept += 1;
            }
        }
        let removed = slot + count - kept;
        self.remove(kept, removed);
        removed
    }

    /// Moves the last `count` entries to the front of `right`.
    fn give(&mut self, right: &mut Self, count: usize) {
        let len = self.len();
        let right_len = right.len();
        right.move_within(0, right_len, count);
        right.copy_from(self, len - count, 0, count);
        self.len = number_of(len - count);
        right.len = number_of(right_len + count);
    }

    /// Appends the first `count` entries of `right`.
    fn take(&mut self, right: &mut Self, count: usize) {
        let len = self.len();
        self.copy_from(right, 0, len, count);
        self.len = number_of(len + count);
        right.remove(0, count);
    }

    /// Moves entries between this leaf and its right neighbour until both have the same number, or
    /// one more.
    fn level(&mut self, right: &mut Self) {
        let half = (self.len() + right.len()) / 2;
        match self.len().checked_sub(half) {
            Some(surplus) => self.give(right, surplus),
            None => self.take(right, half - self.len()),
        }
    }

    fn move_within(&mut self, from: usize, to: usize, at: usize) {
        self.lba.copy_within(from..to, at);
        self.seq.copy_within(from..to, at);
        self.content.copy_within(from..to, at);
        self.sectors.copy_within(from..to, at);
    }

    fn copy_from(&mut self, other: &Self, from: usize, at: usize, count: usize) {
        self.lba[at..at + count].copy_from_slice(&other.lba[from..from + count]);
        self.seq[at..at + count].copy_from_slice(&other.seq[from..from + count]);
        self.content[at..at + count].copy_from_slice(&other.content[from..from + count]);
        self.sectors[at..at + count].copy_from_slice(&other.sectors[from..from + count]);
    }
}

impl Inner {
    const EMPTY: Self = Self {
        first: [0; FULL],
        child: [NONE; FULL],
        len: 0,
    };

    fn len(&self) -> usize {
        index_of(self.len)
    }

    fn keys(&self) -> &[u64] {
        &self.first[..self.len()]
    }

    /// The left one of two neighbours, of which the child in `slot` is one.
    fn left_of_pair(&self, slot: usize) -> usize {
        assert!(self.len() >= 2, "an inner node has two children at least");
        slot.min(self.len() - 2)
    }

    /// The children in `slot` and in the next one.
    fn children(&self, slot: usize) -> [u32; 2] {
        [self.child[slot], self.child[slot + 1]]
    }

    fn insert(&mut self, slot: usize, first: u64, child: u32) {
        let len = self.len();
        self.move_within(slot, len, slot + 1);
        self.first[slot] = first;
        self.child[slot] = child;
        self.len += 1;
    }

    /// The keys of a child that is removed go to the one before it: `slot` is not 0.
    fn remove(&mut self, slot: usize) {
        assert!(
            slot > 0,
            "the first child gives the lower bound of the node"
        );
        let len = self.len();
        self.move_within(slot + 1, len, slot);
        self.len -= 1;
    }

    /// Moves the last `count` children to the front of `right`.
    fn give(&mut self, right: &mut Self, count: usize) {
        let len = self.len();
        let right_len = right.len();
        right.move_within(0, right_len, count);
        right.copy_from(self, len - count, 0, count);
        self.len = number_of(len - count);
        right.len = number_of(right_len + count);
    }

    /// Appends the first `count` children of `right`.
    fn take(&mut self, right: &mut Self, count: usize) {
        let len = self.len();
        let right_len = right.len();
        self.copy_from(right, 0, len, count);
        right.move_within(count, right_len, 0);
        self.len = number_of(len + count);
        right.len = number_of(right_len - count);
    }

    /// Moves children between this node and its right neighbour until both have the same number, or
    /// one more.
    fn level(&mut self, right: &mut Self) {
        let half = (self.len() + right.len()) / 2;
        match self.len().checked_sub(half) {
            Some(surplus) => self.give(right, surplus),
            None => self.take(right, half - self.len()),
        }
    }

    fn move_within(&mut self, from: usize, to: usize, at: usize) {
        self.first.copy_within(from..to, at);
        self.child.copy_within(from..to, at);
    }

    fn copy_from(&mut self, other: &Self, from: usize, at: usize, count: usize) {
        self.first[at..at + count].copy_from_slice(&other.first[from..from + count]);
        self.child[at..at + count].copy_from_slice(&other.child[from..from + count]);
    }
}

/// How many leaves and inner nodes `extents` can ever need: see the head of the file.
fn nodes_for(extents: usize) -> (usize, usize) {
    let leaves = (extents / HALF).max(1);
    let mut inners = 0;
    let mut level = leaves;
    while level > 1 {
        level = (level / HALF).max(1);
        inners += level;
    }
    (leaves, inners)
}

/// How many of the ascending `keys` are at or below `key`.
///
/// Counts in two passes, over the last key of each cache line and then within a line. No load of
/// the first pass waits for another, so that the lines of a cold leaf arrive together; a binary
/// search would wait for three of them in a row, and was measured to take half as long again.
fn rank(keys: &[u64], key: u64) -> usize {
    const LINE: usize = 8;
    let at_or_below = |other: &u64| usize::from(*other <= key);
    let lines: usize = keys
        .iter()
        .skip(LINE - 1)
        .step_by(LINE)
        .map(at_or_below)
        .sum();
    let (below, rest) = keys.split_at(lines * LINE);
    below.len() + rest.iter().take(LINE).map(at_or_below).sum::<usize>()
}

/// Two different nodes of an arena at once.
fn pair<T>(nodes: &mut [T], left: u32, right: u32) -> [&mut T; 2] {
    nodes
        .get_disjoint_mut([index_of(left), index_of(right)])
        .expect("two neighbours are two nodes of the arena")
}

/// Lengthens an arena by copies of `node`.
fn resize<T: Clone>(nodes: &mut Box<[T]>, len: usize, node: T) {
    let mut longer = std::mem::take(nodes).into_vec();
    longer.reserve_exact(len - longer.len());
    longer.resize(len, node);
    *nodes = longer.into_boxed_slice();
}

fn index_of(number: u32) -> usize {
    usize::try_from(number).expect("a usize has 32 bits at least")
}

fn number_of(index: usize) -> u32 {
    u32::try_from(index).expect("a tree has fewer than 2^32 nodes, and a node 63 entries")
}

fn mark(seen: &mut [bool], number: u32) {
    let seen = &mut seen[index_of(number)];
    assert!(!*seen, "node {number} is in two places");
    *seen = true;
}

fn assert_ascending(keys: &[u64], first: u64, end: Option<u64>) {
    assert!(
        keys.is_sorted_by(|left, right| left < right),
        "keys are not ascending"
    );
    if let (Some(lowest), Some(highest)) = (keys.first(), keys.last()) {
        assert!(*lowest >= first, "a key lies below the bound of its node");
        assert!(
            end.is_none_or(|end| *highest < end),
            "a key lies above the bound of its node"
        );
    }
}
