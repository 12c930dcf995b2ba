//! `ujournal start`: from a configuration to a device that answers.
//!
//! The order is that of the fence: locks on every part, superblocks, the takeover of a live device if it
//! is ours, and only then the flush and the scan of the journal ([`crate::engine::recovery`]). A process
//! that wants to run in the background has forked before it comes here.

use super::device::{check_namesake, take_up};
use super::open::{Opened, open, wait_for_parts};
use super::settings::{
    Origin, Requests, any_rotating, check_requests, commit_of, machine_memory, settings,
};
use super::{from_recovery, scan_reports};
use crate::config::Config;
use crate::control::port::RingCommands;
use crate::control::progress::ProgressSink;
use crate::control::run_dir::RunDir;
use crate::control::status::{DeviceStatus, Difference, Facts, PartStatus, Recovery, StartKind};
use crate::disk::buffer::Residency;
use crate::disk::limits::PartLimits;
use crate::disk::part::Access;
use crate::engine::Engine;
use crate::engine::recovery::{self, Errors, Recovered, Report};
use crate::engine::settings::{Commit, Settings};
use crate::journal::assemble::Set;
use crate::journal::geometry::Geometry;
use crate::journal::record::RecordError;
use crate::outcome::{Failure, sentence};
use crate::serve::Running;
use crate::serve::server::ArrayServer;
use crate::ublk::{
    Cache, Device, Error, Found, Media, Parameters, Serving, Tuning, Zeroing, check_driver,
};
use crate::units::{KIB, MIB};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// The largest discard or write-zeroes, and what they are aligned to.
const ZEROING: Zeroing = Zeroing {
    granularity: 4096,
    discard_max: 1 << 30,
    write_zeroes_max: 1 << 30,
};

/// Read-ahead: at least this on rotating members, and never more than that.
const READ_AHEAD_ROTATING_KIB: u64 = 4096;
const READ_AHEAD_MAX_KIB: u64 = 16384;

/// How to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it is written down which devices there are.
    pub run_dir: RunDir,
    /// How long to wait for parts that are not there.
    pub wait: Duration,
    /// Leave the FAILED state, now that the operator knows of it.
    pub clear_error: bool,
}

/// Brings the array that `config` describes up. `ended` is called when the queue thread has ended.
///
/// # Errors
/// If the machine has no ublk, a part is missing, in use or foreign, or acknowledged data is damaged.
pub fn bring_up(
    config: &Config,
    options: &Options,
    commands: RingCommands,
    ended: impl FnOnce() + Send + 'static,
    progress: &ProgressSink,
) -> Result<Running, Failure> {
    let began = Instant::now();
    // Whether there is a driver at all is known before anything is touched.
    check_driver().map_err(failed)?;
    wait_for_parts(config, options.wait, progress)?;
    let Opened {
        mut set,
        files,
        limits,
        paths,
        beside_journal,
    } = open(config, Access::ReadWrite, progress)?;

    let left_before = options.run_dir.device(&config.name);
    let live = take_up(
        set.journal(),
        set.geometry.data.size(),
        left_before.as_ref(),
    )?;
    check_namesake(
        config.name.as_str(),
        set.journal().uuid,
        left_before.as_ref(),
    )?;
    let requests = requests(config, live.as_ref(), set.geometry.ring.size())?;
    // Its requests wait from here on: they are issued again once it is served.
    let takeover = live.map(|found| Device::recover(found.id)).transpose();
    let takeover = takeover.map_err(from_takeover)?;

    let settings = settings(
        config,
        &set.geometry,
        &limits,
        &beside_journal,
        requests,
        machine_memory(),
    );
    let errors = if options.clear_error {
        Errors::Cleared
    } else {
        Errors::Kept
    };
    let (recovered, report) = recovery::open(
        &mut set,
        settings.extents,
        settings.round,
        errors,
        &mut scan_reports(progress),
    )
    .map_err(|error| from_recovery(&error))?;
    if !report.both_anchors {
        tracing::warn!(
            "one of the two anchors of the journal was unreadable, and is written again"
        );
    }
    let kind = match (&takeover, report.was_clean) {
        (Some(_), _) => StartKind::Takeover,
        (None, true) => StartKind::Clean,
        (None, false) => StartKind::Recovery,
    };

    let window = settings.window;
    let spare = duplicates(&files)?;
    let server = server(settings, &set, recovered, files, commands)?;
    let device = match takeover {
        Some(device) => device,
        None => Device::create(&parameters(config, &set, &limits)).map_err(failed)?,
    };
    let differs = differences(config, device.parameters());
    let tuning = Tuning {
        read_ahead_kib: read_ahead(&set.geometry, media_of(&set, &limits)),
    };
    let serving = serve(device, server, ended, &tuning, kind)?;
    let facts = Facts {
        name: config.name.as_str().to_owned(),
        uuid: uuid::Uuid::from_bytes(set.journal().uuid.0),
        epoch: report.epoch,
        started: SystemTime::now(),
        device: DeviceStatus {
            block: PathBuf::from(format!("/dev/ublkb{}", serving.id())),
            link: PathBuf::from(format!("/dev/ujournal/{}", config.name)),
            size: set.geometry.data.size(),
            block_size: set.journal().block_size,
        },
        parts: parts(&set, paths),
        journal_size: set.geometry.ring.size(),
        extents_limit: config.memory.extents,
        window_size: window,
        recovery: Some(describe(&set, &report, kind, began.elapsed())),
        differs,
    };
    Ok(Running {
        serving,
        set,
        files: spare,
        facts,
    })
}

