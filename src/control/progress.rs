//! How far something long has got, on its way from where it is done to whoever waits.
//!
//! Reports are for the eye: one that finds no room is dropped, and whoever reports never waits.

use crate::config::quantity::size_rough;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::mpsc;

/// How far something long has got.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// What is being done.
    pub stage: Stage,
    /// So much of it, in the unit of the stage.
    pub done: u64,
    /// All of it; 0 if that is not known.
    pub total: u64,
    /// The part that it is about, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
}

/// What is being done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Waiting for a part, or for a lock that a dying daemon still holds; in milliseconds.
    Wait,
    /// Writing zeroes over the ring of a new journal; in bytes.
    Zero,
    /// Reading the journal to see what it holds; in bytes.
    Scan,
    /// Copying home; in bytes.
    Replay,
}

impl Progress {
    /// `done` of `total` of `stage`.
    pub fn new(stage: Stage, done: u64, total: u64) -> Progress {
        Progress {
            stage,
            done,
            total,
            part: None,
        }
    }

    /// The same, naming a part.
    pub fn of_part(self, part: impl Into<String>) -> Progress {
        Progress {
            part: Some(part.into()),
            ..self
        }
    }

    /// The finished part in thousandths, if the whole is known.
    pub fn permille(&self) -> Option<u16> {
        let share = u128::from(self.done.min(self.total)) * 1000;
        let permille = share.checked_div(u128::from(self.total))?;
        Some(u16::try_from(permille).expect("at most 1000"))
    }

    /// As one line: `replayed 1.2 GiB of 3.4 GiB, 35 %, 12 s left`. `since` says how long ago which
    /// `done` was seen first: from that the rest is reckoned.
    pub fn line(&self, since: Option<(Duration, u64)>) -> String {
        let verb = match self.stage {
            Stage::Wait => "waited",
            Stage::Zero => "zeroed",
            Stage::Scan => "read",
            Stage::Replay => "replayed",
        };
        let mut line = format!("{verb} {}", self.amount(self.done));
        if self.total > 0 {
            line.push_str(&format!(" of {}", self.amount(self.total.max(self.done))));
        }
        if let Some(part) = &self.part {
            let preposition = if self.stage == Stage::Wait {
                "for"
            } else {
                "of"
            };
            line.push_str(&format!(" {preposition} {part}"));
        }
        // How long a wait may still last is what it says already.
        if self.stage != Stage::Wait {
            if let Some(permille) = self.permille() {
                line.push_str(&format!(", {} %", permille / 10));
            }
            if let Some(left) = since.and_then(|(time, first)| self.left(time, first)) {
                line.push_str(&format!(", {} left", time_rough(left)));
            }
        }
        line
    }

    fn amount(&self, n: u64) -> String {
        match self.stage {
            Stage::Wait => format!("{} s", n / 1000),
            Stage::Zero | Stage::Scan | Stage::Replay => size_rough(n),
        }
    }

    /// How long the rest takes if it goes on as it went for `time`, from `first` on.
    fn left(&self, time: Duration, first: u64) -> Option<Duration> {
        let made = u128::from(self.done.checked_sub(first)?);
        let rest = u128::from(self.total.checked_sub(self.done)?);
        let ms = time.as_millis().checked_mul(rest)?.checked_div(made)?;
        Some(Duration::from_millis(u64::try_from(ms).ok()?))
    }
}

/// A time for the eye: `12 s`, `3 min`, `2 h 5 min`, `4 d 3 h`.
pub fn time_rough(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// Where reports go.
#[derive(Clone, Debug)]
pub struct ProgressSink(mpsc::Sender<Progress>);

impl ProgressSink {
    /// A sink and its other end. A few reports may be under way; more are dropped.
    pub fn channel() -> (ProgressSink, mpsc::Receiver<Progress>) {
        let (sender, receiver) = mpsc::channel(4);
        (ProgressSink(sender), receiver)
    }

    /// Passes a report on if there is room for it. Never waits; may be called from any thread.
    pub fn report(&self, progress: Progress) {
        // Full: the next report says more. Closed: nobody waits any longer, the work goes on.
        drop(self.0.try_send(progress));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_much_of_how_much_and_how_long_still() {
        let gib = 1 << 30;
        let progress = Progress::new(Stage::Replay, gib, 4 * gib);
        let since = Some((Duration::from_secs(10), 0));
        assert_eq!(
            progress.line(since),
            "replayed 1.0 GiB of 4.0 GiB, 25 %, 30 s left"
        );
        assert_eq!(progress.line(None), "replayed 1.0 GiB of 4.0 GiB, 25 %");
        // Nothing done since, nothing known, more done than there was: no rest is made up.
        let since = Some((Duration::from_secs(10), gib));
        assert_eq!(progress.line(since), "replayed 1.0 GiB of 4.0 GiB, 25 %");
        assert_eq!(
            Progress::new(Stage::Scan, gib, 0).line(None),
            "read 1.0 GiB"
        );
        let over = Progress::new(Stage::Replay, 5 * gib, 4 * gib);
        assert_eq!(over.line(None), "replayed 5.0 GiB of 5.0 GiB, 100 %");
        let wait = Progress::new(Stage::Wait, 3000, 60_000).of_part("/dev/sdb");
        assert_eq!(wait.line(None), "waited 3 s of 60 s for /dev/sdb");
        let zero = Progress::new(Stage::Zero, gib, 2 * gib).of_part("/srv/journal");
        assert_eq!(
            zero.line(None),
            "zeroed 1.0 GiB of 2.0 GiB of /srv/journal, 50 %"
        );
        let huge = Progress::new(Stage::Replay, u64::MAX, u64::MAX);
        assert!(
            huge.line(Some((Duration::MAX, 1)))
                .ends_with("100 %, 0 s left")
        );
    }

    #[test]
    fn times_have_two_units_at_most() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (61, "1 min 1 s"),
            (7500, "2 h 5 min"),
            (356_400, "4 d 3 h"),
        ] {
            assert_eq!(time_rough(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_report_that_finds_no_room_is_dropped() {
        let (sink, mut receiver) = ProgressSink::channel();
        for n in 0..100 {
            sink.report(Progress::new(Stage::Replay, n, 100));
        }
        assert_eq!(receiver.try_recv().expect("the first").done, 0);
        drop(receiver);
        sink.report(Progress::new(Stage::Replay, 1, 1));
    }
}
