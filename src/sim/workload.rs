//! Whoever uses the device: requests drawn from a seed, and what the oracles must know of them.
//!
//! A client has a character, drawn once: which requests it likes, how large, how many at a time, where
//! (a few hot blocks, a stream, anywhere), and whether it pauses. Requests that overlap in flight are
//! legal and wanted.

use crate::engine::request::{Durability, Op, Outcome, Request, Tag, Unmap};
use crate::engine::settings::Commit;
use crate::random::Random;
use crate::sim::oracle::{Asked, Change, Crash, Explained, Fua, History, RequestId, Violation};
use crate::sim::rules::Rules;
use crate::sim::scenario::Scenario;
use crate::sim::stamp::{self, StampError, Version};
use crate::sim::world::{Reply, World};
use crate::units::{Lba, SECTOR, to_u64, to_usize};
use std::ops::Range;
use std::time::Duration;

/// What can go wrong at run time.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The oracle says so.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// What a read showed is no version.
    #[error("tag {}: {error}", tag.0)]
    Stamp {
        /// The read's tag.
        tag: Tag,
        /// What is wrong.
        error: StampError,
    },
    /// A request failed although nothing was broken.
    #[error("tag {}: {request:?} failed with error {errno}", tag.0)]
    Failed {
        /// Its tag.
        tag: Tag,
        /// What was asked.
        request: Request,
        /// The error.
        errno: i32,
    },
}

/// A request that was not answered yet.
#[derive(Clone, Debug)]
struct Waiting {
    id: RequestId,
    request: Request,
    version: Version,
}

/// What kinds of requests there are, for the swarm.
const KINDS: usize = 6;

/// How a client behaves.
#[derive(Clone, Debug)]
struct Character {
    /// READ, WRITE, FLUSH, DISCARD, WRITE ZEROES, the same without unmapping.
    weights: [u64; KINDS],
    fua_permille: u64,
    depth: usize,
    /// The first block and the length of the region that is hot.
    hot: Range<u64>,
    hot_permille: u64,
    /// Blocks of the largest request it likes.
    largest: u64,
    stream_permille: u64,
    /// After a request, a pause of up to so many microseconds, so often.
    pause: u64,
    pause_permille: u64,
}

/// See the head of the file.
#[derive(Debug)]
pub struct Client {
    character: Character,
    block: u64,
    blocks: u64,
    max_blocks: u64,
    /// By tag.
    waiting: Vec<Option<Waiting>>,
    /// Answers may be errors: something was broken on purpose.
    errors_expected: bool,
    next_id: u64,
    next_version: u64,
    next_at: Duration,
    stream_at: u64,
    random: Random,
    /// The exact oracle.
    pub history: History,
    /// The contract's own rules.
    pub rules: Rules,
    /// How many requests of each kind were answered.
    pub answered: [u64; KINDS],
    /// How many were overlapping another one in flight when they were given.
    pub overlaps: u64,
    /// How many failed.
    pub failed: u64,
    /// When each change was answered that may not be durable yet, and its number.
    ages: Vec<(Duration, u64)>,
}

impl Client {
    /// A client of an array that holds what was there before.
    pub fn new(scenario: &Scenario, mut random: Random) -> Client {
        let sectors = scenario.geometry.sectors();
        let base = vec![Version::BEFORE; to_usize(sectors)];
        let depth = usize::from(scenario.settings.queue_depth);
        let max_blocks = scenario.settings.max_io / SECTOR / scenario.block;
        let blocks = sectors / scenario.block;
        let always = scenario.settings.commit == Commit::Always;
        Client {
            character: Character::draw(scenario, blocks, max_blocks, &mut random),
            block: scenario.block,
            blocks,
            max_blocks,
            waiting: vec![None; depth],
            errors_expected: false,
            next_id: 0,
            next_version: Version::FIRST.0,
            next_at: Duration::ZERO,
            stream_at: 0,
            random,
            rules: Rules::new(&base),
            history: History::new(base, always),
            answered: [0; KINDS],
            overlaps: 0,
            failed: 0,
            ages: Vec::new(),
        }
    }

    /// Errors are no violation from now on.
    pub fn expect_errors(&mut self) {
        self.errors_expected = true;
    }

    /// When the next request is due, if it can be given at all.
    pub fn next_at(&self) -> Duration {
        self.next_at
    }

    /// Whether it has as many requests in flight as it likes.
    pub fn is_busy(&self, world: &World) -> bool {
        world.busy_tags() >= self.character.depth || world.free_tag().is_none()
    }

