//! The writers: what they send, and what they look at again.
//!
//! Each writer sends one request after the other into its region, writes of random length and place; now
//! and then it reads one of its newest writes again and compares. Two things make it look harder:
//!
//! * A request that took long has outlived something: a takeover, or a full journal. Its writer then reads
//!   its last [`RECENT`] acknowledged writes again, those most at risk, before it goes on.
//! * At the end everything is flushed, so that the log ends with a promise.
//!
//! A turn: take what ended, choose what is next, write the log, enter the ring. An error of the device, or
//! a difference, ends it at once.

use super::log::{Durability, Event, LogWriter, Stretch};
use super::ring::{Owner, Ring};
use super::stamp::{Content, Stamp, fill, read};
use super::{Counter, SECTOR_LEN, Seed, Writer};
use crate::random::Random;
use crate::units::{Lba, SECTOR, to_u64, to_usize};
use serde::Serialize;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Writes of each writer that are read again after a long wait.
const RECENT: usize = 16;

/// What a long wait is.
const LONG: Duration = Duration::from_millis(50);

/// How long a turn waits before it looks whether it is to end.
const TURN: Duration = Duration::from_millis(100);

/// What a run is like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which run.
    pub seed: Seed,
    /// Where it writes.
    pub stretch: Stretch,
    /// How many requests there are at once.
    pub writers: u16,
    /// Sectors of the shortest and of the longest write.
    pub sectors: (u32, u32),
    /// Everything is a multiple of so many sectors: the device's logical block.
    pub block: u32,
    /// A flush after so many acknowledged writes; never if 0.
    pub flush_every: u64,
    /// Of 100 writes, how many are FUA.
    pub fua: u8,
    /// Of 100 requests, how many are reads.
    pub reads: u8,
    /// How long it goes on; for ever if `None`.
    pub time: Option<Duration>,
    /// How long a request may take.
    pub patience: Duration,
}

/// Why a run ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The ring.
    #[error("io_uring")]
    Ring(#[source] io::Error),
    /// The log.
    #[error("the log cannot be written")]
    Log(#[source] io::Error),
    /// The device answered with an error.
    #[error("{what} of {sectors} sectors at sector {lba} failed")]
    Device {
        /// What was asked.
        what: &'static str,
        /// Where.
        lba: Lba,
        /// How long.
        sectors: u32,
        /// The device's error.
        #[source]
        source: io::Error,
    },
    /// The device moved less than it was asked to.
    #[error("{what} at sector {lba}: {found} bytes, expected {expected}")]
    Short {
        /// What was asked.
        what: &'static str,
        /// Where.
        lba: Lba,
        /// Bytes moved.
        found: usize,
        /// Bytes asked for.
        expected: usize,
    },
    /// The flush failed.
    #[error("a flush failed")]
    Flush(#[source] io::Error),
    /// A sector that was acknowledged reads as something else.
    #[error("sector {lba} of writer {writer}: found {found:?}, expected version {expected}")]
    Differs {
        /// Where.
        lba: Lba,
        /// Whose.
        writer: u16,
        /// What it reads as.
        found: Content,
        /// The version that was acknowledged last.
        expected: u64,
    },
    /// Nothing was answered for too long.
    #[error("no answer for {0:?}")]
    NoAnswer(Duration),
}

/// What a run did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Summary {
    /// Writes acknowledged.
    pub writes: u64,
    /// Those with FUA.
    pub fua: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Reads compared.
    pub reads: u64,
    /// Flushes acknowledged.
    pub flushes: u64,
    /// The longest that a request took, in milliseconds.
    pub wait_max_ms: u64,
    /// How often a request took long, so that its writer looked at its last writes again.
    pub long_waits: u64,
}

/// Where a write went.
#[derive(Clone, Copy, Debug)]
struct Place {
    lba: Lba,
    sectors: u32,
}

impl Place {
    fn bytes(self) -> usize {
        to_usize(u64::from(self.sectors)) * SECTOR_LEN
    }

    fn offset(self) -> u64 {
        self.lba.0 * SECTOR
    }
}

#[derive(Clone, Copy, Debug)]
enum Doing {
    Nothing,
    Writing(Place, Durability),
    Reading(Place),
}

#[derive(Debug)]
struct State {
    writer: Writer,
    /// Its region.
    first: Lba,
    sectors: u32,
    doing: Doing,
    since: Duration,
    counter: Counter,
    /// For each of its sectors the newest acknowledged version.
    newest: Vec<Counter>,
    recent: VecDeque<Place>,
    /// How many of `recent`, from the newest on, are still to be read again.
    to_look_at: usize,
}

impl State {
    fn newest(&mut self, place: Place) -> &mut [Counter] {
        let begin = to_usize(place.lba.since(self.first));
        &mut self.newest[begin..begin + to_usize(u64::from(place.sectors))]
    }

    fn remember(&mut self, place: Place) {
        if self.recent.len() == RECENT {
            self.recent.pop_back();
        }
        self.recent.push_front(place);
    }
}

struct Load<'a> {
    plan: &'a Plan,
    ring: Ring,
    log: LogWriter,
    random: Random,
    states: Vec<State>,
    flushes: u64,
    /// Writes acknowledged since the last flush was submitted.
    unflushed: u64,
    summary: Summary,
    answered: Duration,
}

