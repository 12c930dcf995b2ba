//! One array to be tried: layout, disks, settings and timing, drawn from a seed.
//!
//! Everything is as small as the limits allow, or a little larger: a ring that wraps every few dozen
//! requests, a window that holds a few records, one bounce buffer, chunks of one frame. What never
//! happens on a large array in an hour happens here in a millisecond.

use crate::engine::settings::{Commit, PartLimits, Settings};
use crate::journal::ArrayUuid;
use crate::journal::MARGIN;
use crate::journal::geometry::{
    Geometry, Placement, Shape, journal_size_min, record_max, superblock_places,
};
use crate::random::Random;
use crate::sim::media::{Cache, Clock, SimDisk, Zone};
use crate::sim::stamp::{Version, stamp};
use crate::units::{FRAME, KIB, Lba, MIB, SECTOR, to_u64, to_usize};
use std::ops::Range;
use std::time::Duration;

/// How long the operations of one part take, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// At least.
    pub least: u64,
    /// Mostly less than this more.
    pub spread: u64,
    /// One in a thousand so often takes `slow` more.
    pub slow_permille: u64,
    /// See `slow_permille`.
    pub slow: u64,
}

impl Latency {
    fn draw(random: &mut Random) -> Latency {
        Latency {
            least: random.below(100),
            spread: random.skewed(2000),
            slow_permille: *random.pick(&[0, 0, 20, 200]),
            slow: random.skewed(50_000),
        }
    }

    /// One operation's.
    pub fn sample(&self, random: &mut Random) -> Duration {
        let slow = if random.chance(self.slow_permille) {
            self.slow
        } else {
            0
        };
        Duration::from_micros(self.least + random.below(self.spread) + slow)
    }
}

/// One array.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its identity.
    pub uuid: ArrayUuid,
    /// Its layout.
    pub geometry: Geometry,
    /// Its logical block size, in sectors.
    pub block: u64,
    /// The size of each part.
    pub sizes: Vec<u64>,
    /// How each part caches.
    pub caches: Vec<Cache>,
    /// How long each part takes.
    pub latencies: Vec<Latency>,
    /// What its engine is built with.
    pub settings: Settings,
    /// Whether the ring is to be filled: large writes, hardly a flush, no pause.
    pub heavy: bool,
}

impl Scenario {
    /// Any array. One in two hundred is large enough for what a small one never does: a reserve that is
    /// small against the ring, and records of a megabyte.
    pub fn draw(random: &mut Random) -> Scenario {
        let placement = *random.pick(&[
            Placement::Detached,
            Placement::Detached,
            Placement::Start,
            Placement::Middle,
            Placement::End,
        ]);
        let members = random.between(1, 4);
        let large = random.chance(5);
        let (chunk, max_io, data, extra) = if large {
            (64 * KIB, MIB, 4 * MIB, random.between(8, 24) * MIB)
        } else {
            let some = random.below(32) * FRAME;
            (
                (4 * KIB) << random.below(3),
                (4 * KIB) << random.below(4),
                128 * KIB,
                *random.pick(&[0, 0, some, 256 * KIB]),
            )
        };
        let data_each = chunk * random.between(1, (data / members / chunk).max(1));
        let journal_size = least_journal(placement, members, chunk, max_io) + extra;
        Scenario::build(
            random,
            placement,
            members,
            chunk,
            max_io,
            data_each,
            journal_size,
        )
    }

    /// An array whose reserve and span are small against its ring, as they are in real ones, and whose
    /// ring is full most of the time: what is freed is written again before anything was flushed.
    pub fn full(random: &mut Random) -> Scenario {
        let placement = *random.pick(&[Placement::Detached, Placement::End]);
        let members = random.between(1, 2);
        let (chunk, max_io) = (64 * KIB, MIB);
        let data_each = 4 * MIB / members;
        let journal_size =
            least_journal(placement, members, chunk, max_io) + random.between(56, 88) * MIB;
        let mut scenario = Scenario::build(
            random,
            placement,
            members,
            chunk,
            max_io,
            data_each,
            journal_size,
        );
        scenario.hold_replay_back();
        scenario.heavy = true;
        let ring_size = scenario.geometry.ring.size();
        let settings = &mut scenario.settings;
        settings.commit = Commit::Flush;
        settings.commit_interval = Duration::from_secs(3600);
        settings.queue_depth = settings.queue_depth.max(4);
        settings.extents = settings.extents.max(1024);
        settings.segment = 64 * KIB;
        settings.window = 8 * ring_size.div_ceil(settings.segment) * settings.segment;
        settings.round = crate::units::round_down(ring_size / random.between(2, 6), FRAME);
        settings.check(ring_size);
        scenario
    }

