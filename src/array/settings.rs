//! What an engine is built with: from the configuration, the parts and the machine.

use crate::config::{Config, Size, SyncMode};
use crate::disk::limits::{PartLimits as DiskLimits, WriteCache};
use crate::engine::settings::{self, Commit, PartLimits, Settings, SyncWrite, Unfit};
use crate::journal::geometry::{Geometry, record_max};
use crate::outcome::Failure;
use crate::units::{FRAME, MIB, PartIndex, round_down, round_up, to_usize};

/// The window where the file says "auto".
const WINDOW_AUTO: u64 = 256 * MIB;
/// Bytes of a round that a rotating member gets at least.
const ROUND_PER_ROTATING_MEMBER: u64 = 16 * MIB;

/// What the live device, or the file, says of requests.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    /// How many at once.
    pub depth: u16,
    /// Most bytes of one.
    pub max_io: u64,
    /// When they may be answered.
    pub commit: Commit,
}

/// When the file lets writes be answered.
pub fn commit_of(sync: SyncMode) -> Commit {
    match sync {
        SyncMode::Flush => Commit::Flush,
        SyncMode::Always => Commit::Always,
    }
}

/// Who says what requests there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The configuration.
    File,
    /// The live device N in `/dev/ublkbN`: perhaps made by another version of this program.
    Device(u32),
}

/// Refuses requests that this array cannot serve. To be asked before a device is touched: one that was
/// left by a daemon that died stays there for one that can.
pub fn check_requests(
    config: &Config,
    origin: Origin,
    requests: Requests,
    ring_size: u64,
) -> Result<(), Failure> {
    let extents = to_usize(config.memory.extents);
    let checked = settings::check_requests(requests.depth, requests.max_io, ring_size, extents);
    checked.map_err(|unfit| {
        let file = config.file.display();
        Failure::refused(match (origin, unfit) {
            (Origin::File, Unfit::NoQueue | Unfit::Queue { .. }) => {
                format!("{file}: device.queue_depth asks for {unfit}: change it, or memory.extents")
            }
            (Origin::File, Unfit::Grain(_) | Unfit::Record(_) | Unfit::Ring { .. }) => {
                format!("{file}: device.max_io asks for {unfit}: lower it")
            }
            (Origin::Device(id), Unfit::Queue { .. }) => {
                format!("/dev/ublkb{id}: the live device has {unfit}: raise memory.extents in {file}")
            }
            (
                Origin::Device(id),
                Unfit::NoQueue | Unfit::Grain(_) | Unfit::Record(_) | Unfit::Ring { .. },
            ) => format!(
                "/dev/ublkb{id}: the live device has {unfit}: take it over with the version of ujournal that made it"
            ),
        })
    })
}

/// The settings of an engine. `beside_journal`: which members lie on a disk of a detached journal;
/// `memory`: the machine's, in bytes.
pub fn settings(
    config: &Config,
    geometry: &Geometry,
    disks: &[DiskLimits],
    beside_journal: &[bool],
    requests: Requests,
    memory: u64,
) -> Settings {
    let ring_size = geometry.ring.size();
    let record = record_max(ring_size);
    let segment = segment(record);
    let window_min = round_up(8 * record + 4 * segment, MIB);
    let window = match config.memory.window {
        Size::Bytes(bytes) => round_up(bytes, MIB),
        Size::Auto => WINDOW_AUTO.min(round_down(memory / 8, MIB)),
    }
    .max(window_min);
    let rotating = disks[..usize::from(geometry.shape.members)]
        .iter()
        .filter(|disk| disk.rotational)
        .count();
    let round = match config.replay.round {
        Size::Bytes(bytes) => bytes,
        Size::Auto => (window / 4).max(ROUND_PER_ROTATING_MEMBER * crate::units::to_u64(rotating)),
    }
    .clamp(2 * record, window / 2);
    let mut parts: Vec<PartLimits> = disks.iter().map(limits).collect();
    for (member, beside) in parts.iter_mut().zip(beside_journal) {
        member.shares_journal_disk = *beside;
    }
    let mut settings = Settings {
        queue_depth: requests.depth,
        max_io: requests.max_io,
        commit: requests.commit,
        commit_interval: config.commit.interval,
        round,
        fill: config.replay.fill_permille.into(),
        age: config.replay.age,
        idle: config.replay.idle,
        stall_timeout: config.replay.stall_timeout,
        window,
        segment,
        extents: to_usize(config.memory.extents),
        ..Settings::new(parts)
    };
    let least = settings.ios_kept(ring_size) + 2 * settings.ios_for_a_read() + settings.home_writes;
    settings.ios = settings
        .ios
        .max(u16::try_from(least).expect("33 parts need some thousands at most"));
    settings
}

/// A segment of the window: 1 MiB, or less where the ring is so small that its head and tail could
/// otherwise meet in one.
fn segment(record: u64) -> u64 {
    let most = (2 * record).min(MIB);
    if most.is_power_of_two() {
        most
    } else {
        most.next_power_of_two() / 2
    }
}