/// Runs `plan` on `device`, which was opened for direct access, until its time is over or `stop` is set.
///
/// # Errors
/// If the device fails or holds something else than was acknowledged.
pub fn run(
    device: File,
    log: LogWriter,
    plan: &Plan,
    stop: &AtomicBool,
) -> Result<Summary, LoadError> {
    let (shortest, longest) = plan.sectors;
    let region = plan.stretch.sectors / u32::from(plan.writers) / plan.block * plan.block;
    assert!(
        plan.block <= shortest && shortest <= longest && longest <= region,
        "a write fits the region of its writer"
    );
    let buffer_len = to_usize(u64::from(longest)) * SECTOR_LEN;
    let state = |number: u16| State {
        writer: Writer(number),
        first: plan
            .stretch
            .first
            .plus(u64::from(region) * u64::from(number)),
        sectors: region,
        doing: Doing::Nothing,
        since: Duration::ZERO,
        counter: Counter(0),
        newest: vec![Counter(0); to_usize(u64::from(region))],
        recent: VecDeque::with_capacity(RECENT),
        to_look_at: 0,
    };
    let mut load = Load {
        ring: Ring::new(device, plan.writers, buffer_len).map_err(LoadError::Ring)?,
        log,
        random: Random::new(plan.seed.0),
        states: (0..plan.writers).map(state).collect(),
        flushes: 0,
        unflushed: 0,
        summary: Summary::default(),
        answered: now(),
        plan,
    };
    load.log.note(
        Event::Begin {
            seed: plan.seed,
            stretch: plan.stretch,
            writers: plan.writers,
        },
        now(),
    );
    load.work(stop)?;
    Ok(load.summary)
}

/// The machine's clock, which a test beside us reads too.
fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

