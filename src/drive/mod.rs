//! An emulated disk with a real volatile cache, for power cuts in the lab.
//!
//! A disk that answers a write has not stored it: the data is in a cache, goes to the medium sector by
//! sector in an order of the disk's own, and is lost in a power cut. Only a FLUSH that was answered, or FUA
//! on the write itself, says that it is stored. Kernel disks in the lab store every write at once, so that
//! whoever forgets a flush would never be found out there. This disk forgets.
//!
//! ```text
//!    WRITE --> cache (memory of this process) --- destage, some sectors at random times ---> store
//!                 |                                                                          (a file)
//!                 +-- all that was answered before a FLUSH, the sectors of a FUA write ------->
//! ```
//!
//! The store is a disk of the lab, or a part of one: what completed there outlives the lab. Killing the lab
//! with SIGKILL is then the power cut: of each sector the last version is stored, or an earlier one,
//! independently of all other sectors, unless a FLUSH or FUA covered it.
//!
//! * `directory` says which sectors the cache holds and in what state: plain state, no memory, no I/O.
//! * `server` moves the data and decides when what is destaged.
//!
//! It is a tool for tests: an error of the store breaks the drive for good, and all it answers from then
//! on are errors.

mod directory;
mod server;

pub use server::{Drive, Gauge, Plan, Trip, TripOp};
