//! Label, start and stop, cut at every single operation; and every frame of the journal damaged.
//!
//! What waits for its I/O is a sequence of operations. For each of them: it is in flight, the power goes,
//! the disks keep something, and the array has to come up (or label has to be run again) and show what it
//! should.

use crate::engine::Close;
use crate::journal::FRAME_LEN;
use crate::journal::geometry::superblock_places;
use crate::random::Random;
use crate::sim::cut::{self, Style};
use crate::sim::media::{Fuse, SimDisk};
use crate::sim::oracle::Crash;
use crate::sim::scenario::Scenario;
use crate::sim::stamp::Version;
use crate::sim::story::Story;
use crate::sim::workload::Client;
use crate::sim::world::{StartError, World, fence, label_array};
use crate::units::{FRAME, Offset, PartIndex, SECTOR};
use std::rc::Rc;
use std::time::Duration;

/// What has been cut.
#[derive(Clone, Copy, Debug, Default)]
pub struct Points {
    /// Cuts in label.
    pub label: u64,
    /// Cuts in the recovery of a crashed array.
    pub recovery: u64,
    /// Cuts in a recovery that follows a cut in a recovery.
    pub nested: u64,
    /// Cuts in the start of an array that was stopped.
    pub start: u64,
    /// Starts whose program died, and whose successor was cut.
    pub killed: u64,
    /// Cuts in the last steps of a stop, and in those of a handover.
    pub stop: u64,
    /// Parts replaced by an old copy, and refused.
    pub stale: u64,
}

/// Cuts tried at each operation.
const STYLES: [Option<Style>; 5] = [
    Some(Style::Nothing),
    Some(Style::Everything),
    Some(Style::Torn),
    None,
    None,
];

/// Deaths of the program tried at each operation.
const KILLS: usize = 3;

fn cut_as(disks: &[SimDisk], style: Option<Style>, random: &mut Random) -> Vec<SimDisk> {
    match style {
        Some(style) => cut::cut_in_style(disks, style, random),
        None => cut::cut(disks, random),
    }
}

/// What damage was done to arrays at rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Damages {
    /// Frames of the ring that were damaged.
    pub frames: u64,
    /// Of those, how many made start refuse.
    pub refused: u64,
    /// Single copies of superblocks and anchors that were damaged, and did not matter.
    pub copies: u64,
}

/// C-REC-3, C-REC-5, C-REC-7, C-REC-12: one array that has come to rest after some writes, with one place
/// damaged at a time. A start may refuse; it never shows anything but all that was answered. One copy of a
/// superblock or an anchor may be lost without any harm.
///
/// # Errors
/// If the contract was broken.
pub fn damage(seed: u64) -> Result<Damages, String> {
    let mut random = Random::new(seed);
    let mut scenario = Scenario::draw(&mut random);
    if random.chance(700) {
        scenario.hold_replay_back();
    }
    let mut bench = Bench {
        scenario: Rc::new(scenario),
        random,
        points: Points::default(),
    };
    bench
        .damage()
        .map_err(|what| format!("seed {seed:#x}: {what}"))
}

/// One array at a time: labelled, served, crashed, recovered, stopped, started, with a cut at every point.
///
/// # Errors
/// If the contract was broken.
pub fn run(seed: u64) -> Result<Points, String> {
    let mut random = Random::new(seed);
    let scenario = Rc::new(Scenario::draw(&mut random));
    let mut bench = Bench {
        scenario,
        random,
        points: Points::default(),
    };
    bench
        .run()
        .map_err(|what| format!("seed {seed:#x}: {what}"))?;
    Ok(bench.points)
}

struct Bench {
    scenario: Rc<Scenario>,
    random: Random,
    points: Points,
}

