//! One trial: a seed, an array, a client, several lives, and crashes wherever they hurt.
//!
//! ```text
//!   label -> start -> serve ... serve ... serve -> end of life -> start -> ...
//!                       |         |         |          |            |
//!                     probe     probe     probe      judge        judge
//! ```
//!
//! A *probe* forks the disks, lets the power or the program fail there, brings the fork up (with further
//! cuts inside that recovery), reads all of it and asks the oracles. The history itself goes on untouched,
//! so one history gives hundreds of crash images. The *end of a life* is real: a power cut, a kill with
//! takeover and requests issued again, a handover, or a clean stop.

use crate::disk::DiskOp;
use crate::engine::request::Errno;
use crate::engine::settings::Commit;
use crate::engine::{Close, Condition};
use crate::random::Random;
use crate::sim::cut;
use crate::sim::faults::{Fault, Faults, Rule};
use crate::sim::media::{Fuse, Honesty, SimDisk, Zone};
use crate::sim::oracle::Crash;
use crate::sim::scenario::Scenario;
use crate::sim::stamp::Version;
use crate::sim::story::Story;
use crate::sim::workload::Client;
use crate::sim::world::{InFlight, Reply, StartError, World, fence, label_array};
use crate::units::to_u64;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// What a trial does.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What these options are called.
    pub name: &'static str,
    /// Most lives.
    pub lives: u64,
    /// Fewest and most requests in a life.
    pub requests: [u64; 2],
    /// About how many crashes are tried while a life lasts.
    pub probes: u64,
    /// Whether the disks keep their word.
    pub honesty: Honesty,
    /// How lives end.
    pub ends: Ends,
    /// When replay runs.
    pub replay: Replaying,
    /// Which arrays.
    pub arrays: Arrays,
    /// What else goes wrong.
    pub trouble: Trouble,
}

/// What goes wrong besides crashes, while a life is served. Recovery has sound disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// Nothing.
    None,
    /// Operations fail, are short, or are refused for the moment; a disk vanishes.
    Errors,
    /// Reads of the ring return flipped bits or what was there before.
    RottenReads,
}

/// Which arrays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrays {
    /// Any: [`Scenario::draw`].
    Any,
    /// [`Scenario::full`].
    Full,
}

/// How lives end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// In any way.
    Any,
    /// By a clean stop: nothing ever goes wrong.
    Stops,
    /// By the death of the program.
    Kills,
}

/// When replay runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replaying {
    /// As the array's settings say.
    AsSet,
    /// Only when the ring is full: many lives lie in it at once.
    HeldBack,
}

impl Options {
    /// Crashes of every kind.
    pub const CRASHES: Options = Options {
        name: "crashes",
        lives: 4,
        requests: [1, 150],
        probes: 60,
        honesty: Honesty::Honest,
        ends: Ends::Any,
        replay: Replaying::AsSet,
        arrays: Arrays::Any,
        trouble: Trouble::None,
    };

    /// No crash at all.
    pub const CALM: Options = Options {
        name: "calm",
        probes: 0,
        requests: [1, 400],
        lives: 3,
        ends: Ends::Stops,
        ..Options::CRASHES
    };

    /// Short lives that lie in the ring together.
    pub const MANY_LIVES: Options = Options {
        name: "many-lives",
        probes: 4,
        requests: [1, 4],
        lives: 24,
        ends: Ends::Kills,
        replay: Replaying::HeldBack,
        ..Options::CRASHES
    };

    /// A program that dies again and again, before it has replayed anything or been asked for much.
    pub const CRASH_LOOP: Options = Options {
        name: "crash-loop",
        probes: 1,
        requests: [0, 2],
        lives: 150,
        ends: Ends::Kills,
        replay: Replaying::HeldBack,
        ..Options::CRASHES
    };

    /// Crashes, and rings of some size that are full.
    pub const FULL_RINGS: Options = Options {
        name: "full-rings",
        lives: 1,
        requests: [250, 250],
        probes: 4,
        arrays: Arrays::Full,
        ..Options::CRASHES
    };

    /// Crashes, and operations that fail.
    pub const ERRORS: Options = Options {
        name: "errors",
        trouble: Trouble::Errors,
        ..Options::CRASHES
    };

