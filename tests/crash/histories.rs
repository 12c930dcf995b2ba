//! Random histories: thousands of lives, crashes everywhere.

use crate::{in_parallel, setting};
use std::collections::BTreeSet;
use std::time::Instant;
use ujournal::sim::trial::{Counts, Options, Outcome, run};

/// What many trials have done together.
#[derive(Default)]
struct Total {
    trials: u64,
    counts: Counts,
    images: BTreeSet<u64>,
}

impl Total {
    fn add(&mut self, outcome: Outcome) {
        self.trials += 1;
        self.counts.add(&outcome.counts);
        self.images.extend(outcome.prints);
    }
}

/// Runs trials with these options until `enough` says so.
fn trials(options: Options, enough: impl Fn(u64, &Total) -> bool + Sync) -> Total {
    let first = setting("CRASH_SEED", 0);
    let start = Instant::now();
    let total = in_parallel(
        Total::default(),
        |number| {
            run(first.wrapping_add(number), &options).unwrap_or_else(|failure| panic!("{failure}"))
        },
        Total::add,
        |number, total| !enough(number, total),
    );
    let seconds = start.elapsed().as_secs_f64();
    let images = total.images.len();
    println!(
        "{} trials in {seconds:.1} s; {images} different crash images, {:.0} a second\n{:#?}",
        total.trials,
        f64::from(u32::try_from(images).expect("fewer than 2^32 images")) / seconds,
        total.counts
    );
    total
}

#[test]
fn whatever_the_power_or_the_program_does_the_device_holds_a_legal_prefix() {
    let wanted = usize::try_from(setting("CRASH_IMAGES", 15_000)).unwrap();
    let total = trials(Options::CRASHES, |_, total| total.images.len() >= wanted);
    let counts = total.counts;
    // Everything that there is to fall into was fallen into.
    for (what, count) in [
        ("an unanswered request was visible", counts.open_visible),
        ("an answered one was lost", counts.lost_volatile),
        ("record writes", counts.in_record),
        ("flushes", counts.in_flush),
        ("anchors", counts.in_anchor),
        ("replay", counts.in_replay),
        ("recoveries", counts.in_recovery),
        ("life changes", counts.in_life_change),
        ("label and stop", counts.in_label_or_stop),
        ("the death of the program", counts.process_crashes),
        ("overlapping requests", counts.overlaps),
        ("zeroed ranges", counts.zeroes),
        ("rings that wrapped", counts.wraps),
        ("rings that were full", counts.stalls),
    ] {
        assert!(count >= 10, "{what}: only {count}");
    }
}

#[test]
fn without_crashes_the_device_equals_a_plain_array_of_bytes() {
    let options = Options::CALM;
    let wanted = setting("CRASH_MODELS", 400);
    let total = trials(options, |number, _| number >= wanted);
    assert_eq!(total.counts.power_cuts, 0);
    assert!(total.counts.wraps > 20, "{:?}", total.counts);
}

/// C-REC-9: replay is held back, so that the lives of many dead programs lie in the ring together.
#[test]
fn every_answered_write_of_many_lives_in_one_ring_is_there() {
    let options = Options::MANY_LIVES;
    let total = trials(options, |number, _| number >= 60);
    assert!(total.counts.lives_in_ring >= 8, "{:?}", total.counts);
}

/// C-FUL-2: the STARTs of lives without requests fill no ring, and a life that finds it full gets out of it.
#[test]
fn a_program_that_dies_again_and_again_can_be_served_at_last() {
    let wanted = setting("CRASH_LOOPS", 60);
    let counts = trials(Options::CRASH_LOOP, |number, _| number >= wanted).counts;
    assert!(counts.lives > 50 * wanted, "{counts:?}");
}

/// C-REP-2: what is freed is written again at once, by records of a megabyte.
#[test]
fn full_rings_of_a_real_size_hold_a_legal_prefix() {
    let wanted = setting("CRASH_FULL", 3);
    let counts = trials(Options::FULL_RINGS, |number, _| number >= wanted).counts;
    assert!(counts.wraps >= wanted, "{counts:?}");
    assert!(counts.stalls >= wanted, "{counts:?}");
}

/// C-ERR, C-RD-3, C-ATM-5: answers may be errors, but no answer is a lie.
#[test]
fn whatever_fails_nothing_that_was_answered_well_is_lost_or_wrong() {
    let options = Options::ERRORS;
    let wanted = setting("CRASH_ERRORS", 100);
    let counts = trials(options, |number, _| number >= wanted).counts;
    assert!(counts.faults > 2 * wanted, "{counts:?}");
    assert!(counts.degraded > wanted / 10, "{counts:?}");
    assert!(counts.fail_stopped > wanted / 10, "{counts:?}");
}

/// C-RD-3, C-RD-4.
#[test]
fn what_is_read_wrongly_from_the_ring_is_never_taken_for_data() {
    let options = Options::ROTTEN_READS;
    let wanted = setting("CRASH_ERRORS", 100);
    let counts = trials(options, |number, _| number >= wanted).counts;
    assert!(counts.faults > wanted / 4, "{counts:?}");
}

/// What `repeat with` says. Without `SEED` it runs the first seed, which is as good as any.
#[test]
fn one_seed() {
    let seed = setting("SEED", 0);
    let name = std::env::var("TRIAL").unwrap_or_else(|_| Options::CRASHES.name.to_owned());
    let options = Options::named(&name).unwrap_or_else(|| panic!("there is no TRIAL={name}"));
    run(seed, &options).unwrap_or_else(|failure| panic!("{failure}"));
}
