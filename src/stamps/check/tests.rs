//! Goal: the check passes what is allowed and fails all else. Method: small histories and images made by
//! hand, and random histories whose legal images pass and whose every damaged image fails.

use super::super::stamp::Stamp;
use super::*;
use crate::random::Random;

const FIRST: Lba = Lba(1000);
const SEED: Seed = Seed(42);

/// A history in the making: one sector is one letter, writers own 8 sectors each.
struct Log(Vec<(Event, Duration)>);

impl Log {
    fn new(writers: u16) -> Log {
        let stretch = Stretch {
            first: FIRST,
            sectors: 8 * u32::from(writers),
        };
        Log(vec![(
            Event::Begin {
                seed: SEED,
                stretch,
                writers,
            },
            Duration::ZERO,
        )])
    }

    fn push(mut self, event: Event) -> Log {
        self.0
            .push((event, Duration::from_millis(self.0.len() as u64)));
        self
    }

    fn submit(self, writer: u16, counter: u64, at: u32, sectors: u32) -> Log {
        self.submit_as(writer, counter, at, sectors, Durability::Later)
    }

    fn submit_as(
        self,
        writer: u16,
        counter: u64,
        at: u32,
        sectors: u32,
        durability: Durability,
    ) -> Log {
        let lba = FIRST.plus(u64::from(8 * u32::from(writer) + at));
        self.push(Event::Submitted {
            writer: Writer(writer),
            counter: Counter(counter),
            lba,
            sectors,
            durability,
        })
    }

    fn ack(self, writer: u16, counter: u64) -> Log {
        self.push(Event::Acknowledged {
            writer: Writer(writer),
            counter: Counter(counter),
        })
    }

    fn write(self, writer: u16, counter: u64, at: u32, sectors: u32) -> Log {
        self.submit(writer, counter, at, sectors)
            .ack(writer, counter)
    }

    fn flush(self, counter: u64) -> Log {
        self.push(Event::FlushSubmitted(Counter(counter)))
            .push(Event::FlushAcknowledged(Counter(counter)))
    }

    fn history(&self) -> History {
        History::new(&self.0).expect("a log that makes sense")
    }

    /// Checks an image: for each sector the version that it holds, 0 for zeroes.
    fn check(&self, image: &[u64], mode: Mode) -> Report {
        let contents: Vec<Content> = image
            .iter()
            .enumerate()
            .map(|(sector, counter)| stamped(sector / 8, *counter))
            .collect();
        check(&self.history(), &contents, mode)
    }

    fn passes(&self, image: &[u64], mode: Mode) {
        let report = self.check(image, mode);
        assert_eq!(report.examples, [], "{image:?}");
    }

    fn fails(&self, image: &[u64], mode: Mode) -> Vec<Violation> {
        let report = self.check(image, mode);
        assert!(report.violations > 0, "{image:?} must not pass");
        report.examples
    }
}

fn stamped(writer: usize, counter: u64) -> Content {
    if counter == 0 {
        return Content::Zeroes;
    }
    Content::Stamp(Stamp {
        seed: SEED,
        writer: Writer(u16::try_from(writer).expect("a few")),
        counter: Counter(counter),
    })
}

fn reasons(violations: &[Violation]) -> Vec<Reason> {
    let reason = |violation: &Violation| match violation {
        Violation::Lost { reason, .. } => Some(*reason),
        Violation::Integrity { .. } => None,
    };
    violations.iter().filter_map(reason).collect()
}

#[test]
fn after_the_servers_death_every_acknowledged_write_must_be_there() {
    let log = Log::new(1)
        .write(0, 1, 0, 2)
        .write(0, 2, 1, 1)
        .submit(0, 3, 4, 1);
    log.passes(&[1, 2, 0, 0, 0, 0, 0, 0], Mode::Acked);
    // What was in flight may be there.
    log.passes(&[1, 2, 0, 0, 3, 0, 0, 0], Mode::Acked);
    let lost = log.fails(&[1, 1, 0, 0, 0, 0, 0, 0], Mode::Acked);
    assert_eq!(reasons(&lost), [Reason::Acknowledged]);
    log.fails(&[0, 2, 0, 0, 0, 0, 0, 0], Mode::Acked);
}

