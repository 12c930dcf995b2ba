//! What an engine is built with: from the configuration, the parts and the machine.

use crate::config::{Config, Size, SyncMode};
use crate::disk::limits::{PartLimits as DiskLimits, WriteCache};
use crate::engine::settings::{Commit, PartLimits, Settings};
use crate::journal::geometry::{Geometry, record_max};
use crate::units::{MIB, PartIndex, round_down, round_up, to_usize};

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

/// The settings of an engine. `memory` is the machine's, in bytes.
pub fn settings(
    config: &Config,
    geometry: &Geometry,
    disks: &[DiskLimits],
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
    let parts: Vec<PartLimits> = disks.iter().map(limits).collect();
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
        zeroes: disk.zeroes_without_writing,
        sync_flushes_all: disk.dsync_flushes_earlier_writes
            && disk.write_cache == WriteCache::WriteBack,
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