    /// Crashes, and reads that show what is not there.
    pub const ROTTEN_READS: Options = Options {
        name: "rotten-reads",
        trouble: Trouble::RottenReads,
        ..Options::CRASHES
    };

    /// Disks that do not flush.
    pub const NO_FLUSH: Options = Options {
        name: "no-flush",
        honesty: Honesty::IgnoresFlush,
        ..Options::CRASHES
    };

    /// Disks that take a durable write for any other.
    pub const NO_SYNC: Options = Options {
        name: "no-sync",
        honesty: Honesty::IgnoresSync,
        ..Options::CRASHES
    };

    /// The options of this name.
    pub fn named(name: &str) -> Option<Options> {
        [
            Options::CRASHES,
            Options::CALM,
            Options::MANY_LIVES,
            Options::CRASH_LOOP,
            Options::FULL_RINGS,
            Options::ERRORS,
            Options::ROTTEN_READS,
            Options::NO_FLUSH,
            Options::NO_SYNC,
        ]
        .into_iter()
        .find(|options| options.name == name)
    }
}

/// What crashes fell into, and what the histories were like.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Lives begun in the histories themselves.
    pub lives: u64,
    /// Requests answered.
    pub answered: u64,
    /// Requests that overlapped another one in flight.
    pub overlaps: u64,
    /// Discards and write-zeroes answered.
    pub zeroes: u64,
    /// Times that the head went round a ring.
    pub wraps: u64,
    /// Rounds of replay finished.
    pub rounds: u64,
    /// Turns in which a write waited for space.
    pub stalls: u64,
    /// Power cuts that were recovered from.
    pub power_cuts: u64,
    /// Program crashes that were recovered from.
    pub process_crashes: u64,
    /// Cuts with a record write in flight.
    pub in_record: u64,
    /// Cuts with a flush in flight.
    pub in_flush: u64,
    /// Cuts with an anchor in flight.
    pub in_anchor: u64,
    /// Cuts with replay writing home.
    pub in_replay: u64,
    /// Cuts with nothing in flight.
    pub in_quiet: u64,
    /// Cuts inside a recovery, and of those, while a superblock was being written.
    pub in_recovery: u64,
    /// See `in_recovery`.
    pub in_life_change: u64,
    /// Cuts inside label or the last steps of a stop.
    pub in_label_or_stop: u64,
    /// Images in which an unanswered request was visible.
    pub open_visible: u64,
    /// Images that lacked something that had been answered.
    pub lost_volatile: u64,
    /// Operations that were hit by a fault.
    pub faults: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Lives in which the engine became DEGRADED, and FAILED.
    pub degraded: u64,
    /// See `degraded`.
    pub fail_stopped: u64,
    /// Most lives that lay in a ring at once.
    pub lives_in_ring: u64,
    /// Images that had been seen before in the same life, and were judged again without a recovery.
    pub seen_before: u64,
}

impl Counts {
    /// Adds another trial's.
    pub fn add(&mut self, other: &Counts) {
        let Counts {
            lives,
            answered,
            overlaps,
            zeroes,
            wraps,
            rounds,
            stalls,
            power_cuts,
            process_crashes,
            in_record,
            in_flush,
            in_anchor,
            in_replay,
            in_quiet,
            in_recovery,
            in_life_change,
            in_label_or_stop,
            open_visible,
            lost_volatile,
            faults,
            failed,
            degraded,
            fail_stopped,
            lives_in_ring,
            seen_before,
        } = other;
        self.lives += lives;
        self.answered += answered;
        self.overlaps += overlaps;
        self.zeroes += zeroes;
        self.wraps += wraps;
        self.rounds += rounds;
        self.stalls += stalls;
        self.power_cuts += power_cuts;
        self.process_crashes += process_crashes;
        self.in_record += in_record;
        self.in_flush += in_flush;
        self.in_anchor += in_anchor;
        self.in_replay += in_replay;
        self.in_quiet += in_quiet;
        self.in_recovery += in_recovery;
        self.in_life_change += in_life_change;
        self.in_label_or_stop += in_label_or_stop;
        self.open_visible += open_visible;
        self.lost_volatile += lost_volatile;
        self.faults += faults;
        self.failed += failed;
        self.degraded += degraded;
        self.fail_stopped += fail_stopped;
        self.lives_in_ring = self.lives_in_ring.max(*lives_in_ring);
        self.seen_before += seen_before;
    }
}

