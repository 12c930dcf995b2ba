//! The smallest useful ublk server: every request goes to a disk or file as it is.
//!
//! It shows how a [`Server`] is written, and `tests/lab/ublk.sh` tests the ublk layer with it.
//!
//! ```text
//!   passthrough serve FILE [BYTES_PER_REQUEST]   a new device on FILE
//!   passthrough null BYTES                       a new device that forgets
//!   passthrough recover N FILE                   takes the device of a dead server over
//!   passthrough list                             the kernel's ublk devices
//! ```
//!
//! It prints the device's path once it is served, and then obeys lines from stdin: `stop` takes the device
//! away, `leave` ends the process and leaves the device to the next server. At the end of stdin it goes
//! on until the device is stopped by somebody else.
//!
//! Exit codes: 0 done, 1 anything else.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::SeekFrom;

use ujournal::engine::port::Segment;
use ujournal::engine::request::{Durability, Errno, Op, Outcome, Request, Tag, Unmap};
use ujournal::ublk::{
    self, Cache, Device, End, FileSlot, Media, Needs, Output, Parameters, Server, Serving, Tuning,
    WriteMode, Zeroing,
};
use ujournal::units::{SECTOR, to_usize};

/// The marker of this program's devices.
const IDENTITY: u64 = 0x7061_7373_7468_7275;

/// Requests at once.
const DEPTH: u16 = 128;

/// The one file.
const BACKING: FileSlot = FileSlot(0);

/// Answers each request with one operation, which has the number of its tag.
struct PassThrough {
    /// `None`: requests are answered at once and do nothing.
    file: Option<File>,
    /// Requests that came in this turn.
    new: Vec<Request>,
    /// What is in flight for each tag.
    current: Vec<Option<Request>>,
    /// Operations that ended in this turn.
    ended: Vec<(Request, i32)>,
    leave: Arc<AtomicBool>,
}

impl PassThrough {
    fn new(file: Option<File>, depth: u16, leave: Arc<AtomicBool>) -> PassThrough {
        let depth = usize::from(depth);
        PassThrough {
            file,
            new: Vec::with_capacity(depth),
            current: vec![None; depth],
            ended: Vec::with_capacity(depth),
            leave,
        }
    }

    fn give(request: Request, out: &mut Output<'_>) {
        let id = u32::from(request.tag.0);
        let offset = request.lba.0 * SECTOR;
        let length = u64::from(request.sectors) * SECTOR;
        let segments = [Segment::buffer(request.tag, 0, to_usize(length))];
        match request.op {
            Op::Read => out.read(id, BACKING, offset, &segments),
            Op::Write => {
                let mode = match request.durability {
                    Durability::Now => WriteMode::Dsync,
                    Durability::Later => WriteMode::Plain,
                };
                out.write(id, BACKING, offset, &segments, mode);
            }
            Op::Flush => out.flush(id, BACKING),
            Op::Discard => out.zero(id, BACKING, offset, length, Unmap::Allowed),
            Op::WriteZeroes(unmap) => out.zero(id, BACKING, offset, length, unmap),
        }
    }

    fn outcome(request: Request, result: i32) -> Outcome {
        let expected = match request.op {
            Op::Read | Op::Write => i64::from(request.sectors) * 512,
            Op::Flush | Op::Discard | Op::WriteZeroes(_) => 0,
        };
        match result {
            error if error < 0 => Outcome::Failed(Errno(-error)),
            bytes if i64::from(bytes) == expected => Outcome::Done,
            _ => Outcome::Failed(Errno::IO),
        }
    }
}

