//! Goal: the map says of every sector what the last request did to it, whatever came before; it
//! never needs more memory than it took at the start; and one call does bounded work.
//!
//! Method: the same requests go to the map and to a `Sectors`, one slot for each sector of the
//! device, which is too simple to be wrong. Then the map must hold exactly the runs of that device,
//! and look up and sweep the same. Small devices are tried exhaustively; proptest starts from trees
//! of one to three levels and shrinks what fails; the long runs print their seed, and a failure
//! names the step.

use std::time::Instant;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// No limit on the work of a call.
const ALL: usize = usize::MAX;

/// The obvious map: what each sector of the device holds.
#[derive(Clone)]
struct Sectors(Vec<Option<(Seq, Content)>>);

impl Sectors {
    fn at_home(sectors: usize) -> Self {
        Self(vec![None; sectors])
    }

    fn write(&mut self, extent: &Extent) {
        for offset in 0..u64::from(extent.sectors) {
            self.0[index(extent.lba.0 + offset)] =
                Some((extent.seq, extent.content.advanced(offset)));
        }
    }

    fn home(&mut self, extent: &Extent) {
        self.0[index(extent.lba.0)..index(extent.end().0)].fill(None);
    }

    /// The range as the longest possible runs.
    fn spans(&self, lba: u64, sectors: u64) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for at in lba..lba + sectors {
            let next = match self.0[index(at)] {
                None => Span::Home {
                    lba: Lba(at),
                    sectors: 1,
                },
                Some((seq, content)) => Span::Mapped(Extent {
                    lba: Lba(at),
                    sectors: 1,
                    seq,
                    content,
                }),
            };
            match (spans.last_mut(), next) {
                (Some(Span::Home { sectors, .. }), Span::Home { .. }) => *sectors += 1,
                (Some(Span::Mapped(run)), Span::Mapped(sector))
                    if run.seq == sector.seq
                        && run.content.advanced(u64::from(run.sectors)) == sector.content =>
                {
                    run.sectors += 1;
                }
                _ => spans.push(next),
            }
        }
        spans
    }

    fn extents(&self) -> Vec<Extent> {
        let sectors = u64::try_from(self.0.len()).expect("a device of a test is small");
        self.spans(0, sectors)
            .into_iter()
            .filter_map(mapped)
            .collect()
    }
}

fn mapped(span: Span) -> Option<Extent> {
    match span {
        Span::Mapped(extent) => Some(extent),
        Span::Home { .. } => None,
    }
}

fn index(lba: u64) -> usize {
    usize::try_from(lba).expect("an address of a test is small")
}

fn extent(lba: u64, sectors: u32, seq: u64, content: Content) -> Extent {
    Extent {
        lba: Lba(lba),
        sectors,
        seq: Seq(seq),
        content,
    }
}

/// A write whose bytes begin at a position that no other seq has within 2^20 sectors.
fn write(lba: u64, sectors: u32, seq: u64) -> Extent {
    extent(lba, sectors, seq, Content::Payload(Pos(seq << 29)))
}

/// Splitmix64: a few lines, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = index(self.below(u64::try_from(last).expect("fits") + 1));
            items.swap(last, other);
        }
    }
}

/// Inserts `extent` in one call.
fn put(map: &mut ExtentMap, extent: Extent, max_displaced: usize) {
    assert_eq!(
        map.insert(extent, max_displaced),
        extent.sectors,
        "{extent:?} goes in at once"
    );
}

/// Inserts all of `extent` in calls that displace up to `max_displaced`, and checks what each call
/// promises.
fn insert_all(map: &mut ExtentMap, extent: Extent, max_displaced: usize) {
    let mut rest = extent;
    loop {
        let len = map.len();
        let in_the_way = map
            .lookup(rest.lba, u64::from(rest.sectors))
            .filter_map(mapped)
            .count();
        let inserted = map.insert(rest, max_displaced);
        assert!(map.len() <= len + 2, "one insert adds up to two extents");
        assert!(
            map.len() + in_the_way.min(max_displaced) >= len,
            "no more are removed than were displaced"
        );
        if inserted == rest.sectors {
            assert!(
                in_the_way <= max_displaced,
                "an insert is complete with no more than it may displace"
            );
            return;
        }
        assert!(
            in_the_way > max_displaced,
            "an insert stops only at its limit"
        );
        assert!(inserted > 0, "an insert always gets on");
        rest = rest.clipped(Lba(rest.lba.0 + u64::from(inserted)), rest.end());
        let next = map
            .lookup(rest.lba, 1)
            .next()
            .and_then(mapped)
            .expect("an insert stops at an extent");
        assert!(
            next.seq <= extent.seq,
            "the extent that an insert stops at is an old one"
        );
    }
}

