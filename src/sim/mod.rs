//! The simulator.
pub mod cut;
pub mod faults;
pub mod media;
pub mod random;
pub mod stamp;
