//! The command of the emulated disk: see `ujournal::drive` for what it is.
//!
//! ```text
//!   drive serve --file /dev/ubda --offset 0 --size 256MiB     a disk that a power cut can hurt
//!   drive serve --size 2GiB                                   one in memory, gone with the machine
//!   drive stop /dev/ublkb0                                    destages everything and takes it away
//! ```
//!
//! `serve` goes to the background and prints one path for each drive once all of them answer requests.
//! With `--status FILE` it keeps one line for each drive in that file, rewritten in place, which says how
//! many sectors a power cut would take at most. The file is a disk of the lab, or any other file; each line
//! has reached it when the next is begun, so the lines found after a cut are at most two intervals old.
//!
//! With `--trip WHAT --trip-file FILE` the first drive falls silent in the midst of a chosen request, and makes
//! that file: whoever watches for it cuts the power there. WHAT is `OP:BEGIN+LENGTH#N`: the N-th `read` or
//! `write` that touches those bytes, or the N-th `flush` that covers such a write.
//!
//! Exit codes: 0 done, 1 it failed, 2 wrong usage.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand};
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::{info, warn};

use ujournal::disk::buffer::{Arena, Residency};
use ujournal::drive::{Drive, Gauge, Plan, Trip, TripOp};
use ujournal::ublk::{self, Cache, Device, End, Media, Parameters, Serving, Tuning, Zeroing};
use ujournal::units::{KIB, SECTOR, to_u64, to_usize};

/// The marker of drives, and room for their number.
const IDENTITY: u64 = 0x6472_6976_6500_0000;

/// Drives of one process at most.
const DRIVES_MAX: u32 = 32;

/// Bytes of a status line, all included.
const STATUS_LINE: usize = 80;

/// Bytes of the status file, as a disk wants them.
const STATUS_BYTES: usize = 4096;

const _: () = assert!(STATUS_LINE * 32 <= STATUS_BYTES);

/// An emulated disk with a volatile cache, for power cuts in the lab.
#[derive(Parser)]
#[command(name = "drive")]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Make drives and serve them.
    Serve(Box<Serve>),
    /// Destage everything and take drives away.
    Stop {
        /// For instance `/dev/ublkb0`.
        #[arg(required = true)]
        devices: Vec<PathBuf>,
    },
    /// Show the drives that there are.
    List,
}

#[derive(Args)]
struct Serve {
    /// Where data is stored: a disk, or a file that takes `O_DIRECT`. Without it the store is memory.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Where in the file the first drive begins.
    #[arg(long, default_value = "0")]
    offset: ByteSize,
    /// Size of each drive. The default is what the file has from the offset on.
    #[arg(long)]
    size: Option<ByteSize>,
    /// How many drives, one behind the other in the file.
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..=i64::from(DRIVES_MAX)))]
    count: u32,
    /// Size of each drive's cache.
    #[arg(long, default_value = "64MiB")]
    cache: ByteSize,
    /// Whether the drive knows FUA. If not, the kernel sends a FLUSH instead.
    #[arg(long, default_value = "on", value_parser = ["on", "off"])]
    fua: String,
    /// Largest request, in KiB: a multiple of 4.
    #[arg(long, default_value = "512")]
    max_sectors_kb: u32,
    /// Logical block, and what the medium writes whole: 512 or 4096.
    #[arg(long, default_value = "512")]
    block_size: u32,
    /// Say that it is a rotating disk.
    #[arg(long)]
    rotational: bool,
    /// Take discards and zeroing: both write zeroes into the cache.
    #[arg(long)]
    discard: bool,
    /// Requests at once.
    #[arg(long, default_value = "64")]
    depth: u16,
    /// Share of the cache that is destaged in a second at leisure, in percent; 0: only when it must.
    #[arg(long, default_value = "10")]
    destage_rate: u32,
    /// Decides what is destaged when. The default is told to stderr.
    #[arg(long)]
    destage_seed: Option<u64>,
    /// How long a write waits for its answer, in milliseconds.
    #[arg(long, default_value = "0")]
    write_delay: u64,
    /// How long a flush waits for its answer once all is stored, in milliseconds.
    #[arg(long, default_value = "0")]
    flush_delay: u64,
    /// Where to say how much is volatile.
    #[arg(long)]
    status: Option<PathBuf>,
    /// How often, in milliseconds.
    #[arg(long, default_value = "20")]
    status_interval: u64,
    /// The request at which the first drive falls silent, such as `write:1048576+4096#2`.
    #[arg(long, value_parser = parse_trip, requires = "trip_file")]
    trip: Option<Trip>,
    /// The file that is made then.
    #[arg(long, requires = "trip")]
    trip_file: Option<PathBuf>,
    /// Where the log goes. The default is stderr.
    #[arg(long)]
    log: Option<PathBuf>,
    /// Stay in the foreground. SIGTERM then ends it, like `drive stop` for all its drives.
    #[arg(long)]
    foreground: bool,
    /// For the process in the background: signals for the group that started it are not meant for it.
    #[arg(long, hide = true, requires = "foreground")]
    own_session: bool,
}