fn limits(disk: &DiskLimits) -> PartLimits {
    PartLimits {
        io_max: disk.max_io_bytes,
        segments_max: to_usize(disk.max_segments).max(1),
        pages_max: to_usize(disk.max_segments).max(to_usize(disk.max_io_bytes / FRAME)),
        zeroes: disk.zeroes_without_writing,
        sync: if disk.dsync_flushes_earlier_writes {
            SyncWrite::Flushes
        } else if disk.fua || disk.write_cache == WriteCache::WriteThrough {
            SyncWrite::Alone
        } else {
            SyncWrite::Unknown
        },
        shares_journal_disk: false,
    }
}

/// Bytes of the machine's memory.
pub fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(info.mem_unit.into())
}

/// Whether any of the given parts is rotating.
pub fn any_rotating(disks: &[DiskLimits], parts: impl Iterator<Item = PartIndex>) -> bool {
    parts.into_iter().any(|part| disks[part.index()].rotational)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::limits::{EXTENTS_MIN, MAX_IO_MAX, MAX_IO_MIN, QUEUE_DEPTH_MAX};
    use crate::journal::geometry::{Placement, Shape, ring_size_min};
    use crate::outcome::Exit;
    use crate::units::KIB;
    use std::path::Path;

    fn config(more: &str) -> Config {
        let text =
            format!("name = \"vol0\"\ndata.members = [\"m\"]\njournal.device = \"j\"\n{more}");
        Config::parse(Path::new("vol0.toml"), &text, Path::new("/")).expect("a configuration")
    }

    fn requests(depth: u16, max_io: u64) -> Requests {
        Requests {
            depth,
            max_io,
            commit: Commit::Flush,
        }
    }

    #[test]
    fn a_live_device_that_cannot_be_served_is_refused_with_a_sentence() {
        let config = config("memory.extents = 4096\n");
        for (depth, max_io, expected) in [
            (
                2048,
                512 * KIB,
                "/dev/ublkb3: the live device has a queue of 2048 requests, which needs a map of 8192 extents, but it \
                 has 4096: raise memory.extents in vol0.toml",
            ),
            (
                128,
                2 * MIB,
                "/dev/ublkb3: the live device has requests of up to 2097152 bytes, but a record holds at most 1048576: \
                 take it over with the version of ujournal that made it",
            ),
            (
                128,
                6 * KIB,
                "/dev/ublkb3: the live device has requests of up to 6144 bytes, expected a multiple of 4096: \
                 take it over with the version of ujournal that made it",
            ),
            (
                0,
                4 * KIB,
                "/dev/ublkb3: the live device has a queue of 0 requests: \
                 take it over with the version of ujournal that made it",
            ),
        ] {
            let found =
                check_requests(&config, Origin::Device(3), requests(depth, max_io), 1 << 34)
                    .expect_err("refused");
            assert_eq!(
                (found.exit, found.message.as_str()),
                (Exit::Refused, expected)
            );
        }
        let small = ring_size_min(512 * KIB) - 4096;
        let found = check_requests(&config, Origin::File, requests(128, 512 * KIB), small)
            .expect_err("refused");
        assert_eq!(
            found.message,
            "vol0.toml: device.max_io asks for requests of up to 524288 bytes, for which the ring must have 4587520 \
             bytes, but it has 4583424: lower it"
        );
    }

    /// What a configuration may say, and what was let through, an engine takes: nothing is left that
    /// only an assertion finds.
    #[test]
    fn whatever_is_not_refused_makes_settings_that_fit() {
        let config = config(&format!("memory.extents = {EXTENTS_MIN}\n"));
        let disk = DiskLimits {
            block_size: 512,
            max_io_bytes: 1 << 20,
            max_segments: 128,
            rotational: false,
            fua: true,
            write_cache: WriteCache::WriteBack,
            dsync_flushes_earlier_writes: false,
            zeroes_without_writing: true,
            discard_granularity: 4096,
        };
        for depth in [1, 128, QUEUE_DEPTH_MAX] {
            for max_io in [MAX_IO_MIN, 124 * KIB, MAX_IO_MAX] {
                let geometry = Geometry::new(Shape {
                    members: 1,
                    chunk: 64 * KIB,
                    member_size: 64 * MIB,
                    placement: Placement::Detached,
                    journal_size: ring_size_min(max_io) + 2 * MIB + 8 * KIB,
                })
                .expect("a layout");
                let ring_size = geometry.ring.size();
                let asked = requests(depth, max_io);
                assert_eq!(
                    check_requests(&config, Origin::File, asked, ring_size),
                    Ok(()),
                    "{depth} {max_io}"
                );
                let disks = [disk, disk];
                settings(&config, &geometry, &disks, &[], asked, 1 << 30).check(ring_size);
            }
        }
    }
}
