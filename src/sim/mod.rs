//! The simulator.
pub mod cut;
pub mod faults;
pub mod media;
pub mod oracle;
pub mod random;
pub mod rules;
pub mod stamp;