    /// Gives the next request.
    pub fn send(&mut self, world: &mut World) {
        let tag = world.free_tag().expect("the client is not busy");
        let (op, sectors, durability) = self.draw();
        let request = Request {
            tag,
            op,
            lba: Lba(sectors.start),
            sectors: u32::try_from(sectors.end - sectors.start).expect("a device is small"),
            durability,
        };
        self.send_this(world, request);
        let pause = if self.random.chance(self.character.pause_permille) {
            self.random.below(self.character.pause)
        } else {
            self.random.below(3)
        };
        self.next_at = world.now() + Duration::from_micros(pause);
    }

    /// Gives this request, whatever the client's character.
    pub fn send_this(&mut self, world: &mut World, request: Request) {
        let version = match request.op {
            Op::Write => {
                self.next_version += 1;
                Version(self.next_version - 1)
            }
            Op::Read | Op::Flush | Op::Discard | Op::WriteZeroes(_) => Version::ZEROES,
        };
        self.give(world, request, version);
    }

    fn give(&mut self, world: &mut World, request: Request, version: Version) {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let sectors = request.lba.0..request.lba.0 + u64::from(request.sectors);
        let asked = match request.op {
            Op::Read => Asked::Read(sectors.clone()),
            Op::Flush => Asked::Flush,
            Op::Write | Op::Discard | Op::WriteZeroes(_) => Asked::Change(
                Change {
                    version,
                    sectors: sectors.clone(),
                },
                if request.durability == Durability::Now {
                    Fua::Yes
                } else {
                    Fua::No
                },
            ),
        };
        let overlaps = self.waiting.iter().flatten().any(|other| {
            let start = other.request.lba.0;
            let end = start + u64::from(other.request.sectors);
            start < sectors.end && sectors.start < end && other.request.op != Op::Read
        });
        self.overlaps += u64::from(overlaps);
        self.rules.received(id, &asked);
        self.history.received(id, asked);
        let waiting = Waiting {
            id,
            request,
            version,
        };
        let before = self.waiting[request.tag.index()].replace(waiting);
        assert!(
            before.is_none(),
            "an answer is taken before its tag is used again"
        );
        world.request(request, version);
    }

    fn draw(&mut self) -> (Op, Range<u64>, Durability) {
        let random = &mut self.random;
        let kind = random.weighted(&self.character.weights);
        let op = [
            Op::Read,
            Op::Write,
            Op::Flush,
            Op::Discard,
            Op::WriteZeroes(Unmap::Allowed),
            Op::WriteZeroes(Unmap::Forbidden),
        ][kind];
        if op == Op::Flush {
            return (op, 0..0, Durability::Later);
        }
        // Without payload a request may cover the whole device.
        let zeroes = matches!(op, Op::Discard | Op::WriteZeroes(_));
        let most = if zeroes && random.chance(100) {
            self.blocks
        } else {
            self.max_blocks.min(self.blocks)
        };
        let count = if self.character.largest == self.max_blocks && random.chance(500) {
            most
        } else if random.chance(950) {
            random.skewed(most.min(self.character.largest))
        } else {
            random.between(1, most)
        };
        let first = if random.chance(self.character.stream_permille) {
            self.stream_at
        } else if random.chance(self.character.hot_permille) {
            random.between(self.character.hot.start, self.character.hot.end - 1)
        } else {
            random.below(self.blocks)
        };
        let first = first.min(self.blocks - count);
        self.stream_at = (first + count) % self.blocks;
        let durability = if random.chance(self.character.fua_permille) && op != Op::Read {
            Durability::Now
        } else {
            Durability::Later
        };
        let sectors = first * self.block..(first + count) * self.block;
        (op, sectors, durability)
    }

    /// Takes answers, in their order, and judges them.
    ///
    /// # Errors
    /// If an answer cannot be.
    pub fn take(&mut self, now: Duration, replies: Vec<Reply>) -> Result<(), ServeError> {
        for reply in replies {
            let waiting = self.waiting[reply.tag.index()]
                .take()
                .expect("an answer has a request");
            match reply.outcome {
                Outcome::Done => self.take_done(now, &waiting, &reply)?,
                Outcome::Failed(errno) => {
                    self.failed += 1;
                    if !self.errors_expected {
                        return Err(ServeError::Failed {
                            tag: reply.tag,
                            request: waiting.request,
                            errno: errno.0,
                        });
                    }
                    self.history.failed(waiting.id);
                    self.rules.failed(waiting.id);
                }
            }
        }
        Ok(())
    }

