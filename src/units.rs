//! Addresses and counts as types of their own.
/// Address on the exposed device, in 512-byte sectors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct Lba(pub u64);
/// Number of a state-changing request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct Seq(pub u64);
/// Position in the ring's endless coordinate, in bytes (ring offset = pos % ring size).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct Pos(pub u64);
