//! ujournal puts a journal under any filesystem, at the block layer. See `ARCHITECTURE.md`.

#[cfg(feature = "drive")]
pub mod drive;
pub mod engine;
pub mod ublk;
pub mod units;