/// What a trial that went well has done.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Counts of many things.
    pub counts: Counts,
    /// The print of every image that a power cut left: as many different ones as there are numbers.
    pub prints: Vec<u64>,
}

/// What a trial has found.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// What its options are called.
    pub options: &'static str,
    /// What is wrong.
    pub what: String,
    /// What happened before.
    pub story: Story,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}\n{}\nrepeat with: {}",
            self.story.last(60),
            self.what,
            repeat_with(self.seed, self.options)
        )
    }
}

/// The line that repeats a trial.
pub fn repeat_with(seed: u64, options: &str) -> String {
    format!(
        "SEED={seed:#x} TRIAL={options} cargo test --features sim --test crash -- one_seed --nocapture"
    )
}

/// Prints the line that repeats a trial, and its story, if the engine panics in it.
struct OnPanic {
    seed: u64,
    options: &'static str,
    story: Story,
}

impl Drop for OnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "{}\nrepeat with: {}",
                self.story.last(60),
                repeat_with(self.seed, self.options)
            );
        }
    }
}

/// Runs one trial.
///
/// # Errors
/// If the contract was broken.
pub fn run(seed: u64, options: &Options) -> Result<Outcome, Failure> {
    let story = Story::default();
    let _guard = OnPanic {
        seed,
        options: options.name,
        story: story.clone(),
    };
    let mut random = Random::new(seed);
    let mut scenario = match options.arrays {
        Arrays::Any => Scenario::draw(&mut random),
        Arrays::Full => Scenario::full(&mut random),
    };
    if options.replay == Replaying::HeldBack {
        scenario.hold_replay_back();
    }
    if options.trouble != Trouble::None && random.chance(500) {
        scenario.settings.stall_timeout = Some(Duration::from_micros(random.skewed(2_000_000)));
    }
    let scenario = Rc::new(scenario);
    story.note(
        Duration::ZERO,
        format!(
            "{:?} caches {:?} block {} {:?}",
            scenario.geometry.shape, scenario.caches, scenario.block, scenario.settings
        ),
    );
    let mut client = Client::new(&scenario, random.split());
    if options.trouble != Trouble::None {
        client.expect_errors();
    }
    let trial = Trial {
        options: *options,
        scenario,
        client,
        random,
        story: story.clone(),
        outcome: Outcome::default(),
        answered_at: Duration::ZERO,
        seen: BTreeMap::new(),
    };
    trial.run().map_err(|what| Failure {
        seed,
        options: options.name,
        what,
        story,
    })
}

/// Why a trial ends: the contract was broken, and how.
type Broken = String;

struct Trial {
    options: Options,
    scenario: Rc<Scenario>,
    client: Client,
    random: Random,
    story: Story,
    outcome: Outcome,
    /// When the last answer came.
    answered_at: Duration,
    /// What recovery has shown of the images of this life, by their prints.
    seen: BTreeMap<u64, Vec<Version>>,
}

/// How many images are remembered.
const SEEN_MAX: usize = 1000;

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndOfLife {
    PowerCut,
    Kill,
    Handover,
    Stop,
}

impl Trial {
    fn run(mut self) -> Result<Outcome, Broken> {
        let disks = self.scenario.disks();
        for disk in &disks {
            disk.set_honesty(self.options.honesty);
        }
        let disks = self.label(disks)?;
        let (mut world, _) = self.come_up(disks, 150)?;
        for _ in 0..self.random.between(1, self.options.lives) {
            self.outcome.counts.lives += 1;
            self.make_trouble(&world);
            self.serve(&mut world)?;
            self.end_trouble(&world);
            world = self.end_life(world)?;
        }
        let counts = &mut self.outcome.counts;
        counts.answered += self.client.answered.iter().sum::<u64>();
        counts.zeroes += self.client.answered[3..].iter().sum::<u64>();
        counts.overlaps += self.client.overlaps;
        counts.failed += self.client.failed;
        Ok(self.outcome)
    }