    /// The least array: two blocks of 512 bytes are of interest, everything takes about the same time.
    pub fn tiny(placement: Placement, members: u64, cache: Cache, random: &mut Random) -> Scenario {
        let (chunk, max_io) = (4 * KIB, 4 * KIB);
        let journal_size = least_journal(placement, members, chunk, max_io);
        let mut scenario = Scenario::build(
            random,
            placement,
            members,
            chunk,
            max_io,
            chunk,
            journal_size,
        );
        let settings = &mut scenario.settings;
        settings.commit = Commit::Flush;
        settings.commit_interval = Duration::from_secs(5);
        settings.fill = 500;
        settings.age = Duration::from_secs(30);
        settings.idle = Duration::from_millis(5);
        settings.queue_depth = 8;
        settings.extents = settings.extents.max(64);
        for limits in &mut settings.parts {
            *limits = PartLimits {
                io_max: 64 * KIB,
                segments_max: 8,
                pages_max: 16,
                zeroes: true,
                sync: cache.sync_write(),
                shares_journal_disk: false,
            };
        }
        settings.check(scenario.geometry.ring.size());
        scenario.block = 1;
        for (cache_of, latency) in scenario.caches.iter_mut().zip(&mut scenario.latencies) {
            *cache_of = cache;
            *latency = Latency {
                least: 10,
                spread: 100,
                slow_permille: 0,
                slow: 1,
            };
        }
        scenario
    }

    fn build(
        random: &mut Random,
        placement: Placement,
        members: u64,
        chunk: u64,
        max_io: u64,
        data_each: u64,
        journal_size: u64,
    ) -> Scenario {
        let region = match placement {
            Placement::Detached => 0,
            Placement::Start | Placement::Middle | Placement::End => {
                crate::units::round_up(journal_size, chunk * members) / members
            }
        };
        // The reserved bitmap takes a frame. What is less than a chunk more stays unused.
        let member_size = 2 * MARGIN + region + data_each + FRAME + random.below(chunk / 512) * 512;
        let shape = Shape {
            members: u8::try_from(members).expect("at most four"),
            chunk,
            member_size,
            placement,
            journal_size,
        };
        let geometry = Geometry::new(shape).expect("the sizes were computed to fit");
        assert!(geometry.data.size() >= members * data_each);
        let parts = geometry.parts();
        let smallest = random.index(to_usize(members));
        let sizes: Vec<u64> = (0..parts)
            .map(|part| {
                if part == to_usize(members) {
                    journal_size
                } else if part == smallest {
                    member_size
                } else {
                    member_size + random.below(64) * SECTOR
                }
            })
            .collect();
        let caches: Vec<Cache> = (0..parts)
            .map(|_| {
                *random.pick(&[
                    Cache::WriteBack,
                    Cache::WriteBack,
                    Cache::WriteBackWithFua,
                    Cache::WriteBackWithFua,
                    Cache::WriteThrough,
                ])
            })
            .collect();
        let mut settings = draw_settings(random, &geometry, max_io, &caches);
        let block = if max_io >= 4096 && random.chance(200) {
            8
        } else {
            1
        };
        let uuid = [random.bits(), random.bits()].map(u64::to_le_bytes);
        settings.parts[0].shares_journal_disk = placement == Placement::Detached && uuid[0][0] < 32;
        Scenario {
            uuid: ArrayUuid(uuid.concat().try_into().expect("two words are 16 bytes")),
            geometry,
            block,
            sizes,
            caches,
            latencies: (0..parts).map(|_| Latency::draw(random)).collect(),
            settings,
            heavy: false,
        }
    }

    /// Makes replay wait until the ring is full.
    pub fn hold_replay_back(&mut self) {
        let never = Duration::from_secs(1 << 30);
        self.settings.fill = 999;
        self.settings.age = never;
        self.settings.idle = never;
    }

    /// The other part that lies on the disk of this one. One detached journal in eight shares the disk of
    /// the first member, which says nothing when a flush of the other part succeeds.
    pub fn on_the_disk_of(&self, part: usize) -> Option<usize> {
        let shared = [0, self.geometry.journal_part().index()];
        let other = shared.iter().position(|shared| *shared == part)?;
        self.settings.parts[0]
            .shares_journal_disk
            .then_some(shared[1 - other])
    }

    /// Whether DISCARD and WRITE ZEROES are advertised.
    pub fn zeroes(&self) -> bool {
        let limits = &self.settings.parts;
        self.geometry
            .members()
            .all(|part| limits[part.index()].zeroes)
    }

    /// Its disks, before label: the data areas hold what was there before.
    pub fn disks(&self) -> Vec<SimDisk> {
        let clock = Clock::default();
        let disks: Vec<SimDisk> = self
            .sizes
            .iter()
            .zip(&self.caches)
            .enumerate()
            .map(|(index, (size, cache))| {
                let disk = SimDisk::new(&format!("part {index}"), *size, *cache, &clock);
                disk.set_zones(self.zones(index));
                disk
            })
            .collect();
        let size = self.geometry.data.size();
        let mut before = vec![0; to_usize(size)];
        stamp(Version::BEFORE, Lba(0), &mut before);
        for piece in self.geometry.data.pieces(0, size) {
            let at = to_usize(piece.at);
            disks[piece.part.index()].poke(piece.offset, &before[at..at + to_usize(piece.len)]);
        }
        disks
    }

