//! The control plane's half of a served array: answers for it, watches its health, and ends it.
//!
//! ```text
//!   stop           sync home --> STOP_DEV --> replay the rest --> queue thread ends
//!                                             --> superblocks clean --> DEL_DEV
//!   stop --force   STOP_DEV --> replay --> the same
//!   leave          replay for a while --> flush, close --> queue thread ends --> anchor closed
//!                                                          the device stays for a takeover
//! ```
//!
//! All on one thread, which waits for no disk while the array is served. Superblocks are written from here:
//! when the array's health becomes worse (`health`), and at the end.

use super::Running;
use super::health::Recorder;
use crate::control::in_use::{Claim, DeviceHold, claim_elsewhere};
use crate::control::port::{Port, RingPort, Stop, StopEnd};
use crate::control::progress::ProgressSink;
use crate::control::status::{Facts, PartTrouble, State, Status};
use crate::engine::recovery;
use crate::engine::{Close, Condition, Engine};
use crate::journal::assemble::{Flushes, Set};
use crate::journal::superblock::Health;
use crate::outcome::{Failure, sentence};
use crate::serve::server::{ArrayServer, reason};
use crate::ublk::{Device, End, Serving};
use crate::units::Seq;
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, watch};

/// How often the array's health is looked at.
const WATCH_EVERY: Duration = Duration::from_millis(250);

/// A part that returns errors is in the log this often.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// See the head of the file.
#[derive(Debug)]
pub struct Plane {
    ring: RingPort,
    facts: Facts,
    serving: RefCell<Option<Serving<ArrayServer>>>,
    set: RefCell<Set>,
    recorder: Recorder,
    /// Held by whoever writes superblocks, for as long as an ill disk takes; to ask needs no lock.
    recording: Mutex<()>,
    /// What was found of a part that had become smaller. It is kept, for a write to what is missing makes the
    /// part as large as it was.
    shrunk: RefCell<Option<String>>,
    /// Becomes true when the queue thread has ended.
    ended: watch::Receiver<bool>,
    /// An end was asked for: that the thread ends is no surprise.
    ending: Cell<bool>,
}

impl Plane {
    /// Over an array that is being served.
    pub fn new(running: Running, ring: RingPort, ended: watch::Receiver<bool>) -> Plane {
        Plane {
            ring,
            facts: running.facts,
            serving: RefCell::new(Some(running.serving)),
            set: RefCell::new(running.set),
            shrunk: RefCell::new(None),
            recorder: Recorder::new(running.files),
            recording: Mutex::new(()),
            ended,
            ending: Cell::new(false),
        }
    }

