//! The simulator: the real engine, journal and recovery over disks that forget.
//!
//! Nothing here is part of the program. It exists to try, millions of times, what the contract promises:
//! whatever the power, the program or a disk does, the device holds exactly a prefix of what it was given,
//! and all that was flushed.
//!
//! ```text
//!   trial      a seed: an array, a client, lives, crashes          exhaustive, points: all of them, bounded
//!     |
//!     +-- workload   requests; what was promised for them --> oracle, rules    what a device may hold
//!     |
//!     +-- world      [ engine ] with its port, time, operations in flight
//!           |
//!           +-- media      disks: durable and volatile versions of each sector
//!                 |
//!                 +-- cut       what a power cut leaves of them
//!                 +-- faults    what else goes wrong
//! ```
//!
//! Everything is a function of a seed: no clock, no thread, no file, no environment. [`trial::run`] with
//! the same seed and options does the same on every machine; what it prints of a failure ends with the
//! line that repeats it:
//!
//! ```text
//!   SEED=0x2a cargo test --features sim --test crash -- one_seed --nocapture
//! ```
//!
//! A seed that has failed once stays in `tests/crash/regressions.rs`, with a sentence on what it found.
//!
//! * [`random`], [`stamp`], [`story`]: seeded chance; sectors that say what they are; the last events
//! * [`media`], [`faults`], [`cut`]: the media model
//! * [`scenario`], [`world`]: one array, and time
//! * [`workload`], [`oracle`], [`rules`]: requests and what may become of them
//! * [`trial`], [`exhaustive`], [`points`]: what is tried

pub mod cut;
pub mod exhaustive;
pub mod faults;
pub mod media;
pub mod oracle;
pub mod points;
pub mod rules;
pub mod scenario;
pub mod stamp;
pub mod story;
pub mod trial;
pub mod workload;
pub mod world;