/// Checks the map against the device, as a whole and in ranges.
fn check(map: &ExtentMap, device: &Sectors, ranges: &[(u64, u64)]) {
    map.check_invariants();
    let held: Vec<Extent> = map.iter().collect();
    assert_eq!(held, device.extents());
    for (lba, sectors) in ranges {
        let spans: Vec<Span> = map.lookup(Lba(*lba), *sectors).collect();
        assert_eq!(
            spans,
            device.spans(*lba, *sectors),
            "lookup of {sectors} sectors at {lba}"
        );
    }
}

#[test]
fn every_overlap_of_three_extents_on_a_small_device_is_as_the_last_writer_left_it() {
    const DEVICE: u64 = 7;
    let mut ranges = Vec::new();
    for lba in 0..DEVICE {
        for sectors in 1..=DEVICE - lba {
            ranges.push((lba, sectors));
        }
    }
    // The second and third request have the same seq in half of the cases: pieces of one, which may
    // join.
    let mut cases = 0;
    for (third_seq, max_displaced) in [(3, ALL), (3, 1), (2, ALL), (2, 1)] {
        for first in &ranges {
            for second in &ranges {
                for third in &ranges {
                    let mut map = ExtentMap::with_capacity(8);
                    let mut device = Sectors::at_home(index(DEVICE));
                    for ((lba, sectors), seq) in [(first, 1), (second, 2), (third, third_seq)] {
                        // One stream of bytes for both pieces of seq 2.
                        let content = Content::Payload(Pos((seq << 20) + lba * SECTOR));
                        let sectors = u32::try_from(*sectors).expect("small");
                        let request = extent(*lba, sectors, seq, content);
                        insert_all(&mut map, request, max_displaced);
                        device.write(&request);
                    }
                    check(&map, &device, &[]);
                    cases += 1;
                }
                check_lookups(first, second, &ranges);
            }
        }
    }
    assert_eq!(cases, 4 * 28 * 28 * 28);
}

/// All lookups over two overlapping extents, one of them zeroes.
fn check_lookups(first: &(u64, u64), second: &(u64, u64), ranges: &[(u64, u64)]) {
    let mut map = ExtentMap::with_capacity(8);
    let mut device = Sectors::at_home(7);
    let sectors = |range: &(u64, u64)| u32::try_from(range.1).expect("small");
    for request in [
        write(first.0, sectors(first), 1),
        extent(second.0, sectors(second), 2, Content::ZeroesNoUnmap),
    ] {
        insert_all(&mut map, request, ALL);
        device.write(&request);
    }
    check(&map, &device, ranges);
}

#[test]
fn a_hole_punched_into_an_extent_leaves_both_sides_with_their_own_bytes() {
    let mut map = ExtentMap::with_capacity(8);
    put(&mut map, write(100, 50, 1), 1);
    put(&mut map, extent(110, 10, 2, Content::Zeroes), 1);
    let Content::Payload(pos) = write(100, 50, 1).content else {
        unreachable!("a write has payload")
    };
    let held: Vec<Extent> = map.iter().collect();
    assert_eq!(
        held,
        [
            write(100, 10, 1),
            extent(110, 10, 2, Content::Zeroes),
            extent(120, 30, 1, Content::Payload(Pos(pos.0 + 20 * 512))),
        ]
    );
}