impl Bench {
    fn run(&mut self) -> Result<(), String> {
        let fresh = self.scenario.disks();
        self.cut_label(&fresh)?;
        label_array(&self.scenario, &fresh, &Fuse::never()).map_err(|error| error.to_string())?;

        // A life with a crash that leaves something to recover.
        let before_first_start = SimDisk::fork(&fresh);
        let mut world = self
            .start(fresh, &Fuse::never())
            .map_err(|e| e.to_string())?;
        self.refuse_stale(&before_first_start, world.disks())?;
        let mut client = Client::new(&self.scenario, self.random.split());
        self.serve(&mut world, &mut client, 60)?;
        let crashed = cut::cut(world.disks(), &mut self.random);
        let image = self.show(SimDisk::fork(&crashed))?;
        client
            .judge(&image, Crash::Power)
            .map_err(|violation| violation.to_string())?;
        // A cut START may repair what was torn, so that one more record counts. Nothing had been shown yet.
        let legal = |found: &[Version]| {
            client
                .judge(found, Crash::Power)
                .map(drop)
                .map_err(|violation| violation.to_string())
        };
        self.points.recovery += self.cut_start(&crashed, &legal, 3)?;

        // Stopped, and started again.
        let mut world = self
            .start(crashed, &Fuse::never())
            .map_err(|e| e.to_string())?;
        client.begin_life(image);
        self.serve(&mut world, &mut client, 20)?;
        let handover = self.random.chance(300);
        let how = if handover {
            Close::Handover
        } else {
            Close::Stop
        };
        let within = SimDisk::fork(world.disks());
        fence(&within, &mut self.random);
        while !handover && client.waiting() > 0 {
            self.pass_time(&mut world, &mut client)?;
        }
        world.begin_close(how);
        while !world.is_closed() {
            self.pass_time(&mut world, &mut client)?;
        }
        self.cut_close(&world, &client, how)?;
        world
            .close(world.disks(), how, &Fuse::never())
            .map_err(|error| error.to_string())?;
        let closed = world.disks().to_vec();
        drop(world);
        let image = self.show(SimDisk::fork(&closed))?;
        client
            .judge(&image, Crash::Process)
            .map_err(|violation| violation.to_string())?;
        if how == Close::Stop {
            self.refuse_stale(&within, &closed)?;
        }
        let same = |found: &[Version]| difference(&image, found);
        self.points.start += self.cut_start(&closed, &same, 1)?;
        Ok(())
    }

    fn damage(&mut self) -> Result<Damages, String> {
        let disks = self.scenario.disks();
        label_array(&self.scenario, &disks, &Fuse::never()).map_err(|error| error.to_string())?;
        let mut world = self
            .start(disks, &Fuse::never())
            .map_err(|e| e.to_string())?;
        let mut client = Client::new(&self.scenario, self.random.split());
        self.serve(&mut world, &mut client, 60)?;
        // Everything becomes durable within the interval, and is recorded as durable a second later.
        let rest = world.now() + self.scenario.settings.commit_interval + Duration::from_secs(3);
        while client.waiting() > 0 || world.now() < rest {
            self.pass_time(&mut world, &mut client)?;
        }
        let resting = cut::cut_in_style(world.disks(), Style::Nothing, &mut self.random);
        let image = client.history.newest_image();
        let shown = self.show(SimDisk::fork(&resting))?;
        difference(&image, &shown)?;

        let mut damages = Damages::default();
        let ring = self.scenario.geometry.ring.clone();
        for frame in 0..ring.size() / FRAME {
            let piece = ring.pieces(frame * FRAME, FRAME).next();
            let piece = piece.expect("a frame lies on one part");
            let damaged = self.damaged(&resting, piece.part, piece.offset);
            damages.frames += 1;
            match self.show(damaged) {
                Err(why) if why.starts_with("refused") => damages.refused += 1,
                shown => shown
                    .and_then(|shown| difference(&image, &shown))
                    .map_err(|why| format!("frame {frame} damaged: {why}"))?,
            }
        }
        let mut copies = Vec::new();
        for (part, size) in (0..).map(PartIndex).zip(&self.scenario.sizes) {
            copies.extend(superblock_places(*size).map(|place| (part, place)));
        }
        let anchors = self.scenario.geometry.anchors;
        copies.extend(anchors.copies.map(|place| (anchors.part, place)));
        for (part, place) in copies {
            let damaged = self.damaged(&resting, part, place);
            damages.copies += 1;
            self.show(damaged)
                .and_then(|shown| difference(&image, &shown))
                .map_err(|why| format!("part {part}, copy at {place} damaged: {why}"))?;
        }
        Ok(damages)
    }