    fn zones(&self, part: usize) -> Vec<(Range<u64>, Zone)> {
        let sectors = |offset: u64, len: u64| offset / SECTOR..(offset + len) / SECTOR;
        let geometry = &self.geometry;
        let mut zones = Vec::new();
        for place in superblock_places(self.sizes[part]) {
            zones.push((sectors(place.0, FRAME), Zone::Superblock));
        }
        if geometry.anchors.part.index() == part {
            for place in geometry.anchors.copies {
                zones.push((sectors(place.0, FRAME), Zone::Anchor));
            }
        }
        for (stripes, zone) in [(&geometry.ring, Zone::Ring), (&geometry.data, Zone::Home)] {
            for run in stripes.runs(0, stripes.size()) {
                if run.part.index() == part {
                    zones.push((sectors(run.offset.0, run.len), zone));
                }
            }
        }
        zones.sort_by_key(|(range, _)| range.start);
        zones
    }
}

/// The least journal of whole chunks on each member.
fn least_journal(placement: Placement, members: u64, chunk: u64, max_io: u64) -> u64 {
    let least = journal_size_min(placement, members, chunk, max_io);
    match placement {
        Placement::Detached => least,
        Placement::Start | Placement::Middle | Placement::End => {
            crate::units::round_up(least, members * chunk)
        }
    }
}

fn draw_settings(
    random: &mut Random,
    geometry: &Geometry,
    max_io: u64,
    caches: &[Cache],
) -> Settings {
    let record = record_max(geometry.ring.size());
    let segment = FRAME * random.skewed((2 * record / FRAME).min(16));
    let least = 2 * (4 * record + 2 * segment);
    // A window larger than the ring holds no more than the ring, but it lets more be volatile.
    let more = *random.pick(&[0, record, 4 * record, 8 * geometry.ring.size()]);
    let window = (least + more).div_ceil(segment) * segment;
    let round = random.between(2 * record, (window / 2).max(2 * record));
    let zeroes = random.chance(750);
    let parts = caches
        .iter()
        .map(|cache| {
            let pages = *random.pick(&[1, 2, 3, 8, 64]);
            PartLimits {
                io_max: FRAME * to_u64(pages),
                segments_max: *random.pick(&[1, 2, 5, 32]),
                pages_max: pages,
                zeroes,
                sync: cache.sync_write(),
                shares_journal_disk: false,
            }
        })
        .collect();
    // Sometimes only a full ring makes replay run.
    let lazy = random.chance(300);
    let wait = |random: &mut Random, most: u64| {
        Duration::from_micros(if lazy {
            most * 1000
        } else {
            random.skewed(most)
        })
    };
    let queue_depth = u16::try_from(random.skewed(16)).expect("at most sixteen");
    let mut settings = Settings {
        queue_depth,
        max_io,
        commit: if random.chance(150) {
            Commit::Always
        } else {
            Commit::Flush
        },
        commit_interval: Duration::from_micros(random.skewed(5_000_000)),
        round: crate::units::round_down(round, FRAME).max(2 * record),
        fill: if lazy {
            999
        } else {
            *random.pick(&[0, 100, 500, 900, 999])
        },
        age: wait(random, 30_000_000),
        idle: wait(random, 2_000_000),
        stall_timeout: None,
        window,
        segment,
        extents: usize::from(queue_depth) * 4 + to_usize(random.skewed(512)),
        extents_a_turn: to_usize(random.skewed(64)),
        bounce: FRAME * random.skewed(8),
        bounces: random.index(4) + 1,
        ios: 0,
        records_in_flight: random.index(4) + 1,
        home_writes: random.index(8) + 1,
        parts,
    };
    let ios = settings.ios_kept(geometry.ring.size())
        + 2 * settings.ios_for_a_read()
        + settings.home_writes
        + to_usize(random.skewed(64) - 1);
    settings.ios = u16::try_from(ios).expect("a small array needs few operations");
    settings.check(geometry.ring.size());
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drawn_array_is_legal_and_its_zones_are_its_geometry() {
        for seed in 0..300 {
            let scenario = Scenario::draw(&mut Random::new(seed));
            let disks = scenario.disks();
            let geometry = &scenario.geometry;
            let ring = geometry.ring.pieces(0, geometry.ring.size());
            for (pieces, zone) in [
                (ring, Zone::Ring),
                (geometry.data.pieces(0, geometry.data.size()), Zone::Home),
            ] {
                for piece in pieces {
                    let disk = &disks[piece.part.index()];
                    assert_eq!(disk.zone(piece.offset), zone, "seed {seed}");
                    let last = piece.offset.plus(piece.len - 1);
                    assert_eq!(disk.zone(last), zone, "seed {seed}");
                }
            }
            for copy in geometry.anchors.copies {
                let disk = &disks[geometry.anchors.part.index()];
                assert_eq!(disk.zone(copy), Zone::Anchor, "seed {seed}");
            }
            assert!(disks.len() <= 5);
        }
    }
}
