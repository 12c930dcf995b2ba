//! A served array: the engine on its queue thread, and the control plane beside it.
//!
//! * [`server`]: what runs on the queue thread
//! * [`plane`]: what runs on the control thread and ends the array
//! * `health`: recording that the array has become worse
//! * `meter`: counts and latencies

mod health;
mod meter;
pub mod plane;
pub mod server;

use crate::control::status::Facts;
use crate::journal::assemble::Set;
use crate::ublk::Serving;
use std::os::fd::OwnedFd;

/// An array that is being served.
#[derive(Debug)]
pub struct Running {
    /// The device and its queue thread.
    pub serving: Serving<server::ArrayServer>,
    /// The parts, for what is written when it ends.
    pub set: Set,
    /// The parts' descriptors, for what is written meanwhile.
    pub files: Vec<OwnedFd>,
    /// What does not change while it runs.
    pub facts: Facts,
}
