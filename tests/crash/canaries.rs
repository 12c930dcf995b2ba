//! Disks that lie. If these were not caught, nothing else here would prove anything.

use ujournal::sim::media::Honesty;
use ujournal::sim::trial::{Options, run};

/// How many trials it takes to catch disks that do this; the failure that was found.
fn caught(honesty: Honesty) -> (u64, String) {
    let options = Options {
        honesty,
        ..Options::default()
    };
    (0..50)
        .find_map(|seed| {
            run(seed, &options)
                .err()
                .map(|failure| (seed, failure.what))
        })
        .unwrap_or_else(|| panic!("{honesty:?} disks were not caught in 50 trials"))
}

#[test]
fn disks_that_ignore_flushes_are_caught() {
    let (trials, what) = caught(Honesty::IgnoresFlush);
    println!("after {trials} trials: {what}");
}

#[test]
fn disks_that_ignore_durable_writes_are_caught() {
    let (trials, what) = caught(Honesty::IgnoresSync);
    println!("after {trials} trials: {what}");
}