    /// Labels; sometimes the power goes meanwhile, and label is run again.
    fn label(&mut self, disks: Vec<SimDisk>) -> Result<Vec<SimDisk>, Broken> {
        let mut disks = disks;
        while self.options.ends != Ends::Stops && self.random.chance(100) {
            let fuse = Fuse::after(self.random.skewed(48) - 1);
            match label_array(&self.scenario, &disks, &fuse) {
                Ok(()) => return Ok(disks),
                Err(StartError::PowerCut) => {
                    self.outcome.counts.in_label_or_stop += 1;
                    disks = cut::cut(&disks, &mut self.random);
                }
                Err(StartError::Refused(why)) => return Err(format!("label {why}")),
            }
        }
        label_array(&self.scenario, &disks, &Fuse::never()).map_err(|error| error.to_string())?;
        Ok(disks)
    }

    /// Brings disks up, with up to three power cuts inside the recovery; whether there were any.
    fn come_up(&mut self, disks: Vec<SimDisk>, cut_permille: u64) -> Result<(World, bool), Broken> {
        // What a life's faults do to it is seen in it; the next one begins well.
        for disk in &disks {
            disk.repair();
        }
        let mut disks = disks;
        let mut cuts = 0;
        loop {
            let calm = self.options.ends == Ends::Stops;
            let fuse = if !calm && cuts < 3 && self.random.chance(cut_permille) {
                Fuse::after(self.random.skewed(64) - 1)
            } else {
                Fuse::never()
            };
            let kept = disks.clone();
            let random = self.random.split();
            match World::start(&self.scenario, disks, &fuse, &self.story, random) {
                Ok(world) => return Ok((world, cuts > 0)),
                Err(StartError::PowerCut) => {
                    cuts += 1;
                    self.outcome.counts.in_recovery += 1;
                    let superblock = kept
                        .iter()
                        .flat_map(SimDisk::at_risk)
                        .any(|write| write.zone == Zone::Superblock && write.completed.is_none());
                    self.outcome.counts.in_life_change += u64::from(superblock);
                    disks = cut::cut(&kept, &mut self.random);
                    self.outcome.prints.push(cut::print(&disks));
                    self.story.note(
                        Duration::ZERO,
                        format!(
                            "power cut in recovery after {} operations",
                            fuse.operations()
                        ),
                    );
                }
                Err(StartError::Refused(why)) => return Err(format!("start {why}")),
            }
        }
    }

    /// Serves one life's requests, with crashes tried on forks.
    fn serve(&mut self, world: &mut World) -> Result<(), Broken> {
        let [least, most] = self.options.requests;
        let quota = self.client.given() + self.random.between(least, most);
        // A request takes a handful of steps.
        let permille = self.options.probes * 1000 / (most * 5);
        let limit = self.client.given() * 1000 + 1_000_000;
        let (after_tail, after_tail_boost) = match self.options.arrays {
            Arrays::Any => (10, 2),
            Arrays::Full => (40, 60),
        };
        let (mut tail, mut tail_moved_at) = (world.engine().home_seq(), 0);
        let mut steps = 0;
        while self.client.given() < quota {
            self.step(world)?;
            if self.is_stuck(world) {
                break;
            }
            // Crashes hurt most while home or an anchor is written, and after the tail has moved: until
            // that is durable, what it has freed must not be written again.
            let home = world.engine().home_seq();
            if home != tail {
                tail = home;
                tail_moved_at = steps;
            }
            let falls = world.in_flight();
            let mut boost = if falls.anchor || falls.home { 3 } else { 1 };
            if steps - tail_moved_at < after_tail {
                boost *= after_tail_boost;
            }
            if self.random.chance(permille * boost) {
                self.probe(world)?;
            }
            steps += 1;
            if steps > limit {
                return Err("the engine makes no progress".to_owned());
            }
        }
        if self.options.trouble == Trouble::None && self.random.chance(200) {
            self.sync(world)?;
        }
        self.count_life(world);
        Ok(())
    }

