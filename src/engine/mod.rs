//! The engine.

pub mod port;
pub mod request;
pub mod settings;