fn parse_trip(text: &str) -> Result<Trip, String> {
    let parts = || {
        let (op, rest) = text.split_once(':')?;
        let (begin, rest) = rest.split_once('+')?;
        let (length, count) = rest.split_once('#')?;
        let op = match op {
            "read" => TripOp::Read,
            "write" => TripOp::Write,
            "flush" => TripOp::Flush,
            _ => return None,
        };
        let begin = begin.parse::<u64>().ok()?;
        let end = begin.checked_add(length.parse().ok()?)?;
        let count = count.parse().ok().filter(|count| *count > 0)?;
        let sectors = begin / SECTOR..end.div_ceil(SECTOR);
        Some(Trip { op, sectors, count })
    };
    parts().ok_or_else(|| "OP:BEGIN+LENGTH#N expected, such as write:1048576+4096#2".to_owned())
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Verb::Serve(serve) if serve.foreground => serve_here(&serve),
        Verb::Serve(serve) => serve_in_background(&serve),
        Verb::Stop { devices } => devices.iter().try_for_each(|device| stop(device)),
        Verb::List => list(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("drive: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Starts this program again as a process of its own session and waits for what it prints. A device must be
/// made by the process that serves it, so this comes before anything else.
fn serve_in_background(serve: &Serve) -> Result<()> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .args(["--foreground", "--own-session"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the server")?;
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let mut devices = Vec::new();
    for line in lines.take(to_usize(u64::from(serve.count))) {
        devices.push(line.context("reading what the server says")?);
    }
    if devices.len() < to_usize(u64::from(serve.count)) {
        let status = child.wait().context("waiting for the server")?;
        bail!("the server did not begin: {status}");
    }
    for device in devices {
        println!("{device}");
    }
    Ok(())
}

fn serve_here(serve: &Serve) -> Result<()> {
    begin_log(serve.log.as_deref())?;
    if serve.own_session {
        rustix::process::setsid().context("making a session")?;
    }
    let (ended, mut has_ended) = mpsc::unbounded_channel();
    let mut drives = Vec::new();
    for number in 0..serve.count {
        match start(serve, number, ended.clone()) {
            Ok(drive) => drives.push(drive),
            Err(error) => {
                stop_all(&drives);
                drives.into_iter().try_for_each(finish)?;
                return Err(error);
            }
        }
    }
    let gauges = drives.iter().map(|(_, gauge)| Arc::clone(gauge)).collect();
    let finished = Arc::new(AtomicBool::new(false));
    let status = match &serve.status {
        Some(path) => Some(keep_status(
            path,
            gauges,
            serve.status_interval,
            Arc::clone(&finished),
        )?),
        None => None,
    };
    for (serving, _) in &drives {
        println!("/dev/ublkb{}", serving.id());
    }
    io::stdout().flush()?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut drives: Vec<Option<Running>> = drives.into_iter().map(Some).collect();
        let mut result = Ok(());
        while drives.iter().any(Option::is_some) {
            tokio::select! {
                number = has_ended.recv() => {
                    let number = to_usize(u64::from(number.expect("this function has a sender, too")));
                    let drive = drives[number].take().expect("a drive ends once");
                    result = result.and(finish(drive));
                }
                _ = terminate.recv() => stop_all(drives.iter().flatten()),
                _ = interrupt.recv() => stop_all(drives.iter().flatten()),
            }
        }
        result
    });
    finished.store(true, Ordering::Relaxed);
    if let Some(status) = status {
        status
            .join()
            .map_err(|_| anyhow!("the status thread panicked"))?;
    }
    result
}

type Running = (Serving<Drive>, Arc<Gauge>);

fn start(serve: &Serve, number: u32, ended: mpsc::UnboundedSender<u32>) -> Result<Running> {
    let (store, offset, size) = open_store(serve, number)?;
    let seed = match serve.destage_seed {
        Some(seed) => seed + u64::from(number),
        None => SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)?
            .subsec_nanos()
            .into(),
    };
    ensure!(
        [512, 4096].contains(&serve.block_size),
        "the block size is 512 or 4096"
    );
    ensure!(
        serve.max_sectors_kb > 0
            && serve.max_sectors_kb.is_multiple_of(4)
            && serve.max_sectors_kb <= 4096,
        "the largest request is a multiple of 4 KiB, at most 4 MiB"
    );
    let max_io = serve.max_sectors_kb * 1024;
    let cache = serve.cache.as_u64() / 4096 * 4096;
    ensure!(
        cache >= 8 * u64::from(max_io),
        "the cache holds at least 8 of the largest requests"
    );
    let plan = Plan {
        offset,
        size,
        block_size: serve.block_size,
        cache,
        max_io,
        depth: serve.depth,
        destage_percent: serve.destage_rate,
        seed,
        write_delay: Duration::from_millis(serve.write_delay),
        flush_delay: Duration::from_millis(serve.flush_delay),
    };
    let zeroing_max = cache / 8 / 4096 * 4096;
    let parameters = Parameters {
        identity: IDENTITY + u64::from(number),
        depth: serve.depth,
        max_io,
        size,
        block_size: serve.block_size,
        io_min: 4096,
        io_opt: 4096,
        cache: if serve.fua == "on" {
            Cache::VolatileWithFua
        } else {
            Cache::Volatile
        },
        media: if serve.rotational {
            Media::Rotating
        } else {
            Media::Solid
        },
        zeroing: serve.discard.then_some(Zeroing {
            granularity: 4096,
            discard_max: zeroing_max,
            write_zeroes_max: zeroing_max,
        }),
    };
    let mut drive = Drive::new(store, plan).context("memory for the cache")?;
    if number == 0
        && let (Some(trip), Some(file)) = (&serve.trip, &serve.trip_file)
    {
        drive.set_trip(trip.clone(), announcer(file)?);
    }
    let gauge = drive.gauge();
    let device = Device::create(&parameters)?;
    let id = device.id();
    let served = device.serve(drive, move || {
        if ended.send(number).is_err() {
            info!(number, "ended while the process is ending");
        }
    });
    let serving = match served {
        Ok(serving) => serving,
        Err(error) => {
            Device::delete(id)?;
            return Err(error.into());
        }
    };
    info!(id, seed, size, "drive");
    if let Err(error) = serving.start(Some(&Tuning {
        read_ahead_kib: 128,
    })) {
        serving.stop()?;
        finish((serving, gauge))?;
        return Err(error.into());
    }
    Ok((serving, gauge))
}

/// Makes the file when it is told to.
fn announcer(path: &Path) -> Result<std::sync::mpsc::Sender<()>> {
    let (told, hears) = std::sync::mpsc::channel();
    let path = path.to_owned();
    let body = move || {
        if hears.recv().is_ok()
            && let Err(error) = File::create(&path)
        {
            warn!(%error, "{}: cannot be made", path.display());
        }
    };
    thread::Builder::new()
        .name("trip".to_owned())
        .spawn(body)
        .context("a thread for the trip")?;
    Ok(told)
}

/// The store of a drive: file, where it begins, how large it is.
fn open_store(serve: &Serve, number: u32) -> Result<(File, u64, u64)> {
    let block = u64::from(serve.block_size);
    let Some(path) = &serve.file else {
        let size = serve.size.context("--size or --file is needed")?.as_u64() / block * block;
        let memory = File::from(memfd_create("drive", MemfdFlags::CLOEXEC)?);
        memory.set_len(size)?;
        return Ok((memory, 0, size));
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .with_context(|| format!("{}: opening for direct access", path.display()))?;
    if file.metadata()?.file_type().is_block_device() {
        let found = u64::from(rustix::fs::ioctl_blksszget(&file)?);
        ensure!(
            found <= block,
            "{}: its blocks have {found} bytes, more than the drive's {block}",
            path.display()
        );
    }
    let end = rustix::fs::seek(&file, SeekFrom::End(0))?;
    let begin = serve.offset.as_u64();
    ensure!(
        begin.is_multiple_of(4096),
        "the offset is a multiple of 4096"
    );
    let rest = end.saturating_sub(begin);
    let size = serve
        .size
        .map_or(rest / u64::from(serve.count), |size| size.as_u64())
        / 4096
        * 4096;
    ensure!(
        size > 0 && size.saturating_mul(u64::from(serve.count)) <= rest,
        "{}: {rest} bytes after the offset, {} drives of {size} expected",
        path.display(),
        serve.count
    );
    Ok((file, begin + size * u64::from(number), size))
}

fn stop_all<'a>(drives: impl IntoIterator<Item = &'a Running>) {
    for (serving, _) in drives {
        if let Err(error) = serving.stop() {
            warn!(id = serving.id(), %error, "not stopped");
        }
    }
}

/// After the end of a drive's loop: everything is stored, so the device may go.
fn finish((serving, _): Running) -> Result<()> {
    let id = serving.id();
    let (drive, end) = serving.join();
    drop(drive);
    match end? {
        End::Stopped => Ok(Device::delete(id)?),
        End::Left => unreachable!("drives do not leave"),
    }
}

/// Takes a drive away, whether its server lives or not.
fn stop(path: &Path) -> Result<()> {
    let name = path
        .to_str()
        .and_then(|path| path.strip_prefix("/dev/ublkb"));
    let id: u32 = name
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("{}: /dev/ublkbN expected", path.display()))?;
    let found = ublk::look(id)?.with_context(|| format!("{}: no such device", path.display()))?;
    let is_ours = is_drive(found.parameters.identity);
    ensure!(is_ours, "{}: not a drive", path.display());
    Device::stop(id)?;
    // Its server deletes it when all is stored. If the server is dead, it is ours to do.
    while ublk::look(id)?.is_some() {
        if !Path::new(&format!("/proc/{}", found.server_pid)).exists() {
            Device::delete(id)?;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn list() -> Result<()> {
    for found in ublk::find(is_drive)? {
        println!(
            "/dev/ublkb{} {:?} pid {}",
            found.id, found.state, found.server_pid
        );
    }
    Ok(())
}

fn is_drive(identity: u64) -> bool {
    identity / KIB == IDENTITY / KIB
}

fn begin_log(path: Option<&Path>) -> Result<()> {
    let log = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::INFO);
    match path {
        Some(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            log.with_writer(file.with_context(|| format!("{}: opening", path.display()))?)
                .init();
        }
        None => log.with_writer(io::stderr).init(),
    }
    Ok(())
}

/// The status file. Where possible it is written past the page cache, which the machine would take with it.
struct Status {
    file: File,
    direct: bool,
    /// Aligned, as direct access wants it.
    bytes: Arena,
}

impl Status {
    fn open(path: &Path) -> Result<Status> {
        let mut options = OpenOptions::new();
        options.write(true).create(true);
        let (file, direct) = match options.clone().custom_flags(libc::O_DIRECT).open(path) {
            Ok(file) => (file, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (
                options
                    .open(path)
                    .with_context(|| format!("{}: opening", path.display()))?,
                false,
            ),
            Err(error) => {
                return Err(error).with_context(|| format!("{}: opening", path.display()));
            }
        };
        let mut bytes = Arena::new(to_u64(STATUS_BYTES), Residency::Locked)?;
        bytes.as_mut_slice().fill(b'\n');
        Ok(Status {
            file,
            direct,
            bytes,
        })
    }

    fn write(&mut self, gauges: &[Arc<Gauge>]) -> io::Result<()> {
        for (number, gauge) in gauges.iter().enumerate() {
            let line = status_line(number, gauge);
            let at = number * STATUS_LINE;
            self.bytes.as_mut_slice()[at..at + STATUS_LINE].copy_from_slice(line.as_bytes());
        }
        self.file.write_all_at(self.bytes.as_slice(), 0)?;
        if !self.direct {
            rustix::fs::fdatasync(self.file.as_fd())?;
        }
        Ok(())
    }
}

fn status_line(number: usize, gauge: &Gauge) -> String {
    let mut line = format!(
        "drive {number:02} volatile {:012} writes {:012} flushes {:012}",
        gauge.volatile_sectors(),
        gauge.writes(),
        gauge.flushes()
    );
    while line.len() < STATUS_LINE - 1 {
        line.push(' ');
    }
    line.push('\n');
    line
}

fn keep_status(
    path: &Path,
    gauges: Vec<Arc<Gauge>>,
    interval: u64,
    finished: Arc<AtomicBool>,
) -> Result<thread::JoinHandle<()>> {
    let mut status = Status::open(path)?;
    let interval = Duration::from_millis(interval);
    assert!(
        to_u64(gauges.len()) <= u64::from(DRIVES_MAX),
        "one line for each drive"
    );
    let body = move || {
        let mut last = false;
        while !last {
            // Once more at the very end, when all is stored.
            last = finished.load(Ordering::Relaxed);
            if let Err(error) = status.write(&gauges) {
                warn!(%error, "status file");
                return;
            }
            thread::sleep(interval);
        }
    };
    thread::Builder::new()
        .name("status".to_owned())
        .spawn(body)
        .context("starting the status thread")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trip_names_an_operation_a_range_and_a_count() {
        let trip = parse_trip("flush:1024+4096#3").expect("a trip");
        assert_eq!(
            (trip.op, trip.sectors, trip.count),
            (TripOp::Flush, 2..10, 3)
        );
        for text in [
            "",
            "write",
            "write:0+1",
            "write:0+1#0",
            "trim:0+1#1",
            "write:x+1#1",
        ] {
            assert!(parse_trip(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_status_line_has_the_same_length() {
        let line = status_line(31, &Gauge::default());
        assert_eq!(line.len(), STATUS_LINE);
        assert_eq!(line.lines().count(), 1);
    }
}
