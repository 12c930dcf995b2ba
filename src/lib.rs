//! ujournal: a block-level journal in user space.
pub mod engine;
pub mod units;
