//! The control plane: how commands reach a running array, and what it answers.
//!
//! ```text
//!   ujournal sync vol0                       the array's daemon
//!   client ---- /run/ujournal/vol0.sock ---- server (tokio, current_thread)
//!                                              |  Port: status, sync, stop, ended
//!                                              v
//!                                            whoever implements it: bounded channel + a wake-up
//!                                              v
//!                                            the I/O thread, between two turns of its ring
//! ```
//!
//! Nothing here touches data, and nothing here is trusted with it: a request is one bounded line,
//! any bytes get an answer, and the I/O thread never waits for this side.

pub mod client;
pub mod in_use;
pub mod port;
pub mod progress;
pub mod protocol;
pub mod render;
pub mod run_dir;
pub mod server;
pub mod status;
#[cfg(test)]
mod tests;
