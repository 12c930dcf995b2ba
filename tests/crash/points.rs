//! Label, start and stop at each of their operations; the journal damaged at each of its frames.

use crate::{in_parallel, setting};
use ujournal::sim::points::{Damages, Points, damage, run};

#[test]
fn label_start_and_stop_may_be_cut_at_every_operation() {
    let wanted = setting("CRASH_POINTS", 12);
    let total = in_parallel(
        Points::default(),
        |seed| run(seed).unwrap_or_else(|what| panic!("{what}")),
        |total, points| {
            total.label += points.label;
            total.recovery += points.recovery;
            total.nested += points.nested;
            total.start += points.start;
            total.killed += points.killed;
            total.stop += points.stop;
            total.stale += points.stale;
        },
        |number, _| number < wanted,
    );
    println!("{total:?}");
    for count in [
        total.label,
        total.recovery,
        total.nested,
        total.start,
        total.killed,
        total.stop,
        total.stale,
    ] {
        assert!(count > wanted, "{total:?}");
    }
}

#[test]
fn damage_is_refused_or_does_not_matter_and_one_copy_may_always_be_lost() {
    let wanted = setting("CRASH_POINTS", 12) * 4;
    let total = in_parallel(
        Damages::default(),
        |seed| damage(seed).unwrap_or_else(|what| panic!("{what}")),
        |total, damages| {
            total.frames += damages.frames;
            total.refused += damages.refused;
            total.copies += damages.copies;
        },
        |number, _| number < wanted,
    );
    println!("{total:?}");
    assert!(total.refused > 2 * wanted, "{total:?}");
    assert!(total.copies > 4 * wanted, "{total:?}");
}