/// What the kernel will send. What a live device says wins over the file until the next clean start.
fn requests(config: &Config, live: Option<&Found>, ring_size: u64) -> Result<Requests, Failure> {
    let (origin, requests) = match live {
        Some(found) => (Origin::Device(found.id), requests_of(&found.parameters)),
        None => (
            Origin::File,
            Requests {
                depth: config.device.queue_depth,
                max_io: config.device.max_io,
                commit: commit_of(config.commit.sync),
            },
        ),
    };
    check_requests(config, origin, requests, ring_size)?;
    Ok(requests)
}

/// The engine over what was recovered, and what carries its operations out.
fn server(
    settings: Settings,
    set: &Set,
    recovered: Recovered,
    files: Vec<OwnedFd>,
    commands: RingCommands,
) -> Result<ArrayServer, Failure> {
    let (depth, operations) = (settings.queue_depth, settings.ios);
    let (geometry, uuid) = (set.geometry.clone(), set.journal().uuid);
    let engine = Engine::new(settings, geometry, uuid, recovered, Residency::Locked);
    let engine = engine.map_err(failed)?;
    #[cfg_attr(
        not(feature = "broken-flush"),
        expect(unused_mut, reason = "only a broken build changes it")
    )]
    let mut server = ArrayServer::new(engine, files, commands, depth, operations);
    #[cfg(feature = "broken-flush")]
    {
        tracing::error!("this build does not flush its journal: it is made to lose data");
        server.break_flushes(set.geometry.journal_parts());
    }
    Ok(server)
}

/// The queue thread, and the device open to everybody: when this returns, requests are answered.
fn serve(
    device: Device,
    server: ArrayServer,
    ended: impl FnOnce() + Send + 'static,
    tuning: &Tuning,
    kind: StartKind,
) -> Result<Serving<ArrayServer>, Failure> {
    let serving = device.serve(server, ended).map_err(failed)?;
    match serving.start(Some(tuning).filter(|_| kind != StartKind::Takeover)) {
        Ok(()) => Ok(serving),
        Err(error) => {
            give_up(serving, kind);
            Err(failed(error))
        }
    }
}

fn duplicates(files: &[OwnedFd]) -> Result<Vec<OwnedFd>, Failure> {
    let duplicates: std::io::Result<Vec<_>> = files.iter().map(OwnedFd::try_clone).collect();
    duplicates.map_err(|error| {
        Failure::failed(format!(
            "the parts' descriptors cannot be duplicated: {error}"
        ))
    })
}

/// Takes a new device away that could not be started; nothing was answered yet, so nothing is lost. One
/// that was to be taken over stays for the next try: somebody may have a filesystem on it.
fn give_up(serving: Serving<ArrayServer>, kind: StartKind) {
    if kind == StartKind::Takeover {
        serving.detach();
        return;
    }
    let id = serving.id();
    if let Err(error) = serving.stop() {
        tracing::error!("the device cannot be stopped: {}", sentence(&error));
    }
    let (_, ended) = serving.join();
    for result in [ended.map(drop), Device::delete(id)] {
        if let Err(error) = result {
            tracing::error!("the device cannot be removed: {}", sentence(&error));
        }
    }
}