#[test]
fn after_a_power_cut_what_was_flushed_must_be_there_and_the_rest_may_be_lost() {
    let log = Log::new(1).write(0, 1, 0, 1).flush(1).write(0, 2, 0, 2);
    log.passes(&[2, 2, 0, 0, 0, 0, 0, 0], Mode::Flushed);
    log.passes(&[1, 0, 0, 0, 0, 0, 0, 0], Mode::Flushed);
    let lost = log.fails(&[0, 0, 0, 0, 0, 0, 0, 0], Mode::Flushed);
    assert_eq!(reasons(&lost), [Reason::Flushed]);
}

#[test]
fn a_flush_covers_only_what_was_acknowledged_before_it_was_submitted() {
    let late = Log::new(2)
        .submit(0, 1, 0, 1)
        .push(Event::FlushSubmitted(Counter(1)))
        .ack(0, 1)
        .push(Event::FlushAcknowledged(Counter(1)));
    late.passes(&[0; 16], Mode::Flushed);
    let unanswered = Log::new(2)
        .write(0, 1, 0, 1)
        .push(Event::FlushSubmitted(Counter(1)));
    unanswered.passes(&[0; 16], Mode::Flushed);
}

#[test]
fn an_acknowledged_fua_write_must_be_there_and_all_before_it() {
    let log = Log::new(2)
        .write(1, 1, 0, 1)
        .submit_as(0, 1, 0, 1, Durability::Now)
        .ack(0, 1)
        .write(1, 2, 1, 1);
    let mut image = [0; 16];
    (image[0], image[8]) = (1, 1);
    log.passes(&image, Mode::Flushed);
    image[8] = 0;
    assert_eq!(reasons(&log.fails(&image, Mode::Flushed)), [Reason::Prefix]);
    (image[0], image[8]) = (0, 1);
    assert_eq!(reasons(&log.fails(&image, Mode::Flushed)), [Reason::Fua]);
}

#[test]
fn a_hole_before_something_that_can_be_seen_is_noticed() {
    let log = Log::new(2).write(0, 1, 0, 1).write(1, 1, 0, 1);
    let mut image = [0; 16];
    log.passes(&image, Mode::Flushed);
    image[0] = 1;
    log.passes(&image, Mode::Flushed);
    image[8] = 1;
    log.passes(&image, Mode::Flushed);
    image[0] = 0;
    assert_eq!(reasons(&log.fails(&image, Mode::Flushed)), [Reason::Prefix]);
}

#[test]
fn writes_in_flight_together_may_survive_in_any_combination() {
    let log = Log::new(2)
        .submit(0, 1, 0, 1)
        .submit(1, 1, 0, 1)
        .ack(0, 1)
        .ack(1, 1);
    for (first, second) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut image = [0; 16];
        (image[0], image[8]) = (first, second);
        log.passes(&image, Mode::Flushed);
    }
}

#[test]
fn half_a_write_is_noticed_also_if_it_was_never_acknowledged() {
    let log = Log::new(1).write(0, 1, 0, 4).submit(0, 2, 1, 3);
    log.passes(&[1, 1, 1, 1, 0, 0, 0, 0], Mode::Acked);
    log.passes(&[1, 2, 2, 2, 0, 0, 0, 0], Mode::Acked);
    let torn = log.fails(&[1, 2, 1, 2, 0, 0, 0, 0], Mode::Acked);
    assert_eq!(reasons(&torn), [Reason::Atomic]);
    assert_eq!(
        reasons(&log.fails(&[1, 1, 1, 2, 0, 0, 0, 0], Mode::Flushed)),
        [Reason::Atomic; 2]
    );
}

#[test]
fn an_older_version_that_comes_back_is_noticed() {
    let log = Log::new(1)
        .write(0, 1, 0, 1)
        .write(0, 2, 0, 1)
        .write(0, 3, 4, 1)
        .flush(1);
    log.passes(&[2, 0, 0, 0, 3, 0, 0, 0], Mode::Flushed);
    log.fails(&[1, 0, 0, 0, 3, 0, 0, 0], Mode::Flushed);
}

