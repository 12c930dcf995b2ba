//! Label, start and stop at each of their operations.

use crate::{in_parallel, setting};
use ujournal::sim::points::{Points, run};

#[test]
fn label_start_and_stop_may_be_cut_at_every_operation() {
    let wanted = setting("CRASH_POINTS", 40);
    let total = in_parallel(
        Points::default(),
        |seed| run(seed).unwrap_or_else(|what| panic!("{what}")),
        |total, points| {
            total.label += points.label;
            total.recovery += points.recovery;
            total.nested += points.nested;
            total.start += points.start;
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
        total.stop,
        total.stale,
    ] {
        assert!(count > wanted, "{total:?}");
    }
}