    /// What does not change while the array runs.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    async fn thread_ended(&self) {
        let mut ended = self.ended.clone();
        // The sender lives on the queue thread: if it is gone, so is the thread.
        drop(ended.wait_for(|ended| *ended).await);
    }

    /// Writes down, on every part that still takes it, that the array's health has become worse.
    async fn record_health(
        &self,
        health: Health,
        seq: Seq,
        reason: Option<&str>,
        flushes: Flushes,
    ) {
        let _recording = self.recording.lock().await;
        if self.set.borrow().health() >= health {
            return;
        }
        let reason = reason.unwrap_or("unknown");
        tracing::error!(%health, reason, "the array's health has changed");
        let steps = self.set.borrow_mut().note_health(health, seq, flushes);
        for (part, error) in self.recorder.record(steps).await {
            let name = &self.facts.parts[part.index()].path;
            tracing::error!(
                "{}: the state cannot be recorded there: {error}",
                name.display()
            );
        }
    }

    /// The same for the end of an array, which nobody watches any more. Nothing else writes superblocks
    /// when it returns.
    async fn record_last_health(&self, engine: &Engine) {
        let health = match engine.condition() {
            Condition::Ok => Health::Ok,
            Condition::Degraded => Health::Degraded,
            Condition::Failed => Health::Failed,
        };
        let reason = reason(engine.condition());
        self.record_health(health, engine.acked_seq(), reason, Flushes::Anybodys)
            .await;
    }

    /// Whether a part has lost some of its end under us, now or before, in a sentence.
    fn shrunk(&self) -> Option<String> {
        let mut known = self.shrunk.borrow().clone();
        if known.is_none() {
            known = self.shrunk_now();
            self.shrunk.borrow_mut().clone_from(&known);
        }
        known
    }

    fn shrunk_now(&self) -> Option<String> {
        let sizes: Vec<u64> = {
            let set = self.set.borrow();
            set.superblocks.iter().map(|sb| sb.part_size).collect()
        };
        let (part, found) = self.recorder.shrunk(&sizes)?;
        let path = self.facts.parts[part.index()].path.display();
        let expected = sizes[part.index()];
        if found == 0 {
            return Some(format!("{path}: the disk has gone"));
        }
        Some(format!(
            "{path}: somebody has cut it off at {found} bytes, expected {expected}: what lay behind is lost"
        ))
    }

    /// Looks after the array's health for ever.
    async fn watch_health(&self) -> Infallible {
        let mut stalled = 0;
        let mut told = Told::new(self.facts.parts.len());
        let mut shrunk = false;
        loop {
            tokio::time::sleep(WATCH_EVERY).await;
            let live = match self.ring.live().await {
                Ok(live) => live,
                Err(_) if self.ending.get() => continue,
                // The thread that would tell how long requests have been waiting does not answer.
                Err(failure) => {
                    tracing::error!("{failure}");
                    continue;
                }
            };
            if live.stalled.len() > stalled {
                let longest = live.stalled.iter().map(|request| request.ms / 1000).max();
                tracing::warn!(
                    requests = live.stalled.len(),
                    longest_s = longest.unwrap_or(0),
                    "requests have been waiting for more than 30 s"
                );
            }
            stalled = live.stalled.len();
            if !shrunk && let Some(sentence) = self.shrunk() {
                shrunk = true;
                tracing::error!("{sentence}");
                let (seq, flushes) = (live.last_seq, Flushes::TheEngines);
                self.record_health(Health::Degraded, seq, Some(&sentence), flushes)
                    .await;
            }
            for trouble in live.troubles.iter().filter(|trouble| told.is_news(trouble)) {
                let errors = trouble.count;
                tracing::error!(errors, "{}", trouble.sentence(&self.facts));
            }
            let health = match live.state {
                State::Clean | State::Dirty => Health::Ok,
                State::Degraded => Health::Degraded,
                State::Failed => Health::Failed,
            };
            // What has FAILED answers no FLUSH and lets go of nothing.
            let flushes = match health {
                Health::Ok | Health::Degraded => Flushes::TheEngines,
                Health::Failed => Flushes::Anybodys,
            };
            self.record_health(health, live.last_seq, live.reason.as_deref(), flushes)
                .await;
        }
    }

    /// Waits for the queue thread and takes its server back.
    async fn join(&self) -> Result<(ArrayServer, Result<End, crate::ublk::Error>), Failure> {
        self.thread_ended().await;
        let serving = self.serving.borrow_mut().take();
        serving
            .map(Serving::join)
            .ok_or_else(|| Failure::failed("the array has ended already"))
    }

    /// Waits, on a thread that may wait, until the kernel has taken the device away.
    async fn stop_device(&self, hold: Option<DeviceHold>) -> Result<(), Failure> {
        let id = self.device_id();
        let stopped = tokio::task::spawn_blocking(move || Device::stop(id)).await;
        drop(hold);
        match stopped {
            Ok(stopped) => stopped.map_err(|error| Failure::failed(sentence(&error))),
            Err(error) => Err(Failure::failed(format!("STOP_DEV: {error}"))),
        }
    }

    /// The end of a stop, once the device is gone: marks what is home, and removes the device.
    async fn finish_stop(&self) -> StopEnd {
        let (server, ended) = match self.join().await {
            Ok(joined) => joined,
            Err(failure) => return StopEnd::StoppedDirty(failure),
        };
        // Before anything else: it may be the last chance.
        let engine = server.engine();
        self.record_last_health(engine).await;
        if let Err(error) = ended {
            return StopEnd::StoppedDirty(Failure::failed(sentence(&error)));
        }
        let shrunk = self.shrunk();
        let closed = if let Some(sentence) = shrunk {
            Err(Failure::failed(format!(
                "{sentence}; the array stays dirty"
            )))
        } else if engine.condition() == Condition::Failed || !engine.is_closed() {
            Err(Failure::failed(
                "not everything could be brought home, so the array stays dirty: start it again when its parts are well",
            ))
        } else {
            recovery::close(&mut self.set.borrow_mut(), engine, Close::Stop)
                .map_err(|error| Failure::failed(sentence(&error)))
        };
        drop(server);
        let id = self.device_id();
        let deleted = Device::delete(id).map_err(|error| Failure::failed(sentence(&error)));
        match closed.and(deleted) {
            Ok(()) => StopEnd::Stopped,
            Err(failure) => StopEnd::StoppedDirty(failure),
        }
    }

    fn device_id(&self) -> u32 {
        let name = self.facts.device.block.display().to_string();
        name.trim_start_matches("/dev/ublkb")
            .parse()
            .expect("the path was made from the number")
    }

    async fn leave(&self, progress: ProgressSink) -> StopEnd {
        let asked = async {
            tokio::select! {
                biased;
                left = self.ring.stop(Stop::Leave, progress) => left,
                () = self.thread_ended() => Ok(()),
            }
        };
        if let Err(failure) = asked.await {
            tracing::error!("leaving: {failure}");
        }
        let (server, ended) = match self.join().await {
            Ok(joined) => joined,
            Err(failure) => return StopEnd::StoppedDirty(failure),
        };
        let engine = server.engine();
        self.record_last_health(engine).await;
        if let Err(error) = ended {
            return StopEnd::StoppedDirty(Failure::failed(sentence(&error)));
        }
        if engine.condition() == Condition::Failed {
            return StopEnd::StoppedDirty(Failure::failed("the array has FAILED"));
        }
        match recovery::close(&mut self.set.borrow_mut(), engine, Close::Handover) {
            Ok(()) => StopEnd::Stopped,
            Err(error) => StopEnd::StoppedDirty(Failure::failed(sentence(&error))),
        }
    }
}

