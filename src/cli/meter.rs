//! How far it is, on stderr: a bar on a terminal, a plain line every few seconds elsewhere.

use crate::control::progress::{Progress, ProgressSink, Stage};
use crate::outcome::{Exit, Failure};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// What ends sooner than this needs no line.
const FIRST_LINE: Duration = Duration::from_secs(2);
/// Then one line in so much time.
const NEXT_LINE: Duration = Duration::from_secs(5);

/// Shows progress.
pub(super) struct Meter {
    begun: Instant,
    pace: Pace,
    bar: Option<ProgressBar>,
}

impl Meter {
    /// Asks whether stderr is a terminal.
    pub(super) fn new() -> Meter {
        let bar = io::stderr().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("{bar:30} {msg}").expect("the template is right");
            ProgressBar::new(1000).with_style(style)
        });
        Meter {
            begun: Instant::now(),
            pace: Pace::default(),
            bar,
        }
    }

    pub(super) fn show(&mut self, progress: &Progress) {
        let now = self.begun.elapsed();
        let line = self.pace.line(now, progress);
        if let Some(bar) = &self.bar {
            bar.set_position(progress.permille().unwrap_or(0).into());
            bar.set_message(line);
        } else if self.pace.is_due(now) {
            drop(writeln!(io::stderr().lock(), "{line}"));
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// What to say at which time. Times are from the beginning.
#[derive(Default)]
struct Pace {
    stage: Option<(Stage, Duration, u64)>,
    said: Option<Duration>,
}

impl Pace {
    fn line(&mut self, now: Duration, progress: &Progress) -> String {
        // What is left is reckoned from the first report of a stage, or from where it was set back to.
        let since = match self.stage {
            Some((stage, time, first)) if stage == progress.stage && first <= progress.done => {
                (time, first)
            }
            Some(_) | None => {
                self.stage = Some((progress.stage, now, progress.done));
                (now, progress.done)
            }
        };
        progress.line(Some((now.saturating_sub(since.0), since.1)))
    }

    fn is_due(&mut self, now: Duration) -> bool {
        let due = self.said.map_or(FIRST_LINE, |said| said + NEXT_LINE) <= now;
        if due {
            self.said = Some(now);
        }
        due
    }
}

/// Does `work`, showing what it reports.
pub(super) fn with_meter<T: Send>(work: impl FnOnce(&ProgressSink) -> T) -> T {
    let (sink, mut reports) = ProgressSink::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut meter = Meter::new();
            while let Some(progress) = reports.blocking_recv() {
                meter.show(&progress);
            }
        });
        let result = work(&sink);
        drop(sink);
        result
    })
}

/// The same, for work that goes on elsewhere: an interrupt ends the wait for it, with `goes_on`.
pub(super) fn with_meter_until_interrupted<T: Send + 'static>(
    goes_on: String,
    work: impl FnOnce(&ProgressSink) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot wait for an answer: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let result = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let (sink, mut reports) = ProgressSink::channel();
        let mut work = tokio::task::spawn_blocking(move || work(&sink));
        let mut meter = Meter::new();
        loop {
            tokio::select! {
                result = &mut work => return result.expect("the work does not panic"),
                Some(progress) = reports.recv() => meter.show(&progress),
                Some(()) = interrupt.recv() => return Err(Failure {
                    exit: Exit::Interrupted,
                    message: goes_on,
                }),
            }
        }
    });
    // The thread that waits for the answer is not waited for.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_after_a_while_and_not_too_often() {
        let mut pace = Pace::default();
        let due: Vec<u64> = (0..30)
            .filter(|second| pace.is_due(Duration::from_secs(*second)))
            .collect();
        assert_eq!(due, [2, 7, 12, 17, 22, 27]);
    }

    #[test]
    fn the_rest_is_reckoned_from_the_beginning_of_each_stage() {
        let mut pace = Pace::default();
        let mut line = |second, stage, done: u64| {
            pace.line(
                Duration::from_secs(second),
                &Progress::new(stage, done << 30, 10 << 30),
            )
        };
        assert_eq!(line(0, Stage::Scan, 5), "read 5.0 GiB of 10.0 GiB, 50 %");
        assert_eq!(
            line(10, Stage::Scan, 6),
            "read 6.0 GiB of 10.0 GiB, 60 %, 40 s left"
        );
        assert_eq!(line(20, Stage::Replay, 0), "replayed 0 B of 10.0 GiB, 0 %");
        assert_eq!(
            line(30, Stage::Replay, 5),
            "replayed 5.0 GiB of 10.0 GiB, 50 %, 10 s left"
        );
    }

    #[test]
    fn work_is_done_with_and_without_reports() {
        assert_eq!(with_meter(|_| 7), 7);
        let sum: u64 = with_meter(|sink| {
            (0..100)
                .inspect(|n| sink.report(Progress::new(Stage::Zero, *n, 100)))
                .sum()
        });
        assert_eq!(sum, 4950);
    }

    #[test]
    fn an_interrupt_ends_the_wait_and_not_the_work() {
        let (tell, done) = std::sync::mpsc::channel();
        let result = with_meter_until_interrupted("it goes on".to_owned(), move |sink| {
            sink.report(Progress::new(Stage::Replay, 1, 2));
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::INT)
                .expect("sent");
            std::thread::sleep(Duration::from_millis(300));
            tell.send(()).expect("heard");
            Ok(())
        });
        let interrupted = Failure {
            exit: Exit::Interrupted,
            message: "it goes on".to_owned(),
        };
        assert_eq!(result, Err(interrupted));
        assert!(done.try_recv().is_err(), "the wait has ended first");
        done.recv_timeout(Duration::from_secs(10))
            .expect("the work comes to its end");

        let result = with_meter_until_interrupted(String::new(), |_| Ok(7));
        assert_eq!(result, Ok(7));
        let failure = Failure::refused("no");
        let result: Result<(), _> =
            with_meter_until_interrupted(String::new(), |_| Err(Failure::refused("no")));
        assert_eq!(result, Err(failure));
    }
}
