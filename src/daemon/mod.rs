//! The life of the process that serves an array, from its first step to its last.
//!
//! ```text
//!   ujournal start CONFIG            the process that stays ("daemon")
//!     machine::check
//!     spawn::start  -- executes -->  1. spawn::detach     own session, own folder, pipe for a stdout
//!        |                           2. run dir, lock     one daemon for a name
//!        |                           3. log               from here on everything is written down
//!        |                           4. system::isolate   own mounts, memory locked, IO_FLUSHER
//!        | <---- progress ---------- 5. bring up          recovery, the device: before this nothing is built
//!        | <---- device paths ------ 6. what device it is, link, socket
//!     prints them, exits             7. serve             until stopped, told to end, or dead
//!                                    8. what would point to nothing removed, exit
//! ```
//!
//! The process that stays is executed anew rather than forked: it begins with nothing but its
//! arguments, and the kernel's rule that one and the same process opens and starts a ublk device is
//! kept whatever the caller does. With `--foreground` the same steps from 2 on run in the caller.
//!
//! Dying at any step is as good as a crash, and a crash is always recoverable: so nothing here tries
//! to clean up what it cannot.

pub mod link;
pub mod log;
pub mod machine;
pub mod ready;
pub mod spawn;
pub mod system;

use crate::config::{ArrayName, Config};
use crate::control::port::Port;
use crate::control::progress::{Progress, ProgressSink, Stage};
use crate::control::run_dir::{DaemonLock, DeviceRecord, Phase, RunDir};
use crate::control::server::{self, End, Turn};
use crate::control::status::{DeviceStatus, Facts};
use crate::outcome::Failure;
use ready::{Ready, Started};
use std::fs;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// An array that has been brought up.
#[derive(Debug)]
pub struct Up<P> {
    /// What answers for it.
    pub port: P,
    /// What does not change while it runs.
    pub facts: Facts,
}

/// Serves the array of `config` until its end: steps 2 to 8.
///
/// `bring_up` does all that concerns disks and the kernel's device; the report that it is given takes
/// it from there. Whoever waits behind `ready` is told of every failure up to step 6, later ones go to
/// the log.
pub fn run<P: Port + 'static>(
    config: &Config,
    run_dir: &RunDir,
    mut ready: Ready,
    bring_up: impl FnOnce(&ProgressSink) -> Result<Up<P>, Failure>,
) -> Result<(), Failure> {
    run_dir.create()?;
    let lock = run_dir.lock(&config.name, |waited| {
        let daemon = format!("the killed daemon of {}", config.name);
        ready.progress(&Progress::new(Stage::Wait, millis(waited), 0).of_part(daemon));
        Ok(())
    })?;
    log::begin(&run_dir.log(&config.name), ready.echo())?;
    tracing::info!(
        "ujournal {} (pid {}) starts array {} from {}",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        config.name,
        config.file.display()
    );
    let mounts = system::isolate()?;

    // Reports are told by a thread of their own, for bringing up waits for nobody.
    let (sink, mut reports) = ProgressSink::channel();
    let (ready, brought_up) = std::thread::scope(|scope| {
        let teller = scope.spawn(move || {
            while let Some(progress) = reports.blocking_recv() {
                ready.progress(&progress);
            }
            ready
        });
        let brought_up = bring_up(&sink);
        drop(sink);
        (teller.join().expect("telling does not panic"), brought_up)
    });
    let Up { port, facts } = brought_up.inspect_err(|failure| tracing::error!("{failure}"))?;
    if let Some(recovery) = &facts.recovery {
        let line = serde_json::to_string(recovery).expect("plain data always has a JSON form");
        tracing::info!("start {line}");
    }

    let DeviceStatus { block, link, .. } = facts.device.clone();
    if mounts == system::Mounts::Own {
        system::detach_mounts_of(&block);
    }
    let record = DeviceRecord {
        uuid: facts.uuid,
        device: facts.device,
    };
    if let Err(error) = run_dir.record_device(&config.name, &record, &lock) {
        tracing::warn!(
            "{}: cannot be written: {error}; if this daemon dies, list does not know the device",
            run_dir.device_file(&config.name).display()
        );
    }
    if let Err(error) = link::make(&link, &block) {
        // The array serves, and its own path works.
        tracing::warn!(
            "{}: cannot link to {}: {error}",
            link.display(),
            block.display()
        );
    }
    let listener = run_dir
        .listen(&config.name, &lock)
        .inspect_err(|failure| tracing::error!("{failure}"))?;
    let foreground = ready.is_foreground();
    let started = Started {
        block: block.clone(),
        link: link.clone(),
    };
    // Told only once a signal ends it in order: whoever was told may send one at once.
    let begin = move || {
        let signals = signals(foreground)?;
        ready.started(&started);
        Ok(signals)
    };
    let lock = Rc::new(lock);
    let told = {
        let (lock, run_dir, name) = (Rc::clone(&lock), run_dir.clone(), config.name.clone());
        move |turn: Turn<'_>| match turn {
            Turn::Stopping => lock.tell(Phase::Stopping),
            Turn::Serving => lock.tell(Phase::Serving),
            Turn::Ended(end) => {
                lock.tell(Phase::Stopping);
                log_end(end);
                tidy(&run_dir, &name, &record.device, &lock);
            }
        }
    };
    let end = server::serve(listener, port, begin, told);
    drop(lock);
    match end {
        Ok(End::Stopped(_)) => Ok(()),
        Ok(End::StoppedDirty(_, failure) | End::Died(failure)) => Err(failure),
        Err(error) => {
            let failure = Failure::failed(format!("the control plane cannot run: {error}"));
            tracing::error!("{failure}");
            Err(failure)
        }
    }
}

fn log_end(end: &End) {
    match end {
        End::Stopped(how) => {
            tracing::info!("ended as asked ({how:?})");
        }
        End::StoppedDirty(how, failure) => {
            tracing::error!("ended ({how:?}), and is dirty: {failure}");
        }
        End::Died(failure) => {
            tracing::error!("cannot go on: {failure}");
        }
    }
}

/// Removes what would point to nothing, when an array is no longer served. The device itself is somebody
/// else's business: one that is left for a takeover keeps its link, and what is written down of it.
pub fn tidy(run_dir: &RunDir, name: &ArrayName, device: &DeviceStatus, _held: &DaemonLock) {
    let removed = |path: &Path, result: io::Result<()>| match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("{}: cannot be removed: {error}", path.display());
        }
        Ok(()) | Err(_) => {}
    };
    let socket = run_dir.socket(name);
    removed(&socket, fs::remove_file(&socket));
    if !device.block.exists() {
        removed(&device.link, link::remove(&device.link, &device.block));
        let record = run_dir.device_file(name);
        removed(&record, fs::remove_file(&record));
    }
}

/// The signals that ask for the end. A daemon has no terminal whose loss could mean anything.
fn signals(foreground: bool) -> io::Result<mpsc::Receiver<&'static str>> {
    let (sender, receiver) = mpsc::channel(1);
    let mut wanted = vec![
        ("SIGTERM", SignalKind::terminate()),
        ("SIGINT", SignalKind::interrupt()),
    ];
    if foreground {
        wanted.push(("SIGHUP", SignalKind::hangup()));
    }
    for (name, kind) in wanted {
        let mut signals = signal(kind)?;
        let sender = sender.clone();
        tokio::task::spawn_local(async move {
            while signals.recv().await.is_some() {
                match sender.try_send(name) {
                    // One wish at a time is enough.
                    Ok(()) | Err(_) => {}
                }
            }
        });
    }
    Ok(receiver)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