#[test]
fn what_was_never_submitted_or_is_no_stamp_is_noticed() {
    let log = Log::new(1).write(0, 1, 0, 2);
    let good = [1, 1, 0, 0, 0, 0, 0, 0];
    log.passes(&good, Mode::Acked);
    // From the future, and a real one in a sector that it did not write.
    log.fails(&[2, 1, 0, 0, 0, 0, 0, 0], Mode::Acked);
    log.fails(&[1, 1, 1, 0, 0, 0, 0, 0], Mode::Acked);

    let stamp = Stamp {
        seed: SEED,
        writer: Writer(0),
        counter: Counter(1),
    };
    let foreign = Content::Stamp(Stamp {
        seed: Seed(7),
        ..stamp
    });
    let stranger = Content::Stamp(Stamp {
        writer: Writer(9),
        ..stamp
    });
    let with = |at: usize, content| {
        let mut contents: Vec<Content> = good.iter().map(|counter| stamped(0, *counter)).collect();
        contents[at] = content;
        check(&log.history(), &contents, Mode::Acked).violations
    };
    assert_eq!(
        with(5, foreign),
        0,
        "an earlier run is what was there before"
    );
    assert_eq!(with(0, foreign), 1, "but not where this run wrote");
    for content in [
        Content::Garbage,
        Content::Elsewhere(stamp, Lba(1)),
        stranger,
    ] {
        assert_eq!(with(5, content), 1, "{content:?}");
    }
}

#[test]
fn losses_that_are_allowed_are_counted() {
    let log = Log::new(1)
        .write(0, 1, 0, 4)
        .flush(1)
        .write(0, 2, 2, 4)
        .submit(0, 3, 0, 1);
    let report = log.check(&[1, 1, 1, 1, 0, 0, 0, 0], Mode::Flushed);
    assert_eq!(
        (report.violations, report.lost_sectors, report.lost_writes),
        (0, 4, 1)
    );
    assert_eq!(
        (report.submitted, report.acknowledged, report.flushes),
        (3, 2, 1)
    );
    assert_eq!(
        (report.stamped, report.required, report.unacknowledged_seen),
        (4, 4, 0)
    );
    let report = log.check(&[3, 1, 2, 2, 2, 2, 0, 0], Mode::Flushed);
    assert_eq!(
        (
            report.lost_sectors,
            report.lost_writes,
            report.unacknowledged_seen
        ),
        (0, 0, 1)
    );
}

#[test]
fn images_that_differ_in_a_version_differ_in_their_digest() {
    let log = Log::new(1).write(0, 1, 0, 4).write(0, 2, 2, 4);
    let digest = |image: &[u64]| log.check(image, Mode::Flushed).digest;
    assert_eq!(
        digest(&[1, 1, 2, 2, 2, 2, 0, 0]),
        digest(&[1, 1, 2, 2, 2, 2, 0, 0])
    );
    assert_ne!(
        digest(&[1, 1, 2, 2, 2, 2, 0, 0]),
        digest(&[1, 1, 2, 2, 2, 0, 0, 0])
    );
}

#[test]
fn a_log_that_makes_no_sense_is_refused_and_the_record_named() {
    let refused = |log: Log| History::new(&log.0).expect_err("no sense").record;
    assert_eq!(refused(Log(Vec::new())), 0);
    assert_eq!(refused(Log::new(1).submit(0, 2, 0, 1)), 1);
    assert_eq!(refused(Log::new(1).submit(0, 1, 7, 2)), 1);
    assert_eq!(refused(Log::new(1).submit(0, 1, 0, 0)), 1);
    assert_eq!(refused(Log::new(1).submit(1, 1, 0, 1)), 1);
    assert_eq!(refused(Log::new(1).ack(0, 1)), 1);
    assert_eq!(refused(Log::new(1).write(0, 1, 0, 1).ack(0, 1)), 3);
    assert_eq!(
        refused(Log::new(1).submit(0, 1, 0, 1).submit(0, 2, 0, 1)),
        2
    );
    assert_eq!(
        refused(Log::new(1).push(Event::FlushAcknowledged(Counter(1)))),
        1
    );
}