    /// What was answered is durable and home when a sync returns, whatever is asked meanwhile.
    fn sync(&mut self, world: &mut World) -> Result<(), Broken> {
        let answered = self.client.history.answered();
        let through = world.begin_sync();
        let quiet = self.random.chance(500);
        if quiet {
            self.drain(world)?;
        }
        let mut steps = 0;
        while !world.engine().is_home(through) {
            if quiet {
                let until = world.now() + Duration::from_millis(50);
                let replies = self.pass_time(world, until);
                self.take(world, replies)?;
            } else {
                self.step(world)?;
            }
            steps += 1;
            if steps > 100_000 {
                return Err("a sync does not return".to_owned());
            }
        }
        self.client.history.aged(answered);
        if quiet && self.client.history.answered() == answered {
            let home = World::read_home(&self.scenario, world.disks())
                .map_err(|error| error.to_string())?;
            same(
                &self.client.history.newest_image(),
                &home,
                "after a sync, home holds",
            )?;
        }
        if self.options.probes > 0 {
            self.probe(world)?;
        }
        Ok(())
    }

    fn count_life(&mut self, world: &World) {
        let engine = world.engine();
        let counts = engine.counters();
        let lives = u64::from(world.report().epoch.0) - engine.home_seq().epoch();
        self.outcome.counts.lives_in_ring = self.outcome.counts.lives_in_ring.max(lives);
        self.outcome.counts.rounds += counts.rounds;
        self.outcome.counts.stalls += counts.stalls;
        self.outcome.counts.wraps += counts.ring_bytes / world.engine().ring_size();
    }

    /// One request, or one event.
    fn step(&mut self, world: &mut World) -> Result<(), Broken> {
        let can_send = !self.client.is_busy(world);
        let due = self.client.next_at();
        let before_next_end = world.next_end().is_none_or(|end| due <= end);
        if can_send && due <= world.now() {
            // A burst reaches the engine in one turn.
            self.client.send(world);
            while self.random.chance(500) && !self.client.is_busy(world) {
                self.client.send(world);
            }
            let replies = world.turn();
            self.take(world, replies)?;
        } else {
            let until = if can_send && before_next_end {
                due
            } else {
                world.now() + Duration::from_millis(50)
            };
            let replies = self.pass_time(world, until);
            self.take(world, replies)?;
        }
        if self.options.trouble != Trouble::None {
            return Ok(());
        }
        if world.engine().condition() != Condition::Ok {
            return Err(format!("the engine is {:?}", world.engine().condition()));
        }
        // The contract's interval, and a second for the flush itself.
        let settings = &self.scenario.settings;
        if settings.commit == Commit::Flush {
            let allowed = settings.commit_interval + Duration::from_secs(1);
            if let Some(moment) = world.now().checked_sub(allowed) {
                self.client.aged(moment);
            }
        }
        Ok(())
    }

    /// Whether a broken member keeps everybody waiting, which it may for ever.
    fn is_stuck(&self, world: &World) -> bool {
        self.options.trouble != Trouble::None
            && world.engine().condition() != Condition::Ok
            && world.now() > self.answered_at + Duration::from_secs(60)
    }

    /// Prepares this life's faults.
    fn make_trouble(&mut self, world: &World) {
        self.answered_at = world.now();
        for (index, disk) in world.disks().iter().enumerate() {
            let rules = match self.options.trouble {
                Trouble::None => return,
                Trouble::Errors => self.draw_errors(),
                Trouble::RottenReads => self.draw_rot(index),
            };
            disk.set_faults(Faults::new(rules, Vec::new(), self.random.split()));
        }
    }

    fn draw_errors(&mut self) -> Vec<Rule> {
        let random = &mut self.random;
        let count = random.below(4);
        (0..count)
            .map(|_| {
                let op = *random.pick(&[
                    DiskOp::Read,
                    DiskOp::Write,
                    DiskOp::Write,
                    DiskOp::Flush,
                    DiskOp::Zero,
                ]);
                let busy = [Errno::AGAIN, Errno::INTERRUPTED];
                let fault = match random.below(12) {
                    0 => Fault::Error(Errno::NOT_SUPPORTED),
                    1 => Fault::Vanish,
                    2 | 3 if op != DiskOp::Flush => Fault::Error(*random.pick(&busy)),
                    4..7 if op == DiskOp::Read || op == DiskOp::Write => {
                        Fault::Short(random.below(1000))
                    }
                    _ => Fault::Error(Errno::IO),
                };
                Rule {
                    op,
                    bytes: 0..u64::MAX,
                    after: random.skewed(200) - 1,
                    times: match fault {
                        // A part that cannot zero never can.
                        Fault::Error(Errno::NOT_SUPPORTED) => u64::MAX,
                        Fault::Error(_)
                        | Fault::Short(_)
                        | Fault::Misdirect
                        | Fault::Flip
                        | Fault::Stale
                        | Fault::Vanish => *random.pick(&[1, 1, 1, 2, 3, 4, 5, 20, u64::MAX]),
                    },
                    fault,
                }
            })
            .collect()
    }

