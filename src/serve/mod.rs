//! A served array: the engine on its queue thread, and the control plane beside it.
//!
//! * [`server`]: what runs on the queue thread
//! * [`plane`]: what runs on the control thread and ends the array
//! * `meter`: counts and latencies

mod meter;
pub mod plane;
pub mod server;
