//! ujournal puts a journal under any filesystem, at the block layer. See `ARCHITECTURE.md`.

pub mod disk;
pub mod engine;
pub mod journal;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod ublk;
pub mod units;