    /// Only where the journal's checksums reach.
    fn draw_rot(&mut self, part: usize) -> Vec<Rule> {
        let ring = &self.scenario.geometry.ring;
        let lane = ring
            .runs(0, ring.size())
            .find(|run| run.part.index() == part);
        let Some(lane) = lane else {
            return Vec::new();
        };
        let random = &mut self.random;
        let count = random.below(6);
        (0..count)
            .map(|_| Rule {
                op: DiskOp::Read,
                bytes: lane.offset.0..lane.offset.0 + lane.len,
                after: random.skewed(100) - 1,
                times: *random.pick(&[1, 1, 1, 2, 3, 10]),
                fault: *random.pick(&[Fault::Flip, Fault::Stale]),
            })
            .collect()
    }

    /// The disks are sound again.
    fn end_trouble(&mut self, world: &World) {
        let counts = &mut self.outcome.counts;
        for disk in world.disks() {
            counts.faults += disk.faults_hit();
            disk.repair();
        }
        let condition = world.engine().condition();
        counts.degraded += u64::from(condition == Condition::Degraded);
        counts.fail_stopped += u64::from(condition == Condition::Failed);
    }

    /// The client takes its answers.
    fn take(&mut self, world: &World, replies: Vec<Reply>) -> Result<(), Broken> {
        if !replies.is_empty() {
            self.answered_at = world.now();
        }
        self.client
            .take(world.now(), replies)
            .map_err(|error| error.to_string())
    }

    /// Time passes up to `until`, in small pieces, or up to the next end of an operation.
    fn pass_time(&mut self, world: &mut World, until: Duration) -> Vec<Reply> {
        let piece = Duration::from_micros(self.random.skewed(100_000));
        world.step(until.min(world.now() + piece))
    }

    /// Tries one crash on a fork of the disks.
    fn probe(&mut self, world: &World) -> Result<(), Broken> {
        let falls = world.in_flight();
        self.count_falls(falls);
        if journal_has_forgotten(world) || self.random.chance(850) {
            let disks = cut::cut(world.disks(), &mut self.random);
            let print = cut::print(&disks);
            // The same image again: what recovery makes of it is known, but more may have been promised.
            if let Some(image) = self.seen.get(&print)
                && self.random.chance(900)
            {
                self.outcome.counts.seen_before += 1;
                return self
                    .client
                    .judge(image, Crash::Power)
                    .map(drop)
                    .map_err(|violation| format!("after Power crash: {violation}"));
            }
            self.outcome.prints.push(print);
            let image = self.probe_fork(disks, Crash::Power, world.now())?;
            if self.seen.len() < SEEN_MAX {
                self.seen.insert(print, image);
            }
        } else {
            let disks = SimDisk::fork(world.disks());
            for disk in &disks {
                disk.repair();
            }
            fence(&disks, &mut self.random);
            self.probe_fork(disks, Crash::Process, world.now())?;
        }
        Ok(())
    }

    fn count_falls(&mut self, falls: InFlight) {
        let counts = &mut self.outcome.counts;
        counts.in_record += u64::from(falls.ring);
        counts.in_flush += u64::from(falls.flush);
        counts.in_anchor += u64::from(falls.anchor);
        counts.in_replay += u64::from(falls.home);
        counts.in_quiet += u64::from(falls == InFlight::default());
    }

    fn probe_fork(
        &mut self,
        disks: Vec<SimDisk>,
        crash: Crash,
        now: Duration,
    ) -> Result<Vec<Version>, Broken> {
        // What happens on a fork is no part of the history, unless it fails.
        let mark = self.story.mark();
        self.story.note(now, format!("crash tried here: {crash:?}"));
        let (mut world, image) = self.recover(disks, crash)?;
        match self.random.below(8) {
            0 => self.recover_again(world, &image)?,
            1 => self.stop_and_compare(world, &image)?,
            2 => {
                // Replay goes on a while, and is cut.
                let until = world.now() + Duration::from_micros(self.random.skewed(4_000_000));
                let mut turns = self.random.skewed(400);
                while world.now() < until && turns > 0 {
                    let replies = self.pass_time(&mut world, until);
                    assert!(replies.is_empty(), "nothing was asked");
                    turns -= 1;
                }
                self.recover_again(world, &image)?;
            }
            _ => {}
        }
        self.story.forget_since(mark);
        Ok(image)
    }

