//! Small histories, all of them, and all that a power cut can make of each.
//!
//! Every sequence of up to so many steps from a short list, on two neighbouring blocks, which lie on
//! different members where there are two: given one after the other, or all at once. After every event,
//! every choice of what the cut leaves of each sector, up to a bound; beyond it, samples. What recovery
//! shows of an image is remembered by the image's print, as most histories share most of their images; it
//! is judged anew for each history.

use crate::engine::request::{Durability, Op, Request, Unmap};
use crate::random::Random;
use crate::sim::cut::Choices;
use crate::sim::media::{Fuse, SimDisk};
use crate::sim::oracle::Crash;
use crate::sim::scenario::Scenario;
use crate::sim::stamp::Version;
use crate::sim::story::Story;
use crate::sim::workload::Client;
use crate::sim::world::{World, label_array};
use crate::units::{FRAME, Lba, SECTOR};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// One step of a small history. Blocks A and B are neighbours, on different members if there are two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// WRITE A.
    WriteA,
    /// WRITE B.
    WriteB,
    /// WRITE A, FUA.
    FuaA,
    /// WRITE A and B.
    WriteBoth,
    /// DISCARD A.
    DiscardA,
    /// DISCARD A and B.
    DiscardBoth,
    /// WRITE ZEROES B, without unmapping.
    ZeroB,
    /// FLUSH.
    Flush,
}

/// Whether a request waits for the answer to the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// It does.
    One,
    /// It does not.
    All,
}

/// Images that are enumerated at one moment; beyond that, so many are drawn.
const IMAGES_MAX: u64 = 1024;
const SAMPLES: u64 = 64;

/// What has been tried on one array.
#[derive(Debug)]
pub struct Exhaustive {
    scenario: Rc<Scenario>,
    labelled: Vec<SimDisk>,
    /// What recovery shows of each image.
    shown: BTreeMap<u64, Vec<Version>>,
    random: Random,
    /// How many histories were run.
    pub histories: u64,
    /// How many times an image was judged.
    pub judged: u64,
    /// At how many moments every image was tried, and at how many only samples.
    pub whole_moments: u64,
    /// See `whole_moments`.
    pub sampled_moments: u64,
}

impl Exhaustive {
    /// Labels the array.
    ///
    /// # Errors
    /// If label refuses it.
    pub fn new(scenario: Scenario) -> Result<Exhaustive, String> {
        let disks = scenario.disks();
        label_array(&scenario, &disks, &Fuse::never()).map_err(|error| error.to_string())?;
        Ok(Exhaustive {
            scenario: Rc::new(scenario),
            labelled: disks,
            shown: BTreeMap::new(),
            random: Random::new(1),
            histories: 0,
            judged: 0,
            whole_moments: 0,
            sampled_moments: 0,
        })
    }

    /// How many different images were recovered.
    pub fn images(&self) -> usize {
        self.shown.len()
    }

    /// Runs every sequence of exactly `length` of `steps`.
    ///
    /// # Errors
    /// If the contract was broken: the sequence, and how.
    pub fn run_all(&mut self, steps: &[Step], length: usize, depth: Depth) -> Result<(), String> {
        let mut digits = vec![0; length];
        loop {
            let sequence: Vec<Step> = digits.iter().map(|digit| steps[*digit]).collect();
            self.run(&sequence, depth)?;
            // The next number, least digit first.
            let Some(raised) = digits.iter().position(|digit| digit + 1 < steps.len()) else {
                return Ok(());
            };
            digits[raised] += 1;
            digits[..raised].fill(0);
        }
    }

