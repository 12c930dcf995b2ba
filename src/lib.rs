//! ujournal puts a journal under any filesystem, at the block layer. See `ARCHITECTURE.md`.

pub mod config;
pub mod disk;
pub mod engine;
pub mod journal;
pub mod ublk;
pub mod units;