    /// Brings crashed disks up, reads them and judges what they show.
    fn recover(
        &mut self,
        disks: Vec<SimDisk>,
        crash: Crash,
    ) -> Result<(World, Vec<Version>), Broken> {
        let (mut world, cut_inside) = self.come_up(disks, 250)?;
        let image = world.read_all().map_err(|error| error.to_string())?;
        // A power cut before recovery has flushed takes what the dead program had not.
        let crash = if cut_inside { Crash::Power } else { crash };
        let explained = self
            .client
            .judge(&image, crash)
            .map_err(|violation| format!("after {crash:?} crash: {violation}"))?;
        let counts = &mut self.outcome.counts;
        match crash {
            Crash::Power => counts.power_cuts += 1,
            Crash::Process => counts.process_crashes += 1,
        }
        counts.open_visible += u64::from(explained.open_visible > 0);
        counts.lost_volatile += u64::from(explained.prefix < self.client.history.answered());
        Ok((world, image))
    }

    /// C-REP-4: what one recovery has shown, the next one shows.
    fn recover_again(&mut self, world: World, image: &[Version]) -> Result<(), Broken> {
        let disks = cut::cut(world.disks(), &mut self.random);
        self.outcome.prints.push(cut::print(&disks));
        let (mut world, _) = self.come_up(disks, 250)?;
        self.outcome.counts.power_cuts += 1;
        let again = world.read_all().map_err(|error| error.to_string())?;
        same(image, &again, "the second recovery shows")
    }

    /// C-LIF-1: after a stop everything is at home.
    fn stop_and_compare(&mut self, world: World, image: &[Version]) -> Result<(), Broken> {
        let disks = self.stop(world, image)?;
        let home = World::read_home(&self.scenario, &disks).map_err(|error| error.to_string())?;
        same(image, &home, "after a stop, home holds")
    }

    /// Stops; sometimes the power goes in the last steps of it, and the array is brought up and stopped
    /// again.
    fn stop(&mut self, world: World, image: &[Version]) -> Result<Vec<SimDisk>, Broken> {
        let mut world = world;
        loop {
            self.close(&mut world, Close::Stop)?;
            let fuse = if self.options.ends != Ends::Stops && self.random.chance(200) {
                Fuse::after(self.random.skewed(32) - 1)
            } else {
                Fuse::never()
            };
            match world.close(world.disks(), Close::Stop, &fuse) {
                Ok(()) => return Ok(world.disks().to_vec()),
                Err(StartError::PowerCut) => {
                    self.outcome.counts.in_label_or_stop += 1;
                    let disks = cut::cut(world.disks(), &mut self.random);
                    self.outcome.prints.push(cut::print(&disks));
                    (world, _) = self.come_up(disks, 250)?;
                    let again = world.read_all().map_err(|error| error.to_string())?;
                    same(image, &again, "after a cut in the last steps of a stop")?;
                }
                Err(StartError::Refused(why)) => return Err(format!("stop {why}")),
            }
        }
    }

    /// Lets the engine end; the client's last answers are taken.
    fn close(&mut self, world: &mut World, how: Close) -> Result<(), Broken> {
        world.begin_close(how);
        let mut steps = 0;
        while !world.is_closed() {
            let until = world.now() + Duration::from_millis(50);
            let replies = self.pass_time(world, until);
            self.take(world, replies)?;
            steps += 1;
            if steps > 1_000_000 {
                let engine = world.engine();
                return Err(format!(
                    "the engine does not end: {how:?}, answered {}, durable {}, home {}, in flight {}, waiting {}",
                    engine.acked_seq(),
                    engine.durable_seq(),
                    engine.home_seq(),
                    world.next_end().is_some(),
                    engine.requests_pending()
                ));
            }
        }
        Ok(())
    }

