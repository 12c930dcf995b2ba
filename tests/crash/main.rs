//! Crashes: the real engine, journal and recovery over disks that forget what was not flushed.
//!
//! Goal: C-ORD, C-DUR, C-ATM, C-RD-1, C-DSC, C-REP, C-REC-9, C-ID-17 and C-LIF-1 of the contract, by
//! trying what a power cut or the death of the program can leave behind, as often as time allows.
//!
//! Method, by file:
//!
//! * `histories`: random arrays and histories, several lives each, crashes tried on forks of the disks
//! * `small`: all small histories, every crash point, all that a cut can leave
//! * `points`: label, start and stop cut at each of their operations, recoveries in recoveries
//! * `regressions`: seeds that have failed once, and what they found
//! * `canaries`: disks that lie, which must be caught; else all of this proves nothing
//!
//! Counts are small by default. `CRASH_IMAGES=1000000` asks `histories` for so many different crash
//! images; `CRASH_SEED=N` begins elsewhere. A failure prints the line that repeats it.

mod canaries;
mod histories;
mod points;
mod regressions;
mod small;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("{name}={text} is not a number"))
}

/// Runs `job` for numbers from 0 on, on every processor, for as long as `more` says so of what has come
/// together; what each job gives is handed to `add` with all that there is so far.
fn in_parallel<T: Send, O>(
    total: T,
    job: impl Fn(u64) -> O + Sync,
    add: impl Fn(&mut T, O) + Sync,
    more: impl Fn(u64, &T) -> bool + Sync,
) -> T {
    let next = AtomicU64::new(0);
    let total = Mutex::new(total);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    // Whoever panicked has said why; the others may as well go on to their end.
                    if !more(
                        number,
                        &total.lock().unwrap_or_else(PoisonError::into_inner),
                    ) {
                        return;
                    }
                    let outcome = job(number);
                    let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                    add(&mut total, outcome);
                }
            });
        }
    });
    total.into_inner().unwrap_or_else(PoisonError::into_inner)
}