    /// Runs one sequence and tries every crash in it.
    ///
    /// # Errors
    /// If the contract was broken.
    pub fn run(&mut self, sequence: &[Step], depth: Depth) -> Result<(), String> {
        self.histories += 1;
        let story = Story::default();
        let told =
            |what: String| format!("{sequence:?}, depth {depth:?}\n{}{what}", story.last(60));
        let disks = SimDisk::fork(&self.labelled);
        let mut world = World::start(
            &self.scenario,
            disks,
            &Fuse::never(),
            &story,
            Random::new(2),
        )
        .map_err(|error| told(error.to_string()))?;
        let mut client = Client::new(&self.scenario, Random::new(3));
        let mut known = BTreeSet::new();
        for step in sequence {
            let tag = world
                .free_tag()
                .expect("sequences are shorter than the queue");
            let (op, sectors, durability) = self.request_of(*step);
            let request = Request {
                tag,
                op,
                lba: Lba(sectors.start),
                sectors: u32::try_from(sectors.end - sectors.start).expect("a device is small"),
                durability,
            };
            client.send_this(&mut world, request);
            let replies = world.turn();
            client
                .take(world.now(), replies)
                .map_err(|error| told(error.to_string()))?;
            self.examine(&world, &client, &mut known).map_err(&told)?;
            while depth == Depth::One && client.waiting() > 0 {
                self.event(&mut world, &mut client, &mut known)
                    .map_err(&told)?;
            }
        }
        while client.waiting() > 0 {
            self.event(&mut world, &mut client, &mut known)
                .map_err(&told)?;
        }
        // Then replay, the tail, and what follows in the quiet.
        let end = world.now() + Duration::from_secs(3);
        while world.now() < end {
            self.event(&mut world, &mut client, &mut known)
                .map_err(&told)?;
        }
        Ok(())
    }

    fn request_of(&self, step: Step) -> (Op, std::ops::Range<u64>, Durability) {
        // Side by side, on both sides of a chunk's border where there is one.
        let a = if self.scenario.geometry.shape.members > 1 {
            FRAME / SECTOR - 1
        } else {
            0
        };
        let b = a + 1;
        let later = Durability::Later;
        match step {
            Step::WriteA => (Op::Write, a..a + 1, later),
            Step::WriteB => (Op::Write, b..b + 1, later),
            Step::FuaA => (Op::Write, a..a + 1, Durability::Now),
            Step::WriteBoth => (Op::Write, a..b + 1, later),
            Step::DiscardA => (Op::Discard, a..a + 1, later),
            Step::DiscardBoth => (Op::Discard, a..b + 1, later),
            Step::ZeroB => (Op::WriteZeroes(Unmap::Forbidden), b..b + 1, later),
            Step::Flush => (Op::Flush, 0..0, later),
        }
    }

    fn event(
        &mut self,
        world: &mut World,
        client: &mut Client,
        known: &mut BTreeSet<(u64, u64, u64)>,
    ) -> Result<(), String> {
        let until = world.now() + Duration::from_millis(100);
        let replies = world.step(until);
        client
            .take(world.now(), replies)
            .map_err(|error| error.to_string())?;
        self.examine(world, client, known)
    }

    /// Every image that a cut can leave now. `known` are those that were judged when exactly as much
    /// had been promised.
    fn examine(
        &mut self,
        world: &World,
        client: &Client,
        known: &mut BTreeSet<(u64, u64, u64)>,
    ) -> Result<(), String> {
        let choices = Choices::of(world.disks());
        let promised = (client.history.durable(), client.history.answered());
        let images = choices.images(IMAGES_MAX);
        match images {
            Some(_) => self.whole_moments += 1,
            None => self.sampled_moments += 1,
        }
        for n in 0..images.unwrap_or(SAMPLES) {
            let picks = match images {
                Some(_) => choices.numbered(n),
                None => choices.sample(&mut self.random),
            };
            let print = choices.print(&picks);
            if !known.insert((print, promised.0, promised.1)) {
                continue;
            }
            if !self.shown.contains_key(&print) {
                let disks = choices.image(world.disks(), &picks);
                let image = self.show(disks)?;
                self.shown.insert(print, image);
            }
            self.judged += 1;
            client
                .judge(&self.shown[&print], Crash::Power)
                .map_err(|violation| violation.to_string())?;
        }
        Ok(())
    }

    fn show(&mut self, disks: Vec<SimDisk>) -> Result<Vec<Version>, String> {
        let story = Story::default();
        let random = self.random.split();
        World::start(&self.scenario, disks, &Fuse::never(), &story, random)
            .map_err(|error| error.to_string())?
            .read_all()
            .map_err(|error| error.to_string())
    }
}