    /// Ends a life for good and begins the next.
    fn end_life(&mut self, mut world: World) -> Result<World, Broken> {
        self.seen.clear();
        let how = match self.options.ends {
            _ if world.engine().condition() == Condition::Failed => EndOfLife::PowerCut,
            _ if journal_has_forgotten(&world) => EndOfLife::PowerCut,
            Ends::Stops => EndOfLife::Stop,
            Ends::Kills => EndOfLife::Kill,
            Ends::Any => *self.random.pick(&[
                EndOfLife::PowerCut,
                EndOfLife::PowerCut,
                EndOfLife::PowerCut,
                EndOfLife::Kill,
                EndOfLife::Kill,
                EndOfLife::Handover,
                EndOfLife::Stop,
            ]),
        };
        self.story
            .note(world.now(), format!("end of life: {how:?}"));
        match how {
            EndOfLife::PowerCut => self.end_by_power_cut(world),
            EndOfLife::Kill => {
                let disks = world.kill(&mut self.random);
                self.take_over(disks)
            }
            EndOfLife::Handover => {
                self.close(&mut world, Close::Handover)?;
                if world.engine().condition() == Condition::Failed {
                    return self.end_by_power_cut(world);
                }
                world
                    .close(world.disks(), Close::Handover, &Fuse::never())
                    .map_err(|error| error.to_string())?;
                self.take_over(world.disks().to_vec())
            }
            EndOfLife::Stop => {
                self.drain(&mut world)?;
                self.close(&mut world, Close::Stop)?;
                if world.engine().condition() == Condition::Failed {
                    return self.end_by_power_cut(world);
                }
                for disk in world.disks() {
                    disk.repair();
                }
                let image = self.client.history.newest_image();
                let disks = self.stop(world, &image)?;
                let home =
                    World::read_home(&self.scenario, &disks).map_err(|error| error.to_string())?;
                same(&image, &home, "after a stop, home holds")?;
                let (mut world, _) = self.come_up(disks, 150)?;
                let again = world.read_all().map_err(|error| error.to_string())?;
                same(&image, &again, "after a stop and a start the device shows")?;
                self.client.begin_life(image);
                Ok(world)
            }
        }
    }

    fn end_by_power_cut(&mut self, world: World) -> Result<World, Broken> {
        self.count_falls(world.in_flight());
        let disks = cut::cut(world.disks(), &mut self.random);
        self.outcome.prints.push(cut::print(&disks));
        drop(world);
        let (world, image) = self.recover(disks, Crash::Power)?;
        self.client.begin_life(image);
        Ok(world)
    }

    /// Every request is answered.
    fn drain(&mut self, world: &mut World) -> Result<(), Broken> {
        let mut steps = 0;
        while self.client.waiting() > 0 {
            let until = world.now() + Duration::from_millis(50);
            let replies = self.pass_time(world, until);
            self.take(world, replies)?;
            steps += 1;
            if steps > 1_000_000 {
                return Err("requests are never answered".to_owned());
            }
        }
        Ok(())
    }

    /// Another program goes on with a live device: nothing that was answered is lost, and what was not
    /// is issued again.
    fn take_over(&mut self, disks: Vec<SimDisk>) -> Result<World, Broken> {
        let (mut world, image) = self.recover(disks, Crash::Process)?;
        let mut again = self.client.begin_life(image);
        while !again.is_empty() {
            let (request, version) = again.swap_remove(self.random.index(again.len()));
            self.client.issue_again(&mut world, request, version);
        }
        let replies = world.turn();
        self.take(&world, replies)?;
        Ok(world)
    }
}

/// Whether a failed flush has left records behind that are read until the power goes, and then may be
/// gone. A program that starts anew meanwhile cannot know: nobody promises anything for that.
fn journal_has_forgotten(world: &World) -> bool {
    let mut parts = world.geometry().journal_parts();
    parts.any(|part| world.disks()[part.index()].has_forgotten())
}

fn same(expected: &[Version], found: &[Version], what: &str) -> Result<(), Broken> {
    for (sector, (expected, found)) in expected.iter().zip(found).enumerate() {
        if expected != found {
            return Err(format!("{what} {found} in sector {sector}, not {expected}"));
        }
    }
    assert_eq!(to_u64(expected.len()), to_u64(found.len()));
    Ok(())
}
