//! The engine.

pub mod extent_map;
mod io;
pub mod port;
pub mod request;
pub mod settings;