    /// A fork with one frame damaged: a bit of it, all of it, or it cannot be read.
    fn damaged(&mut self, disks: &[SimDisk], part: PartIndex, place: Offset) -> Vec<SimDisk> {
        let forks = SimDisk::fork(disks);
        let disk = &forks[part.index()];
        match self.random.below(4) {
            0 => disk.rot(
                place.plus(self.random.below(FRAME)),
                *self.random.pick(&[0, 3, 7]),
            ),
            // What stands there is mostly in the first sector.
            1 => disk.rot(place.plus(self.random.below(SECTOR)), 1),
            2 => disk.spoil(place.plus(self.random.below(FRAME / SECTOR) * SECTOR)),
            _ => disk.poke(place, &[*self.random.pick(&[0, 0xff]); FRAME_LEN]),
        }
        forks
    }

    fn start(&mut self, disks: Vec<SimDisk>, fuse: &Fuse) -> Result<World, StartError> {
        let random = self.random.split();
        World::start(&self.scenario, disks, fuse, &Story::default(), random)
    }

    fn show(&mut self, disks: Vec<SimDisk>) -> Result<Vec<Version>, String> {
        let mut world = self
            .start(disks, &Fuse::never())
            .map_err(|error| error.to_string())?;
        world.read_all().map_err(|error| error.to_string())
    }

