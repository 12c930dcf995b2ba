//! The command of the stamped load: see `ujournal::stamps` for what it is.
//!
//! ```text
//!   stamps write  /dev/ublkb0p1 --log /mnt/lab/stamps.log --seconds 5     writes and notes
//!   stamps verify /dev/ublkb0p1 --log /mnt/lab/stamps.log --mode acked    compares
//! ```
//!
//! `write` ends by itself after `--seconds`, or with SIGTERM or SIGINT: it then waits for what is in flight
//! and flushes. It prints one line of JSON at the end. Any error of the device ends it at once.
//!
//! `verify` reads the stretch that the log names and prints its report, as JSON with `--json`.
//!
//! Exit codes: 0 all as it should be; 1 it is not, or something failed; 2 wrong usage.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};
use rustix::fs::SeekFrom;
use tokio::signal::unix::{SignalKind, signal};
use ujournal::disk::buffer::AlignedBuffer;
use ujournal::stamps::Seed;
use ujournal::stamps::check::{History, Mode, Report, check};
use ujournal::stamps::load::{Plan, run};
use ujournal::stamps::log::{self, LogWriter, Stretch};
use ujournal::stamps::stamp::{Content, read};
use ujournal::units::{Lba, MIB, SECTOR, to_u64, to_usize};

/// A load that can tell afterwards what a device must hold.
#[derive(Parser)]
#[command(name = "stamps")]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Write stamps and note what was acknowledged.
    Write(Write),
    /// Compare a device with a log.
    Verify(Verify),
}

#[derive(Args)]
struct Write {
    /// A disk, or a file that takes `O_DIRECT`.
    device: PathBuf,
    /// Where the log goes: a new file, outside the device.
    #[arg(long)]
    log: PathBuf,
    /// Where on the device the stretch begins.
    #[arg(long, default_value = "0")]
    offset: ByteSize,
    /// How long the stretch is. The default is the rest of the device.
    #[arg(long)]
    length: Option<ByteSize>,
    /// Requests at once.
    #[arg(long, default_value = "32", value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Decides everything that is random, and marks the stamps.
    #[arg(long)]
    seed: u64,
    /// Shortest and longest write.
    #[arg(long, default_value = "512..64KiB", value_parser = parse_sizes)]
    sizes: (u32, u32),
    /// A flush after so many acknowledged writes; 0: only at the end.
    #[arg(long, default_value = "0")]
    fsync_every: u64,
    /// Of 100 writes, how many are FUA.
    #[arg(long, default_value = "0", value_parser = clap::value_parser!(u8).range(0..=100))]
    fua: u8,
    /// Of 100 requests, how many read an earlier write again and compare.
    #[arg(long, default_value = "10", value_parser = clap::value_parser!(u8).range(0..=99))]
    reads: u8,
    /// How long it goes on. The default is until SIGTERM.
    #[arg(long)]
    seconds: Option<f64>,
    /// How many seconds without any answer are an error.
    #[arg(long, default_value = "120")]
    patience: u64,
}

#[derive(Args)]
struct Verify {
    /// The device.
    device: PathBuf,
    /// The log of the load.
    #[arg(long)]
    log: PathBuf,
    /// What died.
    #[arg(long, value_enum, default_value = "acked")]
    mode: What,
    /// Print the report as one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// The device's server: all that was acknowledged is there.
    Acked,
    /// The machine: all that was flushed is there, and of the rest a prefix.
    Flushed,
}

/// Sectors of the shortest and the longest write, from a text such as `512..64KiB`.
fn parse_sizes(text: &str) -> Result<(u32, u32), String> {
    let wrong = || "two sizes expected, multiples of 512, such as 512..64KiB".to_owned();
    let (shortest, longest) = text.split_once("..").ok_or_else(wrong)?;
    let sectors = |text: &str| {
        let bytes = text.parse::<ByteSize>().ok()?.as_u64();
        let sectors = u32::try_from(bytes / SECTOR).ok()?;
        (bytes.is_multiple_of(SECTOR) && (1..=2048).contains(&sectors)).then_some(sectors)
    };
    match (sectors(shortest), sectors(longest)) {
        (Some(shortest), Some(longest)) if shortest <= longest => Ok((shortest, longest)),
        _ => Err(wrong()),
    }
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Verb::Write(arguments) => write(&arguments).map(|()| true),
        Verb::Verify(arguments) => verify(&arguments),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("stamps: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn write(arguments: &Write) -> Result<()> {
    let device = open(&arguments.device, true)?;
    let block = block_of(&device)?;
    let (shortest, longest) = arguments.sizes;
    let plan = Plan {
        seed: Seed(arguments.seed),
        stretch: stretch_of(arguments, &device, block)?,
        writers: arguments.depth,
        sectors: (
            shortest.next_multiple_of(block),
            longest.next_multiple_of(block),
        ),
        block,
        flush_every: arguments.fsync_every,
        fua: arguments.fua,
        reads: arguments.reads,
        time: arguments
            .seconds
            .map(Duration::try_from_secs_f64)
            .transpose()?,
        patience: Duration::from_secs(arguments.patience),
    };
    let region = plan.stretch.sectors / u32::from(plan.writers) / block * block;
    ensure!(
        region >= plan.sectors.1,
        "each of {} writers has {region} sectors, the longest write {}: more --length or less --depth is needed",
        plan.writers,
        plan.sectors.1
    );
    let log = LogWriter::create(&arguments.log)
        .with_context(|| format!("{}: making a new log", arguments.log.display()))?;
    let stop = Arc::new(AtomicBool::new(false));
    stop_on_signal(Arc::clone(&stop))?;
    let summary =
        run(device, log, &plan, &stop).with_context(|| arguments.device.display().to_string())?;
    println!("{}", serde_json::to_string(&summary)?);
    Ok(())
}

/// Sets `stop` when the process is asked to end.
fn stop_on_signal(stop: Arc<AtomicBool>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (mut terminate, mut interrupt) = {
        let _inside = runtime.enter();
        (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        )
    };
    let wait = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        stop.store(true, Ordering::Relaxed);
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(wait)
        .context("a thread for signals")?;
    Ok(())
}

fn open(path: &Path, writing: bool) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(writing)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .with_context(|| format!("{}: opening for direct access", path.display()))
}