impl Server for PassThrough {
    fn needs(&self) -> Needs<'_> {
        Needs {
            files: self.file.iter().map(AsFd::as_fd).collect(),
            arena: None,
            operations: u32::try_from(self.current.len()).expect("the depth has 16 bits"),
            segments: 1,
        }
    }

    fn request(&mut self, request: Request, _now: Duration) {
        self.new.push(request);
    }

    fn completed(&mut self, id: u32, result: i32, _now: Duration) {
        let tag = Tag(u16::try_from(id).expect("ids are tags"));
        let request = self.current[tag.index()].take().expect("it was in flight");
        self.ended.push((request, result));
    }

    fn stopped(&mut self, _now: Duration) {}

    fn woken(&mut self, _now: Duration) {}

    fn advance(&mut self, out: &mut Output<'_>, _now: Duration) {
        if self.leaves() {
            // What is not begun is left to the next server.
            self.new.clear();
        }
        for request in self.new.drain(..) {
            if self.file.is_none() {
                out.reply(request.tag, Outcome::Done);
                continue;
            }
            PassThrough::give(request, out);
            self.current[request.tag.index()] = Some(request);
        }
        for (request, result) in self.ended.drain(..) {
            let outcome = PassThrough::outcome(request, result);
            let zeroes = matches!(request.op, Op::Discard | Op::WriteZeroes(_));
            if zeroes && request.durability == Durability::Now && outcome == Outcome::Done {
                // Zeroing has no durable form, so a flush follows under the same tag.
                let flush = Request {
                    op: Op::Flush,
                    durability: Durability::Later,
                    ..request
                };
                PassThrough::give(flush, out);
                self.current[request.tag.index()] = Some(flush);
                continue;
            }
            out.reply(request.tag, outcome);
        }
    }

    fn wants_turn(&self) -> bool {
        false
    }

    fn is_idle(&self) -> bool {
        self.current.iter().all(Option::is_none)
    }

    fn leaves(&self) -> bool {
        self.leave.load(Ordering::Relaxed)
    }
}

fn open(path: &str) -> Result<(File, u64)> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .with_context(|| format!("opening {path}"))?;
    let size = rustix::fs::seek(&file, SeekFrom::End(0))?;
    Ok((file, size / 4096 * 4096))
}

fn parameters(size: u64, max_io: u32) -> Parameters {
    let gib = 1 << 30;
    Parameters {
        identity: IDENTITY,
        depth: DEPTH,
        max_io,
        size,
        block_size: 512,
        io_min: 4096,
        io_opt: 64 * 1024,
        cache: Cache::VolatileWithFua,
        media: Media::Solid,
        zeroing: Some(Zeroing {
            granularity: 4096,
            discard_max: gib,
            write_zeroes_max: gib,
        }),
    }
}

fn list() -> Result<()> {
    for found in ublk::find(|_| true)? {
        println!(
            "/dev/ublkb{} {:?} pid {} {:?}",
            found.id, found.state, found.server_pid, found.parameters
        );
    }
    Ok(())
}

/// Serves until the device is stopped, or until told to leave.
fn serve(device: Device, file: Option<File>) -> Result<()> {
    let leave = Arc::new(AtomicBool::new(false));
    let server = PassThrough::new(file, device.parameters().depth, Arc::clone(&leave));
    let (events, event) = mpsc::channel();
    let ended = {
        let events = events.clone();
        move || {
            events
                .send(Event::Ended)
                .expect("the main thread waits for this");
        }
    };
    let serving = device.serve(server, ended)?;
    serving.start(Some(&Tuning {
        read_ahead_kib: 128,
    }))?;
    println!("/dev/ublkb{}", serving.id());
    std::io::stdout().flush()?;
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(|line| line.ok()) {
            if events.send(Event::Line(line)).is_err() {
                return;
            }
        }
    });
    while let Event::Line(line) = event.recv().expect("the queue thread says when it ends") {
        obey(&line, &serving, &leave)?;
    }
    let id = serving.id();
    let (server, end) = serving.join();
    drop(server);
    match end? {
        End::Stopped => Device::delete(id)?,
        End::Left => println!("left /dev/ublkb{id}"),
    }
    Ok(())
}

enum Event {
    Line(String),
    Ended,
}

fn obey(line: &str, serving: &Serving<PassThrough>, leave: &AtomicBool) -> Result<()> {
    match line {
        "stop" => serving.stop()?,
        "leave" => {
            leave.store(true, Ordering::Relaxed);
            serving.waker().wake();
        }
        "health" => {
            let health = serving.health();
            println!(
                "oldest {:?} turn {:?}",
                health.oldest_owned(),
                health.last_turn()
            );
        }
        other => bail!("{other:?} is not a command"),
    }
    Ok(())
}

fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", path] => serve_file(path, 512 * 1024),
        ["serve", path, max_io] => serve_file(path, max_io.parse()?),
        ["null", size] => serve(
            Device::create(&parameters(size.parse()?, 512 * 1024))?,
            None,
        ),
        ["recover", id, path] => {
            let device = Device::recover(id.parse()?)?;
            serve(device, Some(open(path)?.0))
        }
        ["list"] => list(),
        _ => bail!("see the head of this file for how it is called"),
    }
}

fn serve_file(path: &str, max_io: u32) -> Result<()> {
    let (file, size) = open(path)?;
    serve(Device::create(&parameters(size, max_io))?, Some(file))
}