fn requests_of(live: &Parameters) -> Requests {
    let commit = match live.cache {
        Cache::WriteThrough => Commit::Always,
        Cache::Volatile | Cache::VolatileWithFua => Commit::Flush,
    };
    Requests {
        depth: live.depth,
        max_io: live.max_io.into(),
        commit,
    }
}

fn media_of(set: &Set, limits: &[PartLimits]) -> Media {
    if any_rotating(limits, set.geometry.members()) {
        Media::Rotating
    } else {
        Media::Solid
    }
}

/// What a new device is told.
fn parameters(config: &Config, set: &Set, limits: &[PartLimits]) -> Parameters {
    let narrow = |bytes: u64| u32::try_from(bytes).expect("at most some MiB");
    let zeroes = set
        .geometry
        .members()
        .all(|part| limits[part.index()].zeroes_without_writing);
    Parameters {
        identity: set.journal().uuid.device_flags(),
        depth: config.device.queue_depth,
        max_io: narrow(config.device.max_io),
        size: set.geometry.data.size(),
        block_size: set.journal().block_size,
        io_min: narrow(set.geometry.shape.chunk),
        io_opt: narrow(io_opt(&set.geometry)),
        cache: match commit_of(config.commit.sync) {
            Commit::Flush => Cache::VolatileWithFua,
            Commit::Always => Cache::WriteThrough,
        },
        media: media_of(set, limits),
        zeroing: zeroes.then_some(ZEROING),
    }
}

/// A stripe, rounded up to a power of two, at least 1 MiB.
fn io_opt(geometry: &Geometry) -> u64 {
    (geometry.shape.chunk * u64::from(geometry.shape.members))
        .next_power_of_two()
        .max(MIB)
}

fn read_ahead(geometry: &Geometry, media: Media) -> u32 {
    let twice = 2 * io_opt(geometry) / KIB;
    let least = if media == Media::Rotating {
        READ_AHEAD_ROTATING_KIB
    } else {
        0
    };
    u32::try_from(twice.max(least).min(READ_AHEAD_MAX_KIB)).expect("16 MiB at most")
}

fn differences(config: &Config, live: &Parameters) -> Vec<Difference> {
    let requests = requests_of(live);
    let wanted = commit_of(config.commit.sync);
    let words = |commit| {
        if commit == Commit::Flush {
            "flush"
        } else {
            "always"
        }
    };
    let pairs = [
        (
            "device.queue_depth",
            config.device.queue_depth.to_string(),
            requests.depth.to_string(),
        ),
        (
            "device.max_io",
            config.device.max_io.to_string(),
            requests.max_io.to_string(),
        ),
        (
            "commit.sync",
            words(wanted).to_owned(),
            words(requests.commit).to_owned(),
        ),
    ];
    let differing = pairs.into_iter().filter(|(_, file, live)| file != live);
    differing
        .map(|(key, file, live)| Difference {
            key: key.to_owned(),
            file,
            live,
        })
        .collect()
}

fn parts(set: &Set, paths: Vec<PathBuf>) -> Vec<PartStatus> {
    let parts = set.superblocks.iter().zip(paths);
    parts
        .map(|(sb, path)| PartStatus {
            role: sb.role.to_string(),
            path,
        })
        .collect()
}

fn describe(set: &Set, report: &Report, kind: StartKind, took: Duration) -> Recovery {
    let silent = report.dropped == 0 && report.ended_by == RecordError::Absent;
    Recovery {
        array: set.journal().name.clone(),
        epoch: report.epoch.0,
        kind,
        durable_seq: report.durable.to_string(),
        kept_seq: report.kept.to_string(),
        records_replayed: report.records,
        records_dropped: report.dropped,
        dropped_because: (!silent).then(|| report.ended_by.to_string()),
        ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    }
}

/// A device that carries our identity and cannot be ours after all is a part that does not belong.
fn from_takeover(error: Error) -> Failure {
    let not_ours = matches!(
        error,
        Error::NotOurs { .. } | Error::StillServed { .. } | Error::Dead { .. }
    );
    if not_ours {
        Failure::refused(sentence(&error))
    } else {
        failed(error)
    }
}

/// The world's answer to something that a start cannot do without.
fn failed(error: impl std::error::Error + 'static) -> Failure {
    Failure::failed(sentence(&error))
}