#[test]
fn neighbours_join_only_if_they_are_one_request_and_contiguous_in_the_ring() {
    let middle = extent(100, 10, 5, Content::Payload(Pos(1 << 20)));
    let behind = |seq, pos| extent(110, 4, seq, Content::Payload(Pos(pos)));
    let before = |seq, pos| extent(96, 4, seq, Content::Payload(Pos(pos)));
    let next = (1 << 20) + 10 * 512;
    let previous = (1 << 20) - 4 * 512;
    for (neighbour, joined) in [
        (behind(5, next), Some(extent(100, 14, 5, middle.content))),
        (behind(5, next + 512), None),
        (behind(6, next), None),
        (
            before(5, previous),
            Some(extent(96, 14, 5, Content::Payload(Pos(previous)))),
        ),
        (before(5, previous - 512), None),
        (before(6, previous), None),
        (extent(110, 4, 5, Content::Zeroes), None),
        (extent(111, 4, 5, Content::Payload(Pos(next + 512))), None),
    ] {
        let mut map = ExtentMap::with_capacity(4);
        put(&mut map, middle, 1);
        put(&mut map, neighbour, 1);
        map.check_invariants();
        let mut expected = match joined {
            Some(joined) => vec![joined],
            None => vec![middle, neighbour],
        };
        expected.sort_by_key(|held| held.lba);
        assert_eq!(map.iter().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_lookup_of_nothing_has_no_spans_and_an_empty_map_is_all_home() {
    let map = ExtentMap::with_capacity(0);
    assert_eq!(map.lookup(Lba(5), 0).count(), 0);
    let spans: Vec<Span> = map.lookup(Lba(5), 1 << 40).collect();
    assert_eq!(
        spans,
        [Span::Home {
            lba: Lba(5),
            sectors: 1 << 40
        }]
    );
    assert_eq!(map.next_through(Lba(0), Seq(u64::MAX), 1), Sweep::End);
    assert!(map.is_empty());
    map.check_invariants();
}

#[test]
fn the_last_addresses_and_the_longest_extent_are_held_whole() {
    let mut map = ExtentMap::with_capacity(4);
    let last = extent(u64::MAX - 8, 8, 1, Content::Zeroes);
    let longest = extent(0, u32::MAX, 2, Content::Zeroes);
    let continued = extent(u64::from(u32::MAX), 8, 2, Content::Zeroes);
    for request in [last, longest, continued] {
        assert_eq!(map.insert(request, 1), request.sectors);
    }
    // The second and third are one run, but too long for one extent.
    map.check_invariants();
    assert_eq!(map.iter().collect::<Vec<_>>(), [longest, continued, last]);
    assert_eq!(
        map.lookup(Lba(u64::MAX - 1), 1).collect::<Vec<_>>(),
        [Span::Mapped(last.clipped(Lba(u64::MAX - 1), Lba(u64::MAX)))]
    );
}

#[test]
#[should_panic(expected = "would cover the newer")]
fn an_insert_over_a_newer_extent_is_our_bug() {
    let mut map = ExtentMap::with_capacity(8);
    put(&mut map, write(100, 50, 2), 1);
    put(&mut map, write(120, 8, 1), 1);
}

#[test]
#[should_panic(expected = "would cover the newer")]
fn an_insert_of_the_same_range_over_a_newer_extent_is_our_bug() {
    let mut map = ExtentMap::with_capacity(8);
    put(&mut map, write(100, 8, 2), 1);
    put(&mut map, write(100, 8, 1), 1);
}

#[test]
#[should_panic(expected = "the extent map is full with 4")]
fn an_insert_beyond_the_capacity_is_our_bug() {
    let mut map = ExtentMap::with_capacity(4);
    for seq in 0..5 {
        put(&mut map, write(seq * 8, 4, seq), 1);
    }
}

#[test]
#[should_panic(expected = "is not at a sector of the ring")]
fn a_payload_off_the_sectors_of_the_ring_is_our_bug() {
    let mut map = ExtentMap::with_capacity(4);
    put(&mut map, extent(0, 8, 1, Content::Payload(Pos(513))), 1);
}

// Random histories.

/// What a history does. The addresses are fractions of the device, so that one history suits any.
#[derive(Clone, Debug)]
enum Step {
    Write {
        lba: u64,
        sectors: u32,
    },
    Zero {
        lba: u64,
        sectors: u32,
        max_displaced: usize,
    },
    /// Exactly over an extent that is there.
    Rewrite {
        lba: u64,
    },
    /// The rest of the last request: same seq, right behind it.
    Continue {
        sectors: u32,
    },
    Release {
        lba: u64,
        behind: u64,
        max_visited: usize,
    },
    Sweep {
        lba: u64,
        behind: u64,
        max_visited: usize,
    },
    Lookup {
        lba: u64,
        sectors: u64,
    },
    Grow,
}

/// Sectors of the device of the random histories.
const DEVICE: u64 = 1 << 15;

fn step() -> impl Strategy<Value = Step> {
    let lba = 0..DEVICE;
    let behind = prop_oneof![Just(0), 0..100u64, 0..10_000u64];
    let sectors = prop_oneof![4 => 1..9u32, 2 => Just(8), 1 => 1..300u32, 1 => 1..10_000u32];
    prop_oneof![
        6 => (lba.clone(), sectors.clone()).prop_map(|(lba, sectors)| Step::Write { lba, sectors }),
        3 => (lba.clone(), sectors.clone(), 1..200usize)
            .prop_map(|(lba, sectors, max_displaced)| Step::Zero { lba, sectors, max_displaced }),
        3 => lba.clone().prop_map(|lba| Step::Rewrite { lba }),
        2 => sectors.prop_map(|sectors| Step::Continue { sectors }),
        2 => (lba.clone(), behind.clone(), 1..300usize)
            .prop_map(|(lba, behind, max_visited)| Step::Release { lba, behind, max_visited }),
        2 => (lba.clone(), behind, 1..300usize)
            .prop_map(|(lba, behind, max_visited)| Step::Sweep { lba, behind, max_visited }),
        2 => (lba, 0..2000u64).prop_map(|(lba, sectors)| Step::Lookup { lba, sectors }),
        1 => Just(Step::Grow),
    ]
}

/// A map, the device that it stands for, and the cursor of a sweep that survives everything in
/// between.
struct History {
    map: ExtentMap,
    device: Sectors,
    cursor: Cursor,
    last: Extent,
}

impl History {
    /// Begins with one write in the middle of every stretch of `spacing` sectors, in the order
    /// `order` gives.
    fn begin(spacing: u64, random: &mut Random) -> Self {
        let mut history = Self {
            map: ExtentMap::with_capacity(index(DEVICE)),
            device: Sectors::at_home(index(DEVICE)),
            cursor: Cursor::at(Lba(0)),
            last: write(0, 1, 1),
        };
        let mut starts: Vec<u64> = (0..DEVICE / spacing)
            .map(|stretch| stretch * spacing)
            .collect();
        random.shuffle(&mut starts);
        for start in starts {
            history.request(
                start + spacing / 4,
                1 + u32::try_from(spacing / 2).expect("small"),
                None,
                ALL,
            );
        }
        history
    }

    /// A request with the next seq, cut to the device: a write, unless `zeroes` says otherwise.
    fn request(&mut self, lba: u64, sectors: u32, zeroes: Option<Content>, max_displaced: usize) {
        let seq = self.last.seq.0 + 1;
        let sectors = sectors.min(u32::try_from(DEVICE - lba).expect("small"));
        self.accept(
            extent(
                lba,
                sectors,
                seq,
                zeroes.unwrap_or(Content::Payload(Pos(seq << 29))),
            ),
            max_displaced,
        );
    }

    fn accept(&mut self, request: Extent, max_displaced: usize) {
        insert_all(&mut self.map, request, max_displaced);
        self.device.write(&request);
        self.last = request;
    }

    fn through(&self, behind: u64) -> Seq {
        Seq(self.last.seq.0.saturating_sub(behind))
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Write { lba, sectors } => self.request(lba, sectors, None, ALL),
            Step::Zero {
                lba,
                sectors,
                max_displaced,
            } => {
                let content = if lba % 2 == 0 {
                    Content::Zeroes
                } else {
                    Content::ZeroesNoUnmap
                };
                self.request(lba, sectors, Some(content), max_displaced);
            }
            Step::Rewrite { lba } => {
                if let Sweep::Found(old) = self.map.next_through(Lba(lba), Seq(u64::MAX), ALL) {
                    self.request(old.lba.0, old.sectors, None, 1);
                }
            }
            Step::Continue { sectors } => {
                let at = self.last.end().0;
                let sectors = u64::from(sectors).min(DEVICE - at);
                if sectors > 0 {
                    let content = self.last.content.advanced(u64::from(self.last.sectors));
                    let sectors = u32::try_from(sectors).expect("small");
                    self.accept(extent(at, sectors, self.last.seq.0, content), ALL);
                }
            }
            Step::Release {
                lba,
                behind,
                max_visited,
            } => {
                let through = self.through(behind);
                let ahead: Vec<Extent> = self
                    .map
                    .iter()
                    .filter(|held| held.end() > Lba(lba))
                    .collect();
                let visited = &ahead[..ahead.len().min(max_visited)];
                for old in visited.iter().filter(|old| old.seq <= through) {
                    self.device.home(old);
                }
                let next = self.map.release_through(Lba(lba), through, max_visited);
                let expected =
                    (ahead.len() > visited.len()).then(|| visited[visited.len() - 1].end());
                assert_eq!(next, expected, "release goes on behind what it visited");
            }
            Step::Sweep {
                lba,
                behind,
                max_visited,
            } => {
                let through = self.through(behind);
                let (expected, _) = self.expected_sweep(Lba(lba), through, max_visited);
                assert_eq!(
                    self.map.next_through(Lba(lba), through, max_visited),
                    expected
                );

                let from = self.cursor.lba();
                let (expected, visited) = self.expected_sweep(from, through, max_visited);
                let mut budget = max_visited;
                assert_eq!(
                    self.map.sweep(&mut self.cursor, through, &mut budget),
                    expected
                );
                assert_eq!(
                    max_visited - budget,
                    visited,
                    "the budget pays for what was visited"
                );
                match expected {
                    Sweep::Found(found) => assert_eq!(self.cursor.lba(), found.end()),
                    Sweep::Continue(next) => assert_eq!(self.cursor.lba(), next),
                    Sweep::End => self.cursor = Cursor::at(Lba(0)),
                }
            }
            Step::Lookup { lba, sectors } => {
                let sectors = sectors.min(DEVICE - lba);
                let spans: Vec<Span> = self.map.lookup(Lba(lba), sectors).collect();
                assert_eq!(spans, self.device.spans(lba, sectors));
            }
            Step::Grow => self.map.grow(self.map.capacity() + 500),
        }
    }

    /// What a step of a sweep must come to, and how many extents it must look at.
    fn expected_sweep(&self, from: Lba, through: Seq, max_visited: usize) -> (Sweep, usize) {
        let mut next = from;
        let mut visited = 0;
        for held in self.map.iter().filter(|held| held.end() > from) {
            if visited == max_visited {
                return (Sweep::Continue(next), visited);
            }
            visited += 1;
            next = held.end();
            if held.seq <= through {
                return (Sweep::Found(held), visited);
            }
        }
        (Sweep::End, visited)
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Trees of one leaf, of two levels, and of three.
    #[test]
    fn any_history_leaves_the_map_as_the_sectors_say(
        spacing in prop_oneof![Just(DEVICE / 8), Just(64u64), Just(9), Just(4)],
        seed: u64,
        steps in vec(step(), 1..80),
    ) {
        let mut history = History::begin(spacing, &mut Random(seed));
        for step in &steps {
            history.run(step);
            check(&history.map, &history.device, &[]);
        }
    }
}

#[test]
fn a_long_history_of_small_writes_releases_and_discards_agrees_at_every_step() {
    let seed = 0x5eed_0001;
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let mut history = History::begin(4, &mut random);
    for number in 0..40_000u64 {
        let lba = random.below(DEVICE);
        let small = 1 + u32::try_from(random.below(16)).expect("small");
        // Phases of growth and of shrinking, so that splits and merges reach every level.
        let shrinking = (number / 5_000) % 2 == 1;
        let step = match random.below(64) {
            0 if shrinking => Step::Zero {
                lba,
                sectors: 3_000,
                max_displaced: 100,
            },
            1 | 2 if shrinking => Step::Release {
                lba,
                behind: random.below(9_000),
                max_visited: 200,
            },
            3..10 => Step::Sweep {
                lba,
                behind: random.below(3_000),
                max_visited: 50,
            },
            10..20 => Step::Rewrite { lba },
            20..25 => Step::Continue { sectors: small },
            25..30 => Step::Lookup {
                lba,
                sectors: u64::from(small) * 10,
            },
            _ => Step::Write {
                lba,
                sectors: small.min(if shrinking { 16 } else { 2 }),
            },
        };
        history.run(&step);
        history.map.tree.check_invariants();
        if number % 100 == 0 {
            check(&history.map, &history.device, &[]);
        }
    }
    check(&history.map, &history.device, &[(0, DEVICE)]);
}

// Memory.

#[test]
fn a_map_takes_less_than_64_bytes_for_each_extent() {
    for extents in [
        0,
        1,
        31,
        63,
        64,
        65,
        100,
        1000,
        2016,
        4095,
        100_000,
        1 << 20,
    ] {
        let map = ExtentMap::with_capacity(extents);
        let bytes = map.memory_bytes();
        assert!(
            bytes <= 57 * extents + 8192,
            "{extents} extents take {bytes} bytes"
        );
        let mut grown = ExtentMap::with_capacity(extents / 3);
        grown.grow(extents);
        assert_eq!(
            grown.memory_bytes(),
            bytes,
            "a map that was grown is no larger than one made so"
        );
        grown.check_invariants();
    }
}

/// Fills a map to its capacity in the order of `order`; then, with each step, removes the first
/// extent from the slot on that `victim` chooses and adds one in the first free place from another
/// such slot on. If a node were ever lacking, an assertion of the arena would fail.
fn hold_at_capacity(extents: u64, name: &str, order: &[u64], mut victim: impl FnMut(u64) -> u64) {
    let mut map = ExtentMap::with_capacity(index(extents));
    let bytes = map.memory_bytes();
    let mut seq = 1;
    for slot in order {
        put(&mut map, write(slot * 8, 4, seq), 1);
        seq += 1;
    }
    assert_eq!(map.len(), map.capacity(), "{name}: the map is full");
    map.check_invariants();
    for step in 0..extents {
        let from = Lba(victim(step) % extents * 8);
        let old = match map.next_through(from, Seq(seq), 1) {
            Sweep::Found(old) => old,
            Sweep::Continue(_) | Sweep::End => map.iter().next().expect("a full map is not empty"),
        };
        map.release_through(old.lba, Seq(seq), 1);
        assert_eq!(
            map.len(),
            map.capacity() - 1,
            "{name}: exactly one was removed"
        );

        let mut lba = victim(step + extents / 2) % extents * 8;
        while map.lookup(Lba(lba), 4).any(|span| mapped(span).is_some()) {
            lba += 4;
        }
        seq += 1;
        put(&mut map, write(lba, 4, seq), 1);
        assert_eq!(map.len(), map.capacity(), "{name}: the map is full again");
        if step % (extents / 16) == 0 {
            map.check_invariants();
        }
    }
    map.check_invariants();
    assert_eq!(map.memory_bytes(), bytes, "{name}: nothing was allocated");
}

#[test]
fn a_full_map_never_lacks_a_node_whatever_the_order() {
    const EXTENTS: u64 = 100_000;
    let seed = 0x5eed_0002;
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let ascending: Vec<u64> = (0..EXTENTS).collect();
    let descending: Vec<u64> = (0..EXTENTS).rev().collect();
    let mut shuffled = ascending.clone();
    random.shuffle(&mut shuffled);
    // Every 33rd first: each leaf is split as early as it can be, and stays at its minimum.
    let strided: Vec<u64> = (0..33)
        .flat_map(|start| (start..EXTENTS).step_by(33))
        .collect();

    hold_at_capacity(EXTENTS, "ascending, removed in order", &ascending, |step| {
        step
    });
    hold_at_capacity(
        EXTENTS,
        "descending, removed in order",
        &descending,
        |step| step,
    );
    hold_at_capacity(EXTENTS, "strided, removed by leaves", &strided, |step| {
        step * 32
    });
    hold_at_capacity(EXTENTS, "shuffled, removed at random", &shuffled, |_| {
        random.next()
    });
}

#[test]
fn every_capacity_around_a_new_node_can_be_used_up_in_any_order() {
    let seed = 0x5eed_0005;
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let boundaries = [1, 32, 64, 96, 128, 32 * 63, 32 * 64, 32 * 64 + 32, 32 * 128];
    for extents in boundaries
        .iter()
        .flat_map(|boundary| boundary - 1..=boundary + 1)
    {
        let mut order: Vec<u64> = (0..extents).collect();
        for turn in ["ascending", "descending", "shuffled", "shuffled again"] {
            let mut map = ExtentMap::with_capacity(index(extents));
            for (seq, slot) in (1..).zip(&order) {
                put(&mut map, write(slot * 8, 8, seq), 1);
            }
            map.check_invariants();
            assert_eq!(map.len(), index(extents), "{turn}");
            if turn == "ascending" {
                order.reverse();
            } else {
                random.shuffle(&mut order);
            }
        }
    }
}

#[test]
fn a_map_that_grows_whenever_it_is_full_keeps_what_it_holds() {
    const EXTENTS: u64 = 10_000;
    let seed = 0x5eed_0006;
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let mut order: Vec<u64> = (0..EXTENTS).collect();
    random.shuffle(&mut order);
    let mut map = ExtentMap::with_capacity(0);
    for slot in &order {
        if map.len() == map.capacity() {
            map.grow(map.capacity() + 1 + index(random.below(200)));
            map.check_invariants();
        }
        put(&mut map, write(slot * 8, 8, slot + 1), 1);
    }
    map.check_invariants();
    let expected: Vec<Extent> = (0..EXTENTS)
        .map(|slot| write(slot * 8, 8, slot + 1))
        .collect();
    assert_eq!(map.iter().collect::<Vec<_>>(), expected);
}

#[test]
fn leaves_at_their_minimum_everywhere_use_the_arena_up_and_no_more() {
    // Ascending inserts leave half-full leaves behind: the worst that can be. Then each leaf gets
    // one more, in an order that is worst for merging, and loses it again.
    const EXTENTS: u64 = 64 * 1024;
    let mut map = ExtentMap::with_capacity(index(EXTENTS));
    let mut seq = 0;
    for slot in 0..EXTENTS {
        seq += 1;
        put(&mut map, write(slot * 8, 4, seq), 1);
    }
    let free = map.tree.free_leaves();
    assert!(
        free <= 1,
        "{free} leaves are free, so that this is not the worst case"
    );
    map.check_invariants();
    for round in 0..32 {
        for leaf in 0..EXTENTS / 32 {
            let lba = (leaf * 32 + round) * 8;
            seq += 1;
            put(&mut map, extent(lba, 4, seq, Content::Zeroes), 1);
            map.release_through(Lba(lba), Seq(seq), 1);
            seq += 1;
            put(&mut map, write(lba, 4, seq), 1);
        }
        map.check_invariants();
    }
    // Down to nothing, from both ends at once, and up again.
    for slot in 0..EXTENTS / 2 {
        map.release_through(Lba(slot * 8), Seq(seq), 1);
        map.release_through(Lba((EXTENTS - 1 - slot) * 8), Seq(seq), 1);
    }
    map.check_invariants();
    assert!(map.is_empty(), "everything was released");
    for slot in (0..EXTENTS).rev() {
        seq += 1;
        put(&mut map, write(slot * 8, 4, seq), 1);
    }
    map.check_invariants();
}

// Bounded work.

#[test]
fn a_discard_over_a_hundred_thousand_extents_goes_on_over_many_calls() {
    const EXTENTS: u64 = 100_000;
    const STEP: usize = 256;
    let mut map = ExtentMap::with_capacity(index(EXTENTS) + 2);
    for slot in 0..EXTENTS {
        put(&mut map, write(slot * 16 + 3, 8, slot + 1), 1);
    }
    // It cuts the first and the last one, and swallows the others.
    let discard = extent(
        7,
        u32::try_from(EXTENTS * 16 - 16).expect("fits"),
        EXTENTS + 1,
        Content::Zeroes,
    );
    let mut rest = discard;
    let mut calls = 0;
    loop {
        let before = map.len();
        let inserted = map.insert(rest, STEP);
        calls += 1;
        assert!(
            before - map.len() <= STEP,
            "one call removes no more than its limit"
        );
        // Pieces of one discard join: there is one extent for all of it so far.
        let sectors = u64::from(discard.sectors - rest.sectors + inserted);
        assert_eq!(map.lookup(discard.lba, sectors).count(), 1);
        if inserted == rest.sectors {
            break;
        }
        rest = rest.clipped(Lba(rest.lba.0 + u64::from(inserted)), rest.end());
    }
    map.check_invariants();
    assert_eq!(calls, index(EXTENTS).div_ceil(STEP));
    let last = write((EXTENTS - 1) * 16 + 3, 8, EXTENTS);
    assert_eq!(
        map.iter().collect::<Vec<_>>(),
        [
            write(3, 4, 1),
            discard,
            last.clipped(discard.end(), last.end())
        ]
    );
}

// Sweeps.

#[test]
fn a_sweep_in_budgeted_turns_finds_what_a_filter_finds_while_newer_writes_come_in() {
    const EXTENTS: u64 = 20_000;
    let seed = 0x5eed_0003;
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let mut map = ExtentMap::with_capacity(index(2 * EXTENTS));
    for seq in 1..=EXTENTS {
        put(&mut map, write(random.below(8 * EXTENTS), 4, seq), 8);
    }
    let through = Seq(EXTENTS / 2);
    let old: Vec<Extent> = map.iter().filter(|held| held.seq <= through).collect();
    assert!(old.len() > 5_000, "there is something to sweep");

    let mut cursor = Cursor::at(Lba(0));
    let mut found = Vec::new();
    let mut seq = EXTENTS;
    'turns: loop {
        let mut budget = 100;
        loop {
            match map.sweep(&mut cursor, through, &mut budget) {
                Sweep::Found(extent) => found.push(extent),
                Sweep::Continue(next) => {
                    assert_eq!(next, cursor.lba());
                    break;
                }
                Sweep::End => break 'turns,
            }
        }
        // Between two turns: newer writes over what was swept already, which shift the leaves ahead
        // as well.
        for _ in 0..10 {
            if cursor.lba().0 > 8 {
                seq += 1;
                put(&mut map, write(random.below(cursor.lba().0 - 4), 4, seq), 8);
            }
        }
    }
    map.check_invariants();
    assert_eq!(found, old);

    let mut from = Some(Lba(0));
    while let Some(next) = from {
        from = map.release_through(next, through, 1000);
    }
    map.check_invariants();
    assert!(
        map.iter().all(|held| held.seq > through),
        "nothing old is left"
    );
}

#[test]
fn a_cursor_notices_every_change_between_two_steps() {
    const EXTENTS: u64 = 150;
    const NEWEST: Seq = Seq(u64::MAX);
    type Change = fn(&mut ExtentMap, u64);
    let changes: [(&str, Change); 6] = [
        ("a release behind the cursor", |map, lba| {
            map.release_through(Lba(lba - 16), NEWEST, 1);
        }),
        ("a release at the cursor", |map, lba| {
            map.release_through(Lba(lba), NEWEST, 1);
        }),
        ("a release of everything", |map, _| {
            map.release_through(Lba(0), NEWEST, ALL);
        }),
        ("a write behind the cursor", |map, lba| {
            put(map, write(lba - 8, 2, 1000), 1);
        }),
        ("a write over the cursor", |map, lba| {
            put(map, write(lba - 1, 9, 1000), 9);
        }),
        ("a write exactly over an old one", |map, lba| {
            put(map, write(lba, 8, 1000), 1);
        }),
    ];
    for (name, change) in changes {
        for stop in 2..EXTENTS {
            let mut map = ExtentMap::with_capacity(index(EXTENTS) + 2);
            for slot in 0..EXTENTS {
                put(&mut map, write(slot * 16, 8, slot), 1);
            }
            let lba = stop * 16;
            // The cursor stands inside the extent at `lba`, and has found its entry already.
            let mut cursor = Cursor::at(Lba(lba + 4));
            assert_eq!(
                map.sweep(&mut cursor, NEWEST, &mut 0),
                Sweep::Continue(Lba(lba + 4))
            );
            change(&mut map, lba);
            for _ in 0..3 {
                let expected = map.next_through(cursor.lba(), NEWEST, ALL);
                assert_eq!(
                    map.sweep(&mut cursor, NEWEST, &mut ALL.clone()),
                    expected,
                    "{name}, {stop}"
                );
            }
        }
    }
}

/// Also the measurement: `cargo test --release million -- --nocapture` prints the nanoseconds of
/// each operation.
#[test]
fn a_million_extents_are_inserted_replaced_found_swept_and_released() {
    const EXTENTS: u64 = 1 << 20;
    let seed = 0x5eed_0004;
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let mut map = ExtentMap::with_capacity(index(EXTENTS));
    let mut slots: Vec<u64> = (0..EXTENTS).map(|slot| slot * 2 + slot % 2).collect();
    random.shuffle(&mut slots);

    // `newest[slot]`: the seq of the 4 KiB block there.
    let mut newest = vec![0; index(2 * EXTENTS)];
    let mut seq = 0;
    timed("insert at random", EXTENTS, || {
        for slot in &slots {
            seq += 1;
            put(&mut map, write(slot * 8, 8, seq), 64);
            newest[index(*slot)] = seq;
        }
    });
    random.shuffle(&mut slots);
    timed("replace at random", EXTENTS, || {
        for slot in &slots {
            seq += 1;
            put(&mut map, write(slot * 8, 8, seq), 64);
            newest[index(*slot)] = seq;
        }
    });
    random.shuffle(&mut slots);
    timed("replace half of an extent, and it again", EXTENTS, || {
        for slot in slots.iter().take(slots.len() / 2) {
            put(&mut map, write(slot * 8, 8, seq + 1), 64);
            seq += 1;
            newest[index(*slot)] = seq;
        }
    });
    random.shuffle(&mut slots);
    timed("look up at random", EXTENTS, || {
        for slot in &slots {
            let span = map.lookup(Lba(slot * 8), 8).next();
            assert_eq!(
                span,
                Some(Span::Mapped(write(slot * 8, 8, newest[index(*slot)])))
            );
        }
    });
    let through = Seq(seq - EXTENTS);
    let old = newest
        .iter()
        .filter(|seq| **seq > 0 && **seq <= through.0)
        .count();
    timed("sweep, half of them found", EXTENTS, || {
        let mut cursor = Cursor::at(Lba(0));
        let mut budget = ALL;
        let mut found = 0;
        while let Sweep::Found(extent) = map.sweep(&mut cursor, through, &mut budget) {
            assert!(extent.seq <= through);
            found += 1;
        }
        assert_eq!(found, old);
    });
    timed("release, half of them removed", EXTENTS, || {
        let mut from = Some(Lba(0));
        while let Some(next) = from {
            from = map.release_through(next, through, 1024);
        }
    });
    assert_eq!(map.len(), index(EXTENTS) - old);
    map.check_invariants();
}

fn timed(what: &str, count: u64, work: impl FnOnce()) {
    let start = Instant::now();
    work();
    let nanoseconds = start.elapsed().as_nanos() / u128::from(count);
    println!("{what}: {nanoseconds} ns");
}
