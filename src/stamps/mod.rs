//! A load that can tell afterwards what a device must hold.
//!
//! Every sector that it writes is a stamp: who wrote it, which of his writes it was, where it belongs, and
//! a checksum. Outside the device a log says what was submitted and what was acknowledged. After a crash,
//! of the server or of the machine, the two together decide whether anything was lost that had been
//! promised, whether anything came back that was gone, and whether the device holds a prefix of what it
//! was given.
//!
//! ```text
//!   writers 0 .. depth-1, one region of the device each, at most one request of each in flight
//!
//!     choose  ->  log: submitted  ->  ring  ->  completion  ->  log: acknowledged
//!                 (in the file before the ring gets the request)
//! ```
//!
//! A region has one writer and a writer one request at a time, so the versions of a sector have one order
//! and the newest acknowledged one is known exactly. Between regions the log is the order: what was logged
//! as acknowledged before something else was logged as submitted really came before it.
//!
//! * `stamp` is the sector's format, `log` the log's.
//! * `ring` is an `io_uring` with its buffers, `load` the writers on top of it.
//! * `check` decides. It is a pure function of the log and of what the sectors hold.
//!
//! It is a tool for tests. It never repairs and never tries again: any error of the device ends it.

pub mod check;
pub mod load;
pub mod log;
mod ring;
pub mod stamp;

/// Which of the load's writers: the place of its region, too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Writer(pub u16);

impl Writer {
    /// As an index into a list of writers.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Which of a writer's writes, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Counter(pub u64);

/// One run of the load: stamps of another run are not its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seed(pub u64);

/// Bytes in a sector, as an index.
const SECTOR_LEN: usize = 512;