/// Sectors of the device's logical block.
fn block_of(device: &File) -> Result<u32> {
    if !device.metadata()?.file_type().is_block_device() {
        return Ok(8);
    }
    let bytes = rustix::fs::ioctl_blksszget(device)?;
    Ok(bytes / u32::try_from(SECTOR)?)
}

fn stretch_of(arguments: &Write, device: &File, block: u32) -> Result<Stretch> {
    let unit = u64::from(block) * SECTOR;
    let end = rustix::fs::seek(device, SeekFrom::End(0))?;
    let offset = arguments.offset.as_u64();
    let rest = end.saturating_sub(offset);
    let length = arguments.length.map_or(rest, |length| length.as_u64());
    ensure!(
        offset.is_multiple_of(unit) && length > 0 && length <= rest,
        "{}: {end} bytes, which do not hold a stretch of {length} at {offset}, a multiple of {unit}",
        arguments.device.display()
    );
    Ok(Stretch {
        first: Lba(offset / SECTOR),
        sectors: u32::try_from(length / unit * u64::from(block)).context("at most 2 TiB")?,
    })
}

fn verify(arguments: &Verify) -> Result<bool> {
    let name = || arguments.log.display().to_string();
    let log = log::read(&std::fs::read(&arguments.log).with_context(name)?);
    let history = History::new(&log.events).with_context(name)?;
    let contents = contents(&arguments.device, history.stretch)
        .with_context(|| format!("{}: reading", arguments.device.display()))?;
    let mode = match arguments.mode {
        What::Acked => Mode::Acked,
        What::Flushed => Mode::Flushed,
    };
    let report = check(&history, &contents, mode);
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print_report(&report);
    }
    for violation in &report.examples {
        eprintln!("stamps: {violation}");
    }
    Ok(report.violations == 0)
}

fn contents(path: &Path, stretch: Stretch) -> Result<Vec<Content>> {
    let device = open(path, false)?;
    let mut contents = Vec::with_capacity(to_usize(u64::from(stretch.sectors)));
    let mut buffer = AlignedBuffer::zeroed(to_usize(MIB));
    let (mut at, mut left) = (stretch.first, u64::from(stretch.sectors));
    while left > 0 {
        let sectors = left.min(MIB / SECTOR);
        let bytes = &mut buffer[..to_usize(sectors * SECTOR)];
        read_all(&device, bytes, at.0 * SECTOR)?;
        contents.extend(read(at, bytes));
        at = at.plus(sectors);
        left -= sectors;
    }
    Ok(contents)
}

fn read_all(device: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = device.read_at(bytes, offset)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        offset += to_u64(count);
        bytes = &mut bytes[count..];
    }
    Ok(())
}

fn print_report(report: &Report) {
    println!(
        "{} writes submitted, {} acknowledged ({} of them FUA), {} flushes",
        report.submitted, report.acknowledged, report.fua, report.flushes
    );
    println!(
        "{} sectors, {} stamped, {} had to be; {} writes in flight can be seen",
        report.sectors, report.stamped, report.required, report.unacknowledged_seen
    );
    println!(
        "acknowledged but gone: {} sectors of {} writes",
        report.lost_sectors, report.lost_writes
    );
    println!(
        "longest gap {} ms, digest {:08x}, violations {}",
        report.gap_max_ms, report.digest, report.violations
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_two_multiples_of_a_sector_in_order() {
        assert_eq!(parse_sizes("512..64KiB"), Ok((1, 128)));
        assert_eq!(parse_sizes("4KiB..4KiB"), Ok((8, 8)));
        for text in [
            "512",
            "..",
            "0..512",
            "1KiB..512",
            "600..1KiB",
            "512..2MiB",
            "a..b",
        ] {
            assert!(parse_sizes(text).is_err(), "{text}");
        }
    }
}
