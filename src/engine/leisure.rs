//! Leisure: how much of the last stretch of time nobody asked for anything.
//!
//! Replay that runs beside requests takes the disks and the processor away from them. Where few come, it
//! does not matter, and it is better done while the data is still in the window than later, from disk.

use std::time::Duration;

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Leisure {
    /// How far back it looks, about.
    stretch: Duration,
    /// Of the time that is remembered, what was quiet, and all of it.
    quiet: Duration,
    whole: Duration,
    /// The last turn, and whether nothing waited when it ended.
    noted_at: Duration,
    quiet_since: bool,
}

impl Leisure {
    pub(super) fn new(stretch: Duration) -> Leisure {
        Leisure {
            stretch,
            quiet: Duration::ZERO,
            whole: Duration::ZERO,
            noted_at: Duration::ZERO,
            quiet_since: true,
        }
    }

    /// The turn at `now` ends, and leaves so many requests `pending`.
    pub(super) fn note(&mut self, now: Duration, pending: usize) {
        let passed = now.saturating_sub(self.noted_at);
        self.whole += passed;
        if self.quiet_since {
            self.quiet += passed;
        }
        self.noted_at = now;
        self.quiet_since = pending == 0;
        // The past counts half as much with every stretch.
        while self.whole > self.stretch {
            self.whole /= 2;
            self.quiet /= 2;
        }
    }

    /// Whether three quarters of the last stretch were quiet.
    pub(super) fn prevails(&self) -> bool {
        self.whole >= self.stretch / 4 && self.quiet * 4 >= self.whole * 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Requests take `busy` of each `period`, for `turns` of them.
    fn load(
        leisure: &mut Leisure,
        from: Duration,
        turns: u32,
        period: Duration,
        busy: Duration,
    ) -> Duration {
        for turn in 0..turns {
            let begins = from + period * turn;
            leisure.note(begins, 1);
            leisure.note(begins + busy, 0);
        }
        from + period * turns
    }

    #[test]
    fn a_light_load_leaves_time_and_a_heavy_one_does_not() {
        for (busy, leaves_time) in [(1, true), (2, true), (3, false), (9, false)] {
            let mut leisure = Leisure::new(100 * MS);
            load(&mut leisure, Duration::ZERO, 100, 10 * MS, busy * MS);
            assert_eq!(leisure.prevails(), leaves_time, "{busy} of 10 ms are busy");
        }
    }

    #[test]
    fn what_was_long_ago_does_not_matter() {
        let mut leisure = Leisure::new(100 * MS);
        let then = load(&mut leisure, Duration::ZERO, 1000, 10 * MS, 9 * MS);
        assert!(!leisure.prevails());
        let then = load(&mut leisure, then, 50, 10 * MS, MS);
        assert!(leisure.prevails());
        load(&mut leisure, then, 50, 10 * MS, 9 * MS);
        assert!(!leisure.prevails());
    }

    #[test]
    fn nothing_is_said_of_a_stretch_that_has_hardly_begun() {
        let mut leisure = Leisure::new(100 * MS);
        leisure.note(24 * MS, 0);
        assert!(!leisure.prevails());
        leisure.note(25 * MS, 0);
        assert!(leisure.prevails());
    }
}
