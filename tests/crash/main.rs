//! The real engine over disks that forget, with crashes everywhere.

use std::time::Instant;
use ujournal::sim::trial::{Options, run};

#[test]
fn random_histories() {
    let start = Instant::now();
    let from: u64 = std::env::var("FROM").map_or(0, |s| s.parse().unwrap());
    let count: u64 = std::env::var("COUNT").map_or(100, |s| s.parse().unwrap());
    let mut counts = ujournal::sim::trial::Counts::default();
    let mut prints = Vec::new();
    for seed in from..from + count {
        match run(seed, &Options::default()) {
            Ok(outcome) => {
                counts.add(&outcome.counts);
                prints.extend(outcome.prints);
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    let total = prints.len();
    prints.sort_unstable();
    prints.dedup();
    let seconds = start.elapsed().as_secs_f64();
    println!("{counts:#?}");
    println!(
        "{total} images, {} distinct, {:.0}/s",
        prints.len(),
        prints.len() as f64 / seconds
    );
}

#[test]
fn one_seed() {
    let Ok(seed) = std::env::var("SEED") else {
        return;
    };
    let seed = u64::from_str_radix(seed.trim_start_matches("0x"), 16).unwrap();
    if let Err(failure) = run(seed, &Options::default()) {
        panic!("{failure}");
    }
}
