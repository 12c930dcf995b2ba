//! The ring.

/// Page-aligned, zeroed, locked memory of a server, registered with the ring.
#[derive(Debug)]
pub struct Arena;

impl Arena {
    /// Maps `length` bytes, a multiple of 4096.
    pub fn new(length: usize) -> std::io::Result<Arena> {
        unimplemented!("{length}")
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        unimplemented!()
    }

    /// All of it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        unimplemented!()
    }
}
