//! A disk with a volatile cache, for power cuts in the lab.
fn main() {}