    fn take_done(
        &mut self,
        now: Duration,
        waiting: &Waiting,
        reply: &Reply,
    ) -> Result<(), ServeError> {
        let request = &waiting.request;
        let mut shown = Vec::new();
        let kind = match request.op {
            Op::Read => {
                let len = to_usize(u64::from(request.sectors) * SECTOR);
                for version in stamp::read(request.lba, &reply.bytes[..len]) {
                    shown.push(version.map_err(|error| ServeError::Stamp {
                        tag: reply.tag,
                        error,
                    })?);
                }
                0
            }
            Op::Write => 1,
            Op::Flush => 2,
            Op::Discard => 3,
            Op::WriteZeroes(Unmap::Allowed) => 4,
            Op::WriteZeroes(Unmap::Forbidden) => 5,
        };
        self.answered[kind] += 1;
        self.rules.done(waiting.id);
        let before = self.history.answered();
        self.history.done(waiting.id, &shown)?;
        if self.history.answered() > before {
            self.ages.push((now, self.history.answered()));
        }
        Ok(())
    }

    /// C-DUR-6: what was answered before `moment` is durable by now without any FLUSH.
    pub fn aged(&mut self, moment: Duration) {
        let old = self.ages.partition_point(|(at, _)| *at < moment);
        if let Some((_, through)) = self.ages[..old].last() {
            self.history.aged(*through);
        }
        self.ages.drain(..old);
    }

    /// Judges what the device shows after a crash.
    ///
    /// # Errors
    /// If the contract does not allow it.
    pub fn judge(&self, image: &[Version], crash: Crash) -> Result<Explained, Violation> {
        let explained = self.history.check(image, crash)?;
        self.rules.check(image)?;
        Ok(explained)
    }

    /// Goes on after a recovery that has shown `image`; what was not answered is forgotten, or given
    /// again by [`Client::issue_again`].
    pub fn begin_life(&mut self, image: Vec<Version>) -> Vec<(Request, Version)> {
        self.rules = Rules::new(&image);
        self.history.begin_life(image);
        self.next_at = Duration::ZERO;
        self.ages.clear();
        self.waiting
            .iter_mut()
            .filter_map(Option::take)
            .map(|waiting| (waiting.request, waiting.version))
            .collect()
    }

    /// Gives a request again that a dead life has not answered, as the kernel does.
    pub fn issue_again(&mut self, world: &mut World, request: Request, version: Version) {
        self.give(world, request, version);
    }

    /// How many requests wait for an answer.
    pub fn waiting(&self) -> u64 {
        to_u64(self.waiting.iter().flatten().count())
    }

    /// How many requests were given so far, in all lives.
    pub fn given(&self) -> u64 {
        self.next_id
    }
}

impl Character {
    fn draw(scenario: &Scenario, blocks: u64, max_blocks: u64, random: &mut Random) -> Character {
        let mut weights = random.swarm::<KINDS>(250);
        // Writes are what this is about.
        weights[1] = weights[1].max(8);
        // Flushes that cover nothing are no burden; too many leave nothing at risk.
        weights[2] = weights[2].min(16);
        if !scenario.zeroes() {
            weights[3..].fill(0);
        }
        if scenario.heavy {
            return Character {
                weights: [1, 60, random.below(2), 0, 0, 0],
                fua_permille: 0,
                depth: usize::from(scenario.settings.queue_depth),
                hot: 0..1,
                hot_permille: 0,
                largest: max_blocks,
                stream_permille: *random.pick(&[0, 500]),
                pause: 1,
                pause_permille: 0,
            };
        }
        let hot_start = random.below(blocks);
        let hot_len = random.skewed(16).min(blocks - hot_start);
        let depth = usize::from(scenario.settings.queue_depth);
        Character {
            weights,
            fua_permille: *random.pick(&[0, 0, 50, 300]),
            depth: if random.chance(250) {
                1
            } else {
                random.index(depth) + 1
            },
            hot: hot_start..hot_start + hot_len,
            hot_permille: *random.pick(&[0, 300, 700, 950]),
            largest: if random.chance(300) {
                max_blocks
            } else {
                random.skewed(max_blocks)
            },
            stream_permille: *random.pick(&[0, 0, 200, 800]),
            pause: random.skewed(4_000_000),
            pause_permille: *random.pick(&[0, 10, 100, 500]),
        }
    }
}