impl Port for Plane {
    async fn status(&self) -> Result<Status, Failure> {
        let mut status = Status::new(&self.facts, self.ring.live().await?);
        status.warnings.extend(self.shrunk());
        Ok(status)
    }

    async fn sync(&self, progress: ProgressSink) -> Result<(), Failure> {
        self.ring.sync(progress).await
    }

    async fn stop(&self, how: Stop, hold: Option<DeviceHold>, progress: ProgressSink) -> StopEnd {
        let end = self.end(how, hold, progress).await;
        if matches!(end, StopEnd::StillServing(_)) {
            self.ending.set(false);
        }
        end
    }

    async fn ended(&self) -> Failure {
        self.thread_ended().await;
        if self.ending.get() {
            return std::future::pending().await;
        }
        match self.finish_stop().await {
            StopEnd::Stopped => {
                Failure::failed("the device was stopped by another program; everything is home")
            }
            StopEnd::StoppedDirty(failure) | StopEnd::StillServing(failure) => failure,
        }
    }

    async fn watch(&self) -> Infallible {
        self.watch_health().await
    }

    async fn claim(&self) -> Result<Claim, Failure> {
        claim_elsewhere(self.facts.device.block.clone()).await
    }
}

impl Plane {
    async fn end(&self, how: Stop, hold: Option<DeviceHold>, progress: ProgressSink) -> StopEnd {
        match how {
            Stop::Clean => {
                if let Err(failure) = self.ring.stop(Stop::Clean, progress).await {
                    return StopEnd::StillServing(failure);
                }
                self.ending.set(true);
                if let Err(failure) = self.stop_device(hold).await {
                    return StopEnd::StillServing(failure);
                }
                self.finish_stop().await
            }
            Stop::Forced => {
                self.ending.set(true);
                // Asked first, so that the answer is on its way before the device is gone; and the queue
                // thread may end without one, if it had nothing left to do.
                let replayed = async {
                    tokio::select! {
                        biased;
                        replayed = self.ring.stop(Stop::Forced, progress) => replayed,
                        () = self.thread_ended() => Ok(()),
                    }
                };
                // The wait for what is home ends with the device; if that cannot be stopped, at once.
                let stopped = async {
                    let stopped = self.stop_device(hold).await;
                    if stopped.is_err() {
                        self.ring.withdraw_stop()?;
                    }
                    stopped
                };
                let (replayed, stopped) = tokio::join!(replayed, stopped);
                if let Err(failure) = stopped {
                    return StopEnd::StillServing(failure);
                }
                if let Err(failure) = replayed {
                    tracing::error!("stop --force: {failure}");
                }
                self.finish_stop().await
            }
            Stop::Leave => {
                self.ending.set(true);
                self.leave(progress).await
            }
        }
    }
}

/// Which errors of which parts are in the log already.
struct Told(Vec<Option<(Instant, u64)>>);

impl Told {
    fn new(parts: usize) -> Told {
        Told(vec![None; parts])
    }

    /// Whether there is something to tell, and it is not too soon after the last time.
    fn is_news(&mut self, trouble: &PartTrouble) -> bool {
        let last = &mut self.0[trouble.part];
        let is_news =
            last.is_none_or(|(at, count)| count < trouble.count && at.elapsed() >= TELL_EVERY);
        if is_news {
            *last = Some((Instant::now(), trouble.count));
        }
        is_news
    }
}

impl Drop for Plane {
    /// An end that nobody planned for, before or beside the orderly ones: the process goes, and the device
    /// stays for a takeover.
    fn drop(&mut self) {
        if let Some(serving) = self.serving.get_mut().take() {
            serving.detach();
        }
    }
}
