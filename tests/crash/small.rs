//! All small histories.

use std::time::Instant;
use ujournal::journal::geometry::Placement;
use ujournal::random::Random;
use ujournal::sim::exhaustive::{Depth, Exhaustive, Step};
use ujournal::sim::media::Cache;
use ujournal::sim::scenario::Scenario;

fn arrays() -> Vec<Scenario> {
    let mut random = Random::new(11);
    vec![
        Scenario::tiny(Placement::Detached, 2, Cache::WriteBackWithFua, &mut random),
        Scenario::tiny(Placement::End, 2, Cache::WriteBack, &mut random),
        Scenario::tiny(Placement::Detached, 1, Cache::WriteBack, &mut random),
    ]
}

fn try_all(steps: &[Step], length: usize) {
    let start = Instant::now();
    for scenario in arrays() {
        let placement = scenario.geometry.shape.placement;
        let mut all = Exhaustive::new(scenario).expect("a new array starts");
        for depth in [Depth::One, Depth::All] {
            for length in 1..=length {
                all.run_all(steps, length, depth)
                    .unwrap_or_else(|what| panic!("{placement}: {what}"));
            }
        }
        println!(
            "{placement}: {} histories, {} images, judged {} times; all images at {} moments, samples at {}; {:.1} s",
            all.histories,
            all.images(),
            all.judged,
            all.whole_moments,
            all.sampled_moments,
            start.elapsed().as_secs_f64()
        );
        assert!(all.whole_moments > 4 * all.sampled_moments);
    }
}

#[test]
fn every_history_of_three_steps_survives_every_crash() {
    let length = crate::setting("CRASH_STEPS", 3);
    try_all(
        &[
            Step::WriteA,
            Step::WriteB,
            Step::WriteBoth,
            Step::FuaA,
            Step::DiscardBoth,
            Step::Flush,
        ],
        usize::try_from(length).unwrap(),
    );
}

/// C-DSC-2.
#[test]
fn every_interleaving_of_writes_and_discards_survives_every_crash() {
    let length = crate::setting("CRASH_STEPS", 3) + 1;
    try_all(
        &[Step::WriteA, Step::DiscardA, Step::ZeroB, Step::Flush],
        usize::try_from(length).unwrap(),
    );
}
