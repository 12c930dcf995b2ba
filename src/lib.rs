//! ujournal puts a journal under any filesystem, at the block layer. See `ARCHITECTURE.md`.

pub mod config;
pub mod control;
pub mod disk;
pub mod engine;
pub mod outcome;
pub mod units;
