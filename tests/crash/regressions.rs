//! Seeds that have failed once.
//!
//! What a seed draws changes with the simulator, so a seed alone keeps little; each is here with what it
//! found, and with the test that looks for that kind of thing on purpose.

use ujournal::sim::points::{damage, run as points};
use ujournal::sim::trial::{Options, run};

fn passes(options: &Options, seed: u64) {
    run(seed, options).unwrap_or_else(|failure| panic!("{failure}"));
}

/// A round of replay that ended inside the head's segment left a gap in the window behind START; the next
/// record's assertion ended the daemon. `points` begins and stops recovered arrays.
#[test]
fn a_recovered_array_can_be_stopped_at_once() {
    passes(&Options::CRASHES, 0x2);
}

/// The round had no place to end where recovery had found less than its grain, and a stop never ended.
#[test]
fn a_short_run_of_records_goes_home_after_a_recovery() {
    passes(&Options::CRASHES, 0x4);
}

/// The copy of a superblock that alone was new was overwritten first, and torn: "an old copy".
#[test]
fn a_start_that_is_cut_twice_does_not_make_a_member_stale() {
    points(0x7).unwrap_or_else(|what| panic!("{what}"));
}

/// The other anchor was the closed one of the life before, and was believed: all of the life was dropped.
#[test]
fn the_loss_of_the_newest_anchor_loses_nothing() {
    damage(0x9).unwrap_or_else(|what| panic!("{what}"));
}

/// Replay's flush failed on an attached array, and only home blocks were thought to be concerned.
#[test]
fn a_failed_flush_of_a_member_that_holds_the_journal_is_one_of_the_journal() {
    passes(&Options::ERRORS, 0x4);
    passes(&Options::ERRORS, 0xb);
}

/// A durable write failed on a disk that does it as a write and a flush. It was repeated, and its success
/// was taken for that of the flush.
#[test]
fn a_failed_durable_write_is_not_repeated_where_it_may_have_been_a_flush() {
    passes(&Options::ERRORS, 0xb1);
}

/// A member that answers every write with EOPNOTSUPP was tried for ever without a word.
#[test]
fn a_write_that_is_not_supported_is_an_error() {
    passes(&Options::ERRORS, 0x1d);
}

/// The STARTs of lives that ended at once filled what requests may not use: the next write waited for ever.
#[test]
fn a_ring_that_starts_have_filled_can_be_written_to() {
    passes(&Options::CRASH_LOOP, 0x398);
}

/// Behind the tail lay more STARTs than a round is long, and no round of replay had a place to end.
#[test]
fn a_round_may_end_before_the_next_request() {
    passes(&Options::CRASH_LOOP, 0x108);
    passes(&Options::CRASH_LOOP, 0x1c3);
}

/// The journal and a member were parts of one disk. A flush of the member failed, and the disk forgot records
/// as well as home blocks; the next flush of the journal went well and was believed.
#[test]
fn a_failed_flush_of_a_member_beside_the_journal_is_one_of_the_journal() {
    passes(&Options::ERRORS, 0x497);
    passes(&Options::ERRORS, 0xb3a);
}
