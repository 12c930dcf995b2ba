//! ujournal puts a journal under any filesystem, at the block layer. See `ARCHITECTURE.md`.

pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod disk;
pub mod engine;
pub mod outcome;
pub mod units;
