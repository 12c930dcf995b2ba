//! The engine: plain state, events in, commands out.
pub mod extent_map;
