//! The engine.

pub mod request;