/// A run on a device that takes requests in an order of its own and answers them in that order, and the
/// image after each of them.
struct Story {
    log: Log,
    images: Vec<Vec<u64>>,
    /// How many requests the device had taken when the last acknowledged flush came.
    flushed: usize,
    /// How many were answered, and which.
    answered: usize,
    acknowledged: Vec<(u16, u64)>,
}

fn story(random: &mut Random) -> Story {
    const WRITERS: u16 = 4;
    let mut log = Log::new(WRITERS);
    let mut image = vec![0_u64; 8 * usize::from(WRITERS)];
    let mut images = vec![image.clone()];
    let mut counters = [0_u64; WRITERS as usize];
    // Requests that the device has not taken yet, and those that it has not answered yet.
    let mut new: Vec<(u16, u64, u32, u32)> = Vec::new();
    let mut taken: Vec<(u16, u64)> = Vec::new();
    let mut acknowledged = Vec::new();
    let (mut flushed, mut answered, mut flushes) = (0, 0, 0);
    for _ in 0..60 {
        match random.below(7) {
            0..3 => {
                let writer = u16::try_from(random.below(WRITERS.into())).expect("few");
                let busy = new.iter().any(|(other, ..)| *other == writer)
                    || taken.iter().any(|(other, _)| *other == writer);
                if busy {
                    continue;
                }
                let counter = &mut counters[usize::from(writer)];
                *counter += 1;
                let at = u32::try_from(random.below(8)).expect("few");
                let sectors = 1 + u32::try_from(random.below(u64::from(8 - at))).expect("few");
                log = log.submit(writer, *counter, at, sectors);
                new.push((writer, *counter, at, sectors));
            }
            3..5 if !new.is_empty() => {
                let (writer, counter, at, sectors) = new.swap_remove(random.index(new.len()));
                let first = usize::from(writer) * 8 + at as usize;
                image[first..first + sectors as usize].fill(counter);
                images.push(image.clone());
                taken.push((writer, counter));
            }
            5 if !taken.is_empty() => {
                let (writer, counter) = taken.remove(0);
                log = log.ack(writer, counter);
                acknowledged.push((writer, counter));
                answered += 1;
            }
            6 => {
                flushes += 1;
                log = log.flush(flushes);
                flushed = answered;
            }
            _ => {}
        }
    }
    Story {
        log,
        images,
        flushed,
        answered,
        acknowledged,
    }
}

#[test]
fn of_random_runs_every_prefix_that_holds_what_was_flushed_passes() {
    for seed in 0..2000 {
        let story = story(&mut Random::new(seed));
        for image in &story.images[story.flushed..] {
            let report = story.log.check(image, Mode::Flushed);
            assert_eq!(report.examples, [], "seed {seed}");
        }
        for image in &story.images[story.answered..] {
            let report = story.log.check(image, Mode::Acked);
            assert_eq!(report.examples, [], "seed {seed}");
        }
    }
}

#[test]
fn of_random_runs_an_image_too_old_or_with_one_sector_changed_fails() {
    let (mut too_old, mut changed) = (0, 0);
    for seed in 0..2000 {
        let mut random = Random::new(seed);
        let story = story(&mut random);
        for image in &story.images[..story.flushed] {
            assert!(
                story.log.check(image, Mode::Flushed).violations > 0,
                "seed {seed}"
            );
            too_old += 1;
        }
        let mut image = story.images.last().expect("at least the first").clone();
        let sector = random.index(image.len());
        let writer = u16::try_from(sector / 8).expect("few");
        if story.acknowledged.contains(&(writer, image[sector])) {
            image[sector] -= 1;
            assert!(
                story.log.check(&image, Mode::Acked).violations > 0,
                "seed {seed}"
            );
            changed += 1;
        }
    }
    assert!(
        too_old > 1000 && changed > 500,
        "{too_old} and {changed} images were tried"
    );
}
