//! ujournal puts a journal under any filesystem, at the block layer. See `ARCHITECTURE.md`.

pub mod engine;
pub mod ublk;
pub mod units;