impl Load<'_> {
    fn work(&mut self, stop: &AtomicBool) -> Result<(), LoadError> {
        let began = now();
        loop {
            let time = now();
            let over = stop.load(Ordering::Relaxed)
                || self
                    .plan
                    .time
                    .is_some_and(|limit| time.saturating_sub(began) >= limit);
            if over && self.is_idle() {
                break;
            }
            if !over {
                self.choose(time);
                let flush_is_due =
                    self.plan.flush_every > 0 && self.unflushed >= self.plan.flush_every;
                if flush_is_due && !self.ring.is_flushing() {
                    self.flush(time);
                }
            }
            self.turn()?;
        }
        self.flush(now());
        while self.ring.is_flushing() {
            self.turn()?;
        }
        self.log.note(Event::End, now());
        self.log.commit().map_err(LoadError::Log)
    }

    fn is_idle(&self) -> bool {
        let idle = |state: &State| matches!(state.doing, Doing::Nothing);
        !self.ring.is_flushing() && self.states.iter().all(idle)
    }

    /// Gives out what was chosen, and takes what ended.
    fn turn(&mut self) -> Result<(), LoadError> {
        self.log.commit().map_err(LoadError::Log)?;
        self.ring.enter(TURN).map_err(LoadError::Ring)?;
        let time = now();
        while let Some((owner, result)) = self.ring.next_ended() {
            self.answered = time;
            match owner {
                Owner::Buffer(number) => self.ended(number, result, time)?,
                Owner::Flush => {
                    result.map_err(LoadError::Flush)?;
                    self.log
                        .note(Event::FlushAcknowledged(Counter(self.flushes)), time);
                    self.summary.flushes += 1;
                }
            }
        }
        let silence = time.saturating_sub(self.answered);
        if silence > self.plan.patience && !self.is_idle() {
            return Err(LoadError::NoAnswer(silence));
        }
        Ok(())
    }

    fn flush(&mut self, time: Duration) {
        self.flushes += 1;
        self.unflushed = 0;
        self.log
            .note(Event::FlushSubmitted(Counter(self.flushes)), time);
        self.ring.flush();
    }

    /// Gives every writer that has nothing to do something.
    fn choose(&mut self, time: Duration) {
        for index in 0..self.states.len() {
            if !matches!(self.states[index].doing, Doing::Nothing) {
                continue;
            }
            self.states[index].since = time;
            let state = &self.states[index];
            let again = if let Some(next) = state.to_look_at.checked_sub(1) {
                Some(next)
            } else if !state.recent.is_empty()
                && self.random.chance(10 * u64::from(self.plan.reads))
            {
                Some(self.random.index(state.recent.len()))
            } else {
                None
            };
            match again {
                Some(which) => self.look_again(index, which),
                None => self.write(index, time),
            }
        }
    }

    fn look_again(&mut self, index: usize, which: usize) {
        let state = &mut self.states[index];
        let place = state.recent[which];
        state.to_look_at = state.to_look_at.saturating_sub(1);
        state.doing = Doing::Reading(place);
        self.ring
            .read(state.writer.0, place.bytes(), place.offset());
    }

    fn write(&mut self, index: usize, time: Duration) {
        let durability = if self.random.chance(10 * u64::from(self.plan.fua)) {
            Durability::Now
        } else {
            Durability::Later
        };
        let sectors = self.length();
        let state = &mut self.states[index];
        let block = u64::from(self.plan.block);
        // Half of them lie on frames, as most filesystems would have it.
        let grain = if self.random.chance(500) {
            8_u64.max(block)
        } else {
            block
        };
        let places = u64::from(state.sectors - sectors) / grain + 1;
        let lba = state.first.plus(self.random.below(places) * grain);
        let place = Place { lba, sectors };

        state.counter.0 += 1;
        let stamp = Stamp {
            seed: self.plan.seed,
            writer: state.writer,
            counter: state.counter,
        };
        let number = state.writer.0;
        fill(stamp, lba, self.ring.buffer(number, place.bytes()));
        let event = Event::Submitted {
            writer: state.writer,
            counter: state.counter,
            lba,
            sectors,
            durability,
        };
        self.log.note(event, time);
        self.ring
            .write(number, place.bytes(), place.offset(), durability);
        state.doing = Doing::Writing(place, durability);
    }

    /// A length between the shortest and the longest, each doubling as likely as the next.
    fn length(&mut self) -> u32 {
        let (shortest, longest) = self.plan.sectors;
        let doublings = u64::from((longest / shortest).ilog2());
        let most = (shortest << self.random.below(doublings + 1)).min(longest);
        let least = (most / 2).max(shortest);
        let chosen = u64::from(least) + self.random.below(u64::from(most - least) + 1);
        let chosen = u32::try_from(chosen).expect("at most the longest");
        // Whole frames are the most frequent length of real filesystems.
        let grain = if chosen > 8 && self.random.chance(500) {
            8.max(self.plan.block)
        } else {
            self.plan.block
        };
        (chosen / grain * grain).max(shortest)
    }

    fn ended(
        &mut self,
        number: u16,
        result: io::Result<usize>,
        time: Duration,
    ) -> Result<(), LoadError> {
        let state = &mut self.states[usize::from(number)];
        let doing = std::mem::replace(&mut state.doing, Doing::Nothing);
        let (place, what) = match doing {
            Doing::Writing(place, _) => (place, "a write"),
            Doing::Reading(place) => (place, "a read"),
            Doing::Nothing => unreachable!("only what is in flight ends"),
        };
        let found = result.map_err(|source| LoadError::Device {
            what,
            lba: place.lba,
            sectors: place.sectors,
            source,
        })?;
        if found != place.bytes() {
            return Err(LoadError::Short {
                what,
                lba: place.lba,
                found,
                expected: place.bytes(),
            });
        }
        match doing {
            Doing::Writing(place, durability) => {
                let counter = state.counter;
                state.newest(place).fill(counter);
                state.remember(place);
                let writer = state.writer;
                self.log.note(Event::Acknowledged { writer, counter }, time);
                self.unflushed += 1;
                self.summary.writes += 1;
                self.summary.fua += u64::from(durability == Durability::Now);
                self.summary.bytes += to_u64(place.bytes());
            }
            Doing::Reading(place) => {
                self.compare(number, place)?;
                self.summary.reads += 1;
            }
            Doing::Nothing => unreachable!("seen above"),
        }
        let state = &mut self.states[usize::from(number)];
        let took = time.saturating_sub(state.since);
        if took > LONG {
            state.to_look_at = state.recent.len();
            self.summary.long_waits += 1;
        }
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.summary.wait_max_ms = self.summary.wait_max_ms.max(millis);
        Ok(())
    }

    fn compare(&mut self, number: u16, place: Place) -> Result<(), LoadError> {
        let seed = self.plan.seed;
        let state = &mut self.states[usize::from(number)];
        let writer = state.writer;
        let bytes = self.ring.buffer(number, place.bytes());
        let sectors = read(place.lba, bytes).zip(place.lba.0..);
        for ((found, at), expected) in sectors.zip(state.newest(place).iter()) {
            let wanted = Stamp {
                seed,
                writer,
                counter: *expected,
            };
            if found != Content::Stamp(wanted) {
                return Err(LoadError::Differs {
                    lba: Lba(at),
                    writer: writer.0,
                    found,
                    expected: expected.0,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what the load leaves behind passes its own check, and a device that lies is found out. Method:
    //! runs on a file, whole ones and one whose file is changed behind the load's back.

    use super::super::check::{History, Mode, check};
    use super::super::log;
    use super::*;
    use std::os::unix::fs::FileExt as _;
    use std::path::{Path, PathBuf};

    const SECTORS: u32 = 4096;
    const FIRST: u64 = 64;

    fn plan() -> Plan {
        Plan {
            seed: Seed(11),
            stretch: Stretch {
                first: Lba(FIRST),
                sectors: SECTORS,
            },
            writers: 8,
            sectors: (1, 128),
            block: 1,
            flush_every: 50,
            fua: 5,
            reads: 20,
            time: Some(Duration::from_millis(200)),
            patience: Duration::from_secs(60),
        }
    }

    struct Bench {
        folder: tempfile::TempDir,
        device: File,
    }

    impl Bench {
        fn new() -> Bench {
            let folder = tempfile::tempdir().expect("a folder");
            let device = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(folder.path().join("device"))
                .expect("a file");
            device
                .set_len((FIRST + u64::from(SECTORS)) * SECTOR)
                .expect("a size");
            Bench { folder, device }
        }

        fn log(&self) -> PathBuf {
            self.folder.path().join("log")
        }

        fn run(&self, plan: &Plan) -> Result<Summary, LoadError> {
            let log = LogWriter::create(&self.log()).expect("a new log");
            let device = self.device.try_clone().expect("a descriptor");
            run(device, log, plan, &AtomicBool::new(false))
        }

        fn contents(&self) -> Vec<Content> {
            let mut bytes = vec![0; to_usize(u64::from(SECTORS)) * SECTOR_LEN];
            self.device
                .read_exact_at(&mut bytes, FIRST * SECTOR)
                .expect("it is as long");
            read(Lba(FIRST), &bytes).collect()
        }
    }

    fn history(path: &Path) -> History {
        let bytes = std::fs::read(path).expect("the log is there");
        let read = log::read(&bytes);
        assert_eq!(read.rest, 0);
        assert_eq!(
            read.events.last().map(|(event, _)| *event),
            Some(Event::End)
        );
        History::new(&read.events).expect("a log that makes sense")
    }

    #[test]
    fn a_run_leaves_what_its_log_says() {
        let bench = Bench::new();
        let summary = bench.run(&plan()).expect("a file does not fail");
        assert!(
            summary.writes > 100 && summary.reads > 10 && summary.fua > 0,
            "{summary:?}"
        );
        let history = history(&bench.log());
        for mode in [Mode::Acked, Mode::Flushed] {
            let report = check(&history, &bench.contents(), mode);
            assert_eq!(
                (report.violations, report.lost_sectors),
                (0, 0),
                "{:?}",
                report.examples
            );
            assert_eq!(report.acknowledged, summary.writes);
            assert_eq!(report.submitted, summary.writes);
        }
    }

    #[test]
    fn a_sector_lost_afterwards_is_noticed_in_both_modes() {
        let bench = Bench::new();
        bench.run(&plan()).expect("a file does not fail");
        let history = history(&bench.log());
        let contents = bench.contents();
        let stamped = contents.iter().position(|found| *found != Content::Zeroes);
        let sector = to_u64(stamped.expect("something was written"));
        bench
            .device
            .write_all_at(&[0; SECTOR_LEN], (FIRST + sector) * SECTOR)
            .expect("it is as long");
        for mode in [Mode::Acked, Mode::Flushed] {
            assert_eq!(check(&history, &bench.contents(), mode).violations, 1);
        }
    }

    #[test]
    fn a_device_that_forgets_is_found_out_while_the_load_runs() {
        let bench = Bench::new();
        let device = bench.device.try_clone().expect("a descriptor");
        let forgetful = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            let zeroes = vec![0; to_usize(u64::from(SECTORS)) * SECTOR_LEN];
            device.write_all_at(&zeroes, FIRST * SECTOR)
        });
        let plan = Plan {
            time: Some(Duration::from_secs(20)),
            ..plan()
        };
        let error = bench.run(&plan).expect_err("it must notice");
        assert!(matches!(error, LoadError::Differs { .. }), "{error}");
        forgetful.join().expect("no panic").expect("it is as long");
    }

    #[test]
    fn a_device_that_ends_too_early_is_an_error_and_not_a_short_write() {
        let bench = Bench::new();
        let short = File::open("/dev/null").expect("it is there");
        let log = LogWriter::create(&bench.log()).expect("a new log");
        let error = run(short, log, &plan(), &AtomicBool::new(false)).expect_err("not for writing");
        assert!(
            matches!(
                error,
                LoadError::Device {
                    what: "a write",
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn the_same_seed_makes_the_same_writes() {
        let lengths = |seed| {
            let plan = Plan {
                seed: Seed(seed),
                ..plan()
            };
            let bench = Bench::new();
            let mut load = Load {
                ring: Ring::new(bench.device.try_clone().expect("one"), 8, 1 << 16)
                    .expect("a ring"),
                log: LogWriter::create(&bench.log()).expect("a new log"),
                random: Random::new(plan.seed.0),
                states: Vec::new(),
                flushes: 0,
                unflushed: 0,
                summary: Summary::default(),
                answered: now(),
                plan: &plan,
            };
            (0..1000).map(|_| load.length()).collect::<Vec<_>>()
        };
        let found = lengths(1);
        assert_eq!(found, lengths(1));
        assert_ne!(found, lengths(2));
        assert!(found.iter().all(|sectors| (1..=128).contains(sectors)));
        assert!(found.contains(&1) && found.contains(&128));
    }
}