    fn serve(&mut self, world: &mut World, client: &mut Client, most: u64) -> Result<(), String> {
        let quota = client.given() + self.random.between(1, most);
        while client.given() < quota {
            if client.is_busy(world) {
                self.pass_time(world, client)?;
            } else {
                client.send(world);
                let replies = world.turn();
                client
                    .take(world.now(), replies)
                    .map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn pass_time(&mut self, world: &mut World, client: &mut Client) -> Result<(), String> {
        let until = world.now() + Duration::from_millis(10);
        let replies = world.step(until);
        client
            .take(world.now(), replies)
            .map_err(|error| error.to_string())
    }

    /// C-LIF-7: an array whose label was cut does not start, or is whole; label can be run again.
    fn cut_label(&mut self, fresh: &[SimDisk]) -> Result<(), String> {
        for k in 0.. {
            let disks = SimDisk::fork(fresh);
            let fuse = Fuse::after(k);
            match label_array(&self.scenario, &disks, &fuse) {
                Ok(()) => return Ok(()),
                Err(StartError::Refused(why)) => return Err(why),
                Err(StartError::PowerCut) => {}
            }
            for style in STYLES {
                self.points.label += 1;
                let after = cut_as(&disks, style, &mut self.random);
                let tried = SimDisk::fork(&after);
                if let Ok(mut world) = self.start(tried, &Fuse::never()) {
                    let image = world.read_all().map_err(|error| error.to_string())?;
                    self.untouched(&image, k)?;
                }
                label_array(&self.scenario, &after, &Fuse::never())
                    .map_err(|error| error.to_string())?;
                let image = self.show(after)?;
                self.untouched(&image, k)?;
            }
        }
        Ok(())
    }

    fn untouched(&self, image: &[Version], k: u64) -> Result<(), String> {
        if image.iter().all(|version| *version == Version::BEFORE) {
            Ok(())
        } else {
            Err(format!("label, cut at operation {k}, has touched the data"))
        }
    }

    /// C-REP-3, C-ID-17: a start that is cut at any operation is begun again, and shows what it should.
    fn cut_start(
        &mut self,
        disks: &[SimDisk],
        judge: &dyn Fn(&[Version]) -> Result<(), String>,
        depth: u64,
    ) -> Result<u64, String> {
        let mut cuts = 0;
        for k in 0.. {
            let tried = SimDisk::fork(disks);
            match self.start(tried.clone(), &Fuse::after(k)) {
                Ok(_) => return Ok(cuts),
                Err(StartError::Refused(why)) => return Err(why),
                Err(StartError::PowerCut) => {}
            }
            for style in STYLES {
                cuts += 1;
                let mut after = cut_as(&tried, style, &mut self.random);
                for _ in 1..depth {
                    after = self.cut_again(after)?;
                }
                self.show(after)
                    .and_then(|found| judge(&found))
                    .map_err(|why| format!("start, cut at operation {k} ({style:?}): {why}"))?;
            }
            // The program alone dies: what it wrote is there, and volatile, when the next start is cut.
            for _ in 0..KILLS {
                self.points.killed += 1;
                let mut after = SimDisk::fork(&tried);
                fence(&after, &mut self.random);
                for _ in 0..depth {
                    after = self.cut_again(after)?;
                }
                self.show(after)
                    .and_then(|found| judge(&found))
                    .map_err(|why| format!("start, killed at operation {k}, then cut: {why}"))?;
            }
        }
        Ok(cuts)
    }

    /// Mostly cuts one more start somewhere.
    fn cut_again(&mut self, disks: Vec<SimDisk>) -> Result<Vec<SimDisk>, String> {
        let kept = SimDisk::fork(&disks);
        let k = self.random.skewed(64) - 1;
        match self.start(disks.clone(), &Fuse::after(k)) {
            Ok(_) => Ok(kept),
            Err(StartError::Refused(why)) => Err(why),
            Err(StartError::PowerCut) => {
                self.points.nested += 1;
                Ok(cut::cut(&disks, &mut self.random))
            }
        }
    }

    /// C-ID-17, C-LIF-1: the last steps of a stop, cut anywhere.
    fn cut_close(&mut self, world: &World, client: &Client, how: Close) -> Result<(), String> {
        for k in 0.. {
            let tried = SimDisk::fork(world.disks());
            match world.close(&tried, how, &Fuse::after(k)) {
                Ok(()) => return Ok(()),
                Err(StartError::Refused(why)) => return Err(why),
                Err(StartError::PowerCut) => {}
            }
            for style in STYLES {
                self.points.stop += 1;
                let after = cut_as(&tried, style, &mut self.random);
                let image = self
                    .show(after)
                    .map_err(|why| format!("{how:?}, cut at operation {k}, then: {why}"))?;
                // Closed means that all that was answered is durable.
                client
                    .judge(&image, Crash::Process)
                    .map_err(|violation| format!("{how:?}, cut at operation {k}: {violation}"))?;
            }
        }
        Ok(())
    }

    /// C-ID-5, C-ID-6: a part that is a copy from before a start, or from before the stop that followed it,
    /// does not belong to the others.
    fn refuse_stale(&mut self, before: &[SimDisk], after: &[SimDisk]) -> Result<(), String> {
        for part in 0..before.len() {
            if before.len() == 1 {
                break;
            }
            let mut mixed = SimDisk::fork(after);
            mixed[part] = SimDisk::fork(before).swap_remove(part);
            match self.start(mixed, &Fuse::never()) {
                Err(StartError::Refused(_)) => self.points.stale += 1,
                Err(StartError::PowerCut) => unreachable!("there is no fuse"),
                Ok(_) => return Err(format!("an old copy of part {part} was accepted")),
            }
        }
        Ok(())
    }
}

fn difference(expected: &[Version], found: &[Version]) -> Result<(), String> {
    let differs = expected
        .iter()
        .zip(found)
        .position(|(expected, found)| expected != found);
    differs.map_or(Ok(()), |sector| {
        Err(format!(
            "sector {sector} holds {}, not {}",
            found[sector], expected[sector]
        ))
    })
}
