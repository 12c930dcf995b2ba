//! ujournal puts a journal under any filesystem, at the block layer. See `ARCHITECTURE.md`.

pub mod array;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod disk;
#[cfg(feature = "drive")]
pub mod drive;
pub mod engine;
pub mod journal;
pub mod kernel;
pub mod outcome;
#[cfg(any(test, feature = "sim", feature = "drive"))]
pub mod random;
pub mod serve;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
#[cfg(feature = "drive")]
pub mod stamps;
pub mod ublk;
pub mod units;
