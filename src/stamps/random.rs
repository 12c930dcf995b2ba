//! Repeatable random numbers: the splitmix64 generator.

use crate::units::{to_u64, to_usize};

/// A generator that gives the same numbers for the same seed.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`. Slightly uneven for huge limits, which does not matter here.
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "there is something to choose from");
        self.next() % limit
    }

    /// One of several.
    pub fn index(&mut self, count: usize) -> usize {
        to_usize(self.below(to_u64(count)))
    }

    /// True in `percent` of 100 cases.
    pub fn happens(&mut self, percent: u8) -> bool {
        self.below(100) < u64::from(percent)
    }
}
